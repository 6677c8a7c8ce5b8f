"""Choose a stage's pieces by its config and scheme, and allocate their weights.

The matrices have the form that is computed with: queries, keys and values in one, gate and up in one,
of the compute dtype or packed. Whoever builds fills them, layer by layer; what a family does to the
loaded weights comes after that.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import prod
from threading import Lock

import torch
from torch import Tensor

from potluck.engine.accelerator import MakeLinear, Pieces, choose_linear, choose_pieces
from potluck.engine.attention import Attention, Heads, SoftCappedAttention
from potluck.engine.blocks import (
    DecoderLayer,
    PostNormLayer,
    PreNormLayer,
    SandwichLayer,
    ScaledLayer,
)
from potluck.engine.decoding import Run, decode_runs
from potluck.engine.device import cache_dtype, compute_dtype
from potluck.engine.kernels import Arena, Kernels, PackedWeight, ReferenceKernels, best_kernels
from potluck.engine.linear import (
    Embedding,
    FloatEmbedding,
    FloatLinear,
    JoinedLinear,
    Linear,
    PackedEmbedding,
    PackedLinear,
)
from potluck.engine.mlp import Experts, GatedMlp, Mlp, PackedMlp
from potluck.engine.norms import HeadNorm, ProjectionNorm, RmsNorm
from potluck.engine.pages import Scratch
from potluck.engine.products import Products, fastest_products
from potluck.engine.targets import PackedTarget, Target, TensorTarget, is_whole_blocks
from potluck.model.config import ModelConfig, Shape
from potluck.model.families import NormPlacement
from potluck.model.formats import PackedFormat
from potluck.model.layers import Experts as ExpertsConfig
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme, tensor_format, weight_bytes

Fill = Callable[[list[tuple[str, Target]]], Callable[[], None]]
"""Begin to put the tensors of these names into this memory, which they fit; what it returns waits."""

# Layers being filled while others are made or placed: threads find work while one reads a large matrix.
# Metal ends a process in which two threads use it at once (pytorch issue 197805): there, all wait.
_AHEAD = {"cpu": 4, "cuda": 1, "mps": 0}

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
    runs: tuple[Run, ...]  # the same layers, as one token goes through them
    embedding: Embedding | None
    norm: RmsNorm | None
    lm_head: Linear | None
    is_tied: bool  # embedding and head are one matrix, in the same memory
    dtype: torch.dtype  # that is computed in
    cache_dtype: torch.dtype  # of keys and values
    device: torch.device
    is_generated: bool = False  # computed by functions that were generated for this computer's CPU

    @property
    def nbytes(self) -> int:
        pieces = [*self.blocks, self.norm, self.lm_head, None if self.is_tied else self.embedding]
        return sum(piece.nbytes for piece in pieces if piece is not None)


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
) -> StageWeights:
    """Allocate a stage's matrices and have them filled, layer by layer."""
    keys = cache_dtype(scheme, device, cache)
    # Layer by layer: a profile has the same one more than once.
    token_tensors = [config.layer_tensors(layer) for layer in layers]
    token_tensors += [config.head_tensors()] if head else []
    token_bytes = sum(weight_bytes(config, tensors, scheme) for tensors in token_tensors)
    builder = _Builder(config, scheme, device, keys, token_bytes, fill)
    is_tied = embedding and head and config.tie_word_embeddings
    with builder.filling():
        table = builder.matrix(config.embedding_name) if embedding else None
    norm = lm_head = None
    if head:  # the largest first, so that nobody waits for it alone in the end
        with builder.filling():
            norm = builder.norm(config.final_norm_name)
            matrix = table if is_tied and table is not None else builder.matrix(config.head_name)
            lm_head = builder.lm_head(matrix)
    blocks: list[DecoderLayer] = []
    for layer in layers:
        with builder.filling():
            blocks.append(builder.layer(layer))
    builder.finish()
    return StageWeights(
        config=config,
        layers=layers,
        blocks=tuple(blocks),
        runs=decode_runs(blocks, device, builder.run_kernels, keys),
        embedding=builder.embedding(table) if table is not None else None,
        norm=norm,
        lm_head=lm_head,
        is_tied=is_tied,
        dtype=compute_dtype(scheme, device),
        cache_dtype=keys,
        device=device,
        is_generated=builder.is_generated,
    )


class _Builder:
    """Makes pieces; notes what they have to be filled with, and what is to be done then."""

    def __init__(
        self,
        config: ModelConfig,
        scheme: Scheme,
        device: torch.device,
        cache_dtype: torch.dtype,
        token_bytes: int,
        fill: Fill,
    ) -> None:
        self._config, self._device = config, device
        self._scheme: Scheme = scheme
        self._dtype = compute_dtype(scheme, device)
        self._cache_dtype = cache_dtype
        self._token_bytes = token_bytes  # of all the weights that one token reads
        self._fill = fill
        self._shapes: dict[str, Shape] = {}  # of the layer that is being built
        self._targets: list[tuple[str, Target]] = []
        self._finishing: list[Callable[[], object]] = []
        self._being_filled: deque[tuple[Callable[[], None], list[Callable[[], object]]]] = deque()
        # Those who fill take turns at Metal too.
        self._turns = Lock() if device.type == "mps" else nullcontext()
        # What is placed elsewhere leaves the RAM matrix by matrix.
        self._arena = Arena() if device.type == "cpu" else None
        self._scratch = Scratch()

    @cached_property
    def _products(self) -> Products:
        generated = () if self.run_kernels is None else (self._kernels.multiply_plain,)
        return fastest_products(self._dtype, self._device, self._token_bytes, *generated)

    @cached_property
    def _kernels(self) -> Kernels:
        return best_kernels(threads=torch.get_num_threads())

    @property
    def run_kernels(self) -> Kernels | None:
        """For what one token goes through: weights that are packed or of 16 bits, on a CPU."""
        is_narrow = self._scheme in PACKED_SCHEMES or self._dtype.itemsize == 2
        return self._kernels if is_narrow and self._device.type == "cpu" else None

    @cached_property
    def is_generated(self) -> bool:
        """Whether packed weights are computed with by functions generated for this computer's CPU."""
        is_packed = self._scheme in PACKED_SCHEMES and self._device.type == "cpu"
        return is_packed and not isinstance(self._kernels, ReferenceKernels)

    @cached_property
    def _make_placed(self) -> MakeLinear:
        return choose_linear(self._device, self._dtype)

    @cached_property
    def _pieces(self) -> Pieces:
        return choose_pieces(self._device, self._dtype)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Fill what is made inside, and do what comes after that; the end of it `finish` waits for."""
        yield
        self._being_filled.append((self._fill(self._targets), self._finishing))
        self._targets, self._finishing = [], []
        self.finish(_AHEAD.get(self._device.type, 1))

    def finish(self, ahead: int = 0) -> None:
        """Wait until at most so many fillings are under way, and do what comes after the others."""
        while len(self._being_filled) > ahead:
            wait, finishing = self._being_filled.popleft()
            wait()
            for finish in finishing:
                finish()

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

    def matrix(self, name: str) -> Tensor | PackedWeight:
        """A matrix of the whole vocabulary: the embedding's or the head's."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        held = tensor_format(self._config, name, shape, self._scheme)
        if not isinstance(held, PackedFormat):
            return self._filled(name, self._empty(*shape))
        weight = PackedWeight.empty(*shape, held, self._arena)
        self._targets.append((name, PackedTarget(weight, 0, shape[0], self._kernels)))
        return weight

    def embedding(self, matrix: Tensor | PackedWeight) -> Embedding:
        if isinstance(matrix, PackedWeight):
            return PackedEmbedding(matrix, self._dtype, self._device)
        return FloatEmbedding(matrix)

    def lm_head(self, matrix: Tensor | PackedWeight) -> Linear:
        if isinstance(matrix, PackedWeight):
            return self._packed_linear(matrix, None)
        return FloatLinear(matrix, None, self._products)

    def norm(self, name: str) -> RmsNorm:
        weight = self._norm_weight(self._config.hidden_size)
        return self._pieces.rms_norm(self._filled(name, weight), self._config.rms_norm_eps)

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
        if self.is_generated:
            return self._generated_attention(heads, qkv, qk_norm, output)
        if config.attention_softcap is None:
            return self._pieces.attention(heads, qkv, qk_norm, output)
        return SoftCappedAttention(heads, qkv, qk_norm, output, cap=config.attention_softcap)

    def _generated_attention(
        self, heads: Heads, qkv: Linear, qk_norm: HeadNorm | ProjectionNorm | None, output: Linear
    ) -> Attention:
        # Not before it is needed, nor where it does not load: it brings llvmlite.
        from potluck.engine.generated_attention import GeneratedAttention
        from potluck.engine.kernels.generated import KINDS, GeneratedKernels

        assert isinstance(self._kernels, GeneratedKernels)
        return GeneratedAttention(
            heads,
            qkv,
            qk_norm,
            output,
            kernels=self._kernels,
            softcap=self._config.attention_softcap,
            cache_kind=KINDS[self._cache_dtype],
        )

    def _qk_norm(self, prefix: str) -> HeadNorm | ProjectionNorm | None:
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
                norm = self._pieces.head_norm(weight, heads, config.rms_norm_eps)
                self._finishing.append(norm.spread)
                return norm
            case "projection":
                sizes = (config.q_size, config.kv_size)
                weight = self._norm_weight(sum(sizes))
                for name, part in zip(names, weight.split(sizes), strict=True):
                    self._filled(name, part)
                return self._pieces.projection_norm(weight, sizes, config.rms_norm_eps)

    def _mlp(self, prefix: str) -> Mlp:
        config = self._config
        parts = ("gate_up_proj",) if config.fused else ("gate_proj", "up_proj")
        gate_up = self._linear(f"{prefix}mlp.", parts, bias=config.mlp_bias)
        down = self._linear(f"{prefix}mlp.", ("down_proj",), bias=config.mlp_bias)
        return self._gated(gate_up, down)

    def _gated(self, gate_up: Linear, down: Linear) -> Mlp:
        if isinstance(down, PackedLinear):
            return PackedMlp(gate_up, down, self._config.activation, self._scratch)
        return GatedMlp(gate_up, down, self._config.activation)

    def _experts(self, prefix: str, experts: ExpertsConfig) -> Experts:
        config, facts = self._config, experts.facts
        block = f"{prefix}{facts.block}."
        router = torch.empty((experts.count, config.hidden_size), device=self._device)
        self._filled(f"{block}gate.weight", router)
        mlps = [
            self._gated(
                self._linear(f"{block}experts.{expert}.", (facts.gate, facts.up), bias=False),
                self._linear(f"{block}experts.{expert}.", (facts.down,), bias=False),
            )
            for expert in range(experts.count)
        ]
        return Experts(router, mlps, per_token=experts.per_token, normalise=experts.normalise)

    def _linear(self, prefix: str, parts: tuple[str, ...], *, bias: bool) -> Linear:
        """One matrix whose rows are those of the parts, one after the other."""
        names = [f"{prefix}{part}.weight" for part in parts]
        shapes = [self._shapes[name] for name in names]
        is_packed = self._scheme in PACKED_SCHEMES
        if is_packed and not all(is_whole_blocks(rows) for rows, _ in shapes[:-1]):
            return JoinedLinear([self._linear(prefix, (part,), bias=bias) for part in parts])
        rows, width = [shape[0] for shape in shapes], shapes[0][1]
        offsets = self._bias(prefix, parts, rows) if bias else None
        if not is_packed:
            weight = self._empty(sum(rows), width)
            for name, target in zip(names, weight.split(rows), strict=True):
                self._filled(name, target)
            return FloatLinear(weight, offsets, self._products)
        held = tensor_format(self._config, names[0], shapes[0], self._scheme)
        assert isinstance(held, PackedFormat)
        packed, first = PackedWeight.empty(sum(rows), width, held, self._arena), 0
        for name, some in zip(names, rows, strict=True):
            self._targets.append((name, PackedTarget(packed, first, some, self._kernels)))
            first += some
        return self._packed_linear(packed, offsets)

    def _packed_linear(self, weight: PackedWeight, bias: Tensor | None) -> Linear:
        if self._device.type == "cpu":
            return PackedLinear(weight, bias, self._kernels)
        linear = self._make_placed(weight, bias)
        self._finishing.append(linear.place)  # the packed bytes leave the RAM layer by layer
        return linear

    def _bias(self, prefix: str, parts: tuple[str, ...], rows: Sequence[int]) -> Tensor:
        offsets = self._empty(sum(rows))
        for part, target in zip(parts, offsets.split(list(rows)), strict=True):
            self._filled(f"{prefix}{part}.bias", target)
        return offsets

    def _norm_weight(self, *shape: int) -> Tensor:
        """In f32, whatever is computed in; of some families one less than what they multiply by."""
        weight = torch.empty(shape, device=self._device)
        if self._config.unit_offset:
            self._finishing.append(lambda: weight.add_(1))
        return weight

    def _filled(self, name: str, target: Tensor) -> Tensor:
        self._targets.append((name, TensorTarget(target, self._turns)))
        return target

    def _empty(self, *shape: int) -> Tensor:
        if self._arena is None:
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        memory = self._arena.allocate(prod(shape) * self._dtype.itemsize)
        return memory.view(self._dtype).view(shape)
