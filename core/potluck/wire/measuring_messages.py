"""Messages by which a master lets its workers measure layers, links and a loaded stage."""

from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.model.schemes import Cache, Scheme
from potluck.wire.fields import Count, Hex, Port, Seconds, Size
from potluck.wire.messages import (
    MAX_TOKENS,
    Address,
    Addresses,
    DeviceId,
    DeviceInfo,
    Message,
    RankPlace,
)

MAX_KINDS = 16  # of layers in one model; windows and experts make four
TimesByKind = Annotated[tuple[Seconds, ...], Meta(min_length=1, max_length=MAX_KINDS)]
DeepTimes = Annotated[tuple[Seconds, ...], Meta(max_length=MAX_KINDS)]


class Profile(Message, frozen=True, tag="profile"):
    """Measure, on one device, a decoder layer of each kind that the model has."""

    config: dict[str, object]  # the model's config.json
    scheme: Scheme
    tokens: Annotated[int, Meta(ge=1, le=4096)]  # tokens of the prefill chunk
    cache: Cache = "full"
    device: DeviceId | None = None  # None: the best one


class Profiled(Message, frozen=True, tag="profiled"):
    """The device's measurements. Kinds of layers are in the order of their first layer."""

    device: DeviceInfo
    decode_ms: TimesByKind  # one layer, one token
    prefill_ms: TimesByKind  # one layer, one chunk
    head_ms: Seconds  # final norm, lm_head and sampling, one token
    # Both again, with `deep` tokens in the cache; (): an older program does not say.
    deep_decode_ms: DeepTimes = ()
    deep_prefill_ms: DeepTimes = ()
    deep: Count = 0
    is_wide: bool = (
        False  # the device holds 32 bits in place of 16: it has no bf16, which the model needs
    )
    picture_ms: Seconds = (
        0.0  # a large picture in the vision tower; 0: there is none, or it was not measured
    )


class MeasureLink(Message, frozen=True, tag="measure_link"):
    """Measure the link from the receiver of this message to that peer."""

    node_id: Hex
    addresses: Addresses


class LinkMeasured(Message, frozen=True, tag="link_measured"):
    """The measurement of the link to that peer."""

    rtt_ms: Seconds  # median
    rtt_p95_ms: Seconds
    bytes_per_s: Annotated[float, Meta(ge=0)]
    address: Address  # the fastest of the offered addresses


class MeasureSums(Message, frozen=True, tag="measure_sums"):
    """Sum with other stage processes, as ranks of a group do. Without `ranks`, only say where others find this one."""

    device: DeviceId | None = None  # whose process; None: the best one's
    ranks: RankPlace | None = None


class SumTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a sum takes that ranks reach at the same time, from between their layers."""

    nbytes: Size  # of the numbers of each rank
    ms: Seconds  # median


class SumsMeasured(Message, frozen=True, tag="sums_measured"):
    """What `measure_sums` asked for."""

    activation_port: Port  # of the process
    times: Annotated[tuple[SumTime, ...], Meta(max_length=8)] = ()  # by size


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the parts of one token's step in a stage, each measured alone, once."""

    weight_bytes: Size  # of the matrices that a token reads, the head's included
    read_bytes_per_s: Annotated[float, Meta(gt=0)]  # of only reading these matrices
    layers_ms: Annotated[float, Meta(gt=0, le=1e9)]  # all layers, for one decoded token
    head_ms: Seconds  # final norm, lm_head and sampling; 0 without a head
    cache_bytes: Size = 0  # of the caches that a token at the position reads


class MeasureStage(Message, frozen=True, tag="measure_stage"):
    """Time the parts of one token's step in a stage of this plan. Answered by `stage_measured`."""

    epoch: Count
    position: Annotated[int, Meta(ge=0, lt=MAX_TOKENS)]  # number of cached tokens
    device: DeviceId | None = None  # whose stage; None: the best one's


class StageMeasured(Message, frozen=True, tag="stage_measured"):
    """The times that `measure_stage` asked for."""

    epoch: Count
    times: StageTimes


class Blob(Message, frozen=True, tag="blob"):
    """A payload that measures a link. Answered when its last byte has arrived."""


class BlobReceived(Message, frozen=True, tag="blob_received"):
    """The whole blob has arrived."""

    nbytes: Size
