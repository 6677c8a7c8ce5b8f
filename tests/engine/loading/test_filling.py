"""Layers are filled while the next ones are made, as many at a time as a device allows."""

from collections.abc import Callable
from contextlib import contextmanager
from threading import Lock

import pytest
import torch

from potluck.engine.loading.filling import Filling
from potluck.engine.loading.targets import Target, TensorTarget


class Filled:
    """Fills nothing. Counts what was begun and what was waited for."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.targets: list[tuple[str, Target]] = []

    def __call__(self, targets: list[tuple[str, Target]]) -> Callable[[], None]:
        self.begun += 1
        self.targets += targets

        def wait() -> None:
            self.ended += 1

        return wait


@pytest.mark.parametrize(("kind", "under_way"), [("cpu", 4), ("cuda", 1), ("mps", 0)])
def test_as_many_layers_are_filled_at_a_time_as_a_device_allows(kind: str, under_way: int) -> None:
    """Metal allows none beside the thread that makes and places them."""
    filled = Filled()
    filling = Filling(filled, torch.device(kind))

    for _ in range(6):
        with filling.layer():
            assert filled.begun - filled.ended <= under_way

    assert filled.begun - filled.ended == under_way
    filling.finish()
    assert filled.ended == 6


def test_those_who_fill_take_turns_at_metal() -> None:
    filled = Filled()
    filling = Filling(filled, torch.device("mps"))

    with filling.layer():
        filling.tensor("norm", torch.empty(3))
        filling.tensor("weight", torch.empty(3, 4))

    turns = {target._turns for _, target in filled.targets if isinstance(target, TensorTarget)}
    assert len(turns) == 1
    assert isinstance(turns.pop(), type(Lock()))


def test_a_tensor_is_written_in_turns() -> None:
    log: list[str] = []
    tensor = torch.zeros(2, 3)

    @contextmanager
    def turn():
        log.append(f"before {tensor.sum().item():g}")
        yield
        log.append(f"after {tensor.sum().item():g}")

    TensorTarget(tensor, turn()).fill(0, torch.ones(6))

    assert log == ["before 0", "after 6"]
