"""A device without memory is told apart from every other failure."""

import pytest
import torch

from potluck.engine.memory import out_of_memory
from potluck.errors import OutOfMemoryError

CPU = torch.device("cpu")


def test_an_allocation_that_fails_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemoryError, match="think"), out_of_memory("think", CPU):
        torch.empty(1 << 60)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.2 GB)"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_torch_raises_elsewhere_is_too(error: Exception) -> None:
    with pytest.raises(OutOfMemoryError), out_of_memory("think", CPU):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), out_of_memory("think", CPU):
        raise RuntimeError("shape mismatch")
