"""The embeddings that a layer has of its own, as its kernel takes them: see `model/mixing/carried.py`."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from potluck.engine.kernels.products.tensors import Weight
from potluck.model.families.facts import Activation
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """What a kernel is written for. The token's first embedding follows its hidden states."""

    size: int  # n
    activation: Activation
    context_format: WeightFormat
    gate_format: WeightFormat
    output_format: WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWeights:
    """The matrices of one layer, and norms in f32."""

    context: Weight  # P_l, (n, D)
    gate: Weight  # A, (n, D)
    output: Weight  # B, (D, n)
    context_norm: Tensor  # (n,): of what P_l gives, which all layers have in common
    norm: Tensor  # (D,): the last one
    first: int  # the number of the table's row that is the layer's first
    activation: Activation

    @property
    def shape(self) -> InputShape:
        return InputShape(
            size=self.gate.rows,
            activation=self.activation,
            context_format=self.context.format,
            gate_format=self.gate.format,
            output_format=self.output.format,
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All by the names of a record's fields."""
        return {
            "input_context": self.context.data,
            "input_gate": self.gate.data,
            "input_output": self.output.data,
            "context_norm": self.context_norm,
            "input_norm": self.norm,
        }

    def check(self, hidden: int) -> None:
        """Check the tensors, since the kernel checks nothing."""
        size = self.gate.rows
        for matrix, shape in (
            (self.context, (size, hidden)),
            (self.gate, (size, hidden)),
            (self.output, (hidden, size)),
        ):
            assert (matrix.rows, matrix.width) == shape
        for norm, numbers in ((self.context_norm, size), (self.norm, hidden)):
            assert norm.is_contiguous()
            assert norm.numel() == numbers
