"""What mixers with a recurrent state hand to their kernels, checked."""

from collections.abc import Mapping

import torch
from torch import Tensor

from potluck.model.mixing.recurrent import RecurrentSizes


def small_fields(tensors: object, sizes: Mapping[str, int]) -> dict[str, int]:
    """Check the small tensors of these names and sizes; return where they are, by the names of a record's fields."""
    fields: dict[str, int] = {}
    for name, size in sizes.items():
        tensor: Tensor = getattr(tensors, name)
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert tensor.numel() == size
        fields[name] = tensor.data_ptr()
    return fields


def state_fields(shape: RecurrentSizes, before: Tensor, state: Tensor) -> dict[str, int]:
    """Check a state and that of the convolution; return where they are, by the names of a record's fields."""
    assert before.shape == shape.before_shape
    assert state.shape == shape.state_shape
    for part in (before, state):
        assert part.dtype == torch.float32
        assert part.is_contiguous()
    return {"before": before.data_ptr(), "state": state.data_ptr()}


def cached_fields(shape: RecurrentSizes, cache: Tensor) -> dict[str, int]:
    """The same of a cache, whose first row is the state of now."""
    current = cache[0, 0, 0]
    split = (shape.inputs - 1) * shape.channels
    before, state = (
        current[:split].view(shape.before_shape),
        current[split:].view(shape.state_shape),
    )
    return state_fields(shape, before, state)
