"""The two forms of a decoding kernel's matrices, packed and floats: how one token is multiplied with each.

The product with a packed matrix reads records of the quantised input; the product with a matrix of floats
reads numbers, in the kind that `input_kind` says. The functions that write these inputs are generated
when the first matrix of a kernel needs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.float_kernel import emit_float_product, float_arguments, input_kind
from potluck.engine.kernels.ir_types import F32, KIND_F32, NULL, constant
from potluck.engine.kernels.layout import blocks_of
from potluck.engine.kernels.product_kernel import emit_product_piece, product_arguments
from potluck.engine.kernels.rows import Reading, Writing, emit_row
from potluck.engine.kernels.values import Operand, Pointer
from potluck.model.config import Activation
from potluck.model.formats import PackedFormat

Emit = Callable[[ir.Module, str], ir.Function]


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product as a job of the pool: its function, arguments and number of blocks."""

    piece: ir.Function
    arguments: list[Operand]
    blocks: int


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """Emits the calls that write the input of a product; each returns where the input is."""

    e: Emitter
    name: str  # what the names of functions begin with
    memory: Pointer  # for an input

    def normed(self, source: Pointer, width: int, weight: Pointer, epsilon: float) -> Pointer:
        """The input of the root mean square norm of `width` numbers."""
        return self._make("normed", source, width, weight, epsilon)

    def as_is(self, source: Pointer, width: int) -> Pointer:
        """The input of the numbers as they are."""
        return self._make("plain", source, width)

    def gated(self, source: Pointer, width: int, activation: Activation) -> Pointer:
        """The input of activation(gate) x up; the source is `width` gates, then as many ups."""
        return self._make(activation, source, width)

    @abstractmethod
    def product(
        self,
        matrix: Pointer,
        inputs: Pointer,
        out: Pointer,
        addend: Operand,
        rows: int,
        width: int,
    ) -> Product:
        """The product in f32 plus the addend, if it is not null."""

    @abstractmethod
    def _written(self, width: int) -> Writing:
        """How the product reads an input of this width."""

    def _make(
        self,
        reading: Reading,
        source: Pointer,
        width: int,
        weight: Operand = NULL,
        number: float = 0.0,
    ) -> Pointer:
        e, writing = self.e, self._written(width)
        emit = partial(emit_row, path=e.path, reading=reading, writing=writing)
        function = self._function(f"{reading}_{writing}", emit)
        e.call(function, [source, e.index(width), self.memory, weight, constant(F32, number)])
        return self.memory

    def _function(self, name: str, emit: Emit) -> ir.Function:
        name = f"{self.name}_{name}"
        return self.e.module.globals.get(name) or emit(self.e.module, name)


@dataclass(frozen=True, kw_only=True)
class PackedForm(Form):
    """A matrix in a packed format."""

    weight_format: PackedFormat

    def product(
        self,
        matrix: Pointer,
        inputs: Pointer,
        out: Pointer,
        addend: Operand,
        rows: int,
        width: int,
    ) -> Product:
        held = self.weight_format
        emit = partial(emit_product_piece, path=self.e.path, weight_format=held, tiles=(1,))
        return Product(
            piece=self._function(f"product_{held.name}", emit),
            arguments=product_arguments(matrix, inputs, out, addend, rows, width),
            blocks=blocks_of(rows),
        )

    def _written(self, width: int) -> Writing:
        return "records"


@dataclass(frozen=True, kw_only=True)
class FloatForm(Form):
    """A matrix of floats, row after row: of 16 bits, or the f32 of a router."""

    kind: int

    def as_is(self, source: Pointer, width: int) -> Pointer:
        return source if self._written(width) == KIND_F32 else super().as_is(source, width)

    def product(
        self,
        matrix: Pointer,
        inputs: Pointer,
        out: Pointer,
        addend: Operand,
        rows: int,
        width: int,
    ) -> Product:
        kind = self._written(width)
        emit = partial(emit_float_product, path=self.e.path, kind=self.kind, inputs=kind)
        return Product(
            piece=self._function(f"product_{self.kind}_{kind}", emit),
            arguments=float_arguments(self.kind, matrix, inputs, out, addend, rows, width),
            blocks=rows,
        )

    def _written(self, width: int) -> int:
        return input_kind(self.e.path, self.kind, width)
