"""The kernel of attention for many tokens, each of which sees what was cached before it and itself.

A panel of cached tokens at a time: its keys are turned into columns once for all heads that share them,
then a few rows of queries at a time find their scores, their softmax so far, and add their values to the
output; what earlier panels gave is scaled down when a higher score appears (https://arxiv.org/abs/2205.14135).
No score is computed for a panel that lies behind a row's window or ahead of all its tokens.
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attention_kernel import LANES, Heads
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import (
    F32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    Value,
    constant,
    internal,
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import PIECE
from potluck.engine.kernels.prefill_rows import (
    PANEL,
    Layout,
    at_least_zero,
    emit_rows,
    fetch_part,
    least,
    out_bytes,
    row_bytes,
    scale_of,
)

_LOWEST = -1e30  # below any score; not infinite, so that differences are numbers

# 8 bytes each. Queries are the first of each token's heads of queries, keys and values; keys and values
# those of position 0, bytes from head to head beside them. Scratch is `scratch_floats` for each key head,
# stats are two numbers for each head and token. The output has to be zero: here, LLVM would call a
# library for that.
PREFILL_FIELDS = (
    "queries", "tokens", "position", "window", "keys", "values", "head_stride", "scratch", "stats",
    "out",
)  # fmt: skip
_POINTERS = {"queries", "keys", "values", "scratch", "stats", "out"}

# keys, values, cached tokens, scratch
_PREPARE = ir.FunctionType(VOID, [POINTER, POINTER, I64, POINTER])


def scratch_floats(shape: Heads, path: Path) -> int:
    """What the kernel writes to while it runs, for each key head."""
    return Layout(shape, path).size


def emit_attend_many(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """Attention of the key heads from first to last: a job of the pool."""
    layout = Layout(shape, path)
    prepare = _emit_prepare(module, f"{name}_prepare", layout)
    some_rows = emit_rows(module, f"{name}_rows", layout, layout.rows)
    one_row = emit_rows(module, f"{name}_row", layout, 1)
    function = ir.Function(module, PIECE, name)
    arguments, first, last = function.args
    e = Emitter(function, path)
    given = {
        field: e.fetch(e.at(arguments, 8 * index), POINTER if field in _POINTERS else I64)
        for index, field in enumerate(PREFILL_FIELDS)
    }
    tokens, position, window = given["tokens"], given["position"], given["window"]
    end = e.add(position, tokens)
    start = at_least_zero(e, e.sub(e.add(position, constant(I64, 1)), window))
    whole = e.sub(tokens, e.srem(tokens, constant(I64, layout.rows)))
    with e.loop(first, last) as kv_head:
        keys, values = (
            e.at(given[which], kv_head, given["head_stride"]) for which in ("keys", "values")
        )
        scratch = e.at(given["scratch"], kv_head, 4 * layout.size)
        head = e.mul(kv_head, constant(I64, shape.group))
        heads = _Heads(e=e, layout=layout, given=given, first=head)
        heads.begin()
        with e.loop(start, end, PANEL) as panel:
            count = least(e, e.sub(end, panel), constant(I64, PANEL))
            here = [e.at(cached, panel, shape.cached_bytes) for cached in (keys, values)]
            e.call(prepare, [*here, count, scratch])
            sees = e.sub(e.add(position, constant(I64, 1)), panel)
            with e.loop(0, shape.group) as member:
                for rows, low, high, step in (
                    (some_rows, constant(I64, 0), whole, layout.rows),
                    (one_row, whole, tokens, 1),
                ):
                    with e.loop(low, high, step) as token:
                        queries, stats, out = heads.at(member, token)
                        numbers = [count, e.add(sees, token), window]
                        e.call(rows, [queries, here[1], scratch, stats, out, *numbers])
        heads.divide()
    e.ret_void()
    return function


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """The heads that share a key head."""

    e: Emitter
    layout: Layout
    given: dict[str, Value]
    first: Value

    def at(self, member: Value, token: Value) -> tuple[Value, Value, Value]:
        """Where queries, stats and output of a head's token stand."""
        e, given, shape = self.e, self.given, self.layout.shape
        head = e.add(self.first, member)
        queries = e.at(given["queries"], token, row_bytes(shape))
        row = e.add(e.mul(head, given["tokens"]), token)
        out = e.at(given["out"], token, out_bytes(shape))
        size = 4 * shape.head_dim
        return e.at(queries, head, size), e.at(given["stats"], row, 8), e.at(out, head, size)

    def begin(self) -> None:
        e = self.e
        with e.loop(0, self.layout.shape.group) as member, e.loop(0, self.given["tokens"]) as token:
            _, stats, _ = self.at(member, token)
            e.put(constant(F32, _LOWEST), stats)
            e.put(constant(F32, 0.0), e.at(stats, 4))

    def divide(self) -> None:
        """By the sum of the powers."""
        e = self.e
        with e.loop(0, self.layout.shape.group) as member, e.loop(0, self.given["tokens"]) as token:
            _, stats, out = self.at(member, token)
            inverse = e.fdiv(constant(F32, 1.0), e.fetch(e.at(stats, 4), F32))
            factor = e.splat(inverse, LANES)
            for ((part, mask),) in self.layout.parts(e, 1):
                here = e.at(out, part, 4 * LANES)
                value = e.fmul(e.fetch_numbers(here, KIND_F32, LANES, mask), factor)
                e.put_numbers(value, here, KIND_F32, mask)


def _emit_prepare(module: ir.Module, name: str, layout: Layout) -> ir.Function:
    """Keys as columns, the numbers of a block of tokens side by side; and the scales of the values."""
    function = internal(ir.Function(module, _PREPARE, name))
    keys, values, count, scratch = function.args
    e, shape = Emitter(function, layout.path), layout.shape
    final = e.sub(count, constant(I64, 1))
    with e.loop(0, count, LANES) as first:
        tokens = [least(e, e.add(first, constant(I64, lane)), final) for lane in range(LANES)]
        rows = [e.at(keys, token, shape.cached_bytes) for token in tokens]
        inside = e.srem(first, constant(I64, layout.block))
        block = e.at(scratch, e.sub(first, inside), 4 * layout.padded)
        target = e.at(block, inside, 4)
        for (part,) in layout.parts(e, 1):
            numbers = [fetch_part(e, layout, row, part) for row in rows]
            if layout.has_scales:
                scales = [scale_of(e, shape, row) for row in rows]
                pairs = zip(numbers, scales, strict=True)
                numbers = [e.fmul(some, e.splat(scale, LANES)) for some, scale in pairs]
            columns = e.at(target, part[0], 4 * layout.block * LANES)
            for index, column in enumerate(e.transpose(numbers)):
                e.put(column, e.at(columns, 4 * layout.block * index))
        if layout.has_scales:
            for lane, token in enumerate(tokens):
                scale = scale_of(e, shape, e.at(values, token, shape.cached_bytes))
                e.put(scale, e.at(e.at(scratch, 4 * (layout.scales + lane)), first, 4))
    e.ret_void()
    return function
