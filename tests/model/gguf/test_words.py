"""The tokenizer of a GGUF file cuts texts as the one it was made of."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from potluck.errors import BrokenModelError, InvalidConfigError
from potluck.model.defaults import GenerationDefaults, load_defaults
from potluck.model.gguf.tokenizer import build_tokenizer
from potluck.model.gguf.words import read_gguf_words
from potluck.model.text.chat import ChatFormat

TEXTS = [
    "Hello, world! It's 12345 o'clock; they'll SAY'S so.",
    "  two  spaces\tand a tab\n\n\nthree lines \r\n windows\n ",
    "def f(x):\n    return x**2  # größer, naïve café",
    "中文没有空格。日本語も。한국어 띄어쓰기 ١٢٣ ½ Ⅷ",
    "😀👍🏽 e\u0301 \u00a0\u2003 CamelCaseWords HTMLParser iPhone",
    "<|im_start|>user\nHi<|im_end|>\n",
    "",
    " ",
    "a",
]
CORPUS = [*TEXTS * 3, Path(__file__).read_text(encoding="utf-8")]
SPECIAL = ["<|im_start|>", "<|im_end|>"]
ADDED = ["<think>"]

GPT_2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(expression: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(expression), behavior="isolated")
    return pre_tokenizers.Sequence([cut, ALONE])


# As the models' own tokenizer.json have them, or transformers for GGUF files.
CUTS: dict[str, pre_tokenizers.PreTokenizer] = {
    "default": GPT_2,
    "gpt-2": GPT_2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT_2]),
    **{
        name: split(GGUF_PRE_TOKENIZER_SPLITS[name])
        for name in ("llama-bpe", "qwen2", "tekken", "gpt-4o", "dbrx", "smaug-bpe", "falcon3")
    },
}


def trained(cut: pre_tokenizers.PreTokenizer, *, whole: bool = False) -> Tokenizer:
    """A byte-level tokenizer of the corpus."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    return tokenizer


def fields_of(tokenizer: Tokenizer, name: str, **more: object) -> dict[str, Any]:
    """What llama.cpp's converter writes of it."""
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    model = json.loads(tokenizer.to_str())["model"]
    kinds = {**dict.fromkeys(SPECIAL, 3), **dict.fromkeys(ADDED, 4)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
    } | {f"tokenizer.{key}": value for key, value in more.items()}


def tokenizer_of(fields: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(fields))


def chat_of(fields: dict[str, Any], folder: Path) -> ChatFormat:
    for name, data in read_gguf_words(fields).items():
        (folder / name).write_bytes(data)
    return ChatFormat.load(folder)


@pytest.mark.parametrize("name", CUTS)
def test_texts_are_cut_as_by_the_models_own_tokenizer(name: str) -> None:
    whole = name in ("llama-bpe", "tekken", "falcon3")
    original = trained(CUTS[name], whole=whole)
    if name == "qwen2":
        original.normalizer = normalizers.NFC()

    tokenizer = tokenizer_of(fields_of(original, name, **{"ggml.add_bos_token": False}))

    for text in TEXTS:
        assert tokenizer.encode(text).ids == original.encode(text).ids, text
    added = "<|im_start|>a <think>b</think>"
    assert tokenizer.encode(added).tokens == original.encode(added).tokens


def test_cuts_are_those_that_transformers_knows() -> None:
    from potluck.model.gguf import words as gguf_words

    for name, expression in GGUF_PRE_TOKENIZER_SPLITS.items():
        if gguf_words.CUTS.get(name):
            ours = pre_tokenizers.Split(Regex(gguf_words.CUTS[name]), behavior="isolated")
            theirs = pre_tokenizers.Split(Regex(expression), behavior="isolated")
            for text in TEXTS:
                assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), name


def test_text_comes_back_and_control_tokens_are_not_shown(tmp_path: Path) -> None:
    original = trained(CUTS["qwen2"])
    chat = chat_of(fields_of(original, "qwen2"), tmp_path)

    for text in TEXTS[:5]:
        assert chat.decode(chat.encode(text)) == text.replace("e\u0301", "é")  # NFC, as Qwen's own
    assert chat.decode(chat.encode("<|im_start|>a<think>")) == "a<think>"


def test_a_text_begins_as_the_file_says(tmp_path: Path) -> None:
    original = trained(CUTS["qwen2"])
    ids = {"ggml.bos_token_id": original.token_to_id("<|im_start|>")}
    ids["ggml.eos_token_id"] = original.token_to_id("<|im_end|>")
    plain = original.encode("a").ids

    def encode(name: str, **more: object) -> list[int]:
        return tokenizer_of(fields_of(original, name, **ids, **more)).encode("a").ids

    assert encode("qwen2") == plain
    assert encode("qwen2", **{"ggml.add_bos_token": True}) == [ids["ggml.bos_token_id"], *plain]
    assert encode("llama-bpe") == [ids["ggml.bos_token_id"], *plain]
    assert encode("llama-bpe", **{"ggml.add_bos_token": False}) == plain
    assert encode("qwen2", **{"ggml.add_eos_token": True}) == [*plain, ids["ggml.eos_token_id"]]


def test_template_and_special_tokens_are_where_they_are_looked_for(tmp_path: Path) -> None:
    original = trained(CUTS["qwen2"])
    eos = original.token_to_id("<|im_end|>")
    template = "{{ eos_token }}{{ messages[0].content }}"
    more = {"ggml.eos_token_id": eos, "chat_template": template}

    chat = chat_of(fields_of(original, "qwen2", **more), tmp_path)

    assert chat.render_chat([{"role": "user", "content": "x"}]) == "<|im_end|>x"
    assert chat.stop_ids == {eos}


def test_a_template_for_tools_is_found_too(tmp_path: Path) -> None:
    tools = "{% for tool in tools %}offers {{ tool.function.name }}{% endfor %}"
    more = {"chat_template": "plain", "chat_template.tool_use": tools}
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    asked = [{"role": "user", "content": "x"}]

    chat = chat_of(fields_of(trained(CUTS["qwen2"]), "qwen2", **more), tmp_path)

    assert chat.render_chat(asked) == "plain"
    assert chat.render_chat(asked, tools=[tool]) == "offers now"


# --- the vocabulary of SentencePiece

WORDS = ("▁the", "▁then", "▁a", "th", "he", "en", "▁t", "▁th", "is", "▁is", "ing", "in", "ng", "nn")
SINGLE = "▁abcdefghinorstT.,\n"
USER_DEFINED = ("▁▁", "▁▁▁", "<b>", "\n\n")


def sentence_piece_fields(*, prefix: bool = True, **more: object) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256
    scores = [0.0] * len(tokens)
    for index, token in enumerate((*WORDS, *SINGLE)):
        tokens.append(token)
        kinds.append(1)
        scores.append(-float(index))
    tokens += USER_DEFINED
    kinds += [4] * len(USER_DEFINED)
    scores += [-1000.0] * len(USER_DEFINED)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.{key}": value for key, value in more.items()}


def sentence_piece(fields: dict[str, Any], text: str, *, prefix: bool) -> list[str]:
    """As llama.cpp does it: join the neighbours whose token has the highest score, the first of equals."""
    scores = {
        token: score
        for token, score, kind in zip(
            fields["tokenizer.ggml.tokens"],
            fields["tokenizer.ggml.scores"],
            fields["tokenizer.ggml.token_type"],
            strict=True,
        )
        if kind == 1
    }
    pieces = list((" " if prefix and text else "") + text)
    pieces = [piece.replace(" ", "▁") for piece in pieces]
    while True:
        joined = [(scores.get(a + b), -i) for i, (a, b) in enumerate(pairwise(pieces))]
        best = max(((s, i) for s, i in joined if s is not None), default=None)
        if best is None:
            break
        at = -best[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [
        token
        for piece in pieces
        for token in (
            [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
        )
    ]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(
    "text",
    ["then the thing is in", "the", " a  a", "inning then", "größe 😀", "aaa, the.\nthe", "T", ""],
)
def test_pieces_are_joined_by_their_scores(text: str, prefix: bool) -> None:
    fields = sentence_piece_fields(prefix=prefix, **{"ggml.add_bos_token": False})
    if "  " in text:  # which is a token of its own there, and cuts the text in two
        fields["tokenizer.ggml.token_type"] = [
            5 if kind == 4 else kind for kind in fields["tokenizer.ggml.token_type"]
        ]

    tokenizer = tokenizer_of(fields)

    assert tokenizer.encode(text).tokens == sentence_piece(fields, text, prefix=prefix)


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_become_the_text_again(tmp_path: Path, prefix: bool) -> None:
    chat = chat_of(sentence_piece_fields(prefix=prefix), tmp_path)

    # Behind a token that was added, such a tokenizer begins anew, with a space of its own.
    added = () if prefix else ("a  a   a", "a<b>a", "a\n\na")
    for text in ("then the thing", " a", "größe 😀\n", *added):
        assert chat.decode(chat.encode(text)) == text
    assert chat.encode("a")[0] == 1  # a text begins so, unless the file says otherwise
    assert chat.stop_ids == {2}


def test_what_was_added_is_found_as_it_is() -> None:
    fields = sentence_piece_fields(prefix=False, **{"ggml.add_bos_token": False})

    tokens = tokenizer_of(fields).encode("a  a<b>\n\n</s>a").tokens

    assert tokens == ["a", "  ", "a", "<b>", "\n\n", "</s>", "a"]


def test_tokens_of_phi_3_swallow_the_spaces_behind_them() -> None:
    fields = sentence_piece_fields(prefix=False, **{"ggml.add_bos_token": False})
    text = "<b>\n a<s> a"

    def cut(fields: dict[str, Any]) -> list[str | None]:
        tokenizer = tokenizer_of(fields)
        return [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode(text).ids]

    assert cut(fields) == ["<b>", "\n", "▁a", "<s>", "▁a"]
    assert cut(fields | {"general.architecture": "phi3"}) == ["<b>", "a", "<s>", "▁a"]


def test_an_end_by_its_name_is_no_text_even_if_the_file_says_so(tmp_path: Path) -> None:
    fields = sentence_piece_fields(prefix=False)
    fields["tokenizer.ggml.tokens"].append("<end_of_turn>")
    fields["tokenizer.ggml.token_type"].append(1)
    fields["tokenizer.ggml.scores"].append(-50.0)

    chat = chat_of(fields, tmp_path)

    ids = chat.encode("a<end_of_turn>")
    assert ids[-1] == len(fields["tokenizer.ggml.tokens"]) - 1
    assert chat.decode(ids) == "a"


def test_how_tokens_are_chosen_is_where_it_is_looked_for(tmp_path: Path) -> None:
    sampling = {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.05, "mirostat": 1}
    fields = sentence_piece_fields() | {f"general.sampling.{k}": v for k, v in sampling.items()}

    chat_of(fields, tmp_path)

    assert load_defaults(tmp_path) == GenerationDefaults(
        temperature=0.6, top_k=20, repetition_penalty=1.05
    )


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "t5"}, InvalidConfigError, "tokenizer.ggml.model is t5"),
        ({"model": None}, InvalidConfigError, "tokenizer.ggml.model is None"),
        ({"model": "gpt2", "pre": "grok"}, InvalidConfigError, "tokenizer.ggml.pre is grok"),
        ({"tokens": []}, BrokenModelError, "no tokens"),
        ({"tokens": 7}, BrokenModelError, "no tokens"),
        ({"scores": [1.0]}, BrokenModelError, "one score for each"),
    ],
)
def test_what_cannot_be_read_is_named(
    changes: dict[str, object], error: type[Exception], words: str
) -> None:
    fields = sentence_piece_fields() | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}

    with pytest.raises(error, match=words):
        build_tokenizer(fields) if read_gguf_words(fields) else None


def test_a_token_longer_than_any_is_not_cut_everywhere() -> None:
    fields = sentence_piece_fields()
    half = "a" * 256
    for token in (half, 2 * half, 2 * half + "a"):
        fields["tokenizer.ggml.tokens"].append(token)
        fields["tokenizer.ggml.token_type"].append(1)
        fields["tokenizer.ggml.scores"].append(-50.0)

    model = json.loads(build_tokenizer(fields))["model"]

    merged = {left + right for left, right in model["merges"]}
    assert 2 * half in merged
    assert 2 * half + "a" not in merged
    assert 2 * half + "a" in model["vocab"]


def test_merges_of_what_is_no_token_are_left_out() -> None:
    fields = fields_of(trained(CUTS["qwen2"]), "qwen2")
    fields["tokenizer.ggml.tokens"].append("中文")
    fields["tokenizer.ggml.token_type"].append(1)
    fields["tokenizer.ggml.merges"] += ["no such", "中 文", "", " ", "x"]

    assert tokenizer_of(fields).encode("a").tokens == ["a"]
