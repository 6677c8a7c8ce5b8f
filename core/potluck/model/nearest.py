"""Which of our schemes is nearest to how a model is stored."""

from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme


def nearest_schemes(config: ModelConfig) -> tuple[Scheme, ...]:
    """The schemes in which to hold a model that is stored quantised, best first.

    None that takes several times the memory of the files: 16 bits of what was rounded to 4 show the
    rounding more finely, and nothing else. Integers of 4 bits around a middle are held as they are, and
    what was rounded to less loses little more in 4 bits. With zero points, two scales or more bits they
    need 8.

    Returns:
        Empty: the model is stored in plain numbers, and any scheme may be best.
    """
    stored = config.quantization
    if stored is None or stored.bits > 8:
        return ()
    is_exact = stored.is_symmetric and not stored.is_reordered
    if stored.bits < 4 or (stored.bits == 4 and is_exact):
        return ("int4-head8", "int4")
    return ("int8", "int4-head8", "int4")
