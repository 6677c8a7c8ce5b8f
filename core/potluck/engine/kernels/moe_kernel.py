"""The kernels that choose experts, between the router's product and theirs."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import emit_exp
from potluck.engine.kernels.ir_types import F32, KIND_F32, POINTER, VOID, constant, internal, vector
from potluck.engine.kernels.memory import Address, Pointer, Record, Span
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import begin_piece
from potluck.engine.kernels.values import Value

_LANES = 16
_WIDE = vector(F32, _LANES)
_LOWEST = -float("inf")
_NOT_CHOSEN = -1.0  # below any factor

# Scores of the router, which are overwritten; factors of the experts, which are written.
CHOOSE = ir.FunctionType(VOID, [POINTER, POINTER])


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """What a kernel is written for where a layer has experts, beside the shape of an expert."""

    count: int
    per_token: int
    normalise: bool  # whether the factors of the chosen ones are made to add up to one


def emit_choose(module: ir.Module, name: str, path: Path, shape: MoeShape) -> ir.Function:
    """Write factors = softmax(scores) of the highest scores; negative where an expert is not chosen.

    Of equal scores the first is chosen. If a score is NaN, all factors are.
    """
    e = Emitter(internal(ir.Function(module, CHOOSE, name)), path)
    scores, factors = (argument.of(KIND_F32) for argument in e.arguments)
    total = _emit_powers(e, scores, factors, shape.count)
    chosen = _emit_best(e, scores, factors, shape)
    divisor = e.splat(chosen if shape.normalise else total, _LANES)
    for span in e.spans(shape.count, _LANES):
        factors[span] = factors[span] / divisor
    return e.end()


class Choose(Record):
    """The arguments of choosing experts for many tokens. A block of the job is a token."""

    scores = Address(KIND_F32)  # (tokens, experts), which are overwritten
    factors = Address(KIND_F32)  # (tokens, experts)


def emit_choose_many(module: ir.Module, name: str, path: Path, shape: MoeShape) -> ir.Function:
    """Write what `emit_choose` does, for each token: a job of the pool."""
    choose = emit_choose(module, f"{name}_one", path, shape)
    e, given, first, last = begin_piece(module, name, path, Choose)
    with e.loop(first, last) as token:
        start = token * shape.count
        e.call(choose, [given.scores + start, given.factors + start])
    return e.end()


def is_chosen(e: Emitter, factor: Value) -> Value:
    """Return whether an expert with this factor is computed; one whose factor is NaN is."""
    return e.fcmp_unordered(">=", factor, constant(F32, 0.0))


def _emit_powers(e: Emitter, scores: Pointer, factors: Pointer, count: int) -> Value:
    """Turn scores into exp(score - highest), and choose no expert yet; return the sum of the powers."""

    def masked(span: Span, value: Value, outside: float) -> Value:
        if span.mask is None:
            return value
        return e.select(span.mask, value, constant(_WIDE, outside))

    highest, sums = e.variable(constant(_WIDE, _LOWEST)), e.variable(constant(_WIDE, 0.0))
    for span in e.spans(count, _LANES):
        highest.value = masked(span, scores[span], _LOWEST).at_least(highest.value)
    most = e.splat(highest.value.highest(), _LANES)
    for span in e.spans(count, _LANES):
        power = masked(span, emit_exp(e, masked(span, scores[span], 0.0) - most), 0.0)
        sums.value = sums.value + power
        scores[span] = power
        factors[span] = e.value(constant(_WIDE, _NOT_CHOSEN))
    return sums.value.total()


def _emit_best(e: Emitter, scores: Pointer, factors: Pointer, shape: MoeShape) -> Value:
    """Write the powers of the highest scores as their factors; return the sum of these."""
    chosen = e.variable(constant(F32, 0.0))
    with e.loop(0, shape.per_token):
        best, place = e.variable(constant(F32, _NOT_CHOSEN)), e.variable(e.index(0))
        with e.loop(0, shape.count) as expert:
            score, is_free = scores[expert], factors[expert] < 0.0
            # Unordered: an expert has to be chosen even where every score is NaN.
            is_best = is_free & e.fcmp_unordered(">", score, best.value)
            best.value = e.select(is_best, score, best.value)
            place.value = e.select(is_best, expert, place.value)
        factors[place.value] = best.value
        chosen.value = chosen.value + best.value
    return chosen.value
