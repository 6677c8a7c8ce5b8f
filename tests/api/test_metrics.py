"""Counts of answers, as Prometheus reads them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from potluck.api.events import Finished, GenerationEvent, Piece, Started
from potluck.api.metrics import Metrics
from potluck.api.values.timings import Timings
from potluck.errors import EngineError


async def answer(error: Exception | None = None) -> AsyncGenerator[GenerationEvent, None]:
    yield Started(prompt_token_ids=(1, 2, 3), cached_tokens=2)
    yield Piece(text="a", token_ids=(4,))
    if error is not None:
        raise error
    timings = Timings(time_to_first_token_s=0.3, tokens_per_s=20.0)
    yield Finished(reason="length", completion_tokens=7, timings=timings)


def lines_of(metrics: Metrics) -> list[str]:
    return metrics.text().splitlines()


def test_an_answer_is_counted_with_its_tokens_and_times() -> None:
    times = iter((10.0, 10.3))
    metrics = Metrics(clock=lambda: next(times))

    async def main() -> None:
        events = [event async for event in metrics.counted(answer())]
        assert len(events) == 3

    asyncio.run(main())

    lines = lines_of(metrics)
    for line in (
        'potluck_requests_total{end="length"} 1',
        "potluck_prompt_tokens_total 3",
        "potluck_cached_prompt_tokens_total 2",
        "potluck_completion_tokens_total 7",
        'potluck_time_to_first_token_seconds_bucket{le="0.25"} 0',
        'potluck_time_to_first_token_seconds_bucket{le="0.5"} 1',
        'potluck_time_to_first_token_seconds_bucket{le="+Inf"} 1',
        "potluck_time_to_first_token_seconds_sum 0.300000",
        'potluck_time_per_token_seconds_bucket{le="0.05"} 1',
        "potluck_time_per_token_seconds_count 1",
    ):
        assert line in lines


def test_who_leaves_and_what_fails_is_counted_and_not_running_any_more() -> None:
    metrics = Metrics()

    async def main() -> None:
        async with aclosing(metrics.counted(answer())) as events:
            await anext(events)
            assert "potluck_requests_running 1" in lines_of(metrics)
        with pytest.raises(EngineError):
            async for _ in metrics.counted(answer(EngineError("no"))):
                pass

    asyncio.run(main())

    lines = lines_of(metrics)
    assert "potluck_requests_running 0" in lines
    assert 'potluck_requests_total{end="left"} 1' in lines
    assert 'potluck_requests_total{end="error"} 1' in lines


def test_every_line_is_a_comment_or_a_name_and_a_number() -> None:
    for line in lines_of(Metrics()):
        if not line.startswith("# TYPE potluck_"):
            name, value = line.rsplit(" ", 1)
            assert name.startswith("potluck_")
            float(value)
