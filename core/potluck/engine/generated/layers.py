"""Layers as generated functions take them: which ones can be in one, and their weights."""

from dataclasses import replace
from typing import TypeAlias

from potluck.engine.device import CacheForm
from potluck.engine.generated.attention import has_kernels
from potluck.engine.generated.block_index import has_block_kernels
from potluck.engine.generated.mixers import MixerWeights, bias_of, generated_mixer, weight_of
from potluck.engine.kernels.decoding.layer_inputs import InputWeights
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.layer_weights import (
    BesideExperts,
    Expert,
    LayerWeights,
    Moe,
    layer_shape,
)
from potluck.engine.kernels.decoding.streams_kernel import StreamShape, has_stream_kernels
from potluck.engine.kernels.products.tensors import (
    MixTensors,
)
from potluck.engine.layers.balanced_streams import BalancedMix
from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.layers.carried import CarriedLayer, LayerInputs
from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.layers.streams import StreamLayer
from potluck.model.families.facts import Activation
from potluck.model.layers import DenseSpec, FeedForward, LayerSpec, MoeSpec, ParallelSpec
from potluck.model.mixing.mixers import AttentionSpec

GeneratedLayer: TypeAlias = tuple[LayerShape, LayerWeights]
"""A layer as a generated function takes it; those of one shape can be in one function."""


def generated_layer(block: DecoderLayer, cache: CacheForm) -> GeneratedLayer | None:
    """The layer for a generated function, with keys and values in this form.

    None: no function can be generated for it, and torch computes it. The specification says so, or
    a matrix is in several pieces.
    """
    spec = block.spec
    if not is_generable(spec):
        return None
    mixer, heads = generated_mixer(block.mixer, spec.carried, cache)
    weights = None if mixer is None else _layer_weights(block, mixer)
    if weights is None:
        return None
    shape = layer_shape(
        weights,
        heads,
        epsilon=spec.norm_eps,
        after_epsilon=spec.after_norm_eps,
        multiplier=spec.residual_multiplier,
        activation="silu" if spec.feed_forward is None else spec.feed_forward.activation,
        shared_activation=_shared_activation(spec.feed_forward),
        norm_kind=spec.norm_kind,
        is_side_by_side=spec.is_side_by_side,
        carried=0 if spec.carried is None else spec.width - spec.hidden_size,
        streams=None if spec.streams is None else StreamShape.of(spec.streams.mixer.streams),
        sums_mixer=spec.sums_mixer,
        sums_feed_forward=spec.sums_feed_forward,
    )
    return shape, weights


def _shared_activation(feed_forward: FeedForward | None) -> Activation | None:
    return feed_forward.shared_activation if isinstance(feed_forward, MoeSpec) else None


def is_generable(spec: LayerSpec) -> bool:
    """Whether a function can be generated for layers of this specification."""
    if spec.mixer is not None and not has_kernels(spec.mixer):
        return False
    if isinstance(spec.mixer, AttentionSpec) and not has_block_kernels(spec.mixer):
        return False
    if not _has_stream_kernels(spec):
        return False
    norms, feed_forward = spec.norms, spec.feed_forward
    is_parallel = isinstance(feed_forward, ParallelSpec)  # which has the norm before it inside
    has_before, has_after = norms.before_mixer is not None, norms.after_mixer is not None
    if spec.norm_kind != "root mean square" or spec.is_side_by_side:
        is_plain = isinstance(spec.mixer, AttentionSpec) and not is_parallel
        if not (is_plain and has_before) or has_after or norms.after_mlp is not None:
            return False
    before_mlp = is_parallel or spec.is_side_by_side or norms.before_mlp is not None
    after_mlp = norms.after_mlp is not None
    if spec.mixer is None:
        has_before, has_after = before_mlp, after_mlp
    if feed_forward is not None and (has_before, has_after) != (before_mlp, after_mlp):
        return False
    if has_after and spec.residual_multiplier != 1.0:
        return False
    if feed_forward is None:
        return has_before or isinstance(spec.mixer, AttentionSpec)
    return isinstance(feed_forward, DenseSpec) or (has_before and (has_after or not is_parallel))


def _has_stream_kernels(spec: LayerSpec) -> bool:
    """Whether the layer has one stream, or several that kernels mix."""
    if spec.streams is None:
        return True
    norms = spec.norms
    has_norms = norms.before_mixer is not None and norms.before_mlp is not None
    return has_norms and spec.ngrams is None and has_stream_kernels(spec.streams.mixer.streams)


def _streams(block: DecoderLayer) -> tuple[MixTensors, MixTensors] | None:
    """What stands around the two blocks of a layer with several streams."""
    if not isinstance(block, StreamLayer):
        return None
    first, second = block.around_mixer, block.around_mlp
    assert isinstance(first, BalancedMix)
    assert isinstance(second, BalancedMix)
    return first.tensors, second.tensors


def _inputs(inputs: LayerInputs) -> InputWeights | None:
    """None: a matrix is in several pieces."""
    context, gate, output = (weight_of(one) for one in inputs.matrices)
    if context is None or gate is None or output is None:
        return None
    return InputWeights(
        context=context,
        gate=gate,
        output=output,
        context_norm=inputs.shared.norm.weight,
        norm=inputs.norm.weight,
        first=inputs.spec.layer * inputs.spec.size,
        activation=inputs.spec.activation,
    )


def _layer_weights(block: DecoderLayer, mixer: MixerWeights) -> LayerWeights | None:
    """The layer's weights; None: a matrix is in several pieces."""
    mlp = block.mlp
    moe = dense = None
    match mlp:
        case ParallelMoE():
            moe = _parallel(mlp)
        case MoE():
            moe = _moe(mlp)
        case None:
            pass
        case _:
            dense = _expert(mlp)
    if mlp is not None and dense is None and moe is None:
        return None
    of_layer = block.inputs if isinstance(block, CarriedLayer) else None
    inputs = None if of_layer is None else _inputs(of_layer)
    if of_layer is not None and inputs is None:
        return None
    gate_up, down = (None, None) if dense is None else dense[:2]
    return LayerWeights(
        norms=block.norms.map(lambda norm: norm.weight),
        gate_up=gate_up,
        gate_up_bias=None if dense is None else dense.gate_up_bias,
        down=down,
        down_bias=None if dense is None else dense.down_bias,
        learned=None if mlp is None or isinstance(mlp, MoE | ParallelMoE) else mlp.learned,
        moe=moe,
        inputs=inputs,
        streams=_streams(block),
        scale=block.scale,
        **mixer,
    )


def _moe(moe: MoE) -> Moe | None:
    """None where a matrix is in several pieces."""
    whole = [expert for expert in map(_expert, moe.mlps) if expert is not None]
    if len(whole) < len(moe.mlps):
        return None
    shared, narrow = None if moe.shared is None else whole.pop(), None
    if moe.narrow is not None:
        first, last = map(weight_of, moe.narrow)
        if first is None or last is None:
            return None
        narrow = first, last
    return Moe(router=moe.router, experts=tuple(whole), shared=shared, narrow=narrow)


def _parallel(parallel: ParallelMoE) -> Moe | None:
    """None where a matrix is in several pieces."""
    moe, dense = _moe(parallel.moe), _expert(parallel.dense)
    if moe is None or dense is None:
        return None
    norms = parallel.norms.map(lambda norm: norm.weight)
    beside = BesideExperts(mlp=dense, norms=norms, router_norm=parallel.router_norm.weight)
    return replace(moe, beside=beside)


def _expert(mlp: Mlp) -> Expert | None:
    gate_up, down = weight_of(mlp.gate_up), weight_of(mlp.down)
    if gate_up is None or down is None:
        return None
    return Expert(gate_up, down, bias_of(mlp.gate_up), bias_of(mlp.down))
