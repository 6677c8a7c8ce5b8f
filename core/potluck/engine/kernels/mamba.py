"""The kernels of a state space, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.compiled import CompiledKernels
from potluck.engine.kernels.mamba_kernel import (
    Mamba,
    MambaHeads,
    blocks_of_jobs,
    emit_convolution,
    emit_norms,
    emit_states,
)
from potluck.engine.kernels.tensors import MambaTensors


def mamba(
    kernels: CompiledKernels,
    shape: MambaHeads,
    rows: Tensor,
    tensors: MambaTensors,
    before: Tensor,
    state: Tensor,
) -> Tensor:
    """Take some tokens through a state space between its two products.

    Args:
        kernels: that the kernels are compiled with.
        shape: of the heads.
        rows: (T, …), f32: of each token what the first product gave; overwritten.
        tensors: of the layer.
        before: (inputs - 1, channels), the state of the convolution, which becomes that after the tokens.
        state: (H, N, P), likewise.

    Returns:
        (T, H·P), f32.
    """
    assert rows.dtype == torch.float32
    assert rows.shape[1] == shape.rows
    assert rows.stride(1) == 1
    out = torch.empty((len(rows), shape.values_size))
    arguments = Mamba.structure(
        inputs=rows.data_ptr(),
        stride=rows.stride(0),
        tokens=len(rows),
        out=out.data_ptr(),
        **mamba_fields(shape, tensors),
        **space_fields(shape, before, state),
    )
    emitters = (emit_convolution, emit_states, emit_norms)
    for emit, blocks in zip(emitters, blocks_of_jobs(shape, len(rows)), strict=True):
        kernels.run(kernels.compiled(emit, shape), addressof(arguments), blocks, 1)
    return out


def mamba_fields(shape: MambaHeads, tensors: MambaTensors) -> dict[str, int]:
    """Check the small tensors of a state space; return where they are, by the names of a record's fields."""
    sizes = {
        "convolution": shape.inputs * shape.channels,
        "bias": shape.channels,
        "decays": shape.heads,
        "offsets": shape.heads,
        "skips": shape.heads,
        "norm": shape.values_size,
    }
    for name, size in sizes.items():
        tensor = getattr(tensors, name)
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert tensor.numel() == size
    return {name: getattr(tensors, name).data_ptr() for name in sizes}


def space_fields(shape: MambaHeads, before: Tensor, state: Tensor) -> dict[str, int]:
    """Check a state space's state; return where it is, by the names of a record's fields."""
    assert before.shape == (shape.inputs - 1, shape.channels)
    assert state.shape == (shape.heads, shape.state_size, shape.head_size)
    for part in (before, state):
        assert part.dtype == torch.float32
        assert part.is_contiguous()
    return {"before": before.data_ptr(), "state": state.data_ptr()}
