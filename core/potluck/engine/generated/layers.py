"""Layers as generated functions take them: which ones can be in one, and their weights."""

from dataclasses import replace
from typing import NotRequired, TypeAlias, TypedDict

import torch
from torch import Tensor

from potluck.engine.caches.pool_cache import pool_dtype
from potluck.engine.generated.attention import has_kernels, kernel_heads
from potluck.engine.generated.block_index import block_heads, has_block_kernels
from potluck.engine.generated.convolution import convolution_sizes
from potluck.engine.generated.delta_net import delta_heads
from potluck.engine.generated.latent import index_heads, latent_heads
from potluck.engine.generated.mamba import mamba_heads
from potluck.engine.generated.pool_latent import pool_heads
from potluck.engine.generated.pooled import pooled_heads
from potluck.engine.kernels.attending.index_kernel import IndexHeads
from potluck.engine.kernels.attending.latent_kernel import LatentHeads
from potluck.engine.kernels.attending.pool_rows_kernel import PoolHeads
from potluck.engine.kernels.attending.pooled_kernel import PooledHeads
from potluck.engine.kernels.decoding.block_calls import BlockWeights
from potluck.engine.kernels.decoding.latent_weights import (
    IndexWeights,
    LatentWeights,
    PoolIndexWeights,
)
from potluck.engine.kernels.decoding.layer_inputs import InputWeights
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.layer_weights import (
    BesideExperts,
    Expert,
    LayerWeights,
    Moe,
    Space,
    layer_shape,
)
from potluck.engine.kernels.decoding.pooled_weights import PooledWeights
from potluck.engine.kernels.decoding.streams_kernel import StreamShape, has_stream_kernels
from potluck.engine.kernels.products.tensors import (
    ConvolutionTensors,
    DeltaTensors,
    FloatWeight,
    MambaTensors,
    MixTensors,
    Weight,
)
from potluck.engine.layers.attention import Attention
from potluck.engine.layers.balanced_streams import BalancedMix
from potluck.engine.layers.beside import Beside
from potluck.engine.layers.block_index import WithIndex
from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.layers.carried import CarriedLayer, LayerInputs
from potluck.engine.layers.channel_delta import ChannelDeltaNet
from potluck.engine.layers.delta_net import DeltaNet
from potluck.engine.layers.indexer import Indexer
from potluck.engine.layers.latent import LatentAttention
from potluck.engine.layers.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.layers.mamba import Mamba
from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.layers.pool_indexer import PoolIndexer
from potluck.engine.layers.pooled import PooledAttention
from potluck.engine.layers.short_convolution import ShortConvolution
from potluck.engine.layers.streams import StreamLayer
from potluck.model.families.facts import Activation
from potluck.model.layers import DenseSpec, FeedForward, LayerSpec, MoeSpec, ParallelSpec
from potluck.model.mixing.carried import Carried
from potluck.model.mixing.mixers import AttentionSpec

GeneratedLayer: TypeAlias = tuple[LayerShape, LayerWeights]
"""A layer as a generated function takes it; those of one shape can be in one function."""


class MixerWeights(TypedDict):
    """The part of `LayerWeights` that the mixer has."""

    qkv: NotRequired[Weight]
    qkv_bias: NotRequired[Tensor | None]
    qk_norm: NotRequired[Tensor | None]
    output: NotRequired[Weight]
    output_bias: NotRequired[Tensor | None]
    window: NotRequired[int | None]
    chunk: NotRequired[int | None]
    sinks: NotRequired[Tensor | None]
    rope: NotRequired[int | None]
    gives_at: NotRequired[int]
    takes_at: NotRequired[int]
    latent: NotRequired[LatentWeights]
    pooled: NotRequired[PooledWeights]
    blocks: NotRequired[BlockWeights]
    delta_net: NotRequired[DeltaTensors]
    gates: NotRequired[Weight]
    decay_up: NotRequired[Tensor]
    mamba: NotRequired[MambaTensors]
    convolution: NotRequired[ConvolutionTensors]
    space: NotRequired[Space]


def generated_layer(block: DecoderLayer, cache: torch.dtype) -> GeneratedLayer | None:
    """The layer for a generated function, with keys and values of this dtype.

    None: no function can be generated for it, and torch computes it. The specification says so, or
    a matrix is in several pieces.
    """
    spec = block.spec
    if not is_generable(spec):
        return None
    match block.mixer:
        case None:
            mixer, heads = MixerWeights(rope=None), None
        case Attention() as attention:
            mixer, heads = _attention(attention), kernel_heads(attention.spec, cache)
            if mixer is not None and spec.carried is not None:
                mixer |= _carried(attention.spec, spec.carried)
                heads = replace(heads, takes=attention.spec.takes is not None)
            if mixer is not None and isinstance(attention, WithIndex):
                mixer = _with_blocks(mixer, attention, cache)
        case LatentAttention() as latent:
            whole = latent_heads(latent.spec, cache)
            mixer, heads = _latent(latent, whole, cache), whole.attention
        case PooledAttention() as pooled:
            own = pooled_heads(pooled.spec, pool_dtype(cache))
            mixer, heads = _pooled(pooled, own), own.attention
        case DeltaNet() as delta_net:
            mixer, heads = _delta_net(delta_net), delta_heads(delta_net.spec)
        case ChannelDeltaNet() as channel_delta:
            mixer, heads = _channel_delta(channel_delta), delta_heads(channel_delta.spec)
        case Mamba() as mamba:
            mixer, heads = _between(mamba), mamba_heads(mamba.spec)
            mixer = mixer and {**mixer, "mamba": mamba.tensors}
        case ShortConvolution() as short:
            mixer, heads = _between(short), convolution_sizes(short.spec)
            mixer = mixer and {**mixer, "convolution": short.tensors}
        case Beside(attention=attention, mamba=mamba):
            mixer, heads = _beside(attention, mamba), kernel_heads(attention.spec, cache)
        case _:
            return None
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


def _attention(attention: Attention) -> MixerWeights | None:
    qkv, output = _weight(attention.qkv), _weight(attention.output)
    if qkv is None or output is None:
        return None
    window, in_chunks = attention.spec.window, attention.spec.in_chunks
    return {
        "qkv": qkv,
        "qkv_bias": _bias(attention.qkv),
        "qk_norm": None if attention.qk_norm is None else attention.qk_norm.weight,
        "output": output,
        "output_bias": _bias(attention.output),
        "window": None if in_chunks else window,
        "chunk": window if in_chunks else None,
        "sinks": attention.sinks,
        "rope": attention.spec.rope,
    }


def _with_blocks(
    mixer: MixerWeights, attention: WithIndex, cache: torch.dtype
) -> MixerWeights | None:
    """The same with an indexer."""
    index, first = attention.index, _weight(attention.index.input)
    if first is None:
        return None
    weights = BlockWeights(
        heads=block_heads(attention.spec, cache),
        input=first,
        query_norm=index.query_norm.weight,
        key_norm=index.key_norm.weight,
    )
    return {**mixer, "blocks": weights}


def _carried(spec: AttentionSpec, carried: Carried) -> MixerWeights:
    """Where keys and values go along that it gives, or takes."""
    gives, takes = (
        0 if kind is None else carried.place(kind).start for kind in (spec.gives, spec.takes)
    )
    return {"gives_at": gives, "takes_at": takes}


def _inputs(inputs: LayerInputs) -> InputWeights | None:
    """None: a matrix is in several pieces."""
    context, gate, output = (_weight(one) for one in inputs.matrices)
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


def _beside(attention: Attention, mamba: Mamba) -> MixerWeights | None:
    mixer, first, output = _attention(attention), _weight(mamba.input), _weight(mamba.output)
    if mixer is None or first is None or output is None:
        return None
    heads = mamba_heads(mamba.spec)
    space = Space(heads=heads, input=first, output=output, tensors=mamba.tensors)
    return {**mixer, "space": space}


def _delta_net(mixer: DeltaNet) -> MixerWeights | None:
    qkv, output = _weight(mixer.input), _weight(mixer.output)
    if qkv is None or output is None:
        return None
    return {"qkv": qkv, "output": output, "rope": None, "delta_net": mixer.tensors}


def _channel_delta(mixer: ChannelDeltaNet) -> MixerWeights | None:
    first, gates, output = (_weight(one) for one in mixer.matrices)
    if first is None or gates is None or output is None:
        return None
    return {
        "qkv": first,
        "output": output,
        "rope": None,
        "delta_net": mixer.tensors,
        "gates": gates,
        "decay_up": mixer.tensors.decay_up,
    }


def _between(mixer: Mamba | ShortConvolution) -> MixerWeights | None:
    """The two matrices, between which the mixer is."""
    first, output = _weight(mixer.input), _weight(mixer.output)
    if first is None or output is None:
        return None
    return {
        "qkv": first,
        "qkv_bias": _bias(mixer.input),
        "output": output,
        "output_bias": _bias(mixer.output),
        "rope": None,
    }


def _latent(latent: LatentAttention, heads: LatentHeads, cache: torch.dtype) -> MixerWeights | None:
    qkv, output = _weight(latent.input), _weight(latent.output)
    key_up, value_up = _weight(latent.key_up), _weight(latent.value_up)
    queries = None if latent.queries is None else _weight(latent.queries)
    is_whole = latent.queries is None or queries is not None
    index: IndexWeights | PoolIndexWeights | None = None
    if isinstance(latent.indexer, PoolIndexer):
        index = _pool_index(latent.indexer, pool_heads(latent.spec, cache))
        is_whole = is_whole and index is not None and cache != torch.int8
    elif latent.indexer is not None:
        index = _index(latent.indexer, index_heads(latent.spec, cache))
        is_whole = is_whole and index is not None
    if qkv is None or output is None or key_up is None or value_up is None or not is_whole:
        return None
    return {
        "qkv": qkv,
        "qkv_bias": _bias(latent.input),
        "output": output,
        "output_bias": _bias(latent.output),
        "rope": latent.spec.rope,
        "latent": LatentWeights(
            heads=heads,
            query_norm=None if latent.query_norm is None else latent.query_norm.weight,
            queries=queries,
            norm=latent.latent_norm.weight,
            key_up=key_up,
            value_up=value_up,
            index=index,
            follows=latent.spec.follows,
        ),
    }


def _index(indexer: Indexer, heads: IndexHeads | None) -> IndexWeights | None:
    queries, keys = _weight(indexer.queries), _weight(indexer.keys)
    if queries is None or keys is None or heads is None:
        return None
    return IndexWeights(
        heads=heads,
        queries=queries,
        keys=keys,
        head_weights=indexer.weights.weight,
        norm=indexer.norm.weight[0],
        norm_bias=indexer.norm.weight[1],
    )


def _pooled(pooled: PooledAttention, heads: PooledHeads) -> MixerWeights | None:
    first, output, queries = (_weight(one) for one in (pooled.input, pooled.up, pooled.queries))
    groups = [one for one in map(_weight, pooled.group_output) if one is not None]
    pooling = None if pooled.pooling is None else _weight(pooled.pooling)
    of_index = None if pooled.index is None else _weight(pooled.index.queries)
    are_whole = (
        len(groups) == len(pooled.group_output),
        (pooling is None) == (pooled.pooling is None),
        (of_index is None) == (pooled.index is None),
    )
    if first is None or output is None or queries is None or not all(are_whole):
        return None
    return {
        "qkv": first,
        "output": output,
        "rope": pooled.spec.rope,
        "sinks": pooled.sinks,
        "pooled": PooledWeights(
            heads=heads,
            query_norm=pooled.query_norm.weight,
            queries=queries,
            key_norm=pooled.key_norm.weight,
            groups=groups,
            pooling=pooling,
            pool_norms=[one.norm.weight for one in pooled.poolers],
            pool_biases=[one.bias for one in pooled.poolers],
            index_queries=of_index,
            head_weights=None if pooled.index is None else pooled.index.weights.weight,
        ),
    }


def _pool_index(indexer: PoolIndexer, heads: PoolHeads) -> PoolIndexWeights | None:
    queries, keys, gates = (_weight(one) for one in (indexer.queries, indexer.keys, indexer.gates))
    if queries is None or keys is None or gates is None:
        return None
    return PoolIndexWeights(
        heads=heads,
        queries=queries,
        keys=keys,
        gates=gates,
        head_weights=indexer.weights.weight,
        norm=indexer.norm.weight,
        gate_bias=indexer.bias,
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
        first, last = map(_weight, moe.narrow)
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
    gate_up, down = _weight(mlp.gate_up), _weight(mlp.down)
    if gate_up is None or down is None:
        return None
    return Expert(gate_up, down, _bias(mlp.gate_up), _bias(mlp.down))


def _weight(linear: Linear) -> Weight | None:
    match linear:
        case PackedLinear():
            return linear.weight
        case FloatLinear():
            return FloatWeight(linear.weight)
        case _:
            return None


def _bias(linear: Linear) -> Tensor | None:
    if not isinstance(linear, PackedLinear | FloatLinear) or linear.bias is None:
        return None
    return linear.bias.float()
