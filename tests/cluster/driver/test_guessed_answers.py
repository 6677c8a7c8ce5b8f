"""Answers whose tokens are guessed are those without, in fewer steps, whatever happens on the way."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
from chain_answers import attached, on_a_chain
from fake_chain import FakeChain
from fake_cluster import run, until
from two_links import CHAT, on_two_links, result, start

from potluck.cluster.driver.drafts import Drafts
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import EngineError
from potluck.ids import SessionId
from potluck.model.mixing.rope import Stretches
from potluck.wire.activation_messages import ChosenToken, Forward, Result, Sampling
from potluck.wire.messages import Message

PROMPT = [*range(10, 50), 1, 2]
# It is said again, with a change now and then, as in a file that is edited.
TEXT = [*PROMPT, *range(10, 22), 7, *range(24, 50), 8, 9, *range(10, 30), 3, *range(30, 50), 5, 6]
ANSWER = TEXT[len(PROMPT) :]
ROOM = 200


def edited(tokens: Sequence[int]) -> int:
    return TEXT[len(tokens)] if len(tokens) < len(TEXT) else 99


def stream_of(
    generator: Generator,
    prompt: Sequence[int] = PROMPT,
    *,
    limit: int = len(ANSWER),
    **asked: object,
) -> AsyncGenerator[Token, None]:
    return generator.tokens(prompt, Sampling(), limit=limit, usage=Usage(), guesses=True, **asked)  # type: ignore[arg-type]


async def ids_of(stream: AsyncGenerator[Token, None]) -> list[int]:
    return [token.token_id async for token in stream]


def on_an_editor(
    scenario: Callable[[Generator, FakeChain], Awaitable[object]], *, takes_drafts: bool = True
) -> FakeChain:
    """Run a scenario on a chain that says what is edited. Its steps take no time that could be measured."""

    async def begun(generator: Generator, chain: FakeChain) -> None:
        chain.next_token = edited
        await scenario(generator, chain)

    return on_a_chain(begun, takes_drafts=takes_drafts, clock=lambda: 0.0, context=ROOM, room=ROOM)


def attach(
    generator: Generator,
    chain: FakeChain,
    *,
    epoch: int = 1,
    takes_drafts: bool = True,
    room: int = ROOM,
    stretches: Stretches = Stretches(),  # noqa: B008, it is frozen
) -> AbstractAsyncContextManager[Pipeline]:
    """Attach a chain that says what is edited, as `on_an_editor` does."""
    chain.next_token = edited
    return attached(
        generator,
        chain,
        epoch=epoch,
        context=room,
        room=room,
        is_exact_in_chunks=True,
        takes_drafts=takes_drafts,
        stretches=stretches,
        clock=lambda: 0.0,
    )


def drafted(chain: FakeChain) -> list[Forward]:
    return [forward for forward in chain.forwards if forward.drafts]


def test_an_answer_is_the_same_in_fewer_steps() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        tokens = [token async for token in stream_of(generator)]
        assert [token.token_id for token in tokens] == ANSWER
        assert len(chain.forwards) + sum(token.is_guessed for token in tokens) == len(ANSWER)
        assert len(chain.forwards) < len(ANSWER) / 2
        cached = next(iter(chain.caches.values()))
        assert cached == TEXT[: len(cached)]

    on_an_editor(scenario)


def test_nothing_is_guessed_where_a_stage_does_not_take_it() -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await ids_of(stream_of(generator)) == ANSWER

    assert not drafted(on_an_editor(scenario, takes_drafts=False))


@pytest.mark.parametrize(
    "sampling", [Sampling(embeds=True), None], ids=["embeddings", "not wanted"]
)
def test_nothing_is_guessed_where_each_token_is_to_have_its_own_step(
    sampling: Sampling | None,
) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        stream = generator.tokens(
            PROMPT, sampling or Sampling(), limit=60, usage=Usage(), guesses=sampling is not None
        )
        assert await ids_of(stream) == ANSWER[:60]

    assert not drafted(on_an_editor(scenario))


def repeating() -> Drafts:
    """Of a conversation with the same token at each of the 18 first places."""
    drafts = Drafts()
    drafts.begin([3] * 9)
    drafts.go_on(9, [3] * 9)
    return drafts


def said(**changes: object) -> Result:
    return msgspec.structs.replace(result(), token_id=3, position=18, **changes)


@pytest.mark.parametrize("has_others", [False, True])
def test_nothing_is_guessed_beside_other_answers(has_others: bool) -> None:
    """Their tokens are computed together, and each costs what a guess does."""

    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline)
        if has_others:
            other = SessionId("other")
            pipeline.start_step(other, step=1, position=0, tokens=[1], sampling=Sampling())
        two = pipeline.follow(CHAT, step=2, sampling=Sampling(), guessing=repeating(), end=90)
        last.say(said())
        await one.future
        assert first.forwards[-1].drafts == two.drafts
        assert bool(two.drafts) != has_others
        assert two.token == 3

    on_two_links(scenario)


@pytest.mark.parametrize("limit", range(1, len(ANSWER), 7))
def test_no_more_is_computed_than_the_answer_may_have(limit: int) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        assert await ids_of(stream_of(generator, limit=limit)) == ANSWER[:limit]
        (cached,) = chain.caches.values()
        assert len(cached) < len(PROMPT) + limit

    on_an_editor(scenario)


def test_an_answer_ends_where_the_context_does() -> None:
    async def main() -> None:
        generator, chain = Generator(), FakeChain()
        room = len(TEXT) - 3
        async with attach(generator, chain, room=room):
            assert await ids_of(stream_of(generator, limit=400)) == ANSWER[:-3]
            assert drafted(chain)
            assert all(f.position + 1 + len(f.drafts) <= room for f in chain.forwards if f.drafts)

    run(main())


@pytest.mark.parametrize("limit", range(len(PROMPT) + 10, len(PROMPT) + 22))
def test_an_answer_goes_on_beyond_a_limit_of_its_rotary_frequencies(limit: int) -> None:
    """All of it is computed again there, and no guess goes beyond it."""

    async def main() -> None:
        generator, chain = Generator(), FakeChain()
        async with attach(generator, chain, stretches=Stretches(limits=(limit,))):
            assert await ids_of(stream_of(generator)) == ANSWER
        assert any(forward.drafts for forward in chain.forwards if forward.position < limit)
        begun = [f for f in chain.forwards if f.position < limit]
        assert all(f.position + 1 + len(f.drafts) <= limit for f in begun if f.drafts)

    run(main())


@pytest.mark.parametrize("stop", [20, 26, 45])
def test_a_token_that_ends_the_answer_is_its_last(stop: int) -> None:
    async def scenario(generator: Generator, chain: FakeChain) -> None:
        end = ANSWER.index(stop) + 1
        assert await ids_of(stream_of(generator, stops={stop})) == ANSWER[:end]
        assert not any(stop in forward.drafts for forward in chain.forwards)

    on_an_editor(scenario)


@pytest.mark.parametrize("count", [*range(1, 20), 33, 50, 51])
@pytest.mark.parametrize("is_late", [False, True])
def test_who_stops_reading_in_the_middle_of_guesses_goes_on_from_there(
    count: int, is_late: bool
) -> None:
    """By a stop string, or because the program has gone. What was guessed wrong must not be taken for a part of it."""

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        stream = stream_of(generator)
        assert [(await anext(stream)).token_id for _ in range(count)] == ANSWER[:count]
        for _ in range(10 * is_late):
            await asyncio.sleep(0)  # what was asked for arrives, and nobody looks at it
        await stream.aclose()
        (conversation,) = generator._conversations
        (cached,) = chain.caches.values()
        assert conversation.tokens[: conversation.cached] == cached
        assert conversation.cached >= len(PROMPT) + count

        forwards, chain.report = len(chain.forwards), lambda lost: pytest.fail(lost.message)
        prompt = [*TEXT[: len(PROMPT) + count], 60, 61]
        expected = TEXT[len(prompt) :][:30]
        assert await ids_of(stream_of(generator, prompt, limit=30)) == expected
        assert len(chain.opened) == 1
        assert chain.forwards[forwards].position == len(PROMPT) + count

    on_an_editor(scenario)


class LosingChain(FakeChain):
    """It loses caches now and then, when guesses are under way."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self.losses = 0

    def _forward(self, message: Forward, payload: bytes) -> None:
        if message.drafts and self._rng.random() < 0.3:
            cache = self.caches[message.session]
            del cache[self._rng.randrange(len(cache)) :]
            self.losses += 1
        super()._forward(message, payload)


@pytest.mark.parametrize("seed", range(6))
def test_caches_that_are_lost_with_guesses_under_way_change_nothing(seed: int) -> None:
    async def main() -> None:
        generator, chain = Generator(), LosingChain(seed)
        async with attach(generator, chain):
            assert await ids_of(stream_of(generator)) == ANSWER
        assert chain.losses

    run(main())


@pytest.mark.parametrize("takes_drafts", [False, True])
def test_another_pipeline_goes_on_with_guesses_under_way(takes_drafts: bool) -> None:
    async def main() -> None:
        generator, old, new = Generator(), FakeChain(), FakeChain()
        async with attach(generator, old) as pipeline:
            said = len(ANSWER) // 2

            def silent_with_guesses(message: Message, payload: bytes = b"") -> None:
                old.is_silent = old.is_silent or (
                    isinstance(message, Forward)
                    and bool(message.drafts)
                    and message.position > len(PROMPT) + said
                )
                FakeChain.send_nowait(old, message, payload)

            pipeline._first = pipeline._last = _Link(old, silent_with_guesses)  # type: ignore[assignment]
            answering = asyncio.create_task(ids_of(stream_of(generator)))
            await until(lambda: old.is_silent)
            async with attach(generator, new, epoch=2, takes_drafts=takes_drafts):
                assert await answering == ANSWER
        assert bool(drafted(new)) == takes_drafts

    run(main())


class _Link:
    """A link that says something else of what is sent on it."""

    def __init__(self, chain: FakeChain, send: Callable[[Message, bytes], None]) -> None:
        self._chain, self.send_nowait = chain, send

    def __getattr__(self, name: str) -> object:
        return getattr(self._chain, name)


@pytest.mark.parametrize(
    ("tokens", "end"),
    [((4,), 20), ((1 << 30,), 20), ((3,) * 9, 28), ((), 20)],
    ids=["another token", "no token of the vocabulary", "more than guessed", "another end"],
)
def test_a_result_that_was_not_asked_for_breaks_the_pipeline(
    tokens: Sequence[int], end: int
) -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline)
        two = pipeline.follow(CHAT, step=2, sampling=Sampling(), guessing=repeating(), end=90)
        last.say(said())
        await one.future
        assert two.drafts == (3, 3, 3)

        accepted = tuple(ChosenToken(token_id=token) for token in tokens)
        last.say(msgspec.structs.replace(said(accepted=accepted), step=2, position=end))
        with pytest.raises(EngineError, match="not asked for"):
            await two.future
        assert pipeline.broken is not None

    on_two_links(scenario)


def test_tokens_where_nothing_was_guessed_break_the_pipeline() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline)
        last.say(msgspec.structs.replace(result(), accepted=(ChosenToken(token_id=3),)))
        with pytest.raises(EngineError, match="not asked for"):
            await one.future

    on_two_links(scenario)
