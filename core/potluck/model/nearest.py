"""The schemes that are nearest to a model's stored precision, and why they may take more bits."""

from collections.abc import Mapping

from potluck.model.config import ModelConfig
from potluck.model.quantized import Method
from potluck.model.schemes import Scheme

_NAMES: Mapping[Method, str] = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "packed": "compressed-tensors",
    "integers": "compressed-tensors",
    "fp4": "FP4",
    "bitsandbytes": "bitsandbytes",
    "mlx": "MLX",
    "mxfp4": "MXFP4",
    "gguf": "GGUF",
}


def nearest_schemes(config: ModelConfig) -> tuple[Scheme, ...]:
    """The schemes in which to hold a model that is stored quantised, best first.

    Never 16 bits for a 4-bit checkpoint: they take four times the memory and only keep its rounding
    errors. Integers of 4 bits are held exactly, symmetric or with offsets, and weights of fewer
    bits lose little more in 4. A checkpoint of more bits needs 8, and so does one of 4 bits whose
    values are not evenly spaced, or whose groups are not of 32 neighbouring inputs. Experts of MXFP4 keep
    their format in each of these schemes, and what is beside them is stored in 8 bits or more.

    Returns:
        Empty if the model is stored in plain numbers: any scheme may be best.
    """
    stored = config.quantization
    if stored is None or stored.bits > 8:
        return ()
    if stored.has_mxfp4_experts:
        return ("int8", "int4-head8", "int4")
    if stored.fits_offsets:
        return ("int4-offset", "int4-head8", "int4")
    is_exact = stored.is_symmetric and not stored.is_reordered
    if stored.bits < 4 or (stored.bits == 4 and is_exact):
        return ("int4-head8", "int4")
    return ("int8", "int4-head8", "int4")


def explain_more_bits(config: ModelConfig) -> str:
    """Why the nearest scheme has twice the bits that the model is stored in; empty if it does not."""
    stored = config.quantization
    if (
        stored is None
        or stored.bits >= 8
        or stored.has_mxfp4_experts
        or nearest_schemes(config)[0] != "int8"
    ):
        return ""
    why = ", in groups of inputs that do not stand side by side" if stored.is_reordered else ""
    return (
        f"The model is stored in {stored.bits} bits ({_NAMES[stored.method]}){why}, which 4 bits here"
        " cannot hold without rounding again: it is held in 8 (scheme int8). Held in 4 bits (scheme int4)"
        " it would take half of the memory and be faster, at a small loss of quality."
    )
