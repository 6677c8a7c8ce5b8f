"""The kernel of attention for one token: softmax(scale q Kᵀ) V over the cached tokens that it sees.

A tile is all heads that share a key head, over one panel. Its result is unscaled, beside the highest score
and the sum of powers: a part. Parts are computed by the threads in any order, and those of a head
combined by one of them in the order of the panels, as `prefill_kernel` merges them.
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import (
    LANES,
    LOWEST,
    PANEL,
    WIDE,
    Attended,
    Cached,
    Heads,
    rows_of,
)
from potluck.engine.kernels.attending.attention_scores import (
    Scores,
    scales_floats,
    scratch_floats,
    value_scales,
)
from potluck.engine.kernels.attending.attention_tile import Tile, add_scaled, merge
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import EMIT_ACTIVATION
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record
from potluck.engine.kernels.writing.values import Value

_COMBINED = 4  # vectors of a head that are combined at a time, so that no sum waits for itself


class Attend(Record):
    """The arguments of attention."""

    queries = Address(KIND_F32)  # (H, K), or as far apart as the shape says
    keys = Address(I8)  # of the first head and position 0
    values = Address(I8)
    head_stride = Number()  # bytes from one head of the cache to the next
    own_from = Number()  # the panels before this position are those that sessions share
    shared_keys = Address(I8)  # likewise, of those
    shared_values = Address(I8)
    shared_stride = Number()
    sinks = Address(KIND_F32)  # (H,), if the shape has some
    position = Number()  # of the token, whose key and value are cached
    window = Number()  # cached tokens that it sees, itself among them
    parts = Address(KIND_F32)  # `parts_floats` numbers
    out = Address(KIND_F32)  # (H, numbers of a value)
    job = Address(I8)  # of the threads; null: there are none
    shares = Number()  # how many parts the work is cut into


# an `Attend`
ATTEND = ir.FunctionType(VOID, [POINTER])


def parts_floats(shape: Attended, tokens: int) -> int:
    """Return how many f32 of memory the kernel needs for so many cached tokens."""
    layout = _Part(shape)
    return shape.kv_heads * -(-tokens // PANEL) * (layout.size + layout.scratch_size)


@dataclass(frozen=True)
class _Part:
    """Where the fields of a part begin, in f32, and those of the scratch memory for computing it.

    Each begins with a cache line, because a vector in two lines takes twice as long to write. Parts follow one
    another, so that those of a long cache take few pages; the scratch memory is behind all of them.
    """

    shape: Attended

    @property
    def out(self) -> int:
        return -(-2 * self.shape.group // LANES) * LANES

    @property
    def size(self) -> int:
        return self.out + self.shape.group * self.shape.value_padded

    @property
    def scales(self) -> int:
        """Of the scratch memory, which begins with scores."""
        return self.shape.group * PANEL

    @property
    def memory(self) -> int:
        return self.scales + scales_floats(self.shape)

    @property
    def scratch_size(self) -> int:
        return self.memory + scratch_floats(self.shape)


def emit_attend(
    module: ir.Module, name: str, path: Path, shape: Attended, run: ir.Function | None = None
) -> ir.Function:
    """Write attention of all heads. `run` shares it with the threads: a function that `emit_run` has written."""
    piece = _emit_piece(module, f"{name}_piece", path, shape)
    combine = _emit_combine(module, f"{name}_combine", path, shape)
    run = run or emit_run(module, f"{name}_run", path)
    e = Emitter(ir.Function(module, ATTEND, name), path)
    given = Attend.load(e.arguments[0])
    _, panels = _panels(given)
    threads = OnThreads(e, run, given.job, given.shares)
    threads.call(piece, e.arguments[0], panels * shape.kv_heads)
    threads.call(combine, e.arguments[0], shape.heads)
    return e.end()


def emit_gates(e: Emitter, shape: Heads, qkv: Pointer, out: Pointer) -> None:
    """Multiply the output with what the gates give: those behind the queries, or behind the values."""
    size, activate = shape.value_dim, EMIT_ACTIVATION[shape.gate_function]
    with e.loop(0, shape.heads) as head:
        mixed, of_heads = out + head * size, None
        gates = qkv + (head * shape.query_step + size)
        if not shape.has_gates:
            gates = qkv + (head * size + shape.gates_at)
            if shape.gate_rows == shape.heads:
                of_heads = activate(e, e.splat((qkv + shape.gates_at)[head], LANES))
        for span in e.spans(size, LANES):
            factor = activate(e, gates[span]) if of_heads is None else of_heads
            mixed[span] = factor * mixed[span]


def _panels(given: Attend) -> tuple[Value, Value]:
    """Return the first panel that the token sees, and how many it sees."""
    first = (given.position + 1 - given.window).at_least(0) // PANEL
    return first, given.position // PANEL + 1 - first


def _emit_piece(module: ir.Module, name: str, path: Path, shape: Attended) -> ir.Function:
    """Write a `PIECE` whose blocks are parts: head by head, and panel by panel in a head."""
    e, given, first, last = begin_piece(module, name, path, Attend)
    layout = _Part(shape)
    first_panel, panels = _panels(given)
    # The same memory for all these parts, so that it stays in a cache.
    scratch = given.parts + panels * shape.kv_heads * layout.size + first * layout.scratch_size

    def cached(name: str, part: Value) -> tuple[Cached, Value]:
        start = (first_panel + part % panels) * PANEL
        return rows_of(e, shape, given, part // panels)(name, start), start

    with e.loop(first, last) as part:
        (keys, start), (values, _) = cached("keys", part), cached("values", part)
        next_keys, _ = cached("keys", (part + 1).at_most(last - 1))
        end = given.position + 1 - start
        low, high = (end - given.window).at_least(0), end.at_most(PANEL)
        target = given.parts + part * layout.size
        scales = scratch + layout.scales
        Scores(
            shape=shape,
            keys=keys,
            values=values,
            queries=given.queries + part // panels * (shape.group * shape.query_step),
            out=scratch,
            scales=scales,
            memory=scratch + layout.memory,
        ).write(low, high)
        Tile(
            shape=shape,
            rows=shape.group,
            values=values,
            scores=scratch,
            value_scales=value_scales(shape, scales),
            stats=target,
            totals=target + layout.out,
            seen_by=lambda _, low=low, high=high: (low, high),
            next_keys=next_keys,
        ).attend(low, high)
    return internal(e.end())


def _emit_combine(module: ir.Module, name: str, path: Path, shape: Attended) -> ir.Function:
    """Write a `PIECE` whose blocks are heads: it combines the parts of each, in the order of their panels."""
    e, given, first, last = begin_piece(module, name, path, Attend)
    _, panels = _panels(given)
    with e.loop(first, last) as head:
        part = given.parts + head // shape.group * panels * _Part(shape).size
        start = e.value(constant(F32, LOWEST)), e.value(constant(F32, 0.0))
        if shape.has_sinks:
            start = given.sinks[head], e.value(constant(F32, 1.0))
        out = given.out + head * shape.value_dim
        _combine(e, shape, part, panels, head % shape.group, out, start)
    return internal(e.end())


def _combine(
    e: Emitter,
    shape: Attended,
    part: Pointer,
    panels: Value,
    member: Value,
    out: Pointer,
    start: tuple[Value, Value],
) -> None:
    """Combine the parts of a head, in the order of their panels, and write its output.

    `start` is the highest score and the sum of powers before the first panel: those of the head's sink.
    """
    layout = _Part(shape)

    def stats(panel: Operand) -> Pointer:
        return part + panel * layout.size + member * 2

    most, total = (e.variable(number) for number in start)
    with e.loop(0, panels) as panel:
        here = stats(panel)
        (most.value, total.value), factors = merge(e, (most.value, total.value), (here[0], here[1]))
        here[0], here[1] = factors
    inverse = 1.0 / total.value
    for spans in shape.each_span(e, _COMBINED):
        totals = [e.variable(constant(WIDE, 0.0)) for _ in spans]
        with e.loop(0, panels) as panel:
            some = part + panel * layout.size + layout.out + member * shape.value_padded
            factors = stats(panel)[0], stats(panel)[1]
            for span, total in zip(spans, totals, strict=True):
                total.value = add_scaled(e, (total.value, some[span]), factors)
        for span, total in zip(spans, totals, strict=True):
            out[span] = total.value * inverse
