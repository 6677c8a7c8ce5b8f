"""What was answered, counted, as Prometheus reads it (text format 0.0.4)."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Literal, TypeAlias

from potluck.api.events import Finished, FinishReason, GenerationEvent, Started

End: TypeAlias = FinishReason | Literal["error", "left"]
"""How an answer ended; `left`: its client went away."""
_ENDS: tuple[End, ...] = ("stop", "length", "tool_calls", "error", "left")

FIRST_TOKEN_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class _Histogram:
    """How often a value was not above each of some limits."""

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._limits, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for limit, count in zip((*self._limits, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{limit}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts the answers of one listener."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running = 0
        self._ends: Counter[End] = Counter(dict.fromkeys(_ENDS, 0))
        self._prompt = self._cached = self._completion = 0  # tokens
        self._first_token = _Histogram(FIRST_TOKEN_S)
        self._token = _Histogram(TOKEN_S)

    async def counted(
        self, events: AsyncGenerator[GenerationEvent, None]
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Yield the events of an answer, and count them. Closing the iterator closes `events`."""
        end: End = "left"
        began = self._clock()
        self._running += 1
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Started):
                        self._note_start(event, self._clock() - began)
                    elif isinstance(event, Finished):
                        end = event.reason
                        self._note_end(event)
                    yield event
        except Exception:
            end = "error"
            raise
        finally:
            self._running -= 1
            self._ends[end] += 1

    def _note_start(self, started: Started, seconds: float) -> None:
        self._first_token.add(seconds)
        self._prompt += len(started.prompt_token_ids)
        self._cached += started.cached_tokens

    def _note_end(self, finished: Finished) -> None:
        self._completion += finished.completion_tokens
        if finished.timings.tokens_per_s:
            self._token.add(1 / finished.timings.tokens_per_s)

    def text(self) -> str:
        """All of it, in the format that Prometheus reads."""
        lines = [
            "# TYPE potluck_requests_running gauge",
            f"potluck_requests_running {self._running}",
            "# TYPE potluck_requests_total counter",
            *(f'potluck_requests_total{{end="{end}"}} {n}' for end, n in self._ends.items()),
        ]
        for name, count in (
            ("prompt", self._prompt),
            ("cached_prompt", self._cached),
            ("completion", self._completion),
        ):
            total = f"potluck_{name}_tokens_total"
            lines += [f"# TYPE {total} counter", f"{total} {count}"]
        for name, histogram in (
            ("potluck_time_to_first_token_seconds", self._first_token),
            ("potluck_time_per_token_seconds", self._token),
        ):
            lines += [f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines) + "\n"
