"""Choose a stage's pieces by its config, and allocate their weights.

The matrices have the form that is computed with: the compute dtype, queries, keys and values in one,
gate and up in one. Whoever builds fills them, all at once; what a family does to the loaded weights
comes after that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.attention import Attention, Heads, SoftCappedAttention
from potluck.engine.blocks import (
    DecoderLayer,
    PostNormLayer,
    PreNormLayer,
    SandwichLayer,
    ScaledLayer,
)
from potluck.engine.linear import Linear
from potluck.engine.mlp import Experts, Mlp
from potluck.engine.norms import HeadNorm, ProjectionNorm, QkNorm, RmsNorm
from potluck.engine.products import Products, fastest_products
from potluck.model.config import ModelConfig, Shape
from potluck.model.families import NormPlacement
from potluck.model.layers import Experts as ExpertsConfig

Fill = Callable[[list[tuple[str, Tensor]]], None]
"""Put the tensors of these names into this memory, which they fit."""

_LAYERS: dict[NormPlacement, type[PreNormLayer | PostNormLayer | SandwichLayer]] = {
    "before": PreNormLayer,
    "after": PostNormLayer,
    "around": SandwichLayer,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """What a stage computes with, all on one device."""

    config: ModelConfig
    layers: Sequence[int]
    blocks: tuple[DecoderLayer, ...]
    embedding: Tensor | None  # (V, D)
    norm: RmsNorm | None
    lm_head: Linear | None
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        total = sum(block.nbytes for block in self.blocks)
        total += self.norm.nbytes if self.norm else 0
        matrices = [self.embedding, self.lm_head.weight if self.lm_head else None]
        # A tied head is the embedding's own memory.
        distinct = {matrix.data_ptr(): matrix.nbytes for matrix in matrices if matrix is not None}
        return total + sum(distinct.values())


@torch.inference_mode()
def build_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    dtype: torch.dtype,
    device: torch.device,
    fill: Fill,
) -> StageWeights:
    """Allocate a stage's matrices and have them filled, in the order in which files hold them."""
    shapes = config.stage_tensors(layers, embedding=False, head=head)
    nbytes = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    builder = _Builder(config, dtype, device, fastest_products(dtype, device, nbytes))
    shared = builder.matrix(config.embedding_name) if embedding else None
    blocks = tuple(builder.layer(layer) for layer in layers)
    norm = lm_head = None
    if head:
        norm = builder.norm(config.final_norm_name)
        lm_head = builder.lm_head(shared)
    fill(builder.targets)
    for finish in builder.finishing:
        finish()
    return StageWeights(
        config=config,
        layers=layers,
        blocks=blocks,
        embedding=shared,
        norm=norm,
        lm_head=lm_head,
        dtype=dtype,
        device=device,
    )


class _Builder:
    """Notes what is to be filled (`targets`), and what is to be done then (`finishing`)."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, products: Products
    ) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._products = products
        self._shapes: dict[str, Shape] = {}  # of the layer that is being built
        self.targets: list[tuple[str, Tensor]] = []
        self.finishing: list[Callable[[], object]] = []

    def layer(self, index: int) -> DecoderLayer:
        config, prefix = self._config, self._config.layer_prefix(index)
        self._shapes = config.layer_tensors(index)
        attention = self._attention(index)
        if config.experts is not None and config.expert_layers[index]:
            mlp = self._experts(prefix, config.experts)
        else:
            mlp = self._mlp(prefix)
        norms = [self.norm(f"{prefix}{name}.weight") for name in config.norm_names]
        if config.residual_multiplier != 1.0:
            return ScaledLayer(attention, mlp, norms, multiplier=config.residual_multiplier)
        return _LAYERS[config.norms](attention, mlp, norms)

    def matrix(self, name: str) -> Tensor:
        return self._filled(name, self._empty(self._config.vocab_size, self._config.hidden_size))

    def lm_head(self, embedding: Tensor | None) -> Linear:
        """The head's matrix; a tied one is the embedding, where the stage has that too."""
        if not self._config.tie_word_embeddings or embedding is None:
            embedding = self.matrix(self._config.head_name)
        return Linear(embedding, None, self._products)

    def norm(self, name: str) -> RmsNorm:
        weight = self._norm_weight(self._config.hidden_size)
        return RmsNorm(self._filled(name, weight), self._config.rms_norm_eps)

    def _attention(self, index: int) -> Attention:
        config = self._config
        prefix = config.layer_prefix(index) + "self_attn."
        rope = config.ropes.layers[index]
        heads = Heads(
            queries=config.num_heads,
            keys=config.num_kv_heads,
            size=config.head_dim,
            window=config.sliding_windows[index],
            scale=config.attention_scale,
            rope=rope,
            rotary_dim=config.head_dim if rope is None else config.ropes.distinct[rope].dim,
        )
        parts = ("qkv_proj",) if config.fused else ("q_proj", "k_proj", "v_proj")
        qkv = self._linear(prefix, parts, bias=config.qkv_bias)
        qk_norm = self._qk_norm(prefix)
        output = self._linear(prefix, ("o_proj",), bias=config.output_bias)
        if config.attention_softcap is None:
            return Attention(heads, qkv, qk_norm, output)
        return SoftCappedAttention(heads, qkv, qk_norm, output, cap=config.attention_softcap)

    def _qk_norm(self, prefix: str) -> QkNorm | None:
        config = self._config
        names = (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight")
        match config.qk_norm:
            case None:
                return None
            case "head":
                weight = self._norm_weight(2, config.head_dim)
                for name, part in zip(names, weight, strict=True):
                    self._filled(name, part)
                heads = (config.num_heads, config.num_kv_heads)
                norm = HeadNorm(weight, heads, config.rms_norm_eps)
                self.finishing.append(norm.spread)
                return norm
            case "projection":
                sizes = (config.q_size, config.kv_size)
                weight = self._norm_weight(sum(sizes))
                for name, part in zip(names, weight.split(sizes), strict=True):
                    self._filled(name, part)
                return ProjectionNorm(weight, sizes, config.rms_norm_eps)

    def _mlp(self, prefix: str) -> Mlp:
        config = self._config
        parts = ("gate_up_proj",) if config.fused else ("gate_proj", "up_proj")
        return Mlp(
            self._linear(f"{prefix}mlp.", parts, bias=config.mlp_bias),
            self._linear(f"{prefix}mlp.", ("down_proj",), bias=config.mlp_bias),
            config.activation,
        )

    def _experts(self, prefix: str, experts: ExpertsConfig) -> Experts:
        config, facts = self._config, experts.facts
        block = f"{prefix}{facts.block}."
        router = torch.empty((experts.count, config.hidden_size), device=self._device)
        return Experts(
            self._filled(f"{block}gate.weight", router),
            [
                Mlp(
                    self._linear(f"{block}experts.{expert}.", (facts.gate, facts.up), bias=False),
                    self._linear(f"{block}experts.{expert}.", (facts.down,), bias=False),
                    config.activation,
                )
                for expert in range(experts.count)
            ],
            per_token=experts.per_token,
            normalise=experts.normalise,
        )

    def _linear(self, prefix: str, parts: tuple[str, ...], *, bias: bool) -> Linear:
        """One matrix whose rows are those of the parts, one after the other."""
        shapes = [self._shapes[f"{prefix}{part}.weight"] for part in parts]
        rows = [shape[0] for shape in shapes]
        weight = self._empty(sum(rows), shapes[0][1])
        for part, target in zip(parts, weight.split(rows), strict=True):
            self._filled(f"{prefix}{part}.weight", target)
        if not bias:
            return Linear(weight, None, self._products)
        offsets = self._empty(sum(rows))
        for part, target in zip(parts, offsets.split(rows), strict=True):
            self._filled(f"{prefix}{part}.bias", target)
        return Linear(weight, offsets, self._products)

    def _norm_weight(self, *shape: int) -> Tensor:
        """In f32, whatever is computed in; of some families one less than what they multiply by."""
        weight = torch.empty(shape, device=self._device)
        if self._config.unit_offset:
            self.finishing.append(lambda: weight.add_(1))
        return weight

    def _filled(self, name: str, target: Tensor) -> Tensor:
        self.targets.append((name, target))
        return target

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
