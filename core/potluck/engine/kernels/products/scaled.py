"""Rows as files with few bits have them: integers, and what they are multiplied by."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.layout import GROUP, groups_of
from potluck.engine.kernels.products.tensors import F32_EXPONENT
from potluck.errors import BrokenModelError

_NO_NUMBER = 255  # of e8m0


@dataclass(frozen=True, slots=True)
class ScaledIntegers:
    """Rows whose values are scale x integer - offset.

    Attributes:
        integers: (n, width), i8, or u8 where only `values()` reads them; with offsets 0 to 15.
        scales: (n, groups of 32 inputs), f32.
        offsets: (n, groups), f32; only where the target's format has offsets. None: nothing is subtracted.
        steps: (n, super-blocks of 8 groups, 2), f32: of which scales and offsets are multiples. None: unknown.
    """

    integers: Tensor
    scales: Tensor
    offsets: Tensor | None = None
    steps: Tensor | None = None

    def __len__(self) -> int:
        return len(self.integers)

    def of_rows(self, choose: Callable[[Tensor], Tensor]) -> "ScaledIntegers":
        """Those of the rows that `choose` takes of each tensor, in its order."""
        offsets = None if self.offsets is None else choose(self.offsets)
        steps = None if self.steps is None else choose(self.steps)
        return ScaledIntegers(choose(self.integers), choose(self.scales), offsets, steps)

    def values(self) -> Tensor:
        """(n, width), f32."""
        rows, width = self.integers.shape
        lacking = groups_of(width) * GROUP - width
        integers = F.pad(self.integers, (0, lacking)) if lacking else self.integers
        values = integers.reshape(rows, -1, GROUP).float().mul_(self.scales[..., None])
        if self.offsets is not None:
            values.sub_(self.offsets[..., None])
        return values.view(rows, -1)[:, :width]


def from_e8m0(codes: Tensor) -> Tensor:
    """Scales whose bytes are exponents: 2^(code - 127), f32.

    Raises:
        BrokenModelError: one is no number.
    """
    if bool((codes == _NO_NUMBER).any()):
        raise BrokenModelError(
            "A matrix of this model has a scale that is no number. Its files are damaged, or do not belong together:"
            " download them again."
        )
    exponents = codes.int()
    least = 1 << (F32_EXPONENT - 1)  # 2^-127, which has no exponent of its own
    return torch.where(exponents == 0, least, exponents << F32_EXPONENT).view(torch.float32)
