"""The forms that the matrices of a decoding kernel are held in, and what one token costs with each.

A product reads what its form makes of f32: packed matrices read records, made by quantising, and
matrices of floats numbers, as they are or in the kind that `input_kind` wants. What is called
for that is generated once for a kernel, with whatever matrix needs it first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.float_input_kernel import emit_converted, emit_gated, emit_normed
from potluck.engine.kernels.float_kernel import emit_float_product, float_arguments, input_kind
from potluck.engine.kernels.input_kernel import (
    emit_gated_quantise,
    emit_norm_quantise,
    emit_quantise,
)
from potluck.engine.kernels.ir_types import F32, I32, I64, KIND_F32, Value, constant
from potluck.engine.kernels.layout import blocks_of
from potluck.engine.kernels.product_kernel import emit_product_piece, product_arguments
from potluck.model.config import Activation
from potluck.model.formats import PackedFormat

Emit = Callable[[ir.Module, str], ir.Function]


@dataclass(frozen=True, kw_only=True)
class Product:
    """A piece of the pool, its arguments, and how many blocks it has."""

    piece: ir.Function
    arguments: list[Value]
    blocks: int


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """Calls, written with `e`, that make the input of a product; the input is what they return."""

    e: Emitter
    name: str  # what the names of functions begin with
    memory: Value  # for an input

    @abstractmethod
    def normed(self, source: Value, width: int, weight: Value, epsilon: float) -> Value:
        """Of the root mean square norm of so many numbers."""

    @abstractmethod
    def as_is(self, source: Value, width: int) -> Value:
        """Of the numbers themselves."""

    @abstractmethod
    def gated(self, source: Value, width: int, activation: Activation) -> Value:
        """Of activation(gate) x up, so many gates before as many ups."""

    @abstractmethod
    def product(
        self, matrix: Value, inputs: Value, out: Value, addend: Value, rows: int, width: int
    ) -> Product:
        """The product in f32 plus the addend, if it is not null."""

    def _function(self, name: str, emit: Emit) -> ir.Function:
        name = f"{self.name}_{name}"
        return self.e.module.globals.get(name) or emit(self.e.module, name)


@dataclass(frozen=True, kw_only=True)
class PackedForm(Form):
    """A packed format."""

    weight_format: PackedFormat

    def normed(self, source: Value, width: int, weight: Value, epsilon: float) -> Value:
        emit = partial(emit_norm_quantise, path=self.e.path)
        return self._quantise("norm", emit, source, width, weight, constant(F32, epsilon))

    def as_is(self, source: Value, width: int) -> Value:
        return self._quantise("quantise", partial(emit_quantise, path=self.e.path), source, width)

    def gated(self, source: Value, width: int, activation: Activation) -> Value:
        emit = partial(emit_gated_quantise, path=self.e.path, activation=activation)
        return self._quantise("gated", emit, source, width)

    def product(
        self, matrix: Value, inputs: Value, out: Value, addend: Value, rows: int, width: int
    ) -> Product:
        held = self.weight_format
        emit = partial(emit_product_piece, path=self.e.path, weight_format=held, tiles=(1,))
        return Product(
            piece=self._function(f"product_{held.name}", emit),
            arguments=product_arguments(matrix, inputs, out, addend, rows, width),
            blocks=blocks_of(rows),
        )

    def _quantise(self, name: str, emit: Emit, source: Value, width: int, *more: Value) -> Value:
        kind, stride, one = constant(I32, KIND_F32), constant(I64, 0), constant(I64, 1)
        given = [source, kind, stride, constant(I64, width), one, self.memory, *more]
        self.e.call(self._function(name, emit), given)
        return self.memory


@dataclass(frozen=True, kw_only=True)
class FloatForm(Form):
    """Floats, row after row: of 16 bits, or the f32 of a router."""

    kind: int

    def normed(self, source: Value, width: int, weight: Value, epsilon: float) -> Value:
        emit = partial(emit_normed, path=self.e.path, kind=self._kind_of(width))
        return self._make("normed", emit, source, width, weight, constant(F32, epsilon))

    def as_is(self, source: Value, width: int) -> Value:
        if (kind := self._kind_of(width)) == KIND_F32:
            return source
        return self._make(
            "converted", partial(emit_converted, path=self.e.path, kind=kind), source, width
        )

    def gated(self, source: Value, width: int, activation: Activation) -> Value:
        kind = self._kind_of(width)
        emit = partial(emit_gated, path=self.e.path, activation=activation, kind=kind)
        return self._make("gated", emit, source, width)

    def product(
        self, matrix: Value, inputs: Value, out: Value, addend: Value, rows: int, width: int
    ) -> Product:
        kind = self._kind_of(width)
        emit = partial(emit_float_product, path=self.e.path, kind=self.kind, inputs=kind)
        return Product(
            piece=self._function(f"product_{self.kind}_{kind}", emit),
            arguments=float_arguments(self.kind, matrix, inputs, out, addend, rows, width),
            blocks=rows,
        )

    def _kind_of(self, width: int) -> int:
        return input_kind(self.e.path, self.kind, width)

    def _make(self, name: str, emit: Emit, source: Value, width: int, *more: Value) -> Value:
        function = self._function(f"{name}_{self._kind_of(width)}", emit)
        self.e.call(function, [source, constant(I64, width), self.memory, *more])
        return self.memory
