"""What an indexer caches and chooses, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import cache_fields, shared_fields
from potluck.engine.kernels.attending.index_kernel import (
    Choose,
    CopyRows,
    IndexHeads,
    IndexKeys,
    emit_choose_tokens,
    emit_copy_rows,
    emit_index_keys,
    score_numbers,
)
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.products.tensors import Angles


def cache_index_keys(
    kernels: GeneratedKernels,
    shape: IndexHeads,
    keys: Tensor,
    cache: Tensor,
    position: int,
    angles: Angles,
    norm: tuple[Tensor, Tensor],
    first: int = 0,
) -> None:
    """Norm and turn some tokens' keys in place, and write them to the cache.

    Args:
        kernels: that compute.
        shape: of the indexer.
        keys: (T, K), f32; their rows may lie apart.
        cache: (1, 1, capacity, numbers of a row).
        position: of the first token.
        angles: of the tokens, f32.
        norm: weight and bias, (K,) each, f32.
        first: the position of the cache's first row.
    """
    tokens = len(keys)
    assert keys.dtype == torch.float32
    assert keys.shape == (tokens, shape.head_dim)
    assert keys.stride(1) == 1
    assert 0 <= position - first <= cache.shape[2] - tokens
    weight, bias = norm
    assert weight.numel() == bias.numel() == shape.head_dim
    cosines, sines, _ = angles.addresses(tokens * shape.rotary_dim)
    arguments = IndexKeys.structure(
        index_keys=keys.data_ptr(),
        stride=keys.stride(0),
        norm=weight.data_ptr(),
        norm_bias=bias.data_ptr(),
        cosines=cosines,
        sines=sines,
        keys=cache_fields(shape.cached, cache, first)["keys"],
        position=position,
    )
    kernels.run(kernels.compiled(emit_index_keys, shape), addressof(arguments), tokens)


class ChosenRows:
    """The rows that tokens of a session see, one token after the other, in memory of its own."""

    def __init__(
        self,
        kernels: GeneratedKernels,
        cached: Heads,
        place: tuple[Tensor, int, Tensor | None],
        count: int,
    ) -> None:
        """Prepare it.

        Args:
            kernels: that compute.
            cached: the heads of attention.
            place: the cache, the position of its first row, and the rows before, as `attend` has them.
            count: how many rows a token sees.
        """
        cache, first, shared = place
        self._kernels, self._copy = kernels, kernels.compiled(emit_copy_rows, cached)
        self.rows = cache.new_empty((1, 1, count, cache.shape[3]))
        self.fields = cache_fields(cached, cache, first) | shared_fields(cached, shared)

    def copy(self, places: Tensor) -> Tensor:
        """Return the rows of these positions, (count,), i64, as a cache (1, 1, count, numbers of a row)."""
        assert places.shape == (self.rows.shape[2],)
        assert places.dtype == torch.int64
        assert places.is_contiguous()
        arguments = CopyRows.structure(
            places=places.data_ptr(),
            rows=self.rows.data_ptr(),
            **{name: self.fields[name] for name in ("keys", "own_from", "shared_keys")},
        )
        self._kernels.run(self._copy, addressof(arguments), len(places))
        return self.rows


class TokenChooser:
    """Chooses for one token after the other of a session."""

    def __init__(
        self, kernels: GeneratedKernels, shape: IndexHeads, rows: ChosenRows, end: int
    ) -> None:
        """Prepare it for tokens before the position `end`, whose chosen rows are written to those."""
        self._kernels, self._shape, self._rows, self._end = kernels, shape, rows, end
        self._choose = kernels.compiled(emit_choose_tokens, shape)
        self._scores = torch.empty(score_numbers(end), dtype=torch.int32)
        self._fields = {name: rows.fields[name] for name in Choose.fields if name in rows.fields}

    def __call__(
        self, queries: Tensor, weights: Tensor, position: int, angles: Angles, places: Tensor
    ) -> Tensor:
        """Choose for a token, and return the chosen rows, as a cache.

        Args:
            queries: (H·K,), f32, turned in place.
            weights: (H,), f32.
            position: of the token, before which at least as many tokens are cached as it sees.
            angles: of the token, f32.
            places: (chosen + 1,), i64, where the positions are written; the last number is nothing.
        """
        shape, kernels = self._shape, self._kernels
        assert shape.chosen <= position < self._end
        assert queries.shape == (shape.q_size,)
        assert weights.shape == (shape.heads,)
        assert places.shape == (shape.chosen + 1,)
        assert places.dtype == torch.int64
        for each in (queries, weights, places):
            assert each.is_contiguous()
        cosines, sines, _ = angles.addresses(shape.rotary_dim)
        arguments = Choose.structure(
            queries=queries.data_ptr(),
            weights=weights.data_ptr(),
            cosines=cosines,
            sines=sines,
            position=position,
            scores=self._scores.data_ptr(),
            places=places.data_ptr(),
            rows=self._rows.rows.data_ptr(),
            job=kernels.job,
            shares=kernels.shares,
            **self._fields,
        )
        kernels.wake()
        self._choose(addressof(arguments))
        return self._rows.rows
