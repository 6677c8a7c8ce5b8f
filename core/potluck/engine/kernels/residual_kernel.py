"""The kernels that add to the hidden states of a token what attention or the MLP gave, all f32.

Where it is added as it is, the product does so itself; these are for what is normed or multiplied.
"""

from functools import partial

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import emit_inverse_rms
from potluck.engine.kernels.ir_types import F32, I64, KIND_F32, POINTER, VOID, Value, internal
from potluck.engine.kernels.paths import Path

_LANES = 16

# hidden states, what is added, their width, multiplier
ADD = ir.FunctionType(VOID, [POINTER, POINTER, I64, F32])
# hidden states, what is normed and added, their width, weights of the norm, its epsilon
ADD_NORMED = ir.FunctionType(VOID, [POINTER, POINTER, I64, POINTER, F32])


def emit_add(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Hidden += multiplier x added."""
    function = internal(ir.Function(module, ADD, name))
    hidden, added, width, multiplier = function.args
    e = Emitter(function, path)
    factor = e.splat(multiplier, _LANES)

    def add(index: Value, mask: Value | None) -> None:
        more = e.fmul(_fetch(e, added, index, mask), factor)
        _put(e, e.fadd(_fetch(e, hidden, index, mask), more), hidden, index, mask)

    e.vectors(width, _LANES, add)
    e.ret_void()
    return function


def emit_add_normed(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Hidden += added / sqrt(mean(added added) + epsilon) x weight."""
    function = internal(ir.Function(module, ADD_NORMED, name))
    hidden, added, width, weight, epsilon = function.args
    e = Emitter(function, path)
    numbers = partial(_fetch, e, added)
    inverse = e.splat(emit_inverse_rms(e, e.value(added).of(0), width, _LANES, epsilon), _LANES)

    def add(index: Value, mask: Value | None) -> None:
        normed = e.fmul(numbers(index, mask), inverse)
        more = e.fmul(normed, _fetch(e, weight, index, mask))
        _put(e, e.fadd(_fetch(e, hidden, index, mask), more), hidden, index, mask)

    e.vectors(width, _LANES, add)
    e.ret_void()
    return function


def _fetch(e: Emitter, numbers: Value, index: Value, mask: Value | None) -> Value:
    return e.fetch_numbers(e.at(numbers, index, 4), KIND_F32, _LANES, mask)


def _put(e: Emitter, value: Value, numbers: Value, index: Value, mask: Value | None) -> None:
    e.put_numbers(value, e.at(numbers, index, 4), KIND_F32, mask)
