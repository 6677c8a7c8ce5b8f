"""The kernels of a state space, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.called.recurrent import small_fields, state_fields
from potluck.engine.kernels.compiled import CompiledKernels
from potluck.engine.kernels.products.tensors import MambaTensors
from potluck.engine.kernels.states.mamba_kernel import (
    Mamba,
    blocks_of_jobs,
    emit_convolutions,
    emit_norms,
    emit_states,
)
from potluck.model.mixing.mamba import MambaHeads


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
        **state_fields(shape, before, state),
    )
    emitters = (emit_convolutions, emit_states, *((emit_norms,) if shape.has_norm else ()))
    for emit, blocks in zip(emitters, blocks_of_jobs(shape, len(rows)), strict=True):
        kernels.run(kernels.compiled(emit, shape), addressof(arguments), blocks, 1)
    return out


def mamba_fields(shape: MambaHeads, tensors: MambaTensors) -> dict[str, int]:
    """Check the small tensors of a state space; return where they are, by the names of a record's fields."""
    return small_fields(
        tensors,
        {
            "convolution": shape.inputs * shape.channels,
            "bias": shape.channels,
            "decays": shape.heads,
            "offsets": shape.heads,
            "skips": shape.heads,
            **({"norm": shape.values_size} if shape.has_norm else {}),
        },
    )
