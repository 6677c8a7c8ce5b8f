"""The guide: what it was taught is true to form, and it answers what it was never shown."""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from scripts import load
from tokenizers import Tokenizer

ASSETS = Path(__file__).parents[2] / "assets"
MODEL = ASSETS / "guide"
TEXT = ASSETS / "train_guide"
MB = 1_000_000

grammar = load("grammar", TEXT)
corpus = load("corpus", TEXT)
network = load("network", TEXT)
evaluate = load("evaluate", TEXT)
TAUGHT = corpus.load_corpus()


def questions(name: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(q.turns, q.intents) for q in evaluate.read_questions(TEXT / f"{name}.txt")]


# --- the text -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expressions() -> dict[str, re.Pattern[str]]:
    """What every pattern of the training text can produce, by pattern."""
    patterns = [p for intent in TAUGHT.intents.values() for p in intent.patterns]
    patterns += [p for known in TAUGHT.follow_ups.values() for _, some in known for p in some]
    return {p: re.compile(grammar.expression(p, TAUGHT.macros) + " ?") for p in patterns}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["held_out", "develop"])
def test_no_question_that_is_judged_can_be_drawn_from_the_training_text(
    name: str, expressions: dict[str, re.Pattern[str]]
) -> None:
    judged = {grammar.normal(turns[-1]) for turns, _ in questions(name)}

    taught = [q for q in judged if any(e.fullmatch(q) for e in expressions.values())]

    assert taught == []


@pytest.mark.slow
def test_what_the_grammar_draws_is_what_its_expression_matches(
    expressions: dict[str, re.Pattern[str]],
) -> None:
    rng = random.Random(1)

    for pattern, expression in expressions.items():
        if "<noise>" not in pattern:
            assert expression.fullmatch(grammar.normal(grammar.draw(pattern, TAUGHT.macros, rng)))


def test_choices_nest_and_may_be_empty() -> None:
    drawn = {
        grammar.draw("a {b{c|}|} <d>", {"d": ["e", "f {g|h}"]}, random.Random(seed))
        for seed in range(200)
    }

    assert drawn == {
        f"{start} {end}" for start in ("a", "a b", "a bc") for end in ("e", "f g", "f h")
    }


def test_an_open_brace_is_an_error() -> None:
    with pytest.raises(ValueError, match="not closed"):
        grammar.draw("how {do i|to", {}, random.Random(1))


def test_the_held_out_list_is_large_and_names_known_intents() -> None:
    held_out = questions("held_out")

    assert len(held_out) >= 150
    assert sum(intents == ("unrelated",) for _, intents in held_out) >= 40
    assert {name for _, intents in held_out for name in intents} <= set(TAUGHT.intents)


def test_every_intent_is_held_out_somewhere() -> None:
    asked = {name for _, intents in questions("held_out") for name in intents}

    assert set(TAUGHT.intents) - asked == set()


@pytest.mark.parametrize("intent", TAUGHT.intents)
def test_answers_are_short_and_their_own(intent: str) -> None:
    answer = TAUGHT.answers[intent]

    assert 10 <= len(answer) <= 240
    assert answer[-1] in ".!?)"
    assert list(TAUGHT.answers.values()).count(answer) == 1


def test_a_seed_fixes_the_conversations() -> None:
    def drawn(seed: int) -> list[tuple[str, str]]:
        return corpus.draw_conversation(TAUGHT, random.Random(seed), 20)

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


# --- the model's files ----------------------------------------------------------------------------


def read(name: str) -> Mapping[str, object]:
    return json.loads((MODEL / name).read_text(encoding="utf-8"))


def test_the_model_is_small_and_can_be_cut() -> None:
    config = read("config.json")
    with safe_open(MODEL / "model.safetensors", "pt") as file:
        names = set(file.keys())
        tensors = [file.get_tensor(name) for name in names]

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert isinstance(config["num_hidden_layers"], int)
    assert config["num_hidden_layers"] >= 6
    assert config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in names
    assert {tensor.dtype for tensor in tensors} == {torch.float16}
    assert 2_000_000 <= sum(tensor.numel() for tensor in tensors) <= 4_000_000
    assert (MODEL / "model.safetensors").stat().st_size <= 8 * MB


@pytest.mark.parametrize("text", ["How do I add a computer?", "größer, 東京, 🙂\n\t\\0", "  a  b "])
def test_the_tokenizer_can_spell_anything(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_answers_are_cheap_in_tokens() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    lengths = [len(tokenizer.encode(answer).ids) for answer in TAUGHT.answers.values()]

    assert max(lengths) < evaluate.LONGEST


def test_the_end_of_an_answer_is_a_token_of_its_own() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    end = read("config.json")["eos_token_id"]

    assert tokenizer.encode("ok<|end|>").ids[-1] == end
    assert read("generation_config.json")["eos_token_id"] == end
    assert read("tokenizer_config.json")["eos_token"] == "<|end|>"


# --- what it says ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guide() -> Any:
    return evaluate.Guide(MODEL)


@pytest.mark.slow
def test_the_chat_template_marks_each_turn_and_drops_system_messages(guide: Any) -> None:
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": " Hi "},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]

    text = guide.tokenizer.decode(guide.prompt(messages)[0])

    assert text == "<|user|>Hi<|end|><|guide|>Hello!<|end|><|user|>Bye<|end|><|guide|>"


@pytest.mark.slow
def test_the_network_that_is_trained_is_the_one_that_transformers_runs(guide: Any) -> None:
    trained = network.Network(network.Shape(), 0.1).eval()
    trained.load_state_dict(
        {k: v for k, v in guide.model.state_dict().items() if k != "lm_head.weight"}
    )
    ids = torch.randint(0, 2048, (2, 160), generator=torch.Generator().manual_seed(1))

    with torch.inference_mode():
        ours, theirs = trained(ids), guide.model(ids).logits
        short = trained(ids[:, :40])

    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(short, theirs[:, :40], rtol=1e-4, atol=1e-3)


@pytest.fixture(scope="module")
def judged(guide: Any) -> Any:
    return evaluate.judge(
        guide, evaluate.read_questions(TEXT / "held_out.txt")[::3], TAUGHT.answers
    )


@pytest.mark.slow
def test_it_answers_questions_that_it_was_never_shown(judged: Any) -> None:
    wrong = [(j.question.turns, j.answer) for j in judged if not j.right]

    assert len(wrong) <= 0.15 * len(judged), wrong


@pytest.mark.slow
def test_its_answers_are_those_of_the_text_word_by_word(judged: Any) -> None:
    assert sum(j.verbatim for j in judged) >= 0.95 * len(judged)


@pytest.mark.slow
def test_a_long_conversation_does_not_confuse_it(guide: Any) -> None:
    asked = ["What is Potluck?", "How do I add a computer?", "Is it free?", "What is a worker?"] * 4

    answer = guide.answer([*asked, "What is a layer?"])

    assert answer == TAUGHT.answers["layer"]
