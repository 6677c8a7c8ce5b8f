"""The kernels of an indexer (see `IndexerSpec`): its keys, and the cached tokens that a query sees.

A token's choice is a call of `emit_choose_tokens`: its queries are turned, every cached token is scored, the highest
scores are found, and the rows that these tokens have in the cache are copied, one after the other in the order of their
positions. To attention they are a cache of so many tokens, whose panels are those of any other: so a token has the
same bits alone and among others, and attention need not know which tokens it sees.

A score is kept as an integer that is ordered as the scores are. The least of the highest ones is found bit by bit, each
by one pass that counts: 32 passes over numbers that lie in a processor's cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, PANEL, WIDE, Cached, Heads, rows_of
from potluck.engine.kernels.attending.rope_kernel import quantise
from potluck.engine.kernels.layout import CACHE_LINE
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import read_row
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I32,
    I64,
    KIND_F32,
    KIND_INT8,
    POINTER,
    VOID,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span, stack
from potluck.engine.kernels.writing.values import Value

_INTEGERS = vector(I32, LANES)
_LOWEST = -(1 << 31)  # of the integers: below that of any score
_INFINITY = float("inf")
_COPIED = 32  # bytes that are copied at a time
_AHEAD = 4 * LANES  # tokens whose keys are prefetched before they are scored

# A `Choose`.
CHOOSE_TOKENS = ir.FunctionType(VOID, [POINTER])


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHeads:
    """What the kernels of an indexer are written for."""

    cached: Heads  # of attention, whose cached rows have the keys behind them
    heads: int
    head_dim: int
    rotary_dim: int
    chosen: int  # tokens that a query sees
    scale: float  # of scores
    epsilon: float  # of the keys' norm

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def parts(self) -> tuple[int, int, int]:
        """Numbers of what a token has: queries, key, weights of the heads."""
        return self.q_size, self.head_dim, self.heads

    @property
    def padded(self) -> int:
        """Numbers in the vectors of a key."""
        return -(-self.head_dim // LANES) * LANES


class IndexKeys(Record):
    """The arguments of norm, rope and caching of keys. A block of the job is a token."""

    index_keys = Address(KIND_F32)  # (T, stride), of which `head_dim`; changed
    stride = Number()
    norm = Address(KIND_F32)
    norm_bias = Address(KIND_F32)
    cosines = Address(KIND_F32)
    sines = Address(KIND_F32)
    keys = Address(I8)  # the cached row of position 0
    position = Number()  # of the first token


def emit_index_keys(module: ir.Module, name: str, path: Path, shape: IndexHeads) -> ir.Function:
    """Write norm, rope and caching of some tokens' keys: a job of the threads."""
    e, given, first, last = begin_piece(module, name, path, IndexKeys)
    with e.loop(first, last) as token:
        key = given.index_keys + token * given.stride
        _norm(e, shape, key, given.norm, given.norm_bias)
        start = token * shape.rotary_dim
        _turn(e, shape, key, given.cosines + start, given.sines + start)
        row = given.keys.skip(given.position + token, shape.cached.cached_bytes)
        target = row.skip(shape.cached.row_bytes)
        if shape.cached.cache_kind == KIND_INT8:
            quantise(e, key, target, shape.head_dim)
        else:
            for span in e.spans(shape.head_dim, LANES):
                target.of(shape.cached.cache_kind)[span] = key[span]
    return e.end()


def _norm(e: Emitter, shape: IndexHeads, key: Pointer, weight: Pointer, bias: Pointer) -> None:
    """Write the LayerNorm of a key in its place."""
    epsilon = constant(F32, shape.epsilon)
    row = read_row(e, "centred", key, shape.head_dim, weight, epsilon)
    for span in e.spans(shape.head_dim, LANES):
        key[span] = row(span) + bias[span]


def _turn(
    e: Emitter, shape: IndexHeads, numbers: Pointer, cosines: Pointer, sines: Pointer
) -> None:
    """Turn the first numbers of a head in place."""
    half = shape.rotary_dim // 2
    second = numbers + half
    for span in e.spans(half, LANES):
        a, b, cos, sin = (each[span] for each in (numbers, second, cosines, sines + half))
        numbers[span] = a * cos - b * sin
        second[span] = b * cos + a * sin


class Choose(Record):
    """The arguments of a token's choice among more cached tokens than it sees."""

    queries = Address(KIND_F32)  # (H, K); turned in place
    weights = Address(KIND_F32)  # (H,), of the heads
    cosines = Address(KIND_F32)
    sines = Address(KIND_F32)
    keys = Address(I8)  # the cached row of position 0
    head_stride = Number()  # not read: there is one head
    own_from = Number()  # the panels before this position are those that sessions share
    shared_keys = Address(I8)
    shared_stride = Number()  # not read either
    position = Number()  # of the token
    scores = Address(I32)  # room for `score_numbers`
    places = Address(I64)  # room for `chosen` + 1: the positions, in their order
    rows = Address(I8)  # `chosen` cached rows, which are written
    job = Address(I8)
    shares = Number()


def score_numbers(tokens: int) -> int:
    """Return how many numbers there must be room for, for so many cached tokens."""
    return -(-tokens // PANEL) * PANEL


def emit_choose_tokens(
    module: ir.Module, name: str, path: Path, shape: IndexHeads, run: ir.Function | None = None
) -> ir.Function:
    """Write a token's choice. `run` shares it with the threads: a function that `emit_run` has written."""
    score = _emit_score(module, f"{name}_score", path, shape)
    copy = emit_copy_rows(module, f"{name}_copy", path, shape.cached)
    run = run or emit_run(module, f"{name}_run", path)
    e = Emitter(ir.Function(module, CHOOSE_TOKENS, name), path)
    given = Choose.load(e.arguments[0])
    with e.loop(0, shape.heads) as head:
        _turn(e, shape, given.queries + head * shape.head_dim, given.cosines, given.sines)
    threads = OnThreads(e, run, given.job, given.shares)
    threads.call(score, e.arguments[0], given.position // PANEL + 1)
    _find(e, shape, given)
    arguments = CopyRows.store(e, **{field: given[field] for field in CopyRows.fields})
    threads.call(copy, arguments, shape.chosen)
    return e.end()


def _emit_score(module: ir.Module, name: str, path: Path, shape: IndexHeads) -> ir.Function:
    """Write a `PIECE` whose blocks are panels of cached tokens, which it scores."""
    e, given, first, last = begin_piece(module, name, path, Choose)
    columns = stack(e, I8, 4 * LANES * shape.padded).of(KIND_F32)
    rows = rows_of(e, shape.cached, given, e.index(0))
    with e.loop(first, last) as panel:
        start = panel * PANEL
        keys = rows("keys", start)
        count = (given.position + 1 - start).at_most(PANEL)
        with e.loop(0, count, LANES) as token:
            _prefetch(e, shape, keys, token + _AHEAD)
            _load_columns(e, shape, keys, token, count, columns)
            number = token + constant(vector(I64, LANES), range(LANES))
            key = e.select(
                number < count, _ordered(e, _score(e, shape, given, columns)), _LOWEST_OF_EACH
            )
            given.scores[Span(start + token, LANES)] = key
    return internal(e.end())


_LOWEST_OF_EACH = constant(_INTEGERS, _LOWEST)


def _prefetch(e: Emitter, shape: IndexHeads, keys: Cached, first: Value) -> None:
    """Prefetch the keys of 16 tokens: they lie so far apart that the processor does not foresee them."""
    width = shape.cached.cached_bytes - shape.cached.row_bytes
    with e.loop(first, first + LANES) as token:
        key = keys.at(token).skip(shape.cached.row_bytes)
        for offset in range(0, width + CACHE_LINE, CACHE_LINE):
            key.skip(offset).prefetch()


def _load_columns(
    e: Emitter, shape: IndexHeads, keys: Cached, first: Value, count: Value, columns: Pointer
) -> None:
    """Write the keys of 16 tokens as columns, f32: number by number, with the tokens side by side."""
    kind, offset = shape.cached.cache_kind, shape.cached.row_bytes
    tokens = [(first + lane).at_most(count - 1) for lane in range(LANES)]  # others are not cached
    places = [keys.at(token).skip(offset).of(kind) for token in tokens]
    scales = [
        None if kind != KIND_INT8 else place.skip(shape.head_dim).of(KIND_F32)[0]
        for place in places
    ]
    for span in e.spans(shape.head_dim, LANES):
        numbers = [
            place[span] if scale is None else place[span] * e.splat(scale, LANES)
            for place, scale in zip(places, scales, strict=True)
        ]
        target = columns + span.first * LANES
        for index, column in enumerate(e.transpose(numbers)):
            (target + index * LANES).of(WIDE)[0] = column


def _score(e: Emitter, shape: IndexHeads, given: Choose, columns: Pointer) -> Value:
    """Return the scores of 16 tokens: the heads' products, where above zero, times their weights."""
    total = e.variable(constant(WIDE, 0.0))
    most = 8 if e.path.registers >= 32 else 4
    whole = shape.heads - shape.heads % most
    blocks = ((0, whole, most), (whole, shape.heads, shape.heads - whole))
    for start, stop, count in (block for block in blocks if block[0] < block[1]):
        with e.loop(start, stop, count) as head:
            queries = given.queries + head * shape.head_dim
            sums = [e.variable(constant(WIDE, 0.0)) for _ in range(count)]
            with e.loop(0, shape.head_dim) as number:
                column = (columns + number * LANES).of(WIDE)[0]
                for member, one in enumerate(sums):
                    query = e.splat((queries + member * shape.head_dim)[number], LANES)
                    one.value = e.multiply_add(query, column, one.value)
            for member, one in enumerate(sums):
                weight = e.splat(given.weights[head + member] * shape.scale, LANES)
                # Unordered: a product that is NaN stays one.
                is_above = e.fcmp_unordered(">", one.value, constant(WIDE, 0.0))
                above = e.select(is_above, one.value, constant(WIDE, 0.0))
                total.value = e.multiply_add(above, weight, total.value)
    return total.value


def _ordered(e: Emitter, scores: Value) -> Value:
    """Return integers that are ordered as the scores: zeros are equal, and NaN is as infinity."""
    is_nan = e.fcmp_unordered("uno", scores, scores)
    scores = e.select(is_nan, constant(WIDE, _INFINITY), scores + 0.0)  # -0 becomes 0
    bits = e.bitcast(scores, _INTEGERS)
    return bits ^ (bits.shifted_signed(31) & 0x7FFFFFFF)


def _find(e: Emitter, shape: IndexHeads, given: Choose) -> None:
    """Write the positions with the highest scores; of those that are equal to the least of them, the first ones."""
    count, wanted = given.position + 1, e.index(shape.chosen)
    whole = (count + (LANES - 1)) // LANES * LANES  # what is behind the last token is the lowest
    found = e.variable(constant(I32, _LOWEST))
    with e.loop(0, 32) as index:
        higher = found.value ^ e.shl(constant(I32, 1), e.trunc(31 - index, I32))
        of_each = e.splat(higher, LANES)
        number = _count(e, given.scores, whole, of_each.__le__)
        found.value = e.select(number >= wanted, higher, found.value)
    least = found.value
    above = _count(e, given.scores, whole, e.splat(least, LANES).__lt__)
    equal, place = e.variable(wanted - above), e.variable(e.index(0))
    with e.loop(0, count) as position:
        score = given.scores[position]
        is_equal = score.equals(least) & (equal.value > 0)
        equal.value = equal.value - e.zext(is_equal, I64)
        given.places[place.value] = position  # overwritten by the next one, unless it is taken
        place.value = place.value + e.zext(is_equal | (score > least), I64)


def _count(e: Emitter, scores: Pointer, whole: Value, condition: Callable[[Value], Value]) -> Value:
    """Return of how many scores the condition holds."""
    sums = e.variable(constant(_INTEGERS, 0))
    with e.loop(0, whole, LANES) as index:
        sums.value = sums.value + e.zext(condition(scores[Span(index, LANES)]), _INTEGERS)
    return e.zext(sums.value.reduce("add"), I64)


class CopyRows(Record):
    """The arguments of copying chosen rows. A block of the job is a row."""

    keys = Address(I8)  # as `Choose` has these
    own_from = Number()
    shared_keys = Address(I8)
    places = Address(I64)
    rows = Address(I8)


def emit_copy_rows(module: ir.Module, name: str, path: Path, cached: Heads) -> ir.Function:
    """Write a job of the threads that copies what attention reads of the chosen rows, one after the other."""
    e, given, first, last = begin_piece(module, name, path, CopyRows)
    with e.loop(first, last) as index:
        position = given.places[index]
        is_shared = position < given.own_from
        memory = Pointer(e, e.select(is_shared, given.shared_keys, given.keys), I8)
        source = memory.skip(position, cached.cached_bytes)
        target = given.rows.skip(index, cached.cached_bytes)
        for span in e.spans(cached.row_bytes, _COPIED):
            target.of(I8)[span] = source.of(I8)[span]
    return e.end()
