"""Mixers as generated functions take them: the parameters of their kernels, and their weights."""

from dataclasses import replace
from typing import NotRequired, TypedDict

from torch import Tensor

from potluck.engine.caches.pool_cache import pool_dtype
from potluck.engine.device import CacheForm
from potluck.engine.generated.attention import kernel_heads
from potluck.engine.generated.block_index import block_heads
from potluck.engine.generated.convolution import convolution_sizes
from potluck.engine.generated.delta_net import delta_heads
from potluck.engine.generated.latent import index_heads, latent_heads
from potluck.engine.generated.mamba import mamba_heads
from potluck.engine.generated.pool_latent import pool_heads
from potluck.engine.generated.pooled import pooled_heads
from potluck.engine.kernels.attending.attention import Heads
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
from potluck.engine.kernels.decoding.layer_shape import MixerShape
from potluck.engine.kernels.decoding.layer_weights import Space
from potluck.engine.kernels.decoding.pooled_weights import PooledWeights
from potluck.engine.kernels.products.tensors import (
    ConvolutionTensors,
    DeltaTensors,
    FloatWeight,
    MambaTensors,
    Weight,
)
from potluck.engine.layers.attention import Attention
from potluck.engine.layers.beside import Beside
from potluck.engine.layers.block_index import WithIndex
from potluck.engine.layers.blocks import Mixer
from potluck.engine.layers.channel_delta import ChannelDeltaNet
from potluck.engine.layers.delta_net import DeltaNet
from potluck.engine.layers.indexer import Indexer
from potluck.engine.layers.latent import LatentAttention
from potluck.engine.layers.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.layers.mamba import Mamba
from potluck.engine.layers.pool_indexer import PoolIndexer
from potluck.engine.layers.pooled import PooledAttention
from potluck.engine.layers.short_convolution import ShortConvolution
from potluck.model.mixing.carried import Carried
from potluck.model.mixing.mixers import AttentionSpec


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


def generated_mixer(
    mixer: Mixer | None, carried: Carried | None, cache: CacheForm
) -> tuple[MixerWeights | None, MixerShape | None]:
    """The weights of a layer's mixer, and the parameters of its kernels, with cached numbers in this form.

    No weights: a matrix is in several pieces, or no kernels compute it. `carried` goes along behind hidden states.
    """
    match mixer:
        case None:
            weights, heads = MixerWeights(rope=None), None
        case Attention() as attention:
            weights, heads = _attention(attention), kernel_heads(attention.spec, cache)
            if weights is not None and carried is not None:
                weights |= _carried(attention.spec, carried)
                heads = replace(heads, takes=attention.spec.takes is not None)
            if weights is not None and isinstance(attention, WithIndex):
                weights = _with_blocks(weights, attention, heads)
        case LatentAttention() as latent:
            whole = latent_heads(latent.spec, cache)
            weights, heads = _latent(latent, whole), whole.attention
        case PooledAttention() as pooled:
            own = pooled_heads(pooled.spec, pool_dtype(cache.dtype))
            weights, heads = _pooled(pooled, own), own.attention
        case DeltaNet() as delta_net:
            weights, heads = _delta_net(delta_net), delta_heads(delta_net.spec)
        case ChannelDeltaNet() as channel_delta:
            weights, heads = _channel_delta(channel_delta), delta_heads(channel_delta.spec)
        case Mamba() as mamba:
            weights, heads = _between(mamba), mamba_heads(mamba.spec)
            weights = weights and {**weights, "mamba": mamba.tensors}
        case ShortConvolution() as short:
            weights, heads = _between(short), convolution_sizes(short.spec)
            weights = weights and {**weights, "convolution": short.tensors}
        case Beside(attention=attention, mamba=mamba):
            weights, heads = _beside(attention, mamba), kernel_heads(attention.spec, cache)
        case _:
            return None, None
    return weights, heads


def _attention(attention: Attention) -> MixerWeights | None:
    qkv, output = weight_of(attention.qkv), weight_of(attention.output)
    if qkv is None or output is None:
        return None
    window, in_chunks = attention.spec.window, attention.spec.in_chunks
    return {
        "qkv": qkv,
        "qkv_bias": bias_of(attention.qkv),
        "qk_norm": None if attention.qk_norm is None else attention.qk_norm.weight,
        "output": output,
        "output_bias": bias_of(attention.output),
        "window": None if in_chunks else window,
        "chunk": window if in_chunks else None,
        "sinks": attention.sinks,
        "rope": attention.spec.rope,
    }


def _with_blocks(mixer: MixerWeights, attention: WithIndex, heads: Heads) -> MixerWeights | None:
    """The same with an indexer."""
    index, first = attention.index, weight_of(attention.index.input)
    if first is None:
        return None
    weights = BlockWeights(
        heads=block_heads(attention.spec, heads),
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


def _beside(attention: Attention, mamba: Mamba) -> MixerWeights | None:
    mixer, first, output = _attention(attention), weight_of(mamba.input), weight_of(mamba.output)
    if mixer is None or first is None or output is None:
        return None
    heads = mamba_heads(mamba.spec)
    space = Space(heads=heads, input=first, output=output, tensors=mamba.tensors)
    return {**mixer, "space": space}


def _delta_net(mixer: DeltaNet) -> MixerWeights | None:
    qkv, output = weight_of(mixer.input), weight_of(mixer.output)
    if qkv is None or output is None:
        return None
    return {"qkv": qkv, "output": output, "rope": None, "delta_net": mixer.tensors}


def _channel_delta(mixer: ChannelDeltaNet) -> MixerWeights | None:
    first, gates, output = (weight_of(one) for one in mixer.matrices)
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
    first, output = weight_of(mixer.input), weight_of(mixer.output)
    if first is None or output is None:
        return None
    return {
        "qkv": first,
        "qkv_bias": bias_of(mixer.input),
        "output": output,
        "output_bias": bias_of(mixer.output),
        "rope": None,
    }


def _latent(latent: LatentAttention, heads: LatentHeads) -> MixerWeights | None:
    qkv, output = weight_of(latent.input), weight_of(latent.output)
    key_up, value_up = weight_of(latent.key_up), weight_of(latent.value_up)
    queries = None if latent.queries is None else weight_of(latent.queries)
    is_whole = latent.queries is None or queries is not None
    index: IndexWeights | PoolIndexWeights | None = None
    if isinstance(latent.indexer, PoolIndexer):
        index = _pool_index(latent.indexer, pool_heads(latent.spec, heads.attention))
        is_whole = is_whole and index is not None and not heads.attention.has_scales
    elif latent.indexer is not None:
        index = _index(latent.indexer, index_heads(latent.spec, heads.attention))
        is_whole = is_whole and index is not None
    if qkv is None or output is None or key_up is None or value_up is None or not is_whole:
        return None
    return {
        "qkv": qkv,
        "qkv_bias": bias_of(latent.input),
        "output": output,
        "output_bias": bias_of(latent.output),
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
    queries, keys = weight_of(indexer.queries), weight_of(indexer.keys)
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
    first, output, queries = (weight_of(one) for one in (pooled.input, pooled.up, pooled.queries))
    groups = [one for one in map(weight_of, pooled.group_output) if one is not None]
    pooling = None if pooled.pooling is None else weight_of(pooled.pooling)
    of_index = None if pooled.index is None else weight_of(pooled.index.queries)
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
    queries, keys, gates = (
        weight_of(one) for one in (indexer.queries, indexer.keys, indexer.gates)
    )
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


def weight_of(linear: Linear) -> Weight | None:
    """Return a matrix as kernels take it; None: it is in several pieces."""
    match linear:
        case PackedLinear():
            return linear.weight
        case FloatLinear():
            return FloatWeight(linear.weight)
        case _:
            return None


def bias_of(linear: Linear) -> Tensor | None:
    """Return what is added to its products, f32."""
    if not isinstance(linear, PackedLinear | FloatLinear) or linear.bias is None:
        return None
    return linear.bias.float()
