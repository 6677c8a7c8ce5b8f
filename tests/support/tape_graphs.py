"""GPU graphs on a CPU: operators are recorded with their memory, and repeated.

As in a CUDA graph, values that Python computed beside the operators (a position, a length) keep the
value from the time of the capture, and operators that wait for the device cannot be captured.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

WAITING = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


@dataclass(frozen=True, slots=True)
class Done:
    operator: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    outcome: Any


class Tape(TorchDispatchMode):
    """Records operators.

    `replay` repeats them. An input that a recorded operator made is replaced by its new value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._done: list[Done] = []
        self.replays = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        outcome = func(*args, **(kwargs or {}))
        self._done.append(Done(func, args, kwargs or {}, outcome))
        return outcome

    def replay(self) -> None:
        self.replays += 1
        made: dict[int, Tensor] = {}

        def now(then: Tensor) -> Tensor:
            return made.get(id(then), then)

        for done in self._done:
            arguments, named = tree_map_only(Tensor, now, (done.arguments, done.named))
            outcome = done.operator(*arguments, **named)
            if isinstance(done.outcome, Tensor):
                made[id(done.outcome)] = outcome
            elif isinstance(done.outcome, list | tuple):
                pairs = zip(done.outcome, outcome, strict=True)
                made |= {id(then): new for then, new in pairs if isinstance(then, Tensor)}


class TapeGraphs:
    """Captures onto tapes, or fails as a driver may.

    Args:
        failure: raised by the first `failures` captures.
    """

    def __init__(self, failure: Exception | None = None, failures: float = math.inf) -> None:
        self.captured: list[Tape] = []
        self.tries = 0
        self.failure = failure
        self._failures = failures

    def capture(self, body: Callable[[], None]) -> Tape:
        self.tries += 1
        if self.failure is not None and self.tries <= self._failures:
            body()  # a real capture fails after its start
            raise self.failure
        body()  # warm-ups, as on a GPU: repeated steps must have the same effect
        body()
        tape = Tape()
        with tape:
            body()
        self.captured.append(tape)
        return tape


def broken_graphs() -> TapeGraphs:
    return TapeGraphs(RuntimeError("CUDA error: operation failed"))
