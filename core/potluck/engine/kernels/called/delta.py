"""The kernel of a gated delta net, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.called.recurrent import small_fields, state_fields
from potluck.engine.kernels.compiled import CompiledKernels
from potluck.engine.kernels.products.tensors import DeltaTensors
from potluck.engine.kernels.states.delta_kernel import DeltaNet, emit_delta_net
from potluck.model.mixing.delta_net import DeltaHeads


def delta_net(
    kernels: CompiledKernels,
    shape: DeltaHeads,
    rows: Tensor,
    tensors: DeltaTensors,
    before: Tensor,
    state: Tensor,
) -> Tensor:
    """Take some tokens through a gated delta net between its two products.

    Args:
        kernels: that the kernel is compiled with.
        shape: of the heads.
        rows: (T, …), f32: of each token what the two first products gave; overwritten.
        tensors: of the layer.
        before: (inputs - 1, channels), the state of the convolution, which becomes that after the tokens.
        state: (H, K, V), likewise.

    Returns:
        (T, H·V), f32.
    """
    assert rows.dtype == torch.float32
    assert rows.shape[1] == shape.rows + shape.value_heads + shape.decays_size
    assert rows.stride(1) == 1
    out = torch.empty((len(rows), shape.values_size))
    arguments = DeltaNet.structure(
        inputs=rows.data_ptr(),
        rates=rows[:, shape.rows :].data_ptr(),
        stride=rows.stride(0),
        tokens=len(rows),
        out=out.data_ptr(),
        **delta_fields(shape, tensors),
        **state_fields(shape, before, state),
    )
    kernels.run(kernels.compiled(emit_delta_net, shape), addressof(arguments), shape.key_heads, 1)
    return out


def delta_fields(shape: DeltaHeads, tensors: DeltaTensors) -> dict[str, int]:
    """Check the small tensors of a delta net; return where they are, by the names of a record's fields."""
    return small_fields(
        tensors,
        {
            "convolution": shape.inputs * shape.channels,
            "decays": shape.value_heads,
            "offsets": shape.decays_size,
            "norm": shape.value_size,
        },
    )
