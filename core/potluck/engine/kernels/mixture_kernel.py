"""The kernel that chooses a token's experts, between the router's product and theirs."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import emit_exp
from potluck.engine.kernels.ir_types import (
    F32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    Value,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.paths import Path

_LANES = 16
_WIDE = vector(F32, _LANES)
_LOWEST = -float("inf")
_NOT_CHOSEN = -1.0  # below any factor

# scores of the router, which are written over; factors of the experts
CHOOSE = ir.FunctionType(VOID, [POINTER, POINTER])


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureShape:
    """Of a mixture of experts, what a kernel is written for beside the experts' own shape."""

    count: int
    per_token: int
    normalise: bool  # whether the factors of the chosen ones are made to add up to one


def emit_choose(module: ir.Module, name: str, path: Path, shape: MixtureShape) -> ir.Function:
    """Factors = softmax(scores), of those that are highest; negative where an expert is not chosen.

    Of equal ones the first. Scores that are no numbers make all factors so: it shows.
    """
    function = internal(ir.Function(module, CHOOSE, name))
    scores, factors = function.args
    e = Emitter(function, path)
    total = _emit_powers(e, scores, factors, shape.count)
    chosen = _emit_best(e, scores, factors, shape)
    divisor = e.splat(chosen if shape.normalise else total, _LANES)

    def divide(index: Value, mask: Value | None) -> None:
        here = e.at(factors, index, 4)
        quotient = e.fdiv(e.fetch_numbers(here, KIND_F32, _LANES, mask), divisor)
        e.put_numbers(quotient, here, KIND_F32, mask)

    e.vectors(constant(I64, shape.count), _LANES, divide)
    e.ret_void()
    return function


def is_chosen(e: Emitter, factor: Value) -> Value:
    """Whether an expert with this factor is computed."""
    return e.fcmp_unordered(">=", factor, constant(F32, 0.0))


def _emit_powers(e: Emitter, scores: Value, factors: Value, count: int) -> Value:
    """Scores become exp(score - highest), factors those of experts that are not chosen; the sum."""
    highest, sums = e.variable(constant(_WIDE, _LOWEST)), e.variable(constant(_WIDE, 0.0))

    def numbers(index: Value, mask: Value | None, outside: float) -> Value:
        some = e.fetch_numbers(e.at(scores, index, 4), KIND_F32, _LANES, mask)
        return some if mask is None else e.select(mask, some, constant(_WIDE, outside))

    def look(index: Value, mask: Value | None) -> None:
        score = numbers(index, mask, _LOWEST)
        is_higher = e.fcmp_ordered(">", score, highest.value)
        highest.value = e.select(is_higher, score, highest.value)

    e.vectors(constant(I64, count), _LANES, look)
    most = e.splat(e.highest(highest.value), _LANES)

    def raise_to(index: Value, mask: Value | None) -> None:
        power = emit_exp(e, e.fsub(numbers(index, mask, 0.0), most))
        if mask is not None:
            power = e.select(mask, power, constant(_WIDE, 0.0))
        sums.value = e.fadd(sums.value, power)
        e.put_numbers(power, e.at(scores, index, 4), KIND_F32, mask)
        unset = constant(_WIDE, _NOT_CHOSEN)
        e.put_numbers(unset, e.at(factors, index, 4), KIND_F32, mask)

    e.vectors(constant(I64, count), _LANES, raise_to)
    return e.total(sums.value)


def _emit_best(e: Emitter, scores: Value, factors: Value, shape: MixtureShape) -> Value:
    """Factors of the highest become their scores; the sum of these."""
    chosen = e.variable(constant(F32, 0.0))
    with e.loop(0, shape.per_token):
        best, place = e.variable(constant(F32, _NOT_CHOSEN)), e.variable(constant(I64, 0))
        with e.loop(0, shape.count) as expert:
            score, factor = (e.fetch(e.at(of, expert, 4), F32) for of in (scores, factors))
            is_free = e.fcmp_ordered("<", factor, constant(F32, 0.0))
            # Unordered: somebody has to be chosen, also where no score is a number.
            is_best = e.and_(is_free, e.fcmp_unordered(">", score, best.value))
            best.value = e.select(is_best, score, best.value)
            place.value = e.select(is_best, expert, place.value)
        e.put(best.value, e.at(factors, place.value, 4))
        chosen.value = e.fadd(chosen.value, best.value)
    return chosen.value
