"""The kernels of attention for one token: turn queries and keys, write the cache, attend.

A layer's cache is (2, Hkv, capacity, K): keys, then values, of f32, bf16 or f16. The heads of a group
share a key head, whose keys and values are read once for all of them and never expanded.
"""

import math
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import (
    F32,
    I64,
    KIND_BYTES,
    POINTER,
    VOID,
    Emitter,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.functions import emit_exp
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import PIECE

LANES = 16  # of f32; also the cached tokens whose scores are found together
_WIDE = vector(F32, LANES)

# qkv, cosines, sines, norm of queries or null, norm of keys, keys, values, numbers from head to head
ROTATE = ir.FunctionType(VOID, [POINTER] * 7 + [I64])

# The arguments of `attend`, 8 bytes each.
ATTEND_FIELDS = (
    "queries",
    "keys",
    "values",
    "head_stride",
    "length",
    "scores",
    "scores_stride",
    "out",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What the kernels of attention are written for."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # of the head_dim numbers of a head, how many turn
    epsilon: float  # of the norms of queries and keys, where there are any
    cache_kind: int

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0
        assert self.rotary_dim % 2 == 0
        assert 0 <= self.rotary_dim <= self.head_dim

    @property
    def group(self) -> int:
        """Heads that share a key head."""
        return self.heads // self.kv_heads


def emit_rotate(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """Norm, where there is one, and turn queries and keys in place; write keys and values of a token.

    Queries, keys and values are f32, one head after the other. `keys` and `values` are where those of
    the first head go. Turning is that of `transformers`: (a, b) → (a cos - b sin, b cos + a sin) of a
    head's halves, cosines and sines f32, one for each pair.
    """
    function = ir.Function(module, ROTATE, name)
    qkv, cosines, sines, query_norm, key_norm, keys, values, stride = function.args
    e = Emitter(function, path)
    head_bytes = 4 * shape.head_dim
    has_norm = e.icmp_unsigned("!=", e.ptrtoint(query_norm, I64), constant(I64, 0))
    with e.loop(0, shape.heads + shape.kv_heads) as head:
        numbers = e.at(qkv, head, head_bytes)
        with e.if_then(has_norm):
            is_query = e.icmp_signed("<", head, constant(I64, shape.heads))
            _norm(e, numbers, e.select(is_query, query_norm, key_norm), shape)
        _turn(e, numbers, cosines, sines, shape.rotary_dim // 2)
    with e.loop(0, shape.kv_heads) as head:
        target = e.mul(head, stride)
        key = e.at(qkv, e.add(head, constant(I64, shape.heads)), head_bytes)
        value = e.at(qkv, e.add(head, constant(I64, shape.heads + shape.kv_heads)), head_bytes)
        for source, cache in ((key, keys), (value, values)):
            _write(e, source, e.at(cache, target, KIND_BYTES[shape.cache_kind]), shape)
    e.ret_void()
    return function


def _norm(e: Emitter, numbers: Value, weight: Value, shape: Heads) -> None:
    squares = e.variable(constant(_WIDE, 0.0))

    def add_square(index: Value, mask: Value | None) -> None:
        value = e.fetch_numbers(e.at(numbers, index, 4), 0, LANES, mask)
        squares.value = e.multiply_add(value, value, squares.value)

    def scale(index: Value, mask: Value | None) -> None:
        here = e.at(numbers, index, 4)
        value = e.fmul(e.fetch_numbers(here, 0, LANES, mask), inverse)
        weights = e.fetch_numbers(e.at(weight, index, 4), 0, LANES, mask)
        e.put_numbers(e.fmul(value, weights), here, 0, mask)

    width = constant(I64, shape.head_dim)
    e.vectors(width, LANES, add_square)
    mean = e.fmul(e.total(squares.value), constant(F32, 1 / shape.head_dim))
    root = e.intrinsic("llvm.sqrt.f32", F32, [e.fadd(mean, constant(F32, shape.epsilon))])
    inverse = e.splat(e.fdiv(constant(F32, 1.0), root), LANES)
    e.vectors(width, LANES, scale)


def _turn(e: Emitter, numbers: Value, cosines: Value, sines: Value, half: int) -> None:
    def turn(index: Value, mask: Value | None) -> None:
        first, second = e.at(numbers, index, 4), e.at(e.at(numbers, 4 * half), index, 4)
        a, b, cos, sin = (
            e.fetch_numbers(address, 0, LANES, mask)
            for address in (first, second, e.at(cosines, index, 4), e.at(sines, index, 4))
        )
        e.put_numbers(e.fsub(e.fmul(a, cos), e.fmul(b, sin)), first, 0, mask)
        e.put_numbers(e.fadd(e.fmul(b, cos), e.fmul(a, sin)), second, 0, mask)

    e.vectors(constant(I64, half), LANES, turn)


def _write(e: Emitter, source: Value, target: Value, shape: Heads) -> None:
    def write(index: Value, mask: Value | None) -> None:
        value = e.fetch_numbers(e.at(source, index, 4), 0, LANES, mask)
        here = e.at(target, index, KIND_BYTES[shape.cache_kind])
        e.put_numbers(value, here, shape.cache_kind, mask)

    e.vectors(constant(I64, shape.head_dim), LANES, write)


def emit_attend(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """softmax(q Kᵀ / sqrt(head_dim)) V for the key heads from first to last: a job of the pool.

    Scores are kept, `scores_stride` for each head, a multiple of 16 and not less than the length.
    """
    function = ir.Function(module, PIECE, name)
    arguments, first, last = function.args
    e = Emitter(function, path)
    pointers = {"queries", "keys", "values", "scores", "out"}
    given = {
        field: e.fetch(e.at(arguments, 8 * index), POINTER if field in pointers else I64)
        for index, field in enumerate(ATTEND_FIELDS)
    }
    with e.loop(first, last) as kv_head:
        head = e.mul(kv_head, constant(I64, shape.group))
        cached = e.mul(kv_head, given["head_stride"])
        item = KIND_BYTES[shape.cache_kind]
        attention = _Attention(
            e=e,
            shape=shape,
            queries=e.at(given["queries"], head, 4 * shape.head_dim),
            keys=e.at(given["keys"], cached, item),
            values=e.at(given["values"], cached, item),
            length=given["length"],
            scores=e.at(given["scores"], e.mul(head, given["scores_stride"]), 4),
            scores_stride=given["scores_stride"],
            out=e.at(given["out"], head, 4 * shape.head_dim),
        )
        attention.score()
        attention.attend(attention.softmax())
    e.ret_void()
    return function


@dataclass(kw_only=True)
class _Attention:
    """One group of heads."""

    e: Emitter
    shape: Heads
    queries: Value
    keys: Value
    values: Value
    length: Value
    scores: Value
    scores_stride: Value
    out: Value

    def score(self) -> None:
        """Scores of all cached tokens, 16 at a time; of those past the last, minus infinity."""
        e, group = self.e, self.shape.group
        sums = e.stack(_WIDE, group * LANES)
        final = e.sub(self.length, constant(I64, 1))
        scale = constant(_WIDE, 1 / math.sqrt(self.shape.head_dim))
        with e.loop(0, self.length, LANES) as start:
            with e.loop(0, LANES) as member:
                token = e.add(start, member)
                token = e.select(e.icmp_signed("<", token, final), token, final)
                self._multiply(token, e.at(sums, member, 4 * LANES))
            left = e.sub(self.length, start)
            is_there = e.first_lanes(left, LANES)
            for head in range(group):
                rows = [e.at(sums, (head * LANES + row) * 4 * LANES) for row in range(LANES)]
                total = e.fmul(e.total_of_each([e.fetch(row, _WIDE) for row in rows]), scale)
                total = e.select(is_there, total, constant(_WIDE, -math.inf))
                e.put(total, self._score_at(head, start))

    def _multiply(self, token: Value, sums: Value) -> None:
        """The products of a token's key with each head's query, as 16 partial sums."""
        e = self.e
        key = self._cached(self.keys, token, range(self._vectors))
        for head in range(self.shape.group):
            total = constant(_WIDE, 0.0)
            for index, part in enumerate(key):
                query = self._part(self.queries, head, index)
                total = e.multiply_add(part, query, total)
            e.put(total, e.at(sums, head * LANES * 4 * LANES))

    def softmax(self) -> list[Value]:
        """Scores become exp(score - highest); returns one over the sum of each head."""
        e = self.e
        inverses = []
        for head in range(self.shape.group):
            highest, sums = e.variable(constant(_WIDE, -math.inf)), e.variable(constant(_WIDE, 0.0))
            with e.loop(0, self.length, LANES) as start:
                score = e.fetch(self._score_at(head, start), _WIDE)
                is_higher = e.fcmp_ordered(">", score, highest.value)
                highest.value = e.select(is_higher, score, highest.value)
            most = e.splat(e.highest(highest.value), LANES)
            with e.loop(0, self.length, LANES) as start:
                here = self._score_at(head, start)
                power = emit_exp(e, e.fsub(e.fetch(here, _WIDE), most))
                e.put(power, here)
                sums.value = e.fadd(sums.value, power)
            inverses.append(e.fdiv(constant(F32, 1.0), e.total(sums.value)))
        return inverses

    def attend(self, inverses: list[Value]) -> None:
        """The values weighted, as many numbers of each head at a time as there are registers for."""
        e, group = self.e, self.shape.group
        at_once = max(1, e.path.registers // 2 // group)
        for first in range(0, self._vectors, at_once):
            parts = range(first, min(first + at_once, self._vectors))
            totals = {
                (head, part): e.variable(constant(_WIDE, 0.0))
                for head in range(group)
                for part in parts
            }
            with e.loop(0, self.length) as token:
                values = self._cached(self.values, token, parts)
                for head in range(group):
                    weight = e.splat(e.fetch(self._score_at(head, token), F32), LANES)
                    for part, value in zip(parts, values, strict=True):
                        total = totals[head, part]
                        total.value = e.multiply_add(weight, value, total.value)
            for (head, part), total in totals.items():
                result = e.fmul(total.value, e.splat(inverses[head], LANES))
                e.put_numbers(result, self._number_at(self.out, head, part), 0, self._mask(part))

    @property
    def _vectors(self) -> int:
        return -(-self.shape.head_dim // LANES)

    def _mask(self, part: int) -> Value | None:
        left = self.shape.head_dim - part * LANES
        return None if left >= LANES else self.e.first_lanes(constant(I64, left), LANES)

    def _score_at(self, head: int, token: Value) -> Value:
        e = self.e
        return e.at(self.scores, e.add(e.mul(self.scores_stride, constant(I64, head)), token), 4)

    def _number_at(self, base: Value, head: int, part: int) -> Value:
        return self.e.at(base, 4 * (head * self.shape.head_dim + part * LANES))

    def _part(self, base: Value, head: int, part: int) -> Value:
        return self.e.fetch_numbers(self._number_at(base, head, part), 0, LANES, self._mask(part))

    def _cached(self, base: Value, token: Value, parts: range) -> list[Value]:
        """Some vectors of a token's key or value."""
        e, kind = self.e, self.shape.cache_kind
        row = e.at(base, token, self.shape.head_dim * KIND_BYTES[kind])
        return [
            e.fetch_numbers(
                e.at(row, part * LANES * KIND_BYTES[kind]), kind, LANES, self._mask(part)
            )
            for part in parts
        ]
