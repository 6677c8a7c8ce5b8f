"""Keys and values of an int8 KV cache in plain torch: the same bytes as the kernels write and read.

`layout` says how the bytes lie. Caches of other kinds hold the numbers themselves.
"""

import torch
from torch import Tensor

from potluck.engine.kernels.layout import CACHE_SCALE_BYTES, LARGEST, NOTHING


def cached_width(head_dim: int, dtype: torch.dtype) -> int:
    """Return the width of a cache of this dtype, which is (2, Hkv, capacity, width)."""
    return head_dim + CACHE_SCALE_BYTES if dtype == torch.int8 else head_dim


def quantise_heads(heads: Tensor) -> Tensor:
    """Quantise heads (…, K) of floats to (…, K + 4) of int8."""
    if not heads.shape[-1]:  # of a part that a row does not have
        return heads.new_zeros((*heads.shape[:-1], CACHE_SCALE_BYTES), dtype=torch.int8)
    numbers = heads.float()
    largest = numbers.abs().amax(-1, keepdim=True)
    is_nothing = largest < NOTHING
    # Written as a quotient of tensors, because torch computes `127 / tensor` as 127 times a reciprocal.
    inverse = torch.where(is_nothing, 0.0, torch.full_like(largest, LARGEST) / largest)
    scale = torch.where(is_nothing, 0.0, largest / LARGEST)
    scaled = (numbers * inverse).nan_to_num_(-LARGEST).clamp_(-LARGEST, LARGEST)
    return torch.cat((scaled.round_().to(torch.int8), scale.view(torch.int8)), -1)


def dequantise_heads(cached: Tensor) -> Tensor:
    """Return the values (…, K), f32, of cached heads (…, K + 4), int8."""
    # A copy, since a head's scale need not begin at a multiple of 4.
    scale = cached[..., -CACHE_SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
    scale = scale.view(torch.float32)  # (…, 1)
    return cached[..., :-CACHE_SCALE_BYTES] * scale
