"""Which of our schemes is nearest to how a model is stored, and why it may take more bits."""

from collections.abc import Mapping

from potluck.model.config import ModelConfig
from potluck.model.quantized import Method
from potluck.model.schemes import Scheme

_NAMES: Mapping[Method, str] = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "packed": "compressed-tensors",
    "gguf": "GGUF",
}


def nearest_schemes(config: ModelConfig) -> tuple[Scheme, ...]:
    """The schemes in which to hold a model that is stored quantised, best first.

    None that takes several times the memory of the files: 16 bits of what was rounded to 4 show the
    rounding more finely, and nothing else. Integers of 4 bits are held as they are, around a middle or with
    offsets, and what was rounded to less loses little more in 4 bits. More bits, and 4 whose values are not
    evenly spaced or whose groups lie otherwise, need 8.

    Returns:
        Empty: the model is stored in plain numbers, and any scheme may be best.
    """
    stored = config.quantization
    if stored is None or stored.bits > 8:
        return ()
    is_exact = stored.is_symmetric and not stored.is_reordered
    if stored.bits < 4 or (stored.bits == 4 and is_exact):
        return ("int4-head8", "int4")
    if stored.fits_offsets:
        return ("int4-offset", "int4-head8", "int4")
    return ("int8", "int4-head8", "int4")


def explain_more_bits(config: ModelConfig) -> str:
    """Why the nearest scheme has twice the bits that the model is stored in; empty where it has not."""
    stored = config.quantization
    if stored is None or stored.bits >= 8 or nearest_schemes(config)[0] != "int8":
        return ""
    why = ", in groups of inputs that do not stand side by side" if stored.is_reordered else ""
    return (
        f"The model is stored in {stored.bits} bits ({_NAMES[stored.method]}){why}, which 4 bits here"
        " cannot hold without rounding again: it is held in 8 (scheme int8). Held in 4 bits (scheme int4)"
        " it would take half of the memory and be faster, at a small loss of quality."
    )
