"""Messages with which a master has its workers measure: layers, links, a stage that is loaded."""

from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.model.schemes import Cache, Scheme
from potluck.wire.messages import (
    MAX_TOKENS,
    Address,
    Addresses,
    Count,
    DeviceId,
    DeviceInfo,
    Hex,
    Message,
    Seconds,
    Size,
    TimesByKind,
)


class Profile(Message, frozen=True, tag="profile"):
    """Measure a decoder layer of each kind that this model has, on one device."""

    config: dict[str, object]  # the model's config.json
    scheme: Scheme
    tokens: Annotated[int, Meta(ge=1, le=4096)]  # of the prefill chunk
    cache: Cache = "full"
    device: DeviceId | None = None  # None: the best one


class Profiled(Message, frozen=True, tag="profiled"):
    """What the device measured; kinds of layers in the order in which the model has them first."""

    device: DeviceInfo
    decode_ms: TimesByKind  # one layer, one token
    prefill_ms: TimesByKind  # one layer, one chunk
    head_ms: Seconds  # final norm, lm_head and sampling, one token


class MeasureLink(Message, frozen=True, tag="measure_link"):
    """Measure the way from you to that peer."""

    node_id: Hex
    addresses: Addresses


class LinkMeasured(Message, frozen=True, tag="link_measured"):
    """What the way to that peer gave."""

    rtt_ms: Seconds  # median
    rtt_p95_ms: Seconds
    bytes_per_s: Annotated[float, Meta(ge=0)]
    address: Address  # the fastest of those offered


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of one token take in a stage, each timed alone, once."""

    weight_bytes: Size  # of the matrices that a token reads, those of the head among them
    read_bytes_per_s: Annotated[float, Meta(gt=0)]  # of reading them, and nothing else
    layers_ms: Annotated[float, Meta(gt=0, le=1e9)]  # all layers, as they decode
    head_ms: Seconds  # final norm, lm_head and the choice; 0 where there is no head


class MeasureStage(Message, frozen=True, tag="measure_stage"):
    """Time the parts of one token in the stage of this plan. Answered by `stage_measured`."""

    epoch: Count
    position: Annotated[int, Meta(ge=0, lt=MAX_TOKENS)]  # so many tokens are cached
    device: DeviceId | None = None  # whose stage; None: the best one's


class StageMeasured(Message, frozen=True, tag="stage_measured"):
    """What they took."""

    epoch: Count
    times: StageTimes


class Blob(Message, frozen=True, tag="blob"):
    """Payload that measures a link; answered when the last byte has arrived."""


class BlobReceived(Message, frozen=True, tag="blob_received"):
    """All of it is here."""

    nbytes: Size
