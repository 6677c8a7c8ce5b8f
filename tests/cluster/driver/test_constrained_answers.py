"""Answers that follow a grammar, whatever happens to the pipeline below them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from byte_writer import Follower, Here, chat_format, events_of, ids, text_of
from chain_answers import attached
from fake_cluster import run

from potluck.api.events import Finished, Piece
from potluck.api.prompts import Constraint, GenerationRequest, SamplingOptions, TextPrompt
from potluck.cluster.driver.completion import complete
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.loaded_model import LoadedModel
from potluck.errors import GrammarError, PromptError
from potluck.model.defaults import GenerationDefaults

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 999}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
JSON = Constraint(kind="json_schema", text=json.dumps(SCHEMA))
LAZY = Constraint(kind="regex", text="[0-9]{3}", opens_with="(")


def request(constraint: Constraint, prompt: str = "Hi", **changes: Any) -> GenerationRequest:
    return GenerationRequest(prompt=TextPrompt(prompt), constraint=constraint, **changes)


def loaded(folder: Path, generator: Generator) -> LoadedModel:
    return LoadedModel(
        text=Here(chat_format(folder)),
        defaults=GenerationDefaults(),
        generator=generator,
        stage_names=("Desk",),
        vocab_size=258,
    )


def answers(folder: Path, asked: Sequence[GenerationRequest]) -> list[list[Any]]:
    """The events of requests, one after the other, on a pipeline that is never lost."""
    found: list[list[Any]] = []

    async def main() -> None:
        generator = Generator()
        async with attached(generator, Follower(), context=128, room=128):
            model = loaded(folder, generator)
            found.extend([await events_of(model, one) for one in asked])

    run(main())
    return found


def test_an_answer_follows_its_schema_and_ends_when_it_is_complete(tmp_path: Path) -> None:
    for prompt, events in zip(
        "abcd", answers(tmp_path, [request(JSON, p) for p in "abcd"]), strict=True
    ):
        value = json.loads(text_of(events))
        assert value["b"] in ("x", "y"), prompt
        assert isinstance(value["a"], int)
        assert events[-1].reason == "stop"


def test_an_answer_that_is_recovered_is_the_same(tmp_path: Path) -> None:
    (whole,) = answers(tmp_path, [request(JSON)])

    async def main() -> None:
        chains = [Follower(lost_at=position) for position in (7, 12)] + [Follower()]
        waiting: list[Any] = []

        async def recover() -> None:
            next_one = attached(generator, chains.pop(0), context=128, room=128)
            waiting.append(next_one)
            await next_one.__aenter__()

        generator = Generator(recover=recover)
        await recover()
        events = await events_of(loaded(tmp_path, generator), request(JSON))
        assert text_of(events) == text_of(whole)
        assert not chains
        for one in waiting:
            await one.__aexit__(None, None, None)

    run(main())


def test_an_answer_goes_on_after_any_known_tokens(tmp_path: Path) -> None:
    (whole,) = answers(tmp_path, [request(JSON)])
    tokens = tuple(i for event in whole if isinstance(event, Piece) for i in event.token_ids)

    asked = [request(JSON, known=tokens[:end]) for end in range(1, len(tokens) + 1)]

    for end, events in enumerate(answers(tmp_path, asked), start=1):
        rest = tuple(i for event in events if isinstance(event, Piece) for i in event.token_ids)
        assert rest == tokens[end:]
        assert events[-1].reason == "stop"
        assert events[-1].completion_tokens == len(tokens)


def test_known_tokens_that_do_not_follow_the_grammar_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="known tokens"):
        answers(tmp_path, [request(JSON, known=tuple(ids("[1")))])


def test_a_lazy_grammar_binds_only_what_follows_its_marker(tmp_path: Path) -> None:
    known = tuple(ids("so ("))

    (events,) = answers(tmp_path, [request(LAZY, known=known, max_tokens=12, ignore_eos=True)])

    pieces = [i for event in events if isinstance(event, Piece) for i in event.token_ids]
    assert len(pieces) == 8
    assert set(pieces[:3]) <= set(ids("0123456789"))
    assert not set(pieces[3:]) <= set(ids("0123456789"))


def test_what_is_no_grammar_is_refused_before_the_answer_begins(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match="response_format"):
        answers(tmp_path, [request(Constraint(kind="regex", text="("))])


def test_an_answer_at_its_limit_says_so(tmp_path: Path) -> None:
    (events,) = answers(tmp_path, [request(JSON, max_tokens=3)])

    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "length"
    assert text_of(events).startswith("{")


def test_penalties_and_biases_go_with_each_step(tmp_path: Path) -> None:
    async def main() -> None:
        generator, chain = Generator(), Follower()
        async with attached(generator, chain):
            sampling = SamplingOptions(frequency_penalty=0.5, logit_bias=((7, -3.0),))
            asked = GenerationRequest(prompt=TextPrompt("Hi"), sampling=sampling, max_tokens=3)
            await events_of(loaded(tmp_path, generator), asked)
        sent = [message.sampling for message in chain.forwards]
        assert [one.answer_start for one in sent if one] == [2, 2, 2]
        assert [one.frequency_penalty for one in sent if one] == [0.5, 0.5, 0.5]
        assert [one.logit_bias[0].bias for one in sent if one] == [-3.0, -3.0, -3.0]
        assert sent[0] is not None
        assert sent[0].history == tuple(ids("Hi"))

    run(main())


def test_a_bias_of_a_token_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    sampling = SamplingOptions(logit_bias=((258, 1.0),))
    asked = GenerationRequest(prompt=TextPrompt("Hi"), sampling=sampling)

    with pytest.raises(PromptError, match="258"):
        answers(tmp_path, [asked])


def test_a_client_that_goes_away_closes_the_grammar(tmp_path: Path) -> None:
    async def main() -> None:
        generator = Generator()
        async with attached(generator, Follower(), context=128, room=128):
            model = loaded(tmp_path, generator)
            assert isinstance(model.text, Here)
            events = complete(model, request(JSON))
            async for event in events:
                if isinstance(event, Piece):
                    break
            (grammar,) = model.text.opened
            assert not grammar.is_closed
            await events.aclose()
            assert grammar.is_closed

    run(main())
