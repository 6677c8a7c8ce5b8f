"""Schemes: the ways in which the weights of a model are held, and its keys and values cached."""

from typing import Literal

Scheme = Literal["f32", "bf16", "f16", "int8", "int4-offset", "int4-head8", "int4"]
"""How weights are held; `bf16` is f16 where a device has no bf16."""
AskedScheme = Scheme | Literal["auto"]
"""`auto`: the best quality that fits."""

Cache = Literal["full", "int8"]
"""How keys and values are kept. `full`: in the dtype of the scheme, of at most 16 bits beside packed
weights. `int8`: in 8 bits with a scale for each head and token, where a CPU computes."""

PACKED_SCHEMES: tuple[Scheme, ...] = ("int8", "int4-offset", "int4-head8", "int4")
"""The schemes that hold matrices in packed formats."""
PACKING_VERSION = 2
"""The version of the packed bytes. Raise it if packing makes other bytes of the same numbers: bytes
that were packed before are then not used again."""


def held_scheme(scheme: Scheme, *, is_wide: bool) -> Scheme:
    """The scheme of the weights on a device that holds 32 bits in place of 16 (`is_wide`)."""
    return "f32" if is_wide and scheme not in PACKED_SCHEMES else scheme


def activation_item(scheme: Scheme) -> int:
    """Bytes of one number of a hidden state, on the device that takes the most."""
    return 2 if scheme in ("bf16", "f16") else 4
