"""Have the tensors of a stage filled, some layers at a time, while the next layers are made."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock

import torch
from torch import Tensor

from potluck.engine.loading.targets import Target, TensorTarget

Fill = Callable[[list[tuple[str, Target]]], Callable[[], None]]
"""Begin to fill targets with the tensors of these names. The returned function waits for it."""

# How many layers may be filling while another is made or placed: so threads have work while one of
# them reads a large matrix. On Metal none, since it ends a process in which two threads use it at
# once (pytorch issue 197805).
_AHEAD = {"cpu": 4, "cuda": 1, "mps": 0}


class Filling:
    """Collects the targets of a layer, begins to fill them, and finishes the layers before it."""

    def __init__(self, fill: Fill, device: torch.device) -> None:
        self._fill, self._ahead = fill, _AHEAD.get(device.type, 1)
        self._targets: list[tuple[str, Target]] = []
        self._finishing: list[Callable[[], object]] = []
        self._under_way: deque[tuple[Callable[[], None], list[Callable[[], object]]]] = deque()
        # Threads that fill memory of Metal do so one at a time: they take this lock.
        self._turns = Lock() if device.type == "mps" else nullcontext()

    def tensor(self, name: str, memory: Tensor) -> Tensor:
        """Have this memory filled with the tensor of this name; returns the memory."""
        self.add(name, TensorTarget(memory, self._turns))
        return memory

    def add(self, name: str, target: Target) -> None:
        """Have this target filled with the tensor of this name."""
        self._targets.append((name, target))

    def then(self, finish: Callable[[], object]) -> None:
        """Call `finish` when the targets that are collected now are filled."""
        self._finishing.append(finish)

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Begin to fill what is collected inside the block. `finish` waits for the end."""
        yield
        self._under_way.append((self._fill(self._targets), self._finishing))
        self._targets, self._finishing = [], []
        self.finish(self._ahead)

    def finish(self, ahead: int = 0) -> None:
        """Wait until at most `ahead` layers are still being filled, and finish the others."""
        while len(self._under_way) > ahead:
            wait, finishing = self._under_way.popleft()
            wait()
            for finish in finishing:
                finish()
