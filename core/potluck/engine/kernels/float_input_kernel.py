"""The kernels that make the input of a product with 16-bit floats, of one token, from f32.

They write f32 or 16 bits, whichever `float_kernel.input_kind` says the product reads faster.
"""

from functools import partial

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import EMIT_ACTIVATION, emit_inverse_root
from potluck.engine.kernels.ir_types import (
    F32,
    I64,
    KIND_BYTES,
    KIND_F32,
    POINTER,
    VOID,
    Value,
    internal,
)
from potluck.engine.kernels.paths import Path
from potluck.model.config import Activation

_LANES = 16

# numbers, how many are written, where
INPUT = ir.FunctionType(VOID, [POINTER, I64, POINTER])
# the same, weights of the norm, its epsilon
NORMED = ir.FunctionType(VOID, [*INPUT.args, POINTER, F32])


def emit_converted(module: ir.Module, name: str, path: Path, kind: int) -> ir.Function:
    """The numbers themselves."""
    function = internal(ir.Function(module, INPUT, name))
    source, width, out = function.args
    e = Emitter(function, path)
    put = partial(_put, e, out, kind)
    e.vectors(width, _LANES, lambda index, mask: put(_fetch(e, source, index, mask), index, mask))
    e.ret_void()
    return function


def emit_normed(module: ir.Module, name: str, path: Path, kind: int) -> ir.Function:
    """Root mean square norm: x / sqrt(mean(x x) + epsilon) x weight."""
    function = internal(ir.Function(module, NORMED, name))
    source, width, out, weight, epsilon = function.args
    e = Emitter(function, path)
    numbers, put = partial(_fetch, e, source), partial(_put, e, out, kind)
    inverse = emit_inverse_root(e, numbers, width, _LANES, epsilon)

    def norm(index: Value, mask: Value | None) -> None:
        normed = e.fmul(numbers(index, mask), inverse)
        put(e.fmul(normed, _fetch(e, weight, index, mask)), index, mask)

    e.vectors(width, _LANES, norm)
    e.ret_void()
    return function


def emit_gated(
    module: ir.Module, name: str, path: Path, activation: Activation, kind: int
) -> ir.Function:
    """activation(gate) x up; the source has all gates, and then all ups."""
    function = internal(ir.Function(module, INPUT, name))
    gates, width, out = function.args
    e = Emitter(function, path)
    ups, put = e.at(gates, width, 4), partial(_put, e, out, kind)
    activate = EMIT_ACTIVATION[activation]

    def gate(index: Value, mask: Value | None) -> None:
        activated = activate(e, _fetch(e, gates, index, mask))
        put(e.fmul(activated, _fetch(e, ups, index, mask)), index, mask)

    e.vectors(width, _LANES, gate)
    e.ret_void()
    return function


def _fetch(e: Emitter, numbers: Value, index: Value, mask: Value | None) -> Value:
    return e.fetch_numbers(e.at(numbers, index, 4), KIND_F32, _LANES, mask)


def _put(
    e: Emitter, numbers: Value, kind: int, value: Value, index: Value, mask: Value | None
) -> None:
    e.put_numbers(value, e.at(numbers, index, KIND_BYTES[kind]), kind, mask)
