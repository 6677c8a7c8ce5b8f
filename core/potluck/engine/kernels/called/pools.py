"""What chooses pools for a token, called with tensors, and where pools are in a cache."""

from collections.abc import Mapping
from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.index_kernel import score_numbers
from potluck.engine.kernels.attending.pooled_kernel import PooledHeads
from potluck.engine.kernels.attending.pools_kernel import ChoosePools, PoolScores, emit_choose_pools
from potluck.engine.kernels.called.generated import GeneratedKernels


class PoolChooser:
    """Chooses for one token after the other of a session."""

    def __init__(
        self, kernels: GeneratedKernels, shape: PoolScores, most: int, keys: Mapping[str, int]
    ) -> None:
        """Prepare it.

        Args:
            kernels: that compute.
            shape: of the indexer.
            most: pools that there are at last.
            keys: where the pools' keys are, by the names of the fields of `ChoosePools`.
        """
        self._kernels, self._shape, self._most = kernels, shape, most
        self._choose = kernels.compiled(emit_choose_pools, shape)
        self._scores = torch.empty(score_numbers(most), dtype=torch.int32)
        self._places = torch.empty(shape.chosen + 1, dtype=torch.int64)
        self._keys = dict(keys)

    def __call__(self, queries: Tensor, weights: Tensor, count: int) -> Tensor:
        """The pools that a token sees of the first `count`, i64, in their order; overwritten by the next call.

        Queries are (H·K,), and weights of the heads (H,), f32.
        """
        shape, kernels = self._shape, self._kernels
        assert 0 <= count <= self._most
        assert queries.shape == (shape.q_size,)
        assert weights.shape == (shape.heads,)
        for each in (queries, weights):
            assert each.is_contiguous()
            assert each.dtype == torch.float32
        arguments = ChoosePools.structure(
            queries=queries.data_ptr(),
            weights=weights.data_ptr(),
            count=count,
            scores=self._scores.data_ptr(),
            places=self._places.data_ptr(),
            job=kernels.job,
            shares=kernels.shares,
            **self._keys,
        )
        kernels.wake()
        self._choose(addressof(arguments))
        return self._places[: min(count, shape.chosen)]


def pooled_fields(shape: PooledHeads, tokens: Tensor, first: int, pools: Tensor) -> dict[str, int]:
    """Check a cache; return where its rows are, by the names of a record's fields.

    Args:
        shape: of the layer.
        tokens: (1, 1, tokens, numbers of a row).
        first: the position of the first row.
        pools: (1, 1, pools, numbers of a row).
    """
    for rows, numbers in ((tokens, shape.row), (pools, shape.unit)):
        assert KINDS[rows.dtype] == shape.attention.cache_kind
        assert rows.is_contiguous()
        assert rows.shape[3] == numbers
    start = tokens.data_ptr() - first * shape.row * shape.number_bytes
    return {"keys": start, "pool_rows": pools.data_ptr()}
