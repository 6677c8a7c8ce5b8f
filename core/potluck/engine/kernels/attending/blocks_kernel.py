"""The kernels of an indexer that chooses blocks of tokens for each head of keys (MiniMax M3): see `HeadIndexSpec`.

The rows of the chosen blocks are copied, one after the other in the order of their positions, to what attention goes
through as through a short cache: its keys and values of each head are those that this head sees.
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, PANEL, WIDE, Heads
from potluck.engine.kernels.attending.choosing_kernel import find_highest, load_columns, ordered
from potluck.engine.kernels.attending.rope_kernel import norm_row, quantise, rope
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
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

# A `BlockKeys`, and a `ChooseBlocks`.
CACHE_KEY = CHOOSE_BLOCKS = ir.FunctionType(VOID, [POINTER])
_COPIED = 32  # bytes that are copied at a time
_FIRST = 0x7FFFFFFF  # above the score of any block
_LOWEST = -(1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeads:
    """What the kernels are written for. A key of the indexer has a head of its own behind those of attention."""

    attention: Heads
    head_dim: int  # of queries and keys, of which there is a query for each head of keys
    rotary_dim: int
    block: int  # tokens
    chosen: int  # blocks that a query sees
    last: int  # of these, how many are the last ones
    epsilon: float

    def __post_init__(self) -> None:
        assert 1 <= self.last <= self.chosen
        assert self.head_dim <= self.attention.head_dim

    @property
    def heads(self) -> int:
        return self.attention.kv_heads

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def padded(self) -> int:
        """Numbers in the vectors of a key."""
        return -(-self.head_dim // LANES) * LANES

    @property
    def sees(self) -> int:
        """The most tokens that a query sees."""
        return self.chosen * self.block

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows of all heads that a query sees."""
        return 2 * self.heads * self.sees * self.attention.cached_bytes


def score_room(shape: BlockHeads, tokens: int) -> tuple[int, int]:
    """Return for how many numbers there must be room, for so many cached tokens: scores of tokens, and of blocks."""
    blocks = -(-tokens // shape.block)
    return shape.heads * padded_to(tokens, PANEL), shape.heads * padded_to(blocks, LANES)


def padded_to(count: int, whole: int) -> int:
    """Return the next multiple."""
    return -(-count // whole) * whole


class BlockKeys(Record):
    """The arguments of norm, rope and caching of one token."""

    made = Address(KIND_F32)  # (H·K + K,): queries, then the key; changed
    query_norm = Address(KIND_F32)
    key_norm = Address(KIND_F32)
    cosines = Address(KIND_F32)
    sines = Address(KIND_F32)
    keys = Address(I8)  # of attention's first head, the row of position 0
    head_stride = Number()
    position = Number()


def emit_block_keys(module: ir.Module, name: str, path: Path, shape: BlockHeads) -> ir.Function:
    """Write norm, rope and caching of one token."""
    e = Emitter(ir.Function(module, CACHE_KEY, name), path)
    given, size, attention = BlockKeys.load(e.arguments[0]), shape.head_dim, shape.attention
    half = shape.rotary_dim // 2
    with e.loop(0, shape.heads + 1) as head:
        numbers = given.made + head * size
        weight = e.select(head < shape.heads, given.query_norm, given.key_norm)
        norm_row(e, numbers, Pointer(e, weight, KIND_F32), size, shape.epsilon)
        rope(e, numbers, given.cosines, given.sines + half, half)
    key = given.made + shape.q_size
    row = given.keys.skip(given.head_stride, shape.heads)
    row = row.skip(given.position, attention.cached_bytes).of(attention.cache_kind)
    if attention.cache_kind == KIND_INT8:
        quantise(e, key, row.of(I8), size, attention.head_dim)
    else:
        for span in e.spans(size, LANES):
            row[span] = key[span]
    return e.end()


class ChooseBlocks(Record):
    """The arguments of a token's choice among more cached tokens than it sees."""

    queries = Address(KIND_F32)  # (H, K)
    keys = Address(I8)  # of attention's first head, the row of position 0
    values = Address(I8)
    head_stride = Number()
    own_from = Number()  # the rows before this position are those that sessions share
    shared_keys = Address(I8)
    shared_values = Address(I8)
    shared_stride = Number()
    position = Number()
    token_scores = Address(KIND_F32)  # see `score_room`
    block_scores = Address(I32)
    places = Address(I64)  # (H, chosen), and room for one more: the blocks, in their order
    rows = Address(I8)  # (2, H, sees) cached rows, which are written
    job = Address(I8)
    shares = Number()


def emit_choose_blocks(
    module: ir.Module, name: str, path: Path, shape: BlockHeads, run: ir.Function | None = None
) -> ir.Function:
    """Write a token's choice, and the copy of what it sees. `run` shares it with the threads: `emit_run` has written it."""
    score = _emit_score(module, f"{name}_score", path, shape)
    copy = _emit_copy(module, f"{name}_copy", path, shape)
    run = run or emit_run(module, f"{name}_run", path)
    e = Emitter(ir.Function(module, CHOOSE_BLOCKS, name), path)
    given = ChooseBlocks.load(e.arguments[0])
    threads = OnThreads(e, run, given.job, given.shares)
    threads.call(score, e.arguments[0], given.position // PANEL + 1)
    blocks = given.position // shape.block + 1
    room = (blocks + (LANES - 1)) // LANES * LANES
    with e.loop(0, shape.heads) as head:
        scores = given.block_scores + head * room
        _write_block_scores(e, shape, given, head, scores, (blocks, room))
        find_highest(e, scores, blocks, shape.chosen, given.places + head * shape.chosen)
    threads.call(copy, e.arguments[0], 2 * shape.heads * shape.chosen)
    return e.end()


def seen_tokens(shape: BlockHeads, position: Value) -> Value:
    """Return how many tokens a query sees that does not see all: the last block may not be whole."""
    return position % shape.block + (1 + (shape.chosen - 1) * shape.block)


def _emit_score(module: ir.Module, name: str, path: Path, shape: BlockHeads) -> ir.Function:
    """Write a `PIECE` whose blocks are panels of cached tokens, which it scores for each head."""
    e, given, first, last = begin_piece(module, name, path, ChooseBlocks)
    columns = stack(e, I8, 4 * LANES * shape.padded).of(KIND_F32)
    attention, count = shape.attention, given.position + 1
    room = (count + (PANEL - 1)) // PANEL * PANEL

    def key(token: Value) -> Pointer:
        is_shared = token < given.own_from
        memory = e.select(is_shared, given.shared_keys, given.keys)
        stride = e.select(is_shared, given.shared_stride, given.head_stride)
        row = Pointer(e, memory, I8).skip(stride, shape.heads)
        return row.skip(token, attention.cached_bytes).of(attention.cache_kind)

    with e.loop(first * PANEL, (last * PANEL).at_most(count), LANES) as token:
        places = [key((token + lane).at_most(count - 1)) for lane in range(LANES)]
        sizes = shape.head_dim, attention.head_dim
        load_columns(e, places, attention.cache_kind, sizes[0], columns, scale_at=sizes[1])
        with e.loop(0, shape.heads) as head:
            query, total = given.queries + head * shape.head_dim, e.variable(constant(WIDE, 0.0))
            with e.loop(0, shape.head_dim) as number:
                column = (columns + number * LANES).of(WIDE)[0]
                wide = e.splat(query[number], LANES)
                total.value = e.multiply_add(wide, column, total.value)
            given.token_scores[Span(head * room + token, LANES)] = total.value
    return internal(e.end())


def _write_block_scores(
    e: Emitter,
    shape: BlockHeads,
    given: ChooseBlocks,
    head: Value,
    scores: Pointer,
    blocks: tuple[Value, Value],
) -> None:
    """Write the highest score of each block's tokens for a head, and behind the last block the lowest scores."""
    (count, room), tokens = blocks, given.position + 1
    lowest = constant(vector(I32, LANES), _LOWEST)
    padded = (tokens + (PANEL - 1)) // PANEL * PANEL
    with e.loop(0, count) as block:
        start, most = block * shape.block, e.variable(lowest)
        size = (tokens - start).at_most(shape.block)
        source = given.token_scores + (head * padded + start)
        for span in e.spans(size, LANES):
            score = ordered(e, source[span])
            if span.mask is not None:
                score = e.select(span.mask, score, lowest)
            most.value = score.at_least(most.value)
        highest = most.value.reduce("smax")
        is_last = block >= count - shape.last
        scores[block] = e.select(is_last, constant(I32, _FIRST), highest)
    with e.loop(count, room) as block:
        scores[block] = e.value(constant(I32, _LOWEST))


def _emit_copy(module: ir.Module, name: str, path: Path, shape: BlockHeads) -> ir.Function:
    """Write a `PIECE` whose blocks are the chosen blocks of each head's keys, then of its values: it copies their rows."""
    e, given, first, last = begin_piece(module, name, path, ChooseBlocks)
    attention, chosen, nbytes = shape.attention, shape.chosen, shape.attention.cached_bytes
    with e.loop(first, last) as index:
        place, head_of_half = index % chosen, index // chosen
        is_key, head = head_of_half < shape.heads, head_of_half % shape.heads
        own = e.select(is_key, given.keys, given.values)
        shared = e.select(is_key, given.shared_keys, given.shared_values)
        start = given.places[head * chosen + place] * shape.block
        count = (given.position + 1 - start).at_most(shape.block)
        target = given.rows.skip(head_of_half * shape.sees + place * shape.block, nbytes)
        with e.loop(0, count) as token:
            position = start + token
            is_shared = position < given.own_from
            memory = Pointer(e, e.select(is_shared, shared, own), I8)
            stride = e.select(is_shared, given.shared_stride, given.head_stride)
            source = memory.skip(head, stride).skip(position, nbytes)
            row = target.skip(token, nbytes)
            for span in e.spans(attention.row_bytes, _COPIED):
                row[span] = source[span]
    return internal(e.end())
