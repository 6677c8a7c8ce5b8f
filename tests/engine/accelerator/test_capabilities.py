"""What a device computes with is tried, and said."""

from collections.abc import Callable

import pytest
import torch
from tape_graphs import TapeGraphs

from potluck.engine.accelerator.capabilities import can_capture, capabilities
from potluck.engine.accelerator.graphs import device_graphs

CPU = torch.device("cpu")


class Once:
    """Graphs that do nothing when they are replayed."""

    def capture(self, body: Callable[[], None]) -> "Once":
        body()
        return self

    def replay(self) -> None: ...


def test_a_cpu_has_its_own_kernels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    found = capabilities(CPU)

    assert (found.products, found.decoding, found.notes) == ("kernels", "generated", ())
    assert str(found) == "cpu sm=none dtype=float32 products=kernels decoding=generated"
    assert str(found) in caplog.text


def test_graphs_are_used_where_a_replay_computes_anew() -> None:
    assert can_capture(TapeGraphs(), CPU)
    assert not can_capture(Once(), CPU)
    assert not can_capture(TapeGraphs(is_broken=True), CPU)
    assert not can_capture(device_graphs(CPU), CPU)
