"""The two forms of a decoding kernel's matrices, packed and floats: how one token is multiplied with each.

The product with a packed matrix reads records of the quantised input; the product with a matrix of floats
reads numbers, in the kind that `input_kind` says. Products, and the functions that write their inputs, are
generated when the first matrix of a kernel needs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from llvmlite import ir

from potluck.engine.kernels.attending.latent_kernel import HeadProducts, head_of
from potluck.engine.kernels.layout import ROWS, groups_of, input_bytes
from potluck.engine.kernels.products.float_kernel import (
    FloatProduct,
    emit_float_product,
    input_kind,
)
from potluck.engine.kernels.products.product_kernel import PackedProduct, emit_product
from potluck.engine.kernels.products.rows import NORMED, Reading, Writing, emit_row
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    KIND_BYTES,
    KIND_F32,
    NULL,
    Operand,
    constant,
)
from potluck.engine.kernels.writing.memory import Pointer, Record
from potluck.model.families.facts import Activation, NormKind
from potluck.model.formats import PackedFormat

Emit = Callable[[ir.Module, str], ir.Function]


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A product as a job of the threads."""

    piece: ir.Function
    record: type[Record]  # its arguments
    more: dict[str, int]  # those that only this form has
    rows_of_block: int


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """Emits the calls that write the input of a product, and those of the product."""

    name: str  # what the names of functions begin with
    memory: Pointer  # for an input
    threads: OnThreads  # which products are shared with

    @property
    def e(self) -> Emitter:
        return self.threads.e

    def normed(
        self,
        source: Pointer,
        width: int,
        weight: Pointer,
        epsilon: float,
        kind: NormKind = "root mean square",
    ) -> Pointer:
        """Write the norm of `width` numbers as an input; returns where it is."""
        return self._write(NORMED[kind], source, width, weight, epsilon)

    def as_is(self, source: Pointer, width: int) -> Pointer:
        """Write the numbers as they are as an input; returns where it is."""
        return self._write("plain", source, width)

    def gated(
        self, source: Pointer, width: int, activation: Activation, learned: Operand = NULL
    ) -> Pointer:
        """Write activation(gate) x up as an input; returns where it is.

        The source is `width` gates, then as many ups; or ups alone. `learned` are numbers of the activation.
        """
        return self._write(activation, source, width, learned)

    def multiply(
        self,
        matrix: Pointer,
        inputs: Pointer,
        out: Pointer,
        addend: Operand,
        rows: int,
        width: int,
    ) -> None:
        """Write out = inputs · matrixᵀ + addend, f32.

        Args:
            matrix: (rows, width), in this form.
            inputs: `width` of them, as this form has written them.
            out: (rows,), f32.
            addend: (rows,), f32, or null.
            rows: of the matrix.
            width: of the matrix.
        """
        product = self._product(width)
        arguments = product.record.store(
            self.e, weights=matrix, inputs=inputs, out=out, addend=addend, rows=rows, **product.more
        )
        self.threads.call(product.piece, arguments, -(-rows // product.rows_of_block))

    def multiply_heads(self, arguments: Pointer, heads: int, rows: int, width: int) -> None:
        """Write out = inputs · matrixᵀ of each head: heads are shared with the threads, not rows.

        Args:
            arguments: `HeadProducts`.
            heads: how many.
            rows: of each head's matrix.
            width: of each head's matrix.
        """
        emit = partial(self._emit_heads, rows=rows, width=width)
        piece = self._function(f"heads_{self._name}_{rows}_{width}", emit)
        self.threads.call(piece, arguments, heads)

    def _emit_heads(self, module: ir.Module, name: str, rows: int, width: int) -> ir.Function:
        """Write a product of each head: a job of the threads."""
        product = self._product(width)
        e, given, first, last = begin_piece(module, name, self.e.path, HeadProducts)
        inside = replace(self, threads=replace(self.threads, e=e))
        with e.loop(first, last) as head:
            source, out = head_of(given, head)
            memory = given.inputs.skip(head, self.input_bytes(width))
            arguments = product.record.store(
                e,
                weights=given.matrices.skip(head, self._matrix_bytes(rows, width)),
                inputs=replace(inside, memory=memory).as_is(source, width),
                out=out,
                addend=NULL,
                rows=rows,
                **product.more,
            )
            e.call(
                product.piece, [arguments, e.index(0), e.index(-(-rows // product.rows_of_block))]
            )
        return e.end()

    @abstractmethod
    def input_bytes(self, width: int) -> int:
        """Return the bytes of the input of a matrix of this width."""

    @property
    @abstractmethod
    def _name(self) -> str:
        """What tells this form's functions from those of others."""

    @abstractmethod
    def _matrix_bytes(self, rows: int, width: int) -> int:
        """Return the bytes of a matrix."""

    @abstractmethod
    def _product(self, width: int) -> _Product:
        """Return the product with a matrix of this width."""

    @abstractmethod
    def _written(self, width: int) -> Writing:
        """Return how the input of a matrix of this width is written."""

    def _write(
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

    def _product(self, width: int) -> _Product:
        held = self.weight_format
        emit = partial(emit_product, path=self.e.path, weight_format=held, tiles=(1,))
        return _Product(
            piece=self._function(f"product_{held.name}", emit),
            record=PackedProduct,
            more={"stride": 0, "groups": groups_of(width), "tokens": 1},
            rows_of_block=ROWS,
        )

    def _written(self, width: int) -> Writing:
        return "records"

    def input_bytes(self, width: int) -> int:
        return input_bytes(1, width)

    @property
    def _name(self) -> str:
        return self.weight_format.name

    def _matrix_bytes(self, rows: int, width: int) -> int:
        return self.weight_format.nbytes(rows, width)


@dataclass(frozen=True, kw_only=True)
class FloatForm(Form):
    """A matrix of floats, row after row."""

    kind: int

    def as_is(self, source: Pointer, width: int) -> Pointer:
        return source if self._written(width) == KIND_F32 else super().as_is(source, width)

    def _product(self, width: int) -> _Product:
        kind = self._written(width)
        emit = partial(emit_float_product, path=self.e.path, kind=self.kind, inputs=kind)
        return _Product(
            piece=self._function(f"product_{self.kind}_{kind}", emit),
            record=FloatProduct,
            more={"stride": KIND_BYTES[self.kind] * width, "width": width},
            rows_of_block=1,
        )

    def _written(self, width: int) -> int:
        return input_kind(self.e.path, self.kind, width)

    def input_bytes(self, width: int) -> int:
        return KIND_BYTES[self._written(width)] * width

    @property
    def _name(self) -> str:
        return str(self.kind)

    def _matrix_bytes(self, rows: int, width: int) -> int:
        return KIND_BYTES[self.kind] * rows * width
