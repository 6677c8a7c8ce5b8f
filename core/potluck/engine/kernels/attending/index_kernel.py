"""The kernels of an indexer (see `IndexerSpec`): its keys, and the cached tokens that a query sees.

A token's choice is a call of `emit_choose_tokens`: its queries are turned, every cached token is scored, the highest
scores are found, and the rows that these tokens have in the cache are copied, one after the other in the order of their
positions. To attention they are a cache of so many tokens, whose panels are those of any other: so a token has the
same bits alone and among others, and attention need not know which tokens it sees.
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, PANEL, Cached, Heads, rows_of
from potluck.engine.kernels.attending.choosing_kernel import (
    LOWEST_OF_EACH,
    ScoringHeads,
    find_highest,
    load_columns,
    ordered,
    score,
)
from potluck.engine.kernels.attending.rope_kernel import quantise, rope
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

_COPIED = 32  # bytes that are copied at a time
_AHEAD = 4 * LANES  # tokens whose keys are prefetched before they are scored

# A `Choose`.
CHOOSE_TOKENS = ir.FunctionType(VOID, [POINTER])


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHeads(ScoringHeads):
    """What the kernels of an indexer are written for."""

    cached: Heads  # of attention, whose cached rows have the keys behind them
    rotary_dim: int
    chosen: int  # tokens that a query sees
    epsilon: float  # of the keys' norm

    @property
    def parts(self) -> tuple[int, int, int]:
        """Numbers of what a token has: queries, key, weights of the heads."""
        return self.q_size, self.head_dim, self.heads


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
        start, half = token * shape.rotary_dim, shape.rotary_dim // 2
        rope(e, key, given.cosines + start, given.sines + start + half, half)
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
        query, half = given.queries + head * shape.head_dim, shape.rotary_dim // 2
        rope(e, query, given.cosines, given.sines + half, half)
    threads = OnThreads(e, run, given.job, given.shares)
    threads.call(score, e.arguments[0], given.position // PANEL + 1)
    find_highest(e, given.scores, given.position + 1, shape.chosen, given.places)
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
            scores = score(e, shape, given.queries, given.weights, columns)
            key = e.select(number < count, ordered(e, scores), LOWEST_OF_EACH)
            given.scores[Span(start + token, LANES)] = key
    return internal(e.end())


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
    """Write the keys of 16 tokens as columns."""
    kind, offset = shape.cached.cache_kind, shape.cached.row_bytes
    tokens = [(first + lane).at_most(count - 1) for lane in range(LANES)]  # others are not cached
    places = [keys.at(token).skip(offset).of(kind) for token in tokens]
    load_columns(e, places, kind, shape.head_dim, columns)


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
