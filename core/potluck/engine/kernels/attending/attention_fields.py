"""What the kernels of attention are told of tensors: checked, and by the names of their records' fields."""

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention import PANEL, Heads
from potluck.engine.kernels.writing.ir_types import KIND_BF16, KIND_F16, KIND_F32, KIND_INT8

KINDS = {
    torch.float32: KIND_F32,
    torch.bfloat16: KIND_BF16,
    torch.float16: KIND_F16,
    torch.int8: KIND_INT8,  # only in a KV cache
}


def check_rows(shape: Heads, qkv: Tensor, cache: Tensor, row: int) -> None:
    """Check the arguments of attention and rope, since the kernels check nothing."""
    assert qkv.dtype == torch.float32
    assert qkv.is_contiguous()
    assert qkv.shape[1] == shape.row_numbers
    assert 0 <= row <= cache.shape[2] - len(qkv)


def sinks_field(shape: Heads, sinks: Tensor | None) -> int:
    """Return where the sinks are; 0: the shape has none."""
    assert (sinks is None) != shape.has_sinks
    if sinks is None:
        return 0
    assert sinks.dtype == torch.float32
    assert sinks.shape == (shape.heads,)
    return sinks.data_ptr()


def norm_parts(shape: Heads, norm: Tensor) -> dict[str, Tensor]:
    """Return the weights of norms by the names of a record's fields; values may have none, where none are read."""
    whole, head = norm.flatten(), shape.head_dim
    keys = whole[head * (shape.heads if shape.qk_norm == "projection" else 1) :]
    return {"query_norm": whole, "key_norm": keys, "value_norm": keys[head:]}


def cache_fields(shape: Heads, cache: Tensor, first: int) -> dict[str, int]:
    """Check a layer's cache; return where its keys and values are, by the names of a record's fields.

    The addresses are those that position 0 would have. Kernels read no position before `first`, that of
    the first row.
    """
    assert KINDS[cache.dtype] == shape.cache_kind
    assert cache.is_contiguous()
    assert cache.shape[0] == (1 if shape.rank else 2)
    assert cache.shape[1] >= shape.kv_heads  # an indexer has a head of its own behind them
    assert cache.shape[3] * cache.itemsize == shape.cached_bytes
    start = cache.data_ptr() - first * shape.cached_bytes
    return {
        "keys": start,
        "values": start if shape.rank else start + cache.nbytes // 2,
        "head_stride": cache.shape[2] * shape.cached_bytes,
    }


def shared_fields(shape: Heads, shared: Tensor | None) -> dict[str, int]:
    """Return where the rows are that sessions share, whole panels from position 0 on; None: there are none.

    The names are those of a record's fields.
    """
    if shared is None:
        return {"own_from": 0, "shared_keys": 0, "shared_values": 0, "shared_stride": 0}
    assert KINDS[shared.dtype] == shape.cache_kind
    assert shared.shape[2] % PANEL == 0
    keys, values = shared[0], shared[-1]
    return {
        "own_from": shared.shape[2],
        "shared_keys": keys.data_ptr(),
        "shared_values": values.data_ptr(),
        "shared_stride": shared.stride(1) * shared.itemsize,
    }
