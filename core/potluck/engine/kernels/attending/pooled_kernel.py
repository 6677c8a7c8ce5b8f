"""The kernels of attention to pools of tokens (DeepSeek V4), beside attention itself: see `model/mixing/pooled.py`.

Each step is that of `engine/layers/pooled.py`, in the same order, so that a token has the same bits in a chunk.
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.pools_kernel import PoolScores, PoolTokens, emit_pool
from potluck.engine.kernels.attending.rope_kernel import norm_row
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_inverse_rms
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value

# A `PooledRows`.
CACHE_ROW = ir.FunctionType(VOID, [POINTER])
_COPIED = 32  # bytes that are copied at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMaker:
    """How the keys of pools are made that attention sees, or an indexer."""

    size: int  # numbers of a key
    inputs: int  # numbers of a token, and as many gates
    overlaps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledHeads:
    """What the kernels are written for."""

    attention: Heads  # one key for each token and pool, which is its value too
    rotary_dim: int  # the last numbers of a head
    window: int
    epsilon: float
    rate: int = 0  # tokens of a pool; 0: there are no pools
    makers: tuple[PoolMaker, ...] = ()  # of attention's keys, then of the indexer's
    index: PoolScores | None = None  # None: all pools are seen

    @property
    def pooling(self) -> int:
        """Numbers of a token that pools are made of."""
        return sum(2 * one.inputs for one in self.makers)

    @property
    def unit(self) -> int:
        """Numbers of a pool's row; of a token's row they are a part."""
        return sum(one.size for one in self.makers) or self.attention.head_dim

    @property
    def row(self) -> int:
        """Numbers from one token's row to the next."""
        return -(-(self.attention.head_dim + self.pooling) // self.unit) * self.unit

    @property
    def number_bytes(self) -> int:
        return KIND_BYTES[self.attention.cache_kind]

    def seen(self, tokens: int) -> int:
        """The most rows that a query sees, of so many tokens."""
        pools = tokens // self.rate if self.rate else 0
        if self.index is not None:
            pools = min(pools, self.index.chosen)
        return min(tokens, self.window) + pools


class PooledRows(Record):
    """The arguments of norms, rope and caching of a token, and of its pool if that is whole."""

    queries = Address(KIND_F32)  # (H, K); changed
    key = Address(KIND_F32)  # (K,); changed
    key_norm = Address(KIND_F32)
    pooling = Address(KIND_F32)  # what pools are made of
    cosines = Address(KIND_F32)
    sines = Address(KIND_F32)
    pool_cosines = Address(KIND_F32)  # of the first token of the pool, if it is whole
    pool_sines = Address(KIND_F32)
    pool_norm = Address(KIND_F32)
    pool_bias = Address(KIND_F32)
    index_norm = Address(KIND_F32)  # likewise of the indexer's pools
    index_bias = Address(KIND_F32)
    pooled = Address(KIND_F32)  # room for a key of a pool
    keys = Address(I8)  # the row of position 0
    pool_rows = Address(I8)
    position = Number()


def emit_pooled_rows(module: ir.Module, name: str, path: Path, shape: PooledHeads) -> ir.Function:
    """Write what is done between the first products of a token and its attention."""
    e = Emitter(ir.Function(module, CACHE_ROW, name), path)
    given, heads = PooledRows.load(e.arguments[0]), shape.attention
    size, kind = heads.head_dim, heads.cache_kind
    with e.loop(0, heads.heads) as head:
        query = given.queries + head * size
        inverse = emit_inverse_rms(e, query, size, constant(F32, shape.epsilon))
        for span in e.spans(size, LANES):
            query[span] = query[span] * inverse
        emit_turn(e, query, size, shape.rotary_dim, (given.cosines, given.sines))
    norm_row(e, given.key, given.key_norm, size, shape.epsilon)
    emit_turn(e, given.key, size, shape.rotary_dim, (given.cosines, given.sines))
    row = given.keys.skip(given.position, shape.row * shape.number_bytes).of(kind)
    for source, count, target in (
        (given.key, size, row),
        *(((given.pooling, shape.pooling, row + size),) if shape.makers else ()),
    ):
        for span in e.spans(count, LANES):
            target[span] = source[span]
    if shape.makers:
        end = given.position + 1
        with e.if_then((end % shape.rate).equals(0)):
            _emit_pools(e, shape, given, end)
    return e.end()


def _emit_pools(e: Emitter, shape: PooledHeads, given: PooledRows, end: Value) -> None:
    """Make the keys of the pool that ends before a position, and cache them."""
    kind, start = shape.attention.cache_kind, shape.attention.head_dim
    number = end // shape.rate - 1
    target = given.pool_rows.skip(number, shape.unit * shape.number_bytes).of(kind)
    tensors = (given.pool_norm, given.pool_bias), (given.index_norm, given.index_bias)
    for maker, (norm, bias) in zip(shape.makers, tensors, strict=False):
        own, before = end - shape.rate, end - 2 * shape.rate
        tokens = [_tokens(e, shape, given, (own, maker, start, bias), late=maker.overlaps)]
        pooled = given.pooled
        if maker.overlaps:
            earlier = _tokens(e, shape, given, (before, maker, start, bias), late=False)
            stop = e.select(
                number > 0, e.index(shape.rate), e.index(0)
            )  # the first has none before
            tokens = [PoolTokens(0, stop, earlier.read), *tokens]
        emit_pool(e, maker.size, tokens, pooled.__setitem__)
        norm_row(e, pooled, norm, maker.size, shape.epsilon)
        angles = given.pool_cosines, given.pool_sines
        emit_turn(e, pooled, maker.size, shape.rotary_dim, angles)
        for span in e.spans(maker.size, LANES):
            target[span] = pooled[span]
        target, start = target + maker.size, start + 2 * maker.inputs


def _tokens(
    e: Emitter,
    shape: PooledHeads,
    given: PooledRows,
    source: tuple[Value, PoolMaker, int, Pointer],
    *,
    late: bool,
) -> PoolTokens:
    """A pool's tokens from a position on, with the numbers behind so many of a row; `late`: the second half of them."""
    first, maker, start, bias = source
    skipped = maker.size if late else 0

    def read(token: Value, span: Span) -> tuple[Value, Value]:
        row = given.keys.skip(first + token, shape.row * shape.number_bytes)
        numbers = row.of(shape.attention.cache_kind) + (start + skipped)
        added = (bias + token * maker.inputs + skipped)[span]
        return numbers[span], (numbers + maker.inputs)[span] + added

    return PoolTokens(0, shape.rate, read)


def emit_turn(
    e: Emitter,
    numbers: Pointer,
    size: int,
    rotary_dim: int,
    angles: tuple[Pointer, Pointer],
    *,
    back: bool = False,
) -> None:
    """Turn the last numbers of a head in place, in pairs of neighbours; or turn them back."""
    cosines, sines = angles
    turned = numbers + (size - rotary_dim)
    half = LANES // 2
    swapped = constant(vector(I32, LANES), [lane ^ 1 for lane in range(LANES)])
    spread = constant(vector(I32, LANES), [lane // 2 for lane in range(LANES)])
    # Sines of the first halves have the sign of what is added to the first number of a pair.
    signs = [-1.0 if lane % 2 != back else 1.0 for lane in range(LANES)]
    for span in e.spans(rotary_dim, LANES):
        mask = span.mask
        if mask is not None:
            places = constant(vector(I32, half), range(0, LANES, 2))
            mask = e.shuffle_vector(mask, mask, places)
        pairs = Span(e.index(span.first) // 2, half, mask)
        cosine, sine = (
            e.shuffle_vector(some, some, spread) for some in (cosines[pairs], sines[pairs])
        )
        value = turned[span]
        other = e.shuffle_vector(value, value, swapped)
        sine = sine * e.value(constant(vector(F32, LANES), signs))
        turned[span] = value * cosine + other * sine


class SeenRows(Record):
    """The arguments of copying the rows that a token sees: of the last tokens, then of pools. A block is a row."""

    keys = Address(I8)  # the row of position 0
    pool_rows = Address(I8)
    first = Number()  # the position of the first token
    tokens = Number()  # how many
    places = Address(I64)  # which pools; null: all
    rows = Address(I8)


def emit_seen_rows(module: ir.Module, name: str, path: Path, shape: PooledHeads) -> ir.Function:
    """Write a job of the threads that copies these rows, one after the other."""
    e, given, start, stop = begin_piece(module, name, path, SeenRows)
    number = shape.number_bytes
    with e.loop(start, stop) as index:
        pool = e.variable(index - given.tokens)
        is_pool = index >= given.tokens
        with e.if_then(is_pool & given.places.is_set):
            pool.value = given.places[pool.value]
        of_token = given.keys.skip(given.first + index, shape.row * number)
        of_pool = given.pool_rows.skip(pool.value, shape.unit * number)
        source = Pointer(e, e.select(is_pool, of_pool, of_token), I8)
        target = given.rows.skip(index, shape.attention.row_bytes)
        for span in e.spans(shape.attention.row_bytes, _COPIED):
            target[span] = source[span]
    return e.end()


def window_of(e: Emitter, shape: PooledHeads, end: Operand) -> tuple[Value, Value]:
    """Return the first position that a query before `end` sees, and how many tokens it sees."""
    first = (e.index(end) - shape.window).at_least(0)
    return first, e.index(end) - first
