"""The GPUs of this computer, each of which its owner may keep from models. Pure."""

from typing import Annotated

from msgspec import Meta, Struct

MAX_OFF = 64
GpuId = Annotated[str, Meta(min_length=1, max_length=128)]
GpusOff = Annotated[tuple[GpuId, ...], Meta(max_length=MAX_OFF)]


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU that is in this computer now."""

    id: str  # stays what it is when other GPUs come and go
    name: str  # no two have the same
    used: bool = True  # for models


class GpuRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/gpus."""

    id: GpuId
    used: bool
