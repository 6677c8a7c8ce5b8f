"""The kernel of a short convolution, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.called.recurrent import small_fields, state_fields
from potluck.engine.kernels.compiled import CompiledKernels
from potluck.engine.kernels.products.tensors import ConvolutionTensors
from potluck.engine.kernels.states.convolution_kernel import (
    Convolution,
    blocks_of_convolution,
    emit_short_convolution,
)
from potluck.model.mixing.short_convolution import ConvolutionSizes


def short_convolution(
    kernels: CompiledKernels,
    shape: ConvolutionSizes,
    rows: Tensor,
    tensors: ConvolutionTensors,
    before: Tensor,
    state: Tensor,
) -> Tensor:
    """Take some tokens through a short convolution between its two products.

    Args:
        kernels: that the kernel is compiled with.
        shape: of the layer.
        rows: (T, 3 D), f32: of each token B, C and x.
        tensors: of the layer.
        before: (inputs - 1, D), the last inputs, which become those after the tokens.
        state: without any number.

    Returns:
        (T, D), f32.
    """
    assert rows.dtype == torch.float32
    assert rows.shape[1] == shape.rows
    assert rows.stride(1) == 1
    out = torch.empty((len(rows), shape.size))
    arguments = Convolution.structure(
        inputs=rows.data_ptr(),
        stride=rows.stride(0),
        tokens=len(rows),
        out=out.data_ptr(),
        before=state_fields(shape, before, state)["before"],
        **convolution_fields(shape, tensors),
    )
    blocks = blocks_of_convolution(shape)
    kernels.run(kernels.compiled(emit_short_convolution, shape), addressof(arguments), blocks, 1)
    return out


def convolution_fields(shape: ConvolutionSizes, tensors: ConvolutionTensors) -> dict[str, int]:
    """Check the small tensors of a short convolution; return where they are, by the names of a record's fields."""
    sizes = {"convolution": shape.inputs * shape.channels}
    sizes |= {"bias": shape.channels} if shape.has_bias else {}
    return small_fields(tensors, sizes)
