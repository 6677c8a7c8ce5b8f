"""The kernels that choose experts, between the router's product and theirs."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_exp, emit_softplus
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.routing import LEAST_SUM, Routing

_LANES = 16
_WIDE = vector(F32, _LANES)
_LOWEST = -float("inf")
# Below any factor: an expert that may be chosen, and one of a group that may not.
_FREE, _OUTSIDE = -1.0, -2.0

# Products of the router, which are overwritten; the bias; the experts that a table says; factors, which are written.
CHOOSE = ir.FunctionType(VOID, [POINTER, POINTER, POINTER, POINTER])


def emit_choose(module: ir.Module, name: str, path: Path, routing: Routing) -> ir.Function:
    """Write what `mlp.route` returns for one token.

    Of equal choices the first is taken. With a softmax, all factors are NaN if a score is.
    """
    e = Emitter(internal(ir.Function(module, CHOOSE, name)), path)
    scores, bias, chosen, factors = (argument.of(KIND_F32) for argument in e.arguments)
    count = routing.count
    if routing.function == "sparse mixer":
        _emit_sparse_mixture(e, scores, factors, routing)
        return e.end()
    if routing.function == "softmax":
        total = _emit_powers(e, scores, count)
        if routing.has_bias:  # which is added to what the softmax gives
            _emit_divided(e, scores, count, total)
            total = e.value(constant(F32, 1.0))
    else:
        if routing.function == "sqrtsoftplus":
            _emit_sqrt_softplus(e, scores, count)
        elif not routing.chooses_products:
            _emit_sigmoid(e, scores, scores, count)
        total = e.value(constant(F32, 1.0))
    choice = _Choice(e, scores, bias if routing.has_bias else None)
    _emit_free(e, choice, factors, routing)
    if routing.vocabulary is None:
        best = _emit_best(e, choice, factors, routing)
    else:
        best = _emit_told(e, scores, chosen.of(I32), factors, routing)
    _emit_divided(e, factors, count, best + LEAST_SUM if routing.normalise else total)
    if routing.scale != 1.0:
        for span in e.spans(count, _LANES):
            factors[span] = factors[span] * routing.scale
    if routing.has_shared_gate:
        _emit_sigmoid(e, scores + count, factors + count, 1)
    return e.end()


class Choose(Record):
    """The arguments of choosing experts for many tokens. A block of the job is a token."""

    scores = Address(KIND_F32)  # (tokens, rows of the router), which are overwritten
    bias = Address(KIND_F32)
    chosen = Address(I32)  # (tokens, experts of a token), if a table says them
    factors = Address(KIND_F32)  # (tokens, rows of the router)


def emit_choose_many(module: ir.Module, name: str, path: Path, routing: Routing) -> ir.Function:
    """Write what `emit_choose` does, for each token: a job of the threads."""
    choose = emit_choose(module, f"{name}_one", path, routing)
    e, given, first, last = begin_piece(module, name, path, Choose)
    with e.loop(first, last) as token:
        start, chosen = token * routing.rows, given.chosen + token * routing.per_token
        e.call(choose, [given.scores + start, given.bias, chosen, given.factors + start])
    return e.end()


def is_chosen(e: Emitter, factor: Value) -> Value:
    """Return whether an expert with this factor is computed; one whose factor is NaN is."""
    return e.fcmp_unordered(">=", factor, constant(F32, 0.0))


@dataclass(frozen=True, slots=True)
class _Choice:
    """By what experts are chosen: probabilities, plus a bias."""

    e: Emitter
    probabilities: Pointer
    bias: Pointer | None

    def __getitem__(self, expert: Value) -> Value:
        probability = self.probabilities[expert]
        return probability if self.bias is None else probability + self.bias[expert]


def _emit_powers(e: Emitter, scores: Pointer, count: int) -> Value:
    """Turn scores into exp(score - highest); return the sum of the powers."""

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
    return sums.value.total()


def _emit_sparse_mixture(e: Emitter, scores: Pointer, factors: Pointer, routing: Routing) -> None:
    """Write the factors of a sparse mixer: see `ScoreFunction`."""
    choice, none = _Choice(e, scores, None), constant(_WIDE, 0.0)
    _emit_free(e, choice, factors, routing)
    with e.loop(0, routing.per_token):
        place = _emit_highest(e, choice, factors, routing.count)
        highest, sums = e.splat(scores[place], _LANES), e.variable(none)
        for span in e.spans(routing.count, _LANES):
            score, is_free = scores[span], factors[span].equals(_FREE)
            below = (highest - score) / highest.at_least(score.at_least(0.0 - score))
            power = e.select(below > routing.jitter, none, emit_exp(e, score - highest))
            sums.value = sums.value + e.select(is_free, power, none)
        factors[place] = routing.scale / sums.value.total()


def _emit_sigmoid(e: Emitter, source: Pointer, target: Pointer, count: int) -> None:
    for span in e.spans(count, _LANES):
        target[span] = 1.0 / (1.0 + emit_exp(e, -0.0 - source[span]))


def _emit_sqrt_softplus(e: Emitter, numbers: Pointer, count: int) -> None:
    for span in e.spans(count, _LANES):
        root = e.intrinsic("llvm.sqrt.v16f32", _WIDE, [emit_softplus(e, numbers[span])])
        numbers[span] = root


def _emit_divided(e: Emitter, numbers: Pointer, count: int, divisor: Value) -> None:
    wide = e.splat(divisor, _LANES)
    for span in e.spans(count, _LANES):
        numbers[span] = numbers[span] / wide


def _emit_free(e: Emitter, choice: _Choice, factors: Pointer, routing: Routing) -> None:
    """Mark the experts that may be chosen: all, or those of the best groups."""
    is_all = routing.groups == routing.groups_per_token
    for span in e.spans(routing.count, _LANES):
        factors[span] = e.value(constant(_WIDE, _FREE if is_all else _OUTSIDE))
    if is_all:
        return
    size = routing.group_size
    with e.loop(0, routing.groups_per_token):
        best, first_of_best = e.variable(constant(F32, _LOWEST)), e.variable(e.index(0))
        with e.loop(0, routing.groups) as group:
            first = group * size
            good = _emit_best_in_group(e, choice, first, routing)
            is_best = (factors[first] < _FREE) & e.fcmp_unordered(">", good, best.value)
            best.value = e.select(is_best, good, best.value)
            first_of_best.value = e.select(is_best, first, first_of_best.value)
        with e.loop(0, size) as member:
            factors[first_of_best.value + member] = e.value(constant(F32, _FREE))


def _emit_best_in_group(e: Emitter, choice: _Choice, first: Value, routing: Routing) -> Value:
    """The highest choice of a group, or the sum of the two highest."""
    lowest = constant(F32, _LOWEST)
    best, second = e.variable(lowest), e.variable(lowest)
    with e.loop(0, routing.group_size) as member:
        value = choice[first + member]
        is_best = value > best.value
        other = e.select(is_best, best.value, value)
        second.value = e.select(other > second.value, other, second.value)
        best.value = e.select(is_best, value, best.value)
    return best.value if routing.best_in_group == 1 else best.value + second.value


def _emit_best(e: Emitter, choice: _Choice, factors: Pointer, routing: Routing) -> Value:
    """Write the probabilities of the highest choices as their factors; return the sum of these."""
    chosen = e.variable(constant(F32, 0.0))
    with e.loop(0, routing.per_token):
        place = _emit_highest(e, choice, factors, routing.count)
        if routing.chooses_products:
            _emit_sigmoid(e, choice.probabilities + place, factors + place, 1)
            probability = factors[place]
        else:
            probability = choice.probabilities[place]
            factors[place] = probability
        chosen.value = chosen.value + probability
    return chosen.value


def _emit_told(
    e: Emitter, probabilities: Pointer, chosen: Pointer, factors: Pointer, routing: Routing
) -> Value:
    """Write the probabilities of the experts that a table says as their factors; return the sum of these."""
    total = e.variable(constant(F32, 0.0))
    with e.loop(0, routing.per_token) as index:
        place = e.sext(chosen[index], I64)
        factors[place] = probabilities[place]
        total.value = total.value + probabilities[place]
    return total.value


def _emit_highest(e: Emitter, choice: _Choice, factors: Pointer, count: int) -> Value:
    """Return the first of the highest choices of those that may still be chosen."""
    best, place = e.variable(constant(F32, _LOWEST)), e.variable(e.index(0))
    with e.loop(0, count) as expert:
        value, is_free = choice[expert], factors[expert].equals(_FREE)
        # Unordered: an expert has to be chosen even where every choice is NaN.
        is_best = is_free & e.fcmp_unordered(">", value, best.value)
        best.value = e.select(is_best, value, best.value)
        place.value = e.select(is_best, expert, place.value)
    return place.value
