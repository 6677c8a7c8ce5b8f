"""Messages by which a master has a worker keep tensors on its disk without a stage."""

from typing import Annotated

from msgspec import Meta

from potluck.model.schemes import Scheme
from potluck.wire.fields import Count, Size
from potluck.wire.messages import MAX_TENSORS, Message, TensorInfo
from potluck.wire.passing_messages import NeedTensors
from potluck.wire.shares import RankShare

MAX_LAYERS = 1024


class Keep(Message, frozen=True, tag="keep"):
    """Keep these tensors as far as the disk has room, in place of those asked for before."""

    config: dict[str, object]
    scheme: Scheme
    layers: Annotated[tuple[Count, ...], Meta(max_length=MAX_LAYERS)]
    embedding: bool
    head: bool
    tensors: Annotated[tuple[TensorInfo, ...], Meta(max_length=MAX_TENSORS)] = ()
    share: RankShare | None = None  # what a rank has of these layers; None: all of them


class Keeping(Message, frozen=True, tag="keeping"):
    """Those of the tensors that are missing and that there is room for: the master may send them."""

    stored: Size  # bytes of the tensors that are here already
    tensors: NeedTensors = ()
