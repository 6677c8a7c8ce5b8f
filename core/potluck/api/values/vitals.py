"""What a computer's sensors say of its battery and its heat. Pure."""

from typing import Annotated

from msgspec import Meta, Struct


class Vitals(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What can be read; each is None where the system does not say, or there is no such part."""

    battery: Annotated[float, Meta(ge=0, le=1)] | None = None  # the share that is left
    plugged: bool = False  # it runs on mains
    heat_c: Annotated[float, Meta(ge=-50, le=200)] | None = None  # of its hottest processor, in °C
