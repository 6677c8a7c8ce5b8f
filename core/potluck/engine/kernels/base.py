"""The interface of a set of kernels, with the checks that all sets have in common."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels.layout import ROWS
from potluck.engine.kernels.products.tensors import PackedWeight, QuantisedInput
from potluck.errors import BrokenModelError
from potluck.model.families.facts import Activation, NormKind
from potluck.model.formats import PackedFormat


class Kernels(ABC):
    """Packs weights, quantises inputs, and multiplies them."""

    name: str

    def pack(self, weight: Tensor, weight_format: PackedFormat) -> PackedWeight:
        """Pack a matrix (rows, width) of f32, bf16 or f16.

        Raises:
            BrokenModelError: a weight is NaN or infinite.
        """
        rows, width = weight.shape
        packed = PackedWeight.empty(rows, width, weight_format)
        self.pack_rows(packed, 0, weight)
        return packed

    def pack_rows(self, packed: PackedWeight, first: int, weight: Tensor) -> None:
        """Pack some rows of a matrix; what a last block lacks to 16 rows becomes zeros.

        Rows that are packed in several calls get the same bytes as in one call, so a matrix of any size
        can be packed while it is read. Other threads may pack other rows meanwhile.

        Args:
            packed: where the rows are written.
            first: the first row, a multiple of 16.
            weight: (n, width) of f32, bf16 or f16; n is a multiple of 16, unless the matrix ends with it.

        Raises:
            BrokenModelError: a weight is NaN or infinite.
        """
        rows, width = weight.shape
        assert first % ROWS == 0
        assert first + rows <= packed.rows
        assert width == packed.width
        assert rows % ROWS == 0 or first + rows == packed.rows, "a block belongs to one call"
        if rows and width and not self._pack(packed, first, weight):
            raise BrokenModelError(
                "A weight of this model is not a number, or infinite: it cannot be computed with."
                " The files are damaged or the model was saved badly; download it again.",
            )

    @abstractmethod
    def largest(self, numbers: Tensor) -> float:
        """Return the largest magnitude of some numbers of f32, bf16 or f16; NaN if one is NaN, 0 of none."""

    @abstractmethod
    def quantise(self, x: Tensor) -> QuantisedInput:
        """Quantise an input (tokens, width) of f32, bf16 or f16."""

    @abstractmethod
    def quantise_gated(self, gate_up: Tensor, activation: Activation = "silu") -> QuantisedInput:
        """Quantise activation(gate) x up, where each row of (tokens, 2 width) has its gates before its ups."""

    def multiply(
        self,
        packed: PackedWeight,
        x: QuantisedInput,
        *,
        out: Tensor | None = None,
        addend: Tensor | None = None,
    ) -> Tensor:
        """Return x Wᵀ plus the addend, (tokens, rows), f32.

        Args:
            packed: W.
            x: the input.
            out: where to write, f32; None: new memory.
            addend: f32; a bias (rows,), or a residual (tokens, rows), which may be `out` itself.
        """
        assert packed.width == x.width, f"{x.width} inputs, {packed.width} columns"
        if out is None:
            out = torch.empty((x.tokens, packed.rows))
        assert out.shape == (x.tokens, packed.rows)
        assert out.is_contiguous()
        assert out.dtype == torch.float32, out.dtype
        if addend is not None:
            assert addend.shape in (out.shape, out.shape[1:])
            assert addend.dtype == torch.float32, addend.dtype
            addend = addend.contiguous()
        self._multiply(packed, x, out, addend)
        return out

    def multiply_plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x Wᵀ + b, for a matrix of floats that is not packed; sums are f32.

        Args:
            x: (tokens, width), of the dtype that is computed in, and the product's.
            weight: (rows, width), of any float; a row's numbers are neighbours.
            bias: (rows,), or nothing.
        """
        return F.linear(x, weight, bias)

    def has_arithmetic(self, dtype: torch.dtype) -> bool:
        """Whether the processor multiplies numbers of this dtype as they are, so that torch is fast with it."""
        return dtype == torch.float32

    def norm(
        self, x: Tensor, weight: Tensor, epsilon: float, kind: NormKind = "root mean square"
    ) -> Tensor:
        """Return the norm of (tokens, width), f32, times the weight (width,); or (2, width), of which the second is a bias."""
        if kind == "root mean square":
            return torch.rms_norm(x, weight.shape, weight, epsilon)
        x = x - x.mean(-1, keepdim=True)
        if kind == "layer":
            return torch.rms_norm(x, weight.shape, weight, epsilon)
        return torch.rms_norm(x, weight.shape[1:], weight[0], epsilon) + weight[1]

    def close(self) -> None:
        """Let the threads end, if there are any."""
        return

    @abstractmethod
    def _pack(self, packed: PackedWeight, first: int, weight: Tensor) -> bool: ...

    @abstractmethod
    def _multiply(
        self, packed: PackedWeight, x: QuantisedInput, out: Tensor, addend: Tensor | None
    ) -> None: ...
