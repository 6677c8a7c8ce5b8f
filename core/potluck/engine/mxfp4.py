"""Read MXFP4 as files hold it: codes of e2m1, and a power of two, e8m0, for each 32 of them.

OCP Microscaling Formats, version 1.0. e2m1 has the numbers 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with a sign. What is handed
on are twice these, which are integers, and half the powers.
"""

import torch
from torch import Tensor

from potluck.engine.kernels.tensors import F32_EXPONENT, signed_integers
from potluck.model.formats import MXFP4


def coded_integers(codes: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (n, width), u8, and exponents (n, groups of 32), u8 → integers, i8, and scales, f32.

    The exponent 255 is that of NaN. It becomes 2^127, which no weight has, and is refused as such.
    """
    return signed_integers(MXFP4, codes), _halved_powers(exponents)


def _halved_powers(exponents: Tensor) -> Tensor:
    """Return 2^(exponent - 128)."""
    wide = exponents.int()
    subnormal = (1 << (F32_EXPONENT - 2)) << wide.clamp(max=1)  # 2^-128 and 2^-127
    return torch.where(wide < 2, subnormal, wide - 1 << F32_EXPONENT).view(torch.float32)
