"""The kernels that make one key of a pool's tokens, and choose pools by their keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, PANEL, WIDE
from potluck.engine.kernels.attending.choosing_kernel import (
    LOWEST_OF_EACH,
    ScoringHeads,
    find_highest,
    load_columns,
    ordered,
    score,
)
from potluck.engine.kernels.layout import CACHE_LINE
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_exp
from potluck.engine.kernels.writing.ir_types import (
    I8,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span, stack
from potluck.engine.kernels.writing.values import Value

# A `ChoosePools`.
CHOOSE_POOLS = ir.FunctionType(VOID, [POINTER])
_AHEAD = 2 * LANES  # pools whose keys are prefetched before they are scored


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScores(ScoringHeads):
    """What choosing pools is written for."""

    chosen: int  # pools; of no more than so many all are taken
    kind: int  # of the keys' numbers


class ChoosePools(Record):
    """The arguments of a token's choice."""

    queries = Address(KIND_F32)  # (H, K)
    weights = Address(KIND_F32)  # (H,), of the heads
    keys = Address(I8)  # the key of pool 0
    own_from = Number()  # the pools before this one are among those that sessions share
    shared_keys = Address(I8)
    stride = Number()  # bytes from one pool's key to the next
    count = Number()  # pools
    scores = Address(I32)  # room for `score_numbers` of them
    places = Address(I64)  # room for `chosen` + 1: the pools, in their order
    job = Address(I8)
    shares = Number()


def emit_choose_pools(
    module: ir.Module, name: str, path: Path, shape: PoolScores, run: ir.Function | None = None
) -> ir.Function:
    """Write a token's choice. `run` shares it with the threads: a function that `emit_run` has written."""
    piece = _emit_score(module, f"{name}_score", path, shape)
    run = run or emit_run(module, f"{name}_run", path)
    e = Emitter(ir.Function(module, CHOOSE_POOLS, name), path)
    given = ChoosePools.load(e.arguments[0])
    with e.if_else(given.count > shape.chosen) as (many, few):
        with many:
            threads = OnThreads(e, run, given.job, given.shares)
            threads.call(piece, e.arguments[0], (given.count + (PANEL - 1)) // PANEL)
            find_highest(e, given.scores, given.count, shape.chosen, given.places)
        with few, e.loop(0, given.count) as pool:
            given.places[pool] = pool
    return e.end()


def _emit_score(module: ir.Module, name: str, path: Path, shape: PoolScores) -> ir.Function:
    """Write a `PIECE` whose blocks are 256 pools, which it scores."""
    e, given, first, last = begin_piece(module, name, path, ChoosePools)
    columns = stack(e, I8, 4 * LANES * shape.padded).of(KIND_F32)

    def key(pool: Value) -> Pointer:
        memory = e.select(pool < given.own_from, given.shared_keys, given.keys)
        return Pointer(e, memory, shape.kind).skip(pool, given.stride)

    with e.loop(first * PANEL, (last * PANEL).at_most(given.count), LANES) as start:
        with e.loop(start + _AHEAD, (start + (_AHEAD + LANES)).at_most(given.count)) as pool:
            for offset in range(0, shape.head_dim * KIND_BYTES[shape.kind], CACHE_LINE):
                key(pool).skip(offset).prefetch()
        places = [key((start + lane).at_most(given.count - 1)) for lane in range(LANES)]
        load_columns(e, places, shape.kind, shape.head_dim, columns)
        number = start + constant(vector(I64, LANES), range(LANES))
        found = ordered(e, score(e, shape, given.queries, given.weights, columns))
        is_there = number < given.count
        given.scores[Span(start, LANES)] = e.select(is_there, found, LOWEST_OF_EACH)
    return internal(e.end())


@dataclass(frozen=True)
class PoolTokens:
    """Some of a pool's tokens, one after the other."""

    first: Operand
    stop: Operand
    read: Callable[[Value, Span], tuple[Value, Value]]  # numbers and gates of a token


def emit_pool(
    e: Emitter, size: int, tokens: Sequence[PoolTokens], write: Callable[[Span, Value], None]
) -> None:
    """Write Σ softmax(gates)_t numbers_t over a pool's tokens, each of `size` numbers by itself.

    Each sum is in the order of the tokens. A span's numbers are all read before it is written.
    """
    for span in e.spans(size, LANES):
        most = e.variable(constant(WIDE, -float("inf")))
        powers, total = (e.variable(constant(WIDE, 0.0)) for _ in range(2))
        for some in tokens:
            with e.loop(some.first, some.stop) as token:
                most.value = some.read(token, span)[1].at_least(most.value)
        for some in tokens:
            with e.loop(some.first, some.stop) as token:
                _, gates = some.read(token, span)
                powers.value = powers.value + emit_exp(e, gates - most.value)
        for some in tokens:
            with e.loop(some.first, some.stop) as token:
                numbers, gates = some.read(token, span)
                part = emit_exp(e, gates - most.value) / powers.value
                total.value = total.value + numbers * part
        write(span, total.value)
