"""The kernels of an indexer whose keys are those of pools, and lie behind latent rows (GLM-5.3)."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.pools_kernel import PoolScores, PoolTokens, emit_pool
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import read_row
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import F32, I8, KIND_F32, POINTER, VOID, constant
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value

# A `PoolKeys`.
CACHE_KEY = ir.FunctionType(VOID, [POINTER])


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHeads:
    """What the kernels are written for."""

    cached: Heads  # of attention, whose cached rows have a token's key and gates behind them
    scores: PoolScores
    pool: int  # tokens
    epsilon: float  # of the keys' norm

    @property
    def sees(self) -> int:
        """The most tokens that a query sees."""
        return (self.scores.chosen + 1) * self.pool - 1


class PoolKeys(Record):
    """The arguments of caching a token's key and gates, and the key of its pool if that is whole."""

    made = Address(KIND_F32)  # the key, which is normed in its place, and the gates
    norm = Address(KIND_F32)  # weight, then bias
    gate_bias = Address(KIND_F32)  # (pool, K)
    keys = Address(I8)  # the cached row of position 0
    own_from = Number()  # the rows before this position are those that sessions share
    shared_keys = Address(I8)
    position = Number()


def emit_pool_keys(module: ir.Module, name: str, path: Path, shape: PoolHeads) -> ir.Function:
    """Write what caches a token's key; in the row of a pool's last token that of the pool takes its place."""
    e = Emitter(ir.Function(module, CACHE_KEY, name), path)
    given, size = PoolKeys.load(e.arguments[0]), shape.scores.head_dim
    epsilon, kind = constant(F32, shape.epsilon), shape.cached.cache_kind

    def row(position: Value) -> Pointer:
        memory = e.select(position < given.own_from, given.shared_keys, given.keys)
        cached = Pointer(e, memory, I8).skip(position, shape.cached.cached_bytes)
        return cached.skip(shape.cached.row_bytes).of(kind)

    normed = read_row(e, "shifted", given.made, e.index(size), given.norm, epsilon)
    target = row(given.position)
    for span in e.spans(size, LANES):
        target[span] = normed(span)
        (target + size)[span] = (given.made + size)[span]
    end = given.position + 1

    def read(token: Value, span: Span) -> tuple[Value, Value]:
        place = row(end - shape.pool + token)
        return place[span], (place + size)[span] + (given.gate_bias + token * size)[span]

    with e.if_then((end % shape.pool).equals(0)):
        emit_pool(e, size, [PoolTokens(0, shape.pool, read)], target.__setitem__)
    return e.end()


def emit_expand(
    e: Emitter, pool: int, pools: Pointer, chosen: int, end: Value, places: Pointer
) -> Value:
    """Write the tokens of the chosen pools, and those after the last whole pool, before `end`; return how many."""
    with e.loop(0, chosen) as index:
        first = pools[index] * pool
        with e.loop(0, pool) as token:
            places[index * pool + token] = first + token
    tail = end - end % pool
    with e.loop(tail, end) as token:
        places[token - tail + chosen * pool] = token
    return end - tail + chosen * pool
