"""What torch does around CUDA graphs, on a CPU: pools, streams, and where cuBLAS computes.

As torch 2.13 has it (torch/cuda/graphs.py, ATen/cuda/CUDAGraph.cpp, c10/cuda/CUDACachingAllocator.cpp):
a pool that has lost its last graph is never taken again; a capture that fails leaves its stream the
current one; and a graph that is let go takes with it what cuBLAS computes in on its stream, wherever that
lies and whoever else writes there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch
from tape_graphs import Tape

DEVICE = torch.device("cuda", 0)


@dataclass(eq=False)
class Workspace:
    """Memory that cuBLAS computes in."""

    pool: int | None  # that it lies in; None: anybody's memory


@dataclass(eq=False)
class Stream:
    number: int

    def wait_stream(self, other: "Stream") -> None: ...


class Graph:
    """A captured tape, and what it writes to when it is replayed."""

    def __init__(self, cuda: "FakeCuda") -> None:
        self._cuda = cuda
        self.tape = Tape()
        self.pool: int | None = None
        self.stream: Stream | None = None
        self.workspaces: set[Workspace] = set()

    def replay(self) -> None:
        self.tape.replay()

    def __del__(self) -> None:
        if self.pool is not None:
            self._cuda.let_go(self)


@dataclass
class FakeCuda:
    """One device; its streams are numbers, and 0 is the one that all begin with."""

    current: Stream = field(default_factory=lambda: Stream(0))
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _users: dict[int, int] = field(default_factory=dict[int, int])  # graphs of each pool, ever
    _workspaces: dict[Stream, Workspace] = field(default_factory=dict[Stream, Workspace])
    _capturing: Graph | None = None
    _capture_stream: Stream | None = None  # the same for all, as torch has it
    freed: list[Workspace] = field(default_factory=list[Workspace])

    def new_stream(self, *_: object) -> Stream:
        return Stream(next(self._numbers))

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def capture(self, graph: Graph, *, pool: int, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        if self._users.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self._users[pool] = self._users.get(pool, 0) + 1
        self._capture_stream = self._capture_stream or self.new_stream()
        before, self.current = self.current, self._capture_stream
        self._capturing, graph.pool, graph.stream = graph, pool, self.current
        try:
            with graph.tape:
                yield
        finally:
            self._capturing = None
        self.current = before  # not where it failed

    def multiply(self) -> None:
        """What every product does: computes in the workspace of its stream."""
        graph = self._capturing
        if self.current not in self._workspaces:
            self._workspaces[self.current] = Workspace(None if graph is None else graph.pool)
        if graph is not None:
            graph.workspaces.add(self._workspaces[self.current])

    def let_go(self, graph: Graph) -> None:
        assert graph.pool is not None
        assert graph.stream is not None
        self._users[graph.pool] -= 1
        if (workspace := self._workspaces.pop(graph.stream, None)) is not None:
            self.freed.append(workspace)

    def clear_workspaces(self) -> None:
        self.freed += self._workspaces.values()
        self._workspaces.clear()

    def is_alone(self, graph: Graph) -> bool:
        """Whether nobody but the graphs of its pool is ever given what it writes to, freed or not."""
        return all(workspace.pool == graph.pool for workspace in graph.workspaces)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of torch's."""
        replaced: dict[str, Callable[..., Any]] = {
            "graph_pool_handle": lambda: next(self._numbers),
            "CUDAGraph": lambda: Graph(self),
            "graph": self.capture,
            "Stream": self.new_stream,
            "stream": self.stream,
            "current_stream": lambda _: self.current,
            "device": nullcontext,
        }
        for name, replacement in replaced.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.setattr(
            torch._C, "_cuda_clearCublasWorkspaces", self.clear_workspaces, raising=False
        )
