"""Make the layers of a stage from their specifications, allocate their weights, and have them filled.

Matrices are allocated as they are computed with: queries, keys and values in one, gates and ups in one,
of the compute dtype or packed. The caller's `fill` writes them, layer by layer; what changes loaded
weights (a norm's 1 + weight, the way to a GPU) is done after that.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.accelerator import experts_of, find_graphs
from potluck.engine.device import cache_dtype
from potluck.engine.gates import Elementwise, finish_learned
from potluck.engine.generated.experts import make_together
from potluck.engine.generated.runs import make_runs
from potluck.engine.generated.singles import make_singles
from potluck.engine.kernels import Router
from potluck.engine.layers.attention import Attention, EagerAttention
from potluck.engine.layers.beside import Beside
from potluck.engine.layers.block_index import BlockIndex, HeadIndex, IndexedAttention
from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.layers.carried import CarriedLayer
from potluck.engine.layers.indexer import Indexer
from potluck.engine.layers.latent import LatentAttention
from potluck.engine.layers.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.layers.mlp import (
    GatedMlp,
    Mlp,
    MoE,
    PackedMlp,
    Route,
    check_experts,
    has_route_kernel,
    route,
)
from potluck.engine.layers.norms import BiasedLayerNorm, HeadNorm, ProjectionNorm, QkNorm
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.layers.pool_indexer import PoolIndexer
from potluck.engine.layers.streams import StreamLayer
from potluck.engine.loading.carried_builder import CarriedBuilder
from potluck.engine.loading.expansion import make_ups
from potluck.engine.loading.filling import Fill, Filling
from potluck.engine.loading.pooled_builder import PooledBuilder
from potluck.engine.loading.recurrent_builder import RecurrentBuilder
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.stream_builder import StreamBuilder
from potluck.engine.vision.tower import Tower
from potluck.model.config import ModelConfig
from potluck.model.layers import DenseSpec, MoeSpec, ParallelSpec
from potluck.model.mixing.block_index import BlockIndexSpec, HeadIndexSpec
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.indexer import GATE_BIAS, KEY_NORM, KEY_NORM_BIAS, IndexerSpec
from potluck.model.mixing.latent import LATENT_NORM, QUERY_NORM, LatentSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec, BesideSpec
from potluck.model.mixing.pooled import PooledSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec
from potluck.model.naming import EMBEDDING
from potluck.model.powers import power
from potluck.model.routing import Routing
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme
from potluck.model.shares import Share
from potluck.model.tensor_formats import tensor_format
from potluck.model.vision.spec import TowerSpec

_TOWER_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@torch.inference_mode()
def build_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    tower: bool = False,
    scheme: Scheme,
    device: torch.device,
    fill: Fill,
    cache: Cache = "full",
    kept: StageWeights | None = None,
    share: Share | None = None,
) -> StageWeights:
    """Allocate a stage's matrices and have them filled, layer by layer.

    Args:
        config: of the model, or of what a rank holds of it.
        layers: of the stage.
        embedding: whether it has the embedding.
        head: whether it has the final norm and the head.
        tower: whether it has the vision tower, if the model has one, also without the embedding.
        scheme: how the weights are held.
        device: the device of the weights.
        fill: called with the targets that were allocated.
        cache: how keys and values are held.
        kept: parts that are loaded already, of the same model, scheme, device and cache; what `keep`
            gave for these layers. They are used as they are, and not filled.
        share: of the rank whose config it is.
    """
    keys = cache_dtype(scheme, device, cache, exceeds_f16=config.exceeds_f16)
    filling = Filling(fill, device)
    builder = _Builder(config, scheme, device, keys, filling, kept)
    is_tied = embedding and head and config.tie_word_embeddings
    loaded = {} if kept is None else dict(zip(kept.layers, kept.blocks, strict=True))
    first = None if kept is None else kept.embedding
    norm, lm_head = (None, None) if kept is None else (kept.norm, kept.lm_head)
    table, seeing = None, None if kept is None else kept.tower
    if embedding and first is None:
        with filling.layer():
            table = builder.matrix(EMBEDDING)
    if (embedding or tower) and seeing is None and config.tower is not None:
        with filling.layer():
            seeing = builder.tower(config.tower)
    if head and lm_head is None:  # filled first: waiting for the largest matrix last takes longest
        with filling.layer():
            norm = builder.final_norm()
            matrix = table if is_tied and table is not None else builder.matrix(config.head_name)
            lm_head = builder.lm_head(matrix)
    blocks: list[DecoderLayer] = []
    for layer in layers:
        if layer in loaded:
            blocks.append(loaded[layer])
            continue
        with filling.layer():
            blocks.append(builder.layer(layer))
    filling.finish()
    graphs = find_graphs(device) if kept is None else kept.graphs
    runs = make_runs(blocks, graphs, builder.run_kernels, keys)
    is_narrow = builder.dtype.itemsize == 2
    singles = make_singles(blocks, builder.run_kernels, keys) if is_narrow else None
    return StageWeights(
        config=config,
        layers=layers,
        blocks=tuple(blocks),
        runs=runs,
        embedding=builder.embedding(table) if table is not None else first,
        norm=norm,
        lm_head=lm_head,
        is_tied=is_tied,
        dtype=builder.dtype,
        cache_dtype=keys,
        device=device,
        graphs=graphs,
        is_generated=builder.generated is not None,
        singles=singles,
        kernels=builder.run_kernels,
        scratch=builder.scratch,
        share=share,
        tower=seeing,
    )


class _Builder(CarriedBuilder, StreamBuilder, PooledBuilder, RecurrentBuilder):
    """Makes layers."""

    def layer(self, index: int) -> DecoderLayer:
        spec, prefix = self._config.layers[index], self._config.layer_prefix(index)
        mixer = mlp = None
        match spec.mixer:
            case None:
                pass
            case AttentionSpec() as attention:
                mixer = self._attention(prefix, attention)
            case LatentSpec() as latent:
                mixer = self._latent(prefix, latent)
            case DeltaNetSpec() as delta_net:
                mixer = self._delta_net(prefix, delta_net)
            case ChannelDeltaSpec() as channel_delta:
                mixer = self._channel_delta(prefix, channel_delta)
            case MambaSpec() as mamba:
                mixer = self._mamba(prefix, mamba)
            case BesideSpec(attention=attention, mamba=mamba) as beside:
                first = self._attention(prefix, attention)
                mixer = Beside(beside, first, self._mamba(prefix, mamba), dtype=self.dtype)
            case ConvolutionSpec() as convolution:
                mixer = self._convolution(prefix, convolution)
            case PooledSpec() as pooled:
                mixer = self._pooled(prefix, pooled)
        match spec.feed_forward:
            case None:
                pass
            case DenseSpec() as dense:
                mlp = self._mlp(prefix, dense)
            case MoeSpec() as moe:
                mlp = self._moe(prefix, moe)
            case ParallelSpec() as parallel:
                mlp = self._parallel(prefix, parallel, spec.norm_eps)
        eps, kind = spec.norm_eps, spec.norm_kind
        after = spec.norms.after_mixer, spec.norms.after_mlp
        after_eps = eps if spec.after_norm_eps is None else spec.after_norm_eps
        norms = spec.norms.map(
            lambda name: self.norm(
                f"{prefix}{name}.weight", after_eps if name in after else eps, kind=kind
            )
        )
        if (streams := spec.streams) is not None:
            assert mixer is not None
            assert mlp is not None
            first, second = (self._mix(prefix, one, eps) for one in streams.blocks)
            before = None if spec.ngrams is None else self._ngrams(prefix, spec.ngrams, eps)
            return StreamLayer(spec, mixer, mlp, norms, first, second, before)
        scale = self._vector(prefix, spec.scale, 1)
        if spec.carried is not None:
            inputs = None if spec.inputs is None else self._inputs(prefix, spec.inputs, eps)
            return CarriedLayer(spec, mixer, mlp, norms, scale, inputs)
        return DecoderLayer(spec, mixer, mlp, norms, scale)

    def tower(self, spec: TowerSpec) -> Tower:
        """What reads pictures."""
        tensors: dict[str, Tensor] = {}
        for name, shape in spec.tensors().items():
            held = _TOWER_DTYPES[tensor_format(self._config, name, shape, self._scheme).name]
            # A number is held as a row of one: targets are filled row by row.
            memory = torch.empty(shape or (1,), dtype=held, device=self._device)
            tensors[name] = self._filling.tensor(name, memory)
        return Tower(spec, tensors, self._device)

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

            if spec.index is not None:
                from potluck.engine.generated.block_index import GeneratedIndexedAttention

                return GeneratedIndexedAttention(
                    spec, qkv, qk_norm, output, sinks, index=self._block_index(prefix, spec),
                    kernels=self.generated, cache=self._cache_dtype,
                )  # fmt: skip
            if has_kernels(spec):
                kind = GeneratedAttention if spec.takes is None else GeneratedTakingAttention
                return kind(
                    spec, qkv, qk_norm, output, sinks,
                    kernels=self.generated, cache=self._cache_dtype,
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
        norm = BiasedLayerNorm(both, spec.norm_eps, self._ops.norm)
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

        if has_pool_latent_kernels(spec, self._cache_dtype):
            return partial(
                GeneratedPoolLatentAttention, kernels=self.generated, cache=self._cache_dtype
            )
        if not has_latent_kernels(spec):
            return LatentAttention
        return partial(GeneratedLatentAttention, kernels=self.generated, cache=self._cache_dtype)

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

    def _mlp(self, prefix: str, spec: DenseSpec) -> Mlp:
        gate_up, down = self._linear(prefix, spec.gate_up), self._linear(prefix, spec.down)
        apply = self._ops.gate if self.generated is None else self.generated.gate
        learned = self._learned(prefix, spec)
        if isinstance(down, PackedLinear):
            return PackedMlp(gate_up, down, spec.activation, self.scratch, learned, apply)
        return GatedMlp(gate_up, down, spec.activation, apply, learned)

    def _learned(self, prefix: str, spec: DenseSpec) -> Tensor | None:
        """The numbers of the activation that were learned."""
        if spec.numbers:
            given = torch.tensor(spec.numbers, device=self._device)
            finish_learned(given)
            return given
        if not spec.learned:
            return None
        learned = torch.empty(len(spec.learned), device=self._device)
        for name, part in zip(spec.learned, learned.split(1), strict=True):
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_learned(learned))
        return learned

    def _moe(self, prefix: str, spec: MoeSpec) -> MoE:
        routing = spec.experts.routing
        mlps = [self._mlp(prefix, spec.expert(index)) for index in range(routing.count)]
        scales_input, placed, together = routing.scales_input, None, None
        if self.run_kernels is None:
            gate = self._ops.gate
            placed = experts_of(mlps, spec.activation, gate, scales_input=scales_input)
        else:
            together = make_together(
                mlps, spec.activation, self.generated, self.scratch, scales_input=scales_input
            )
        return MoE(
            self._router(prefix, spec),
            mlps,
            None if spec.shared is None else self._mlp(prefix, spec.shared),
            narrow=self._narrow(prefix, spec),
            route=self._route(routing),
            together=together or placed,
            waits=placed is None,
        )

    def _narrow(self, prefix: str, spec: MoeSpec) -> tuple[Linear, Linear] | None:
        if spec.narrow is None:
            return None
        first, last = spec.narrow
        return self._linear(prefix, first), self._linear(prefix, last)

    def _route(self, routing: Routing) -> Route:
        generated = self.generated
        if generated is None:
            return route
        if has_route_kernel(routing):
            return generated.route
        return partial(route, product=generated.multiply_plain, apply=Elementwise(generated.gate))

    def _parallel(self, prefix: str, spec: ParallelSpec, eps: float) -> ParallelMoE:
        moe = spec.moe
        assert moe.router_norm is not None
        router_norm = self.norm(prefix + moe.router_norm, eps)
        root = power(moe.hidden_size, -0.5)
        self._filling.then(lambda: router_norm.weight.mul_(root))
        return ParallelMoE(
            self._mlp(prefix, spec.dense),
            self._moe(prefix, moe),
            spec.norms.map(lambda name: self.norm(f"{prefix}{name}.weight", eps)),
            router_norm,
        )

    def _router(self, prefix: str, spec: MoeSpec) -> Router:
        routing, rows = spec.experts.routing, spec.router.rows
        matrix = torch.empty(routing.rows, spec.hidden_size, device=self._device)
        for name, part in zip(spec.router.parts, matrix.split(rows), strict=True):
            self._filling.tensor(f"{prefix}{name}.weight", part)
        addend = None
        if spec.router.has_bias:
            addend = torch.empty(routing.rows, device=self._device)
            for name, part in zip(spec.router.parts, addend.split(rows), strict=True):
                self._filling.tensor(f"{prefix}{name}.bias", part)
        small = (spec.choice_bias, spec.expert_scales)
        bias, scales = (self._vector(prefix, name, routing.count) for name in small)
        return Router(matrix, bias, routing, addend, scales, self._id_table(prefix, spec))

    def _id_table(self, prefix: str, spec: MoeSpec) -> Tensor | None:
        """The experts of each token's id, (ids, chosen); None: they are not chosen so."""
        routing = spec.experts.routing
        if (name := spec.id_table) is None or routing.vocabulary is None:
            return None
        shape = routing.vocabulary, routing.per_token
        table = torch.empty(shape, dtype=torch.int32, device=self._device)
        self._filling.tensor(prefix + name, table)
        self._filling.then(lambda: check_experts(table, prefix + name, routing.count))
        return table
