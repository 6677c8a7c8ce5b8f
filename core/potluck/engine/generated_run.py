"""Runs of layers as generated functions: which layers they can do, and how they are called."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.engine.attention import Attention, SoftCappedAttention, Step
from potluck.engine.blocks import (
    DecoderLayer,
    PostNormLayer,
    PreNormLayer,
    SandwichLayer,
    ScaledLayer,
)
from potluck.engine.decoding import Run
from potluck.engine.generated_attention import GeneratedAttention
from potluck.engine.kernels.attention_kernel import Heads
from potluck.engine.kernels.decode import Decoder, Expert, LayerWeights, Mixture, layer_shape
from potluck.engine.kernels.generated import KINDS, GeneratedKernels
from potluck.engine.kernels.layer_kernel import LayerShape
from potluck.engine.kernels.tensors import FloatWeight, Weight
from potluck.engine.kvcache import LayerCache, SessionCache
from potluck.engine.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.mlp import Experts, GatedMlp, PackedMlp
from potluck.engine.norms import HeadNorm, ProjectionNorm
from potluck.model.families import NormPlacement

_NORMS: Mapping[type[DecoderLayer], NormPlacement] = {
    PreNormLayer: "before",
    ScaledLayer: "before",
    PostNormLayer: "after",
    SandwichLayer: "around",
}


def run_shape(block: DecoderLayer, cache: torch.dtype) -> LayerShape | None:
    """What a function has to be generated for, with a cache of this dtype; None: it cannot do this layer."""
    weights, attention, mlp = _layer_weights(block), block.attention, _one_mlp(block)
    if weights is None:
        return None
    is_generated = isinstance(attention, GeneratedAttention)
    heads = attention.shape if is_generated else _heads(attention, cache)
    return layer_shape(
        weights,
        heads,
        norms=_NORMS[type(block)],
        epsilon=block.norms[0].eps,
        multiplier=block.multiplier if isinstance(block, ScaledLayer) else 1.0,
        activation=mlp.activation,
    )


class GeneratedRun(Run):
    """Consecutive layers of one shape, with hidden states in f32 between them."""

    def __init__(
        self,
        first: int,
        blocks: Sequence[DecoderLayer],
        shape: LayerShape,
        kernels: GeneratedKernels,
    ) -> None:
        weights = [_layer_weights(block) for block in blocks]
        layers = [layer for layer in weights if layer is not None]
        self.layers, self.heads = slice(first, first + len(blocks)), shape.attention
        self.kernels = kernels
        self._decoder = Decoder(kernels, layers, shape)
        self._placed: object = None  # whose caches the decoder knows

    def step(
        self, hidden: int, cache: SessionCache, position: int, angles: Sequence[tuple[int, int]]
    ) -> None:
        """`__call__` for D hidden states in f32 at this address, in place, with no torch operator.

        Args:
            hidden: where they are.
            cache: of all layers of the stage.
            position: of the token.
            angles: of the position, for each kind of rotary where its cosines and sines are, in f32.
        """
        if self._placed is not cache.place:
            own = cache.layers[self.layers]
            self._decoder.place([one.both for one in own], [one.first for one in own])
            self._placed = cache.place
        self._decoder.step(hidden, position, angles)

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        hidden = x.to(torch.float32, copy=True)  # it is updated in place
        own, self._placed = caches[self.layers], None
        angles = [(cosines.float(), sines.float()) for cosines, sines in step.angles]
        memory, firsts = [one.both for one in own], [one.first for one in own]
        self._decoder(hidden, memory, step.position, angles, firsts)
        return hidden.to(x.dtype)


def _heads(attention: Attention, cache: torch.dtype) -> Heads:
    norm = attention.qk_norm
    assert isinstance(norm, HeadNorm | ProjectionNorm | None)
    scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
    return Heads(
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        rotary_dim=attention.rotary_dim,
        qk_norm=None if norm is None else norm.kind,
        epsilon=0.0 if norm is None else norm.eps,
        scale=scale,
        softcap=attention.cap if isinstance(attention, SoftCappedAttention) else None,
        cache_kind=KINDS[cache],
    )


def _layer_weights(block: DecoderLayer) -> LayerWeights | None:
    """None where a matrix is not in one piece."""
    attention, mlp = block.attention, block.mlp
    norm = attention.qk_norm
    qkv, output = _weight(attention.qkv), _weight(attention.output)
    if qkv is None or output is None:
        return None
    assert isinstance(norm, HeadNorm | ProjectionNorm | None)
    gate_up = down = mixture = None
    if isinstance(mlp, Experts):
        if (mixture := _mixture(mlp)) is None:
            return None
    else:
        assert isinstance(mlp, GatedMlp | PackedMlp)
        gate_up, down = mlp.gate_up, mlp.down
        if _weight(gate_up) is None or _weight(down) is None:
            return None
    return LayerWeights(
        norms=tuple(one.weight for one in block.norms),
        qkv=qkv,
        qkv_bias=_bias(attention.qkv),
        qk_norm=None if norm is None else norm.weight,
        output=output,
        output_bias=_bias(attention.output),
        gate_up=_weight(gate_up),
        gate_up_bias=_bias(gate_up),
        down=_weight(down),
        down_bias=_bias(down),
        mixture=mixture,
        window=attention.window,
        rope=attention.rope,
    )


def _mixture(experts: Experts) -> Mixture | None:
    """None where a matrix is not in one piece."""
    pairs: list[Expert] = []
    for mlp in experts.experts:
        assert isinstance(mlp, GatedMlp | PackedMlp)
        gate_up, down = _weight(mlp.gate_up), _weight(mlp.down)
        if gate_up is None or down is None:
            return None
        pairs.append((gate_up, down))
    return Mixture(
        router=experts.router,
        experts=tuple(pairs),
        per_token=experts.per_token,
        normalise=experts.normalise,
    )


def _one_mlp(block: DecoderLayer) -> GatedMlp | PackedMlp:
    """The layer's, or its first expert."""
    mlp = block.mlp.experts[0] if isinstance(block.mlp, Experts) else block.mlp
    assert isinstance(mlp, GatedMlp | PackedMlp)
    return mlp


def _weight(linear: Linear | None) -> Weight | None:
    match linear:
        case PackedLinear():
            return linear.weight
        case FloatLinear():
            return FloatWeight(linear.weight)
        case _:
            return None


def _bias(linear: Linear | None) -> Tensor | None:
    if not isinstance(linear, PackedLinear | FloatLinear) or linear.bias is None:
        return None
    return linear.bias.float()
