"""Make attention, over all tokens, latent or to those that an indexer chooses, from its specification."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from potluck.engine.gates import Elementwise
from potluck.engine.layers.attention import Attention, EagerAttention
from potluck.engine.layers.block_index import BlockIndex, HeadIndex, IndexedAttention
from potluck.engine.layers.indexer import Indexer
from potluck.engine.layers.latent import LatentAttention
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.norms import (
    BiasedLayerNorm,
    HeadNorm,
    KernelNorm,
    ProjectionNorm,
    QkNorm,
    RmsNorm,
)
from potluck.engine.layers.pool_indexer import PoolIndexer
from potluck.engine.loading.expansion import make_ups
from potluck.engine.loading.matrices import MatrixBuilder
from potluck.model.mixing.block_index import BlockIndexSpec, HeadIndexSpec
from potluck.model.mixing.indexer import GATE_BIAS, KEY_NORM, KEY_NORM_BIAS, IndexerSpec
from potluck.model.mixing.latent import LATENT_NORM, QUERY_NORM, LatentSpec
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.schemes import PACKED_SCHEMES


class AttentionBuilder(MatrixBuilder):
    """Makes the mixers."""

    def _attention(self, prefix: str, spec: AttentionSpec) -> Attention:
        qkv, qk_norm = self._linear(prefix, spec.qkv), self._qk_norm(prefix, spec)
        output, sinks = self._linear(prefix, spec.output), None
        if spec.has_sinks:
            sinks = torch.empty(spec.heads, device=self._device)
            self._filling.tensor(prefix + spec.sinks, sinks)
        if self.generated is not None:
            from potluck.engine.generated.attention import (
                GeneratedAttention,
                GeneratedTakingAttention,
                has_kernels,
            )
            from potluck.engine.generated.block_index import (
                GeneratedIndexedAttention,
                has_index_kernels,
            )

            if has_index_kernels(spec):
                return GeneratedIndexedAttention(
                    spec, qkv, qk_norm, output, sinks, index=self._block_index(prefix, spec),
                    kernels=self.generated, cache=self._cache,
                )  # fmt: skip
            if spec.index is None and has_kernels(spec):
                kind = GeneratedAttention if spec.takes is None else GeneratedTakingAttention
                return kind(
                    spec, qkv, qk_norm, output, sinks,
                    kernels=self.generated, cache=self._cache,
                )  # fmt: skip
        if spec.index is not None:
            index = self._block_index(prefix, spec)
            return IndexedAttention(spec, qkv, qk_norm, output, sinks, index=index)
        kind = EagerAttention if spec.holds_scores else self._ops.attention
        return kind(spec, qkv, qk_norm, output, sinks)

    def _block_index(self, prefix: str, spec: AttentionSpec) -> BlockIndex | HeadIndex:
        index = spec.index
        assert index is not None
        query_norm, key_norm = (
            self.norm(prefix + name, index.norm_eps, index.head_dim) for name in index.small_tensors
        )
        parts = self._linear(prefix, index.input), query_norm, key_norm
        product = F.linear if self.generated is None else self.generated.multiply_plain
        rope, turned = spec.rope or 0, spec.rotary_dim
        match index:
            case BlockIndexSpec():
                return BlockIndex(index, *parts, rope=rope, rotary_dim=turned, product=product)
            case HeadIndexSpec():
                return HeadIndex(index, *parts, rope=rope, rotary_dim=turned, product=product)

    def _latent(self, prefix: str, spec: LatentSpec) -> LatentAttention:
        queries = None
        if spec.queries is not None and spec.query_rank is not None:
            norm = self.norm(prefix + QUERY_NORM, spec.norm_eps, spec.query_rank)
            queries = norm, self._linear(prefix, spec.queries)
        kind, in_packed_scheme = self._latent_kind(spec), self._scheme in PACKED_SCHEMES
        key_up, value_up = make_ups(
            spec,
            prefix,
            make=partial(self._up, is_packed=in_packed_scheme and kind is not LatentAttention),
            filling=self._filling,
            dtype=torch.float32 if in_packed_scheme else self.dtype,
            kernels=self.run_kernels,
        )
        return kind(
            spec,
            inputs=self._linear(prefix, spec.input),
            queries=queries,
            latent_norm=self.norm(prefix + LATENT_NORM, spec.norm_eps, spec.rank),
            key_up=key_up,
            value_up=value_up,
            output=self._linear(prefix, spec.output),
            indexer=None if spec.indexer is None else self._indexer(prefix, spec.indexer),
        )

    def _indexer(self, prefix: str, spec: IndexerSpec) -> Indexer:
        both = torch.empty((2, spec.head_dim), device=self._device)
        for name, part in zip((KEY_NORM, KEY_NORM_BIAS), both, strict=True):
            self._filling.tensor(prefix + name, part)
        norm: RmsNorm = BiasedLayerNorm(both, spec.norm_eps, self._ops.norm)
        if spec.has_pools and self.generated is not None:
            norm = KernelNorm(both, spec.norm_eps, self.generated, "biased layer")
        queries, keys = self._linear(prefix, spec.queries), self._linear(prefix, spec.keys)
        ((name, shape),) = spec.weights.tensors()
        product = F.linear if self.run_kernels is None else self.run_kernels.multiply_plain
        weights = FloatLinear(self._filled(prefix + name, *shape), None, product)
        if not spec.has_pools:
            return Indexer(spec, queries, keys, norm, weights)
        bias = self._filled(prefix + GATE_BIAS, spec.pool, spec.head_dim)
        gates = self._linear(prefix, spec.gates)
        generated = self.generated
        return PoolIndexer(
            spec, queries, keys, norm, weights, gates, bias,
            product=F.linear if generated is None else generated.multiply_plain,
            apply=Elementwise(None if generated is None else generated.gate),
        )  # fmt: skip

    def _latent_kind(self, spec: LatentSpec) -> Callable[..., LatentAttention]:
        if self.generated is None:
            return LatentAttention
        from potluck.engine.generated.latent import GeneratedLatentAttention, has_latent_kernels
        from potluck.engine.generated.pool_latent import (
            GeneratedPoolLatentAttention,
            has_pool_latent_kernels,
        )

        if has_pool_latent_kernels(spec, self._cache.dtype):
            return partial(GeneratedPoolLatentAttention, kernels=self.generated, cache=self._cache)
        if not has_latent_kernels(spec):
            return LatentAttention
        return partial(GeneratedLatentAttention, kernels=self.generated, cache=self._cache)

    def _qk_norm(self, prefix: str, spec: AttentionSpec) -> QkNorm | None:
        if spec.qk_norm is None:
            return None
        sizes = spec.qk_norm_sizes
        heads, values = [spec.heads, spec.kv_heads][: len(sizes)], 0
        if spec.value_norm:
            assert spec.qk_norm == "head"
            heads, values = [*heads, spec.kv_heads], spec.head_dim
        weight = self._norm_weight(sum(sizes) + values)
        # No file has those of values, or of a norm without weights, which are ones.
        weight.fill_(0.0 if self._config.unit_offset else 1.0)
        for name, part in zip(spec.qk_norms, weight.split([*sizes, values]), strict=False):
            self._filling.tensor(prefix + name, part)
        if spec.qk_norm == "projection":
            return ProjectionNorm(weight, sizes, spec.qk_norm_eps, self._ops.norm)
        weight = weight.view(len(heads), spec.head_dim)
        norm = HeadNorm(weight, heads, spec.qk_norm_eps, self._ops.norm)
        self._filling.then(norm.spread)
        return norm
