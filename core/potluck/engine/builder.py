"""Make the layers of a stage from their specifications, allocate their weights, and have them filled.

Matrices are allocated as they are computed with: queries, keys and values in one, gates and ups in one,
of the compute dtype or packed. The caller's `fill` writes them, layer by layer; what changes loaded
weights (a norm's 1 + weight, the way to a GPU) is done after that.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.engine.accelerator import (
    LayerOps,
    MakeLinear,
    choose_linear,
    choose_ops,
    find_graphs,
)
from potluck.engine.attention import Attention, EagerAttention
from potluck.engine.blocks import DecoderLayer
from potluck.engine.delta_net import DeltaNet, empty_tensors, finish_tensors
from potluck.engine.device import cache_dtype, compute_dtype
from potluck.engine.expansion import make_ups
from potluck.engine.experts import make_together
from potluck.engine.filling import Fill, Filling
from potluck.engine.gates import gate
from potluck.engine.kernels import Arena, Kernels, PackedWeight, Router, best_kernels
from potluck.engine.latent import LatentAttention
from potluck.engine.linear import (
    Embedding,
    FloatEmbedding,
    FloatLinear,
    JoinedLinear,
    Linear,
    PackedEmbedding,
    PackedLinear,
)
from potluck.engine.mlp import GatedMlp, Mlp, MoE, PackedMlp, route
from potluck.engine.norms import HeadNorm, KernelNorm, ProjectionNorm, QkNorm, RmsNorm
from potluck.engine.pages import Scratch
from potluck.engine.parallel import ParallelMoE
from potluck.engine.products import Products, choose_products
from potluck.engine.runs import make_runs
from potluck.engine.singles import as_generated, make_singles
from potluck.engine.stage_weights import StageWeights
from potluck.engine.targets import PackedTarget, is_whole_blocks
from potluck.model.config import ModelConfig
from potluck.model.delta_net import DeltaNetSpec
from potluck.model.formats import INT8, PackedFormat
from potluck.model.latent import LATENT_NORM, QUERY_NORM, LatentSpec
from potluck.model.layers import DenseSpec, MoeSpec, ParallelSpec
from potluck.model.mixers import AttentionSpec
from potluck.model.naming import EMBEDDING, FINAL_NORM
from potluck.model.powers import power
from potluck.model.projection import Projection
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme
from potluck.model.tensor_formats import tensor_format

if TYPE_CHECKING:
    from potluck.engine.kernels.generated import GeneratedKernels


@torch.inference_mode()
def build_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    scheme: Scheme,
    device: torch.device,
    fill: Fill,
    cache: Cache = "full",
    kept: StageWeights | None = None,
) -> StageWeights:
    """Allocate a stage's matrices and have them filled, layer by layer.

    Args:
        config: of the model.
        layers: of the stage.
        embedding: whether it has the embedding.
        head: whether it has the final norm and the head.
        scheme: how the weights are held.
        device: the device of the weights.
        fill: called with the targets that were allocated.
        cache: how keys and values are held.
        kept: parts that are loaded already, of the same model, scheme, device and cache; what `keep`
            gave for these layers. They are used as they are, and not filled.
    """
    keys = cache_dtype(scheme, device, cache, exceeds_f16=config.exceeds_f16)
    filling = Filling(fill, device)
    builder = _Builder(config, scheme, device, keys, filling, kept)
    is_tied = embedding and head and config.tie_word_embeddings
    loaded = {} if kept is None else dict(zip(kept.layers, kept.blocks, strict=True))
    first = None if kept is None else kept.embedding
    norm, lm_head = (None, None) if kept is None else (kept.norm, kept.lm_head)
    table = None
    if embedding and first is None:
        with filling.layer():
            table = builder.matrix(EMBEDDING)
    if head and lm_head is None:  # filled first: waiting for the largest matrix last takes longest
        with filling.layer():
            norm = builder.norm(FINAL_NORM, config.rms_norm_eps)
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
    )


class _Builder:
    """Makes layers. It hands the targets to fill, and the work to do after that, to `filling`."""

    def __init__(
        self,
        config: ModelConfig,
        scheme: Scheme,
        device: torch.device,
        cache_dtype: torch.dtype,
        filling: Filling,
        kept: StageWeights | None = None,
    ) -> None:
        self._config, self._device = config, device
        self._scheme: Scheme = scheme
        self.dtype = compute_dtype(scheme, device, exceeds_f16=config.exceeds_f16)
        self._cache_dtype = cache_dtype
        self._filling = filling
        # Matrices for a GPU are freed from RAM one by one. An arena could free them only together.
        self._arena = Arena() if device.type == "cpu" else None
        # Layers that are computed one after the other share both, also those that were loaded before.
        self._kept_kernels = None if kept is None else kept.kernels
        self.scratch = Scratch() if kept is None else kept.scratch

    @cached_property
    def _products(self) -> Products:
        return choose_products(self.dtype, self._device, self.run_kernels)

    @cached_property
    def _kernels(self) -> Kernels:
        return self._kept_kernels or best_kernels(threads=torch.get_num_threads())

    @property
    def run_kernels(self) -> Kernels | None:
        """The kernels for single tokens, on a CPU."""
        return self._kernels if self._device.type == "cpu" else None

    @cached_property
    def generated(self) -> "GeneratedKernels | None":
        """The kernels that compute with hidden states of f32 on this CPU; None: torch computes."""
        return as_generated(self.run_kernels) if self.dtype == torch.float32 else None

    @cached_property
    def _make_placed(self) -> MakeLinear:
        return choose_linear(self._device, self.dtype)

    @cached_property
    def _ops(self) -> LayerOps:
        return choose_ops(self._device, self.dtype)

    def layer(self, index: int) -> DecoderLayer:
        spec, prefix = self._config.layers[index], self._config.layer_prefix(index)
        match spec.mixer:
            case AttentionSpec() as attention:
                mixer = self._attention(prefix, attention)
            case LatentSpec() as latent:
                mixer = self._latent(prefix, latent)
            case DeltaNetSpec() as delta_net:
                mixer = self._delta_net(prefix, delta_net)
        match spec.feed_forward:
            case DenseSpec() as dense:
                mlp = self._mlp(prefix, dense)
            case MoeSpec() as moe:
                mlp = self._moe(prefix, moe)
            case ParallelSpec() as parallel:
                mlp = self._parallel(prefix, parallel, spec.norm_eps)
        norms = spec.norms.map(lambda name: self.norm(f"{prefix}{name}.weight", spec.norm_eps))
        return DecoderLayer(spec, mixer, mlp, norms, self._vector(prefix, spec.scale, 1))

    def matrix(self, name: str) -> Tensor | PackedWeight:
        """The embedding's or the head's matrix, with a row for each token of the vocabulary."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        held = tensor_format(self._config, name, shape, self._scheme)
        if not isinstance(held, PackedFormat):
            return self._filling.tensor(name, self._empty(*shape))
        weight = PackedWeight.empty(*shape, held, self._arena)
        self._filling.add(name, PackedTarget(weight, 0, shape[0], self._kernels))
        return weight

    def embedding(self, matrix: Tensor | PackedWeight) -> Embedding:
        if isinstance(matrix, PackedWeight):
            return PackedEmbedding(matrix, self.dtype, self._device)
        return FloatEmbedding(matrix)

    def lm_head(self, matrix: Tensor | PackedWeight) -> Linear:
        if isinstance(matrix, PackedWeight):
            return self._packed_linear(matrix, None)
        product = self._products if self.run_kernels is None else self.run_kernels.multiply_plain
        return FloatLinear(matrix, None, product)

    def norm(self, name: str, eps: float, size: int | None = None) -> RmsNorm:
        """The norm of `size` numbers; None: of hidden states."""
        weight = self._filling.tensor(name, self._norm_weight(size or self._config.hidden_size))
        if self.run_kernels is not None:
            return KernelNorm(weight, eps, self.run_kernels)
        return RmsNorm(weight, eps, self._ops.norm)

    def _attention(self, prefix: str, spec: AttentionSpec) -> Attention:
        qkv, qk_norm = self._linear(prefix, spec.qkv), self._qk_norm(prefix, spec)
        output, sinks = self._linear(prefix, spec.output), None
        if spec.has_sinks:
            sinks = torch.empty(spec.heads, device=self._device)
            self._filling.tensor(prefix + spec.sinks, sinks)
        if self.generated is not None:
            from potluck.engine.generated_attention import GeneratedAttention, has_kernels

            if has_kernels(spec):
                return GeneratedAttention(
                    spec, qkv, qk_norm, output, sinks,
                    kernels=self.generated, cache=self._cache_dtype,
                )  # fmt: skip
        kind = EagerAttention if spec.holds_scores else self._ops.attention
        return kind(spec, qkv, qk_norm, output, sinks)

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
        )

    def _latent_kind(self, spec: LatentSpec) -> Callable[..., LatentAttention]:
        if self.generated is None:
            return LatentAttention
        from potluck.engine.generated_latent import GeneratedLatentAttention, has_latent_kernels

        if not has_latent_kernels(spec):
            return LatentAttention
        return partial(GeneratedLatentAttention, kernels=self.generated, cache=self._cache_dtype)

    def _up(self, rows: int, width: int, *, is_packed: bool) -> FloatLinear | PackedLinear:
        """A matrix of latent attention. Packed ones have 8 bits: they are a few hundredths of a layer."""
        if not is_packed:
            return FloatLinear(self._empty(rows, width), None, self._products)
        weight = PackedWeight.empty(rows, width, INT8, self._arena)
        return PackedLinear(weight, None, self._kernels)

    def _qk_norm(self, prefix: str, spec: AttentionSpec) -> QkNorm | None:
        if spec.qk_norm is None:
            return None
        sizes = [size for (size,) in spec.qk_norms.values()]
        heads, values = [spec.heads, spec.kv_heads], 0
        if spec.value_norm:
            assert spec.qk_norm == "head"
            heads, values = [*heads, spec.kv_heads], spec.head_dim
        weight = self._norm_weight(sum(sizes) + values)
        # No file has those of values, which are ones.
        weight[sum(sizes) :] = 0.0 if self._config.unit_offset else 1.0
        for name, part in zip(spec.qk_norms, weight.split([*sizes, values]), strict=False):
            self._filling.tensor(prefix + name, part)
        if spec.qk_norm == "projection":
            return ProjectionNorm(weight, sizes, spec.qk_norm_eps, self._ops.norm)
        weight = weight.view(len(heads), spec.head_dim)
        norm = HeadNorm(weight, heads, spec.qk_norm_eps, self._ops.norm)
        self._filling.then(norm.spread)
        return norm

    def _delta_net(self, prefix: str, spec: DeltaNetSpec) -> DeltaNet:
        first = self._linear(prefix, spec.input)
        tensors, memory = empty_tensors(spec, self._device)
        for name, part in memory.items():
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_tensors(tensors, spec))
        output = self._linear(prefix, spec.output)
        if (kernels := as_generated(self.run_kernels)) is None:
            return DeltaNet(spec, first, tensors, output, dtype=self.dtype)
        from potluck.engine.generated_delta_net import GeneratedDeltaNet

        return GeneratedDeltaNet(spec, first, tensors, output, dtype=self.dtype, kernels=kernels)

    def _mlp(self, prefix: str, spec: DenseSpec) -> Mlp:
        gate_up, down = self._linear(prefix, spec.gate_up), self._linear(prefix, spec.down)
        if isinstance(down, PackedLinear):
            return PackedMlp(gate_up, down, spec.activation, self.scratch)
        apply = gate if self.generated is None else self.generated.gate
        return GatedMlp(gate_up, down, spec.activation, apply)

    def _moe(self, prefix: str, spec: MoeSpec) -> MoE:
        routing = spec.experts.routing
        mlps = [self._mlp(prefix, spec.expert(index)) for index in range(routing.count)]
        return MoE(
            self._router(prefix, spec),
            mlps,
            None if spec.shared is None else self._mlp(prefix, spec.shared),
            route=route if self.generated is None else self.generated.route,
            together=make_together(mlps, spec.activation, self.generated, self.scratch),
        )

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
        return Router(matrix, bias, routing, addend, scales)

    def _linear(self, prefix: str, projection: Projection) -> Linear:
        """One matrix whose rows are those of the parts, one after the other."""
        is_packed = self._scheme in PACKED_SCHEMES
        if is_packed and not all(map(is_whole_blocks, projection.rows[:-1])):
            return JoinedLinear([self._linear(prefix, part) for part in projection.split()])
        rows, width = projection.rows, projection.width
        bias = self._empty(sum(rows)) if projection.has_bias else None
        if bias is not None:
            for part, target in zip(projection.parts, bias.split(rows), strict=True):
                self._filling.tensor(f"{prefix}{part}.bias", target)
        names = [f"{prefix}{part}.weight" for part in projection.parts]
        if not is_packed:
            weight = self._empty(sum(rows), width)
            for name, target in zip(names, weight.split(rows), strict=True):
                self._filling.tensor(name, target)
            return FloatLinear(weight, bias, self._products)
        held = tensor_format(self._config, names[0], (rows[0], width), self._scheme)
        assert isinstance(held, PackedFormat)
        packed, first = PackedWeight.empty(sum(rows), width, held, self._arena), 0
        for name, some in zip(names, rows, strict=True):
            self._filling.add(name, PackedTarget(packed, first, some, self._kernels))
            first += some
        return self._packed_linear(packed, bias)

    def _packed_linear(self, weight: PackedWeight, bias: Tensor | None) -> Linear:
        if self._device.type == "cpu":
            return PackedLinear(weight, bias, self._kernels)
        linear = self._make_placed(weight, bias)
        self._filling.then(linear.place)  # frees the packed bytes in RAM, layer by layer
        return linear

    def _vector(self, prefix: str, name: str | None, size: int) -> Tensor | None:
        """Memory for so many numbers of this name, f32, to be filled; None: there are none."""
        if name is None:
            return None
        return self._filling.tensor(prefix + name, torch.empty(size, device=self._device))

    def _norm_weight(self, *shape: int) -> Tensor:
        """Memory for a norm's weight, f32. The 1 of a family's 1 + weight is added later."""
        weight = torch.empty(shape, device=self._device)
        if self._config.unit_offset:
            self._filling.then(lambda: weight.add_(1))
        return weight

    def _empty(self, *shape: int) -> Tensor:
        if self._arena is None:
            return torch.empty(shape, dtype=self.dtype, device=self._device)
        memory = self._arena.allocate(prod(shape) * self.dtype.itemsize)
        return memory.view(self.dtype).view(shape)
