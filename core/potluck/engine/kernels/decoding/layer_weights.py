"""The weights of a decoder layer as its kernel takes them, and the shape that they make."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.decoding.block_calls import BlockWeights
from potluck.engine.kernels.decoding.latent_weights import LatentWeights
from potluck.engine.kernels.decoding.layer_inputs import InputWeights
from potluck.engine.kernels.decoding.layer_shape import (
    LayerShape,
    MixerShape,
    MlpShape,
    NarrowShape,
    SpaceShape,
)
from potluck.engine.kernels.decoding.pooled_weights import PooledWeights
from potluck.engine.kernels.decoding.streams_kernel import StreamShape, check_mix
from potluck.engine.kernels.products.tensors import (
    ConvolutionTensors,
    DeltaTensors,
    MambaTensors,
    MixTensors,
    Router,
    Weight,
)
from potluck.model.families.facts import (
    Activation,
    LayerNorms,
    NormKind,
    ParallelNorms,
    gate_up_rows,
)
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.mixing.mamba import MambaHeads
from potluck.model.mixing.short_convolution import ConvolutionSizes


class Expert(NamedTuple):
    """One matrix with the rows of gates and of ups, and the down matrix, with their biases, f32."""

    gate_up: Weight
    down: Weight
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Experts of one shape, the one that all tokens go through, and their router."""

    router: Router
    experts: tuple[Expert, ...]
    shared: Expert | None = None
    beside: "BesideExperts | None" = None  # the MLP beside them
    narrow: tuple[Weight, Weight] | None = None  # to the few numbers that they read, and back


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideExperts:
    """An MLP beside experts, and the norms of both, (D,) each."""

    mlp: Expert
    norms: ParallelNorms[Tensor]
    router_norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A state space beside attention."""

    heads: MambaHeads
    input: Weight
    output: Weight
    tensors: MambaTensors

    @property
    def shape(self) -> SpaceShape:
        return SpaceShape(
            heads=self.heads, input_format=self.input.format, output_format=self.output.format
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """A decoder layer: matrices, packed or of floats, and norms and biases in f32.

    It has either one MLP or experts, or a mixer alone, or no mixer. For a delta net or a state space, `qkv` is
    its input. An MLP without gates has its ups as `gate_up`.
    """

    norms: LayerNorms[Tensor]  # (D,) each; (2, D) with a bias behind the weight
    qkv: Weight | None = None
    qkv_bias: Tensor | None = None
    # (2, K): of queries, of keys; (3, K): of values too; or of projections, (H·K + Hkv·K,)
    qk_norm: Tensor | None = None
    output: Weight | None = None
    output_bias: Tensor | None = None
    gate_up: Weight | None = None  # gates before ups
    gate_up_bias: Tensor | None = None
    down: Weight | None = None
    down_bias: Tensor | None = None
    learned: Tensor | None = None  # (2,): the numbers of an activation that has some
    moe: Moe | None = None
    latent: LatentWeights | None = None
    pooled: PooledWeights | None = None
    blocks: BlockWeights | None = None
    delta_net: DeltaTensors | None = None
    gates: Weight | None = None  # of a delta net: makes its gates of few numbers
    decay_up: Tensor | None = None  # likewise, the decays of its channels
    mamba: MambaTensors | None = None
    convolution: ConvolutionTensors | None = None
    space: Space | None = None
    inputs: InputWeights | None = None  # the layer's own embeddings
    gives_at: int = 0  # where its keys and values go along, in numbers of a token; 0: nowhere
    takes_at: int = 0  # likewise, those that it takes; 0: it has its own
    streams: tuple[MixTensors, MixTensors] | None = None  # around the mixer, and the feed-forward
    scale: Tensor | None = None  # (1,): what the result is multiplied by
    window: int | None = None  # cached tokens that a query looks at, itself among them
    chunk: int | None = None  # so many tokens see each other alone
    sinks: Tensor | None = None  # (H,)
    rope: int | None = 0  # the index of its angles among those of a call; None: no rope

    @property
    def mlp(self) -> Expert | None:
        """The matrices of the MLP, or of the first expert."""
        if self.moe is not None:
            return self.moe.experts[0]
        if self.gate_up is None or self.down is None:
            return None
        return Expert(self.gate_up, self.down)

    @property
    def hidden(self) -> int:
        """Numbers of the hidden states."""
        if self.qkv is not None:
            return self.qkv.width
        if self.moe is not None and self.moe.narrow is not None:
            return self.moe.narrow[0].width
        assert self.mlp is not None
        return self.mlp.gate_up.width


def layer_shape(
    weights: LayerWeights,
    mixer: MixerShape | None,
    *,
    epsilon: float,
    after_epsilon: float | None = None,
    multiplier: float = 1.0,
    activation: Activation = "silu",
    shared_activation: Activation | None = None,
    norm_kind: NormKind = "root mean square",
    is_side_by_side: bool = False,
    carried: int = 0,
    streams: StreamShape | None = None,
    sums_mixer: bool = False,
    sums_feed_forward: bool = False,
) -> LayerShape:
    """Return the shape of a layer. Layers of one shape can be in one `Decoder`.

    Args:
        weights: of the layer.
        mixer: the heads of its attention, delta net, state space or convolution; None: it has none of these.
        epsilon: of its norms.
        after_epsilon: of those after attention and MLP, if it is another.
        multiplier: of what attention and MLP add to the hidden states.
        activation: of the gates.
        shared_activation: of those of the shared expert, if it is another one.
        norm_kind: of the norms before attention and MLP.
        is_side_by_side: whether the MLP reads what attention reads.
        carried: numbers of a token that go along behind its hidden states.
        streams: several residual streams, if there are some.
        sums_mixer: whether what attention gives is summed over ranks.
        sums_feed_forward: likewise of the MLP or the experts.
    """
    mlp, norms = _mlp_shape(weights.mlp), weights.norms
    return LayerShape(
        hidden=weights.hidden,
        intermediate=0 if mlp is None else mlp.intermediate,
        mixer=mixer,
        has_norms_before=(norms.before_mlp if mixer is None else norms.before_mixer) is not None,
        has_norms_after=(norms.after_mlp if mixer is None else norms.after_mixer) is not None,
        epsilon=epsilon,
        after_epsilon=after_epsilon,
        multiplier=multiplier,
        activation=activation,
        shared_activation=shared_activation,
        qkv_format=weights.qkv and weights.qkv.format,
        output_format=weights.output and weights.output.format,
        gate_up_format=mlp and mlp.gate_up_format,
        down_format=mlp and mlp.down_format,
        space=weights.space and weights.space.shape,
        routing=None if weights.moe is None else weights.moe.router.routing,
        latent=None if weights.latent is None else weights.latent.shape,
        pooled=None if weights.pooled is None else weights.pooled.shape,
        blocks=None if weights.blocks is None else weights.blocks.shape,
        gates_format=None if weights.gates is None else weights.gates.format,
        shared=None if weights.moe is None else _mlp_shape(weights.moe.shared),
        beside=_beside_shape(weights.moe),
        narrow=_narrow_shape(weights.moe),
        has_expert_scales=weights.moe is not None and weights.moe.router.scales is not None,
        has_scale=weights.scale is not None,
        norm_kind=norm_kind,
        is_side_by_side=is_side_by_side,
        carried=carried,
        streams=streams,
        inputs=weights.inputs and weights.inputs.shape,
        sums_mixer=sums_mixer,
        sums_feed_forward=sums_feed_forward,
    )


def _beside_shape(moe: Moe | None) -> MlpShape | None:
    return None if moe is None or moe.beside is None else _mlp_shape(moe.beside.mlp)


def _narrow_shape(moe: Moe | None) -> NarrowShape | None:
    if moe is None or moe.narrow is None:
        return None
    first, last = moe.narrow
    return NarrowShape(size=first.rows, first_format=first.format, last_format=last.format)


def _mlp_shape(mlp: Expert | None) -> MlpShape | None:
    if mlp is None:
        return None
    gate_up, down = mlp[:2]
    return MlpShape(intermediate=down.width, gate_up_format=gate_up.format, down_format=down.format)


def check_layer(layer: LayerWeights, shape: LayerShape) -> None:
    """Check the tensors of a layer, since the kernel checks nothing."""
    mixer, hidden = shape.mixer, shape.hidden
    wide = gate_up_rows(shape.activation, shape.intermediate)
    moe, routing = layer.moe, shape.routing
    assert routing == (None if moe is None else moe.router.routing)
    assert shape.shared == (None if moe is None else _mlp_shape(moe.shared))
    assert shape.beside == _beside_shape(moe)
    assert shape.narrow == _narrow_shape(moe)
    mlps = moe.experts if moe is not None else () if layer.mlp is None else (layer.mlp,)
    assert (layer.qkv is None) == (layer.output is None) == (mixer is None)
    assert shape.has_feed_forward == (len(mlps) > 0)
    assert routing is None or len(mlps) == routing.count
    for matrix, rows, width, held in (
        *(((layer.qkv, shape.qkv_rows, hidden, shape.qkv_format),) if layer.qkv else ()),
        *(((layer.output, hidden, shape.attended, shape.output_format),) if layer.output else ()),
        *((one.gate_up, wide, shape.expert_width, shape.gate_up_format) for one in mlps),
        *((one.down, shape.expert_width, shape.intermediate, shape.down_format) for one in mlps),
    ):
        assert (matrix.rows, matrix.width, matrix.format) == (rows, width, held)
    if (latent := layer.latent) is not None:
        latent.check()
    if layer.pooled is not None:
        layer.pooled.check(hidden)
    if layer.blocks is not None:
        layer.blocks.check(hidden)
    assert shape.blocks == (layer.blocks and layer.blocks.shape)
    assert shape.pooled == (layer.pooled and layer.pooled.shape)
    if (space := layer.space) is not None:
        assert (space.input.rows, space.input.width) == (space.heads.rows, hidden)
        assert (space.output.rows, space.output.width) == (hidden, space.heads.values_size)
    assert shape.space == (space and space.shape)
    assert (layer.streams is None) == (shape.streams is None)
    for one in layer.streams or ():
        assert shape.streams is not None
        check_mix(one, shape.streams)
    if layer.inputs is not None:
        layer.inputs.check(hidden)
    assert shape.inputs == (layer.inputs and layer.inputs.shape)
    assert (layer.latent is None) == (shape.latent is None)
    assert (layer.delta_net is None) != isinstance(mixer, DeltaHeads)
    assert (layer.mamba is None) != isinstance(mixer, MambaHeads)
    assert (layer.convolution is None) != isinstance(mixer, ConvolutionSizes)
    heads = normed = rates = decays = 0
    if isinstance(mixer, DeltaHeads):
        rates, decays = mixer.value_heads + mixer.decays_step, 0
        assert (layer.gates is None) == (layer.decay_up is None) != mixer.has_channel_decays
        if layer.gates is not None:
            decays = mixer.decays_size * mixer.key_size
            sizes = (layer.gates.rows, layer.gates.width)
            assert sizes == (mixer.values_size, mixer.value_size)
    elif isinstance(mixer, Heads):
        assert (layer.qk_norm is None) == (mixer.qk_norm is None)
        assert (layer.sinks is None) != mixer.has_sinks
        heads = mixer.heads
        assert mixer.takes == (layer.takes_at > 0)
        for place in (layer.gives_at, layer.takes_at):
            assert place == 0 or hidden <= place <= hidden + shape.carried - 2 * mixer.kv_size
        own = 1 if mixer.takes else 2 + mixer.value_norm
        normed = own if mixer.qk_norm == "head" else heads + mixer.kv_heads
        normed *= mixer.head_dim
    beside = None if moe is None else moe.beside
    if moe is not None and routing is not None and routing.vocabulary is not None:
        ids = moe.router.id_table
        assert ids is not None
        assert ids.dtype == torch.int32
        assert ids.is_contiguous()
        assert ids.shape == (routing.vocabulary, routing.per_token)
    has_bias = shape.norm_kind == "biased layer"
    for vector, numbers in (
        *((norm, hidden * (1 + has_bias)) for norm in layer.norms.present),
        (layer.qk_norm, normed),
        (layer.qkv_bias, shape.qkv_rows),
        (layer.delta_net and layer.delta_net.rates, rates * hidden),
        (layer.decay_up, decays),
        (layer.output_bias, hidden),
        (layer.gate_up_bias, wide),
        (layer.down_bias, hidden),
        *((one.gate_up_bias, wide) for one in mlps),
        *((one.down_bias, shape.expert_width) for one in mlps),
        (layer.learned, 2),
        (layer.sinks, heads),
        (None if moe is None else moe.router.addend, routing.rows if routing else 0),
        (None if moe is None else moe.router.matrix, (routing.rows if routing else 0) * hidden),
        (None if moe is None else moe.router.bias, len(mlps)),
        (None if moe is None else moe.router.scales, len(mlps)),
        (layer.scale, 1),
        *((norm, hidden) for norm in (beside.norms.present if beside else ())),
        (None if beside is None else beside.router_norm, hidden),
    ):
        if vector is not None:
            assert vector.dtype == torch.float32
            assert vector.is_contiguous()
            assert vector.numel() == numbers
