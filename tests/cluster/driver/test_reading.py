"""How much of a prompt is read, as it is told while it is read."""

import pytest
from chain_answers import GREEDY, on_a_chain
from fake_chain import FakeChain

from potluck.api.events import Reading
from potluck.cluster.driver import generation
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Token, Usage


def test_how_much_of_a_prompt_is_read_is_told_before_and_after_each_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "READING_S", 0.0)

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        events = [
            event async for event in generator.answer([1] * 10, GREEDY, limit=2, usage=Usage())
        ]

        assert events[:3] == [Reading(tokens=count, total=10) for count in (0, 4, 8)]
        assert [type(event) for event in events[3:]] == [Token, Token]

    on_a_chain(scenario, chunk_tokens=4)


def test_who_gives_up_reading_a_prompt_ends_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "READING_S", 0.0)

    async def scenario(generator: Generator, chain: FakeChain) -> None:
        stream = generator.answer([1] * 10, GREEDY, limit=2, usage=Usage())
        async for event in stream:
            if event == Reading(tokens=4, total=10):
                break
        await stream.aclose()

        assert chain.trims == [4]
        assert generator.is_idle

    on_a_chain(scenario, chunk_tokens=4)
