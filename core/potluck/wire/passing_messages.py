"""Messages by which a master lets one worker send weights to another."""

from typing import Annotated

from msgspec import Meta

from potluck.wire.fields import Count, Hex, Size
from potluck.wire.messages import MAX_TENSORS, Addresses, Message, NeedTensor

NeedTensors = Annotated[tuple[NeedTensor, ...], Meta(max_length=MAX_TENSORS)]


class Expect(Message, frozen=True, tag="expect"):
    """Take these missing tensors of your stages from that worker. Ends with the next `assign`."""

    epoch: Count
    node_id: Hex
    tensors: NeedTensors = ()


class Expecting(Message, frozen=True, tag="expecting"):
    """The worker may dial and send them now."""

    epoch: Count


class PassOn(Message, frozen=True, tag="pass_on"):
    """Send those of these tensors that you have to that worker, which expects them."""

    node_id: Hex
    addresses: Addresses
    tensors: NeedTensors = ()


class PassedOn(Message, frozen=True, tag="passed_on"):
    """That worker has stored what was sent; the rest is not here any more."""

    nbytes: Size  # that were sent
