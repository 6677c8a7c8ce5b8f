"""What an indexer caches and chooses, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.attention_fields import cache_fields, shared_fields
from potluck.engine.kernels.generated import GeneratedKernels
from potluck.engine.kernels.index_kernel import (
    Choose,
    IndexHeads,
    IndexKeys,
    emit_choose_tokens,
    emit_index_keys,
    score_numbers,
)
from potluck.engine.kernels.tensors import Angles


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


class TokenChooser:
    """Chooses for one token after the other of a session, in memory of its own."""

    def __init__(
        self,
        kernels: GeneratedKernels,
        shape: IndexHeads,
        cache: Tensor,
        end: int,
        *,
        first: int = 0,
        shared: Tensor | None = None,
    ) -> None:
        """Prepare it for tokens before the position `end`; cache, `first` and `shared` as `attend` has them.

        Attributes:
            rows: the chosen rows of the last token, as a cache (1, 1, chosen, numbers of a row).
        """
        self._kernels, self._shape = kernels, shape
        self._choose = kernels.compiled(emit_choose_tokens, shape)
        self._memory = (
            torch.empty(score_numbers(end), dtype=torch.int32),
            torch.empty(shape.chosen + 1, dtype=torch.int64),
        )
        self.rows = cache.new_empty((1, 1, shape.chosen, cache.shape[3]))
        fields = cache_fields(shape.cached, cache, first) | shared_fields(shape.cached, shared)
        self._fields = {name: fields[name] for name in Choose.fields if name in fields}
        self._end = end

    @property
    def places(self) -> Tensor:
        """The positions that were chosen last, in their order: (chosen,)."""
        return self._memory[1][:-1]

    def __call__(self, queries: Tensor, weights: Tensor, position: int, angles: Angles) -> Tensor:
        """Choose for a token, and return the chosen `rows`.

        Args:
            queries: (H·K,), f32, turned in place.
            weights: (H,), f32.
            position: of the token, before which at least as many tokens are cached as it sees.
            angles: of the token, f32.
        """
        shape, kernels = self._shape, self._kernels
        assert shape.chosen <= position < self._end
        assert queries.shape == (shape.q_size,)
        assert weights.shape == (shape.heads,)
        assert queries.is_contiguous()
        assert weights.is_contiguous()
        cosines, sines, _ = angles.addresses(shape.rotary_dim)
        scores, places = self._memory
        arguments = Choose.structure(
            queries=queries.data_ptr(),
            weights=weights.data_ptr(),
            cosines=cosines,
            sines=sines,
            position=position,
            scores=scores.data_ptr(),
            places=places.data_ptr(),
            rows=self.rows.data_ptr(),
            job=kernels.job,
            shares=kernels.shares,
            **self._fields,
        )
        kernels.wake()
        self._choose(addressof(arguments))
        return self.rows
