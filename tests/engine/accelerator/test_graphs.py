"""Graphs are used where they do what was captured, each time anew."""

from collections.abc import Callable

import torch
from tape_graphs import TapeGraphs

from potluck.engine.accelerator.graphs import can_capture, find_graphs

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
    assert not can_capture(TapeGraphs(is_broken=True), CPU)


def test_a_cpu_has_no_graphs() -> None:
    assert find_graphs(CPU) is None
