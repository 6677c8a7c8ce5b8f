"""Which part of each layer one rank of a group holds.

The ranks of a group compute the same layers together. Each holds some heads of attention and some rows of the
MLP, or of every expert, so that what it makes of a token is one addend of the result: the ranks sum their
results after the mixer and after the feed-forward (https://arxiv.org/abs/1909.08053, section 3). Norms,
routers, embedding and head are whole on every rank, and so is a mixer that cannot be cut.

A rank's part of a layer is a `LayerSpec` as any other, with fewer heads and a smaller MLP. So what builds,
measures, counts and caches layers knows nothing of ranks: it is given the config of `rank_config`.

Parts begin and end with whole blocks of a packed format, so that a packed slice is the slice of what is packed
whole. Where blocks share steps, parts of large MLPs end with whole super-blocks; a part that ends within one is
packed anew. What is in one part of the files, such as queries, keys and values in one matrix, has a slice of several
ranges.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from potluck.model.config import ModelConfig
from potluck.model.families.facts import UNGATED, ClampedSwiglu
from potluck.model.formats import BLOCK_INPUTS, SUPER_BLOCKS
from potluck.model.head_cuts import (
    Ranges,
    attention_cuts,
    delta_channels,
    delta_cuts,
    delta_heads,
    key_heads,
    latent_cuts,
    times,
)
from potluck.model.layers import DenseSpec, FeedForward, LayerSpec, MoeSpec, ParallelSpec
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec, BesideSpec, Mixer
from potluck.model.mixing.pooled import PooledSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.schemes import PACKED_SCHEMES, Scheme

MAX_RANKS = 16  # of one group: each sends its part of every sum to all others
MAX_PART = 1 << 16
_MOST_SHIFTED = 8  # super-blocks that a rank has at least where parts end with whole ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's share: as large, among all, as its part among all parts."""

    rank: int
    parts: tuple[
        int, ...
    ]  # of all ranks in their order, such as 2, 1 where the first is twice as fast

    def __post_init__(self) -> None:
        """Refuse what no group has: it may come from a peer."""
        if not 1 <= len(self.parts) <= MAX_RANKS:
            raise ValueError(f"a group has 1 to {MAX_RANKS} ranks, not {len(self.parts)}")
        if not 0 <= self.rank < len(self.parts):
            raise ValueError(f"a group of {len(self.parts)} has no rank {self.rank}")
        if not all(1 <= part <= MAX_PART for part in self.parts):
            raise ValueError(f"parts of a group are 1 to {MAX_PART}, not {self.parts}")

    @property
    def world(self) -> int:
        """How many ranks the group has."""
        return len(self.parts)

    @property
    def others(self) -> "tuple[Share, ...]":
        """Those of the other ranks."""
        ranks = (rank for rank in range(self.world) if rank != self.rank)
        return tuple(replace(self, rank=rank) for rank in ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """Which rows or columns of a tensor a rank holds, one range after the other.

    No range: the rank has zeros in place of the tensor. So is a bias, which is added once: by rank 0.
    """

    axis: Literal["rows", "columns"] = "rows"
    ranges: Ranges

    def shape(self, whole: Shape) -> Shape:
        """The shape of the slice of such a tensor."""
        if not self.ranges:
            return whole
        count = sum(last - first for first, last in self.ranges)
        return (count, *whole[1:]) if self.axis == "rows" else (*whole[:-1], count)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShare:
    """A rank's part of a layer."""

    spec: LayerSpec
    slices: Mapping[str, TensorSlice] = field(default_factory=dict[str, TensorSlice])
    """By name, without the layer's prefix; it has all of the others."""


def rank_config(config: ModelConfig, share: Share | None, scheme: Scheme) -> ModelConfig:
    """The config of what one rank holds of the model; of all of it, if there is no share."""
    if share is None:
        return config
    layers = tuple(share_layer(spec, share, scheme).spec for spec in config.layers)
    return replace(config, layers=layers)


def layer_slices(
    config: ModelConfig, layer: int, share: Share, scheme: Scheme
) -> dict[str, TensorSlice]:
    """The slices that a rank holds of the tensors of one layer of the whole model, by their full names."""
    prefix = config.layer_prefix(layer)
    slices = share_layer(config.layers[layer], share, scheme).slices
    return {prefix + name: part for name, part in slices.items()}


def share_layer(spec: LayerSpec, share: Share, scheme: Scheme) -> LayerShare:
    """Return a rank's part of a layer, as all ranks compute it of the same parts."""
    return _share_layer(spec, share, block_of(scheme))


def block_of(scheme: Scheme) -> int:
    """Numbers of a row that are packed together."""
    return BLOCK_INPUTS if scheme in PACKED_SCHEMES else 1


@lru_cache(maxsize=256)
def _share_layer(spec: LayerSpec, share: Share, block: int) -> LayerShare:
    if share.world == 1:
        return LayerShare(spec=spec)
    mixer = feed_forward = None
    if spec.mixer is not None:
        mixer = _share_mixer(spec.mixer, share, block)
    if spec.feed_forward is not None:
        feed_forward = _share_feed_forward(spec.feed_forward, share, block)
    slices: dict[str, TensorSlice] = {}
    if mixer is not None:
        slices |= mixer[1]
        spec = replace(spec, mixer=mixer[0], sums_mixer=True)
    if feed_forward is not None:
        slices |= feed_forward[1]
        spec = replace(spec, feed_forward=feed_forward[0], sums_feed_forward=True)
    return LayerShare(spec=spec, slices=slices)


def _share_mixer(
    mixer: Mixer, share: Share, block: int
) -> tuple[Mixer, dict[str, TensorSlice]] | None:
    """A rank's part of a mixer; None: each rank computes all of it."""
    match mixer:
        case AttentionSpec():
            return _share_attention(mixer, share, block)
        case LatentSpec():
            return _share_latent(mixer, share, block)
        case DeltaNetSpec():
            return _share_delta_net(mixer, share, block)
        case MambaSpec() | BesideSpec() | ConvolutionSpec() | ChannelDeltaSpec() | PooledSpec():
            # State spaces have a norm of all heads together, and convolutions take next to no time; of the others,
            # what heads share is cut nowhere yet.
            return None


def _share_attention(
    spec: AttentionSpec, share: Share, block: int
) -> tuple[AttentionSpec, dict[str, TensorSlice]] | None:
    cuts = attention_cuts(spec, share.parts, block)
    if cuts is None:
        return None
    first, last = cuts[share.rank], cuts[share.rank + 1]
    keys = key_heads(spec, first, last)
    own = replace(spec, heads=last - first, kv_heads=keys[1] - keys[0])
    ranges: list[tuple[int, int]] = []
    place, query_rows = 0, (spec.q_size + spec.gate_size) // spec.heads
    for size, heads, (start, stop) in (
        (query_rows, spec.heads, (first, last)),
        (spec.head_dim, spec.kv_heads, keys),
        (0 if spec.keys_are_values else spec.value_dim, spec.kv_heads, keys),
        (spec.gate_rows // spec.heads, spec.heads, (first, last)),
    ):
        ranges.append((place + start * size, place + stop * size))
        place += heads * size
    slices = dict(_parts_rows(spec.qkv, tuple(one for one in ranges if one[0] < one[1])))
    slices |= _columns(spec.output, times(((first, last),), spec.value_dim), share)
    if spec.has_sinks:
        slices[spec.sinks] = TensorSlice(ranges=((first, last),))
    return own, slices


def _share_latent(
    spec: LatentSpec, share: Share, block: int
) -> tuple[LatentSpec, dict[str, TensorSlice]] | None:
    """All ranks have the latents, which are cached whole, and the indexer; each expands them for heads of its own."""
    cuts = latent_cuts(spec, share.parts, block)
    if cuts is None:
        return None
    heads: Ranges = ((cuts[share.rank], cuts[share.rank + 1]),)
    own = replace(spec, heads=cuts[share.rank + 1] - cuts[share.rank])
    queries = spec.queries or spec.input.split()[0]
    slices = dict(_parts_rows(queries, times(heads, spec.query_dim)))
    ups = (spec.expansion, spec.plain_dim + spec.value_dim)
    for up, rows in (
        zip(spec.ups, (spec.rank, spec.value_dim), strict=True) if spec.is_ordered else (ups,)
    ):
        slices |= _parts_rows(up, times(heads, rows))
    return own, slices | _columns(spec.output, times(heads, spec.value_dim), share)


def _share_delta_net(
    spec: DeltaNetSpec, share: Share, block: int
) -> tuple[DeltaNetSpec, dict[str, TensorSlice]] | None:
    """Each rank has some heads of keys, with the heads of values that are theirs."""
    cuts = delta_cuts(spec, share.parts, block)
    if cuts is None:
        return None
    first, last = cuts[share.rank], cuts[share.rank + 1]
    keys, values = delta_heads(spec, first, last)
    own = replace(spec, key_heads=last - first, value_heads=(last - first) * spec.group)
    channels = delta_channels(spec, keys, values)
    rows = (*channels, *times(values, spec.value_size, spec.channels))
    if spec.has_joined_inputs:
        rows = times(keys, spec.rows // spec.key_heads)
    rates = (*values, *times(values, 1, spec.value_heads))
    if spec.has_joined_rates:
        rates = times(keys, 2 * spec.group)
    slices = dict(_parts_rows(spec.input, rows)) | dict(_parts_rows(spec.rates, rates))
    convolution, offsets, decays, _ = spec.small_tensors
    slices[convolution] = TensorSlice(ranges=channels)
    slices |= dict.fromkeys((offsets, decays), TensorSlice(ranges=values))
    return own, slices | _columns(spec.output, times(values, spec.value_size), share)


def _share_feed_forward(
    spec: FeedForward, share: Share, block: int
) -> tuple[FeedForward, dict[str, TensorSlice]] | None:
    """A rank's part of a feed-forward; None: each rank computes all of it."""
    match spec:
        case DenseSpec():
            return _share_dense(spec, share, block)
        case MoeSpec():
            return _share_moe(spec, share, block)
        case ParallelSpec():
            dense, moe = _share_dense(spec.dense, share, block), _share_moe(spec.moe, share, block)
            if dense is None or moe is None:
                return None
            return replace(spec, dense=dense[0], moe=moe[0]), dense[1] | moe[1]


def _share_dense(
    spec: DenseSpec, share: Share, block: int
) -> tuple[DenseSpec, dict[str, TensorSlice]] | None:
    size = spec.down.width
    own = _cut_rows(size, share, block)
    if own is None:
        return None
    count = own[1] - own[0]
    is_joined = len(spec.gate_up.parts) == 1
    if is_joined and isinstance(spec.activation, ClampedSwiglu) and spec.activation.has_pairs:
        ranges: Ranges = ((2 * own[0], 2 * own[1]),)
    elif spec.activation in UNGATED:
        ranges = (own,)
    else:
        ranges = (own, (size + own[0], size + own[1]))
    rows = (sum(last - first for first, last in ranges),) if is_joined else (count, count)
    part = replace(
        spec,
        gate_up=replace(spec.gate_up, rows=rows),
        down=replace(spec.down, width=count),
    )
    return part, dict(_parts_rows(spec.gate_up, ranges)) | _columns(spec.down, (own,), share)


def _share_moe(
    spec: MoeSpec, share: Share, block: int
) -> tuple[MoeSpec, dict[str, TensorSlice]] | None:
    experts, slices = spec.experts, dict[str, TensorSlice]()
    wholes = [spec.expert(index) for index in range(experts.routing.count)]
    wholes += [] if spec.shared is None else [spec.shared]
    for whole in wholes:
        if (one := _share_dense(whole, share, block)) is None:
            return None
        slices |= one[1]
    own = _cut_rows(experts.intermediate_size, share, block)
    shared = _cut_rows(experts.shared_size, share, block) if experts.shared_size else (0, 0)
    assert own is not None
    assert shared is not None
    part = replace(experts, intermediate_size=own[1] - own[0], shared_size=shared[1] - shared[0])
    return replace(spec, experts=part), slices


def _cut_rows(size: int, share: Share, block: int) -> tuple[int, int] | None:
    """A rank's rows of an MLP of this size; None: it has fewer blocks than there are ranks."""
    world, total = share.world, sum(share.parts)
    if block > 1 and size >= _MOST_SHIFTED * world * block * SUPER_BLOCKS:
        block *= SUPER_BLOCKS  # what is cut within a super-block is packed anew
    blocks = -(-size // block)
    if blocks < world:
        return None
    cuts, before = [0], 0
    for rank, part in enumerate(share.parts[:-1], 1):
        before += part
        ideal = (2 * blocks * before + total) // (2 * total)  # rounded; a block at least for each
        cuts.append(min(max(ideal, cuts[-1] + 1), blocks - (world - rank)))
    cuts.append(blocks)
    return cuts[share.rank] * block, min(cuts[share.rank + 1] * block, size)


def _parts_rows(projection: Projection, ranges: Ranges) -> Iterator[tuple[str, TensorSlice]]:
    """The slices of a projection's tensors that have these of all its rows."""
    place = 0
    for part, rows in zip(projection.parts, projection.rows, strict=True):
        own = tuple(
            (first - place, last - place)
            for first, last in ranges
            if place <= first and last <= place + rows
        )
        place += rows
        assert own, part  # none would be zeros
        for kind in ("weight", "bias") if projection.has_bias else ("weight",):
            yield f"{part}.{kind}", TensorSlice(ranges=own)


def _columns(projection: Projection, own: Ranges, share: Share) -> dict[str, TensorSlice]:
    """The slices of a projection whose results are summed; its bias is added by rank 0."""
    (part,) = projection.parts
    slices = {f"{part}.weight": TensorSlice(axis="columns", ranges=own)}
    if projection.has_bias and share.rank:
        slices[f"{part}.bias"] = TensorSlice(ranges=())
    return slices
