"""The product of many tokens with a matrix of f32, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.compiled import CompiledKernels
from potluck.engine.kernels.products.matrix_kernel import (
    Arrange,
    MatrixProduct,
    emit_arrange,
    emit_matrix_product,
    tiling,
)


def multiply_many(
    kernels: CompiledKernels, x: Tensor, weight: Tensor, addend: Tensor | None, out: Tensor
) -> None:
    """Write out = x Wᵀ + addend, all f32.

    Args:
        kernels: that compute.
        x: (tokens, width), contiguous.
        weight: (rows, width); a row's numbers are neighbours.
        addend: (rows,), or nothing.
        out: (tokens, rows), contiguous.
    """
    tokens, (rows, width) = len(x), weight.shape
    sizes = tiling(kernels.path)
    arranged = torch.empty(sizes.arranged_floats(tokens, width))
    arrange = Arrange.structure(
        source=x.data_ptr(), tokens=tokens, width=width, out=arranged.data_ptr()
    )
    blocks = -(-tokens // sizes.together)
    kernels.run(kernels.compiled(emit_arrange), addressof(arrange), blocks)
    panels = -(-rows // sizes.rows)
    share = -(-panels // kernels.shares)
    blocks = -(-panels // share)
    scratch = torch.empty((blocks, sizes.scratch_floats(width)))
    arguments = MatrixProduct.structure(
        weights=weight.data_ptr(),
        stride=weight.stride(0),
        inputs=arranged.data_ptr(),
        out=out.data_ptr(),
        addend=0 if addend is None else addend.data_ptr(),
        rows=rows,
        width=width,
        tokens=tokens,
        share=share,
        scratch=scratch.data_ptr(),
    )
    kernels.run(kernels.compiled(emit_matrix_product), addressof(arguments), blocks, 1)
