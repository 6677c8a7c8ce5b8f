"""CUDA graphs as torch handles them, on a CPU: memory pools, streams, and cuBLAS workspaces.

Three rules of torch 2.13 (torch/cuda/graphs.py, ATen/cuda/CUDAGraph.cpp,
c10/cuda/CUDACachingAllocator.cpp) are reproduced. A pool that has lost its last graph cannot be
used again. A capture that fails leaves its own stream as the current one. A graph that is deleted
frees the cuBLAS workspace of its stream, in whatever memory it lies and whoever else writes there.
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
    """Memory in which cuBLAS computes."""

    pool: int | None  # the pool that it lies in; None: ordinary memory


@dataclass(eq=False)
class Stream:
    number: int

    def wait_stream(self, other: "Stream") -> None: ...


class Graph:
    """A captured tape, and the workspaces to which a replay writes."""

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
    """One device. Its streams are numbers; 0 is the default stream."""

    current: Stream = field(default_factory=lambda: Stream(0))
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _users: dict[int, int] = field(default_factory=dict[int, int])  # living graphs, by pool
    _workspaces: dict[Stream, Workspace] = field(default_factory=dict[Stream, Workspace])
    _capturing: Graph | None = None
    _capture_stream: Stream | None = None  # one for all captures, as in torch
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
        self.current = before  # not restored if the capture failed, as in torch

    def multiply(self) -> None:
        """Compute a product, which uses the workspace of the current stream."""
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
        """Return whether all workspaces of a graph lie in its pool, which no other code uses."""
        return all(workspace.pool == graph.pool for workspace in graph.workspaces)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions of torch."""
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
