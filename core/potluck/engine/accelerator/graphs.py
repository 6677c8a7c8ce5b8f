"""Capture work on a device once, and replay it in one call.

A replay reads and writes the same memory every time; the caller puts the inputs there.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from potluck.heap import without_collection

logger = logging.getLogger(__name__)

_WARM_UPS = 3  # runs before a capture: what libraries do in their first calls must not be captured


class Replay(Protocol):
    """Work that was captured."""

    def replay(self) -> None: ...


class Graphs(Protocol):
    """A device's way to capture."""

    def capture(self, body: Callable[[], None]) -> Replay:
        """Run the body more than once, and record its work on the device.

        Raises:
            RuntimeError: the body does something that cannot be captured, or memory ran out.
        """
        ...


class CudaGraphs:
    """CUDA graphs that share one memory pool: one thread replays them, one after the other.

    A graph keeps nothing in the pool between replays, so the graphs may use the same memory in
    turns. Two faults of torch 2.8 to 2.13 matter here. A pool whose last graph was freed is never
    used again (pytorch issue 198794), so the first graph is kept as long as this object. And the
    workspace of cuBLAS belongs to a stream; when a graph is freed, the workspace of its stream is
    freed too, while other graphs still write there (issue 193402). So each graph has a workspace of
    its own, in the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # The caller's stream is set again at the end: after a failed capture, torch's own stays
        # set.
        current = torch.cuda.current_stream(self._device)
        # Python must not free other graphs meanwhile: a capture fails by that.
        with without_collection(), torch.cuda.device(self._device), torch.cuda.stream(current):
            self._warm_up(body)
            torch._C._cuda_clearCublasWorkspaces()
            graph = torch.cuda.CUDAGraph()
            # Only this thread's calls are captured: another thread may load weights meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                body()
        if self._first is None:
            self._first = graph
        return graph

    def _warm_up(self, body: Callable[[], None]) -> None:
        # On a side stream: https://docs.pytorch.org/docs/stable/notes/cuda.html, CUDA Graphs.
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                body()
        torch.cuda.current_stream(self._device).wait_stream(side)


def find_graphs(device: torch.device) -> Graphs | None:
    """The graphs of this device; None: it has none, or they do not work."""
    if device.type != "cuda":
        return None
    try:
        graphs = CudaGraphs(device)
    except RuntimeError as error:
        logger.info("no graphs device=%s reason=%s", device, error)
        return None
    return graphs if can_capture(graphs, device) else None


def can_capture(graphs: Graphs, device: torch.device) -> bool:
    """Whether a replay computes with the inputs as they are now."""
    try:
        x, y = torch.ones(4, device=device), torch.empty(4, device=device)

        def body() -> None:
            y.copy_(x * 2)

        work = graphs.capture(body)
        x.fill_(3)
        work.replay()
        return bool((y == 6).all().item())
    except RuntimeError as error:
        logger.info("capturing failed device=%s reason=%s", device, error)
        return False
