"""Make attention to pools of tokens from its specification."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.pool_cache import pool_dtype
from potluck.engine.gates import Elementwise
from potluck.engine.kernels.products.tensors import PackedWeight
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.pooled import PooledAttention, Pooler, PoolIndex
from potluck.engine.loading.matrices import MatrixBuilder
from potluck.engine.loading.targets import PackedTarget, is_whole_blocks
from potluck.model.formats import PackedFormat
from potluck.model.mixing.pooled import (
    KEY_NORM,
    QUERY_NORM,
    SINKS,
    PooledSpec,
    PoolerSpec,
    PoolIndexSpec,
)
from potluck.model.projection import Projection
from potluck.model.tensor_formats import tensor_format


class PooledBuilder(MatrixBuilder):
    """Makes the mixer."""

    def _pooled(self, prefix: str, spec: PooledSpec) -> PooledAttention:
        ones = torch.ones(spec.head_dim, device=self._device)
        return self._pooled_kind(spec)(
            spec,
            inputs=self._linear(prefix, spec.input),
            query_norm=self.norm(prefix + QUERY_NORM, spec.norm_eps, spec.query_rank),
            queries=self._linear(prefix, spec.queries),
            head_norm=self._norm_of(ones, spec.norm_eps),
            key_norm=self.norm(prefix + KEY_NORM, spec.norm_eps, spec.head_dim),
            sinks=self._filled(prefix + SINKS, spec.heads),
            pooling=None if spec.pooling is None else self._linear(prefix, spec.pooling),
            poolers=[self._pooler(prefix, one, spec) for one in spec.poolers],
            index=None if spec.index is None else self._pool_index(prefix, spec, spec.index),
            group_output=self._grouped(prefix, spec.group_output, spec.groups),
            output=self._linear(prefix, spec.output),
        )

    def _pooled_kind(self, spec: PooledSpec) -> Callable[..., PooledAttention]:
        if self.generated is None:
            return PooledAttention
        from potluck.engine.generated.pooled import GeneratedPooledAttention, has_pooled_kernels

        if not has_pooled_kernels(spec):
            return PooledAttention
        return partial(
            GeneratedPooledAttention, kernels=self.generated, cache=pool_dtype(self._cache.dtype)
        )

    def _pooler(self, prefix: str, spec: PoolerSpec, whole: PooledSpec) -> Pooler:
        norm = self.norm(prefix + spec.norm, whole.norm_eps, spec.size)
        bias = self._filled(prefix + spec.bias, spec.rate, spec.inputs)
        apply = Elementwise(None if self.generated is None else self.generated.gate)
        return Pooler(spec, norm, bias, whole.rotary_dim, apply)

    def _pool_index(self, prefix: str, whole: PooledSpec, spec: PoolIndexSpec) -> PoolIndex:
        ((name, shape),) = spec.weights(whole.hidden_size).tensors()
        product = F.linear if self.run_kernels is None else self.run_kernels.multiply_plain
        weights = FloatLinear(self._filled(prefix + name, *shape), None, product)
        queries = self._linear(prefix, spec.queries(whole.query_rank))
        between = F.linear if self.generated is None else self.generated.multiply_plain
        return PoolIndex(spec, queries, weights, between)

    def _grouped(self, prefix: str, projection: Projection, groups: int) -> Sequence[Linear]:
        """A matrix whose rows belong to groups, each with an input of its own."""
        ((name, (rows, width)),) = projection.tensors()
        held, each = tensor_format(self._config, name, (rows, width), self._scheme), rows // groups
        if not isinstance(held, PackedFormat):
            whole = self._filling.tensor(prefix + name, self._empty(rows, width))
            return [FloatLinear(part, None, self._products) for part in whole.split(each)]
        packed = PackedWeight.empty(rows, width, held, self._arena)
        self._filling.add(prefix + name, PackedTarget(packed, 0, rows, self._kernels))
        if is_whole_blocks(each):
            return [
                self._packed_linear(packed.rows_of(first, each), None)
                for first in range(0, rows, each)
            ]
        whole = self._packed_linear(packed, None)
        return [RowsOf(whole, first, each) for first in range(0, rows, each)]


class RowsOf(Linear):
    """Some rows of a matrix that cannot be cut there."""

    __slots__ = ("_counts", "_some", "_whole")

    def __init__(self, whole: Linear, first: int, rows: int) -> None:
        self.bias, self._whole, self._some = None, whole, slice(first, first + rows)
        self._counts = first == 0  # its bytes, once

    def __call__(self, x: Tensor) -> Tensor:
        return self._whole(x)[:, self._some].contiguous()

    @property
    def memory(self) -> tuple[Tensor, ...]:
        return self._whole.memory if self._counts else ()
