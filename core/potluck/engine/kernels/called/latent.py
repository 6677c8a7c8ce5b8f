"""What is cached of some tokens in latent attention, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention_fields import cache_fields
from potluck.engine.kernels.attending.latent_kernel import LatentHeads, LatentRows, emit_latent_rows
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.products.tensors import Angles


def cache_latents(
    kernels: GeneratedKernels,
    shape: LatentHeads,
    rows: Tensor,
    cache: Tensor,
    position: int,
    angles: Angles,
    norm: Tensor,
    first: int = 0,
) -> Tensor:
    """Cache some tokens' rows, and make what can be made of their absorbed queries.

    Args:
        kernels: that compute.
        shape: of the heads.
        rows: (T, H·query_dim + row or more), f32: of each token queries, then what becomes the cached row. Queries
            without rope are multiplied with their factors in place.
        cache: (1, 1, capacity, row), or row + 8 if int8.
        position: of the first token.
        angles: of the tokens, f32.
        norm: (rank,), f32, of the latents' norm.
        first: the position of the cache's first row.

    Returns:
        (T, H, row), f32, of which the numbers with rope are written.
    """
    tokens = len(rows)
    assert rows.dtype == norm.dtype == torch.float32
    assert rows.is_contiguous()
    assert rows.shape[1] >= shape.heads * shape.query_dim + shape.row
    assert norm.numel() == shape.rank
    assert 0 <= position - first <= cache.shape[2] - tokens
    cosines, sines, factors = angles.addresses(tokens * shape.rotary_dim)
    absorbed = torch.empty((tokens, shape.heads, shape.row))
    arguments = LatentRows.structure(
        queries=rows.data_ptr(),
        latents=rows.data_ptr() + 4 * shape.heads * shape.query_dim,
        stride=rows.shape[1],
        absorbed=absorbed.data_ptr(),
        cosines=cosines,
        sines=sines,
        query_factors=factors,
        norm=norm.data_ptr(),
        keys=cache_fields(shape.attention, cache, first)["keys"],
        position=position,
    )
    kernels.run(kernels.compiled(emit_latent_rows, shape), addressof(arguments), tokens)
    return absorbed
