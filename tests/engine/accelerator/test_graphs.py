"""Graphs are used where a replay repeats what was captured."""

import gc
from collections.abc import Callable

import pytest
import torch
from fake_cuda import DEVICE, FakeCuda, Graph
from tape_graphs import TapeGraphs, broken_graphs

from potluck.engine.accelerator.graphs import CudaGraphs, can_capture, find_graphs

CPU = torch.device("cpu")


class Once:
    """Graphs that do nothing when they are replayed."""

    def capture(self, body: Callable[[], None]) -> "Once":
        body()
        return self

    def replay(self) -> None: ...


def test_graphs_are_used_where_a_replay_computes_anew() -> None:
    assert can_capture(TapeGraphs(), CPU)
    assert not can_capture(Once(), CPU)
    assert not can_capture(broken_graphs(), CPU)


def test_a_cpu_has_no_graphs() -> None:
    assert find_graphs(CPU) is None


def test_a_device_that_torch_has_no_kernels_for_has_no_graphs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    caplog.set_level("INFO")
    monkeypatch.setattr(torch, "ones", fail)

    assert not can_capture(TapeGraphs(), CPU)
    assert "no kernel image" in caplog.text


# --- CUDA's, with torch's bookkeeping around them


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.patch(monkeypatch)
    return fake


def capture(cuda: FakeCuda, graphs: CudaGraphs, x: torch.Tensor, y: torch.Tensor) -> Graph:
    def body() -> None:
        cuda.multiply()
        y.copy_(x * 2)

    graph = graphs.capture(body)
    assert isinstance(graph, Graph)
    return graph


def test_a_captured_product_is_done_again(cuda: FakeCuda) -> None:
    x, y = torch.ones(3), torch.zeros(3)
    graph = capture(cuda, CudaGraphs(DEVICE), x, y)

    x.fill_(4)
    graph.replay()

    assert y.tolist() == [8, 8, 8]


def test_graphs_go_and_others_come(cuda: FakeCuda) -> None:
    """When the only session's cache grows, its graph is freed before the next capture."""
    graphs = CudaGraphs(DEVICE)
    x, y = torch.ones(3), torch.zeros(3)
    for _ in range(3):
        graph = capture(cuda, graphs, x, y)
        del graph
        gc.collect()

    x.fill_(4)
    capture(cuda, graphs, x, y).replay()

    assert y.tolist() == [8, 8, 8]


def test_a_graph_that_stays_writes_nowhere_but_in_its_pool(cuda: FakeCuda) -> None:
    """When graphs of its stream are let go, here those of layers and of another stage."""
    x, y = torch.ones(3), torch.zeros(3)
    layers, heads, others = (CudaGraphs(DEVICE) for _ in range(3))
    cuda.multiply()  # outside of graphs
    gone = [capture(cuda, layers, x, y), capture(cuda, others, x, y)]
    head = capture(cuda, heads, x, y)
    later = capture(cuda, layers, x, y)

    gone.clear()
    del others
    gc.collect()

    assert cuda.freed
    assert all(graph.workspaces and cuda.is_alone(graph) for graph in (head, later))


def test_a_capture_that_fails_leaves_the_stream_as_it_was(cuda: FakeCuda) -> None:
    graphs, before = CudaGraphs(DEVICE), cuda.current
    x, y = torch.ones(3), torch.zeros(3)
    capture(cuda, graphs, x, y)  # as it was tried
    calls: list[int] = []

    def body() -> None:
        calls.append(cuda.current.number)
        if len(set(calls)) > 1:  # after the warm-ups, which have a stream of their own
            raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError, match="during capture"):
        graphs.capture(body)

    assert cuda.current is before
    capture(cuda, graphs, x, y).replay()
    assert y.tolist() == [2, 2, 2]
