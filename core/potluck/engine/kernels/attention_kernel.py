"""The kernel of attention for one token: softmax(scale q Kᵀ) V over what is cached.

A layer's cache is (2, Hkv, capacity, K): keys, then values, of f32, bf16 or f16, or of int8 with a
scale after each (see `layout`). The heads of a group share a key head, whose keys and values are read
once for all of them and never expanded.
"""

import math
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import emit_exp, emit_tanh
from potluck.engine.kernels.ir_types import (
    F32,
    I8,
    I64,
    KIND_BYTES,
    KIND_F32,
    KIND_INT8,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.layout import CACHE_LINE, CACHE_SCALE_BYTES
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.pool_kernel import PIECE
from potluck.engine.kernels.records import Address, Number, Record
from potluck.model.families import QkNorm

LANES = 16  # of f32; also the cached tokens whose scores are found together
_WIDE = vector(F32, LANES)

SUMS = LANES * LANES  # f32 for each head, that `attend` uses while it runs


class Attend(Record):
    """The arguments of `attend`."""

    queries = Address(KIND_F32)
    keys = Address(I8)
    values = Address(I8)
    head_stride = Number()  # bytes
    length = Number()
    scores = Address(KIND_F32)
    scores_stride = Number()
    sums = Address(KIND_F32)
    out = Address(KIND_F32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What the kernels of attention are written for."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # of the head_dim numbers of a head, how many turn where a layer has rotary
    qk_norm: QkNorm | None
    epsilon: float  # of the norms of queries and keys
    scale: float  # of queries times keys
    softcap: float | None  # scores become cap tanh(score / cap)
    cache_kind: int

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0
        assert self.rotary_dim % 2 == 0
        assert 0 <= self.rotary_dim <= self.head_dim

    @property
    def group(self) -> int:
        """Heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def cached_bytes(self) -> int:
        """Of a key, or a value, in the cache."""
        scale_bytes = CACHE_SCALE_BYTES if self.cache_kind == KIND_INT8 else 0
        return self.head_dim * KIND_BYTES[self.cache_kind] + scale_bytes


def emit_attend(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """Attention of the key heads from first to last: a job of the pool.

    Scores are kept, `scores_stride` for each head, a multiple of 16 and not less than the length.
    """
    function = ir.Function(module, PIECE, name)
    _, first, last = function.args
    e = Emitter(function, path)
    given = Attend.load(e.arguments[0])
    with e.loop(first, last) as kv_head:
        head = e.mul(kv_head, constant(I64, shape.group))
        cached = e.mul(kv_head, given["head_stride"])
        after = e.add(kv_head, constant(I64, 1))
        next_head = e.select(e.icmp_signed("<", after, last), after, kv_head)
        attention = _Attention(
            e=e,
            shape=shape,
            queries=e.at(given["queries"], head, 4 * shape.head_dim),
            keys=e.at(given["keys"], cached),
            values=e.at(given["values"], cached),
            next_keys=e.at(given["keys"], e.mul(next_head, given["head_stride"])),
            length=given["length"],
            scores=e.at(given["scores"], e.mul(head, given["scores_stride"]), 4),
            scores_stride=given["scores_stride"],
            sums=e.at(given["sums"], head, 4 * SUMS),
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
    next_keys: Value  # of the group that is next
    length: Value
    scores: Value
    scores_stride: Value
    sums: Value  # not on the stack: on Windows a frame above 4 KB takes a call to a library
    out: Value

    def score(self) -> None:
        """Scores of all cached tokens, 16 at a time; of those past the last, minus infinity."""
        e, group = self.e, self.shape.group
        scales = e.stack(_WIDE, 1)
        final = e.sub(self.length, constant(I64, 1))
        with e.loop(0, self.length, LANES) as start:
            with e.loop(0, LANES) as member:
                token = e.add(start, member)
                token = e.select(e.icmp_signed("<", token, final), token, final)
                key = self._cached(self.keys, token)
                self._prefetch(self._cached(self.values, token))
                self._multiply(key, e.at(self.sums, member, 4 * LANES))
                if self._has_scales:
                    e.put(self._scale_of(key), e.at(scales, member, 4))
            key_scales = e.fetch(scales, _WIDE) if self._has_scales else None
            is_there = e.first_lanes(e.sub(self.length, start), LANES)
            for head in range(group):
                rows = [e.at(self.sums, 4 * (head * SUMS + row * LANES)) for row in range(LANES)]
                total = e.total_of_each([e.fetch(row, _WIDE) for row in rows])
                score = self._bend(total, key_scales)
                score = e.select(is_there, score, constant(_WIDE, -math.inf))
                e.put(score, self._score_at(head, start))

    def _multiply(self, key: Value, sums: Value) -> None:
        """The products of a token's key with each head's query, as 16 partial sums."""
        e = self.e
        parts = self._numbers(key, range(self._vectors))
        for head in range(self.shape.group):
            total = constant(_WIDE, 0.0)
            for index, part in enumerate(parts):
                query = self._part(self.queries, head, index)
                total = e.multiply_add(part, query, total)
            e.put(total, e.at(sums, 4 * head * SUMS))

    def _bend(self, total: Value, key_scales: Value | None) -> Value:
        """The scores of 16 tokens, from queries times keys."""
        e, shape = self.e, self.shape
        if key_scales is not None:
            total = e.fmul(total, key_scales)
        if shape.softcap is None:
            return e.fmul(total, constant(_WIDE, shape.scale))
        bent = emit_tanh(e, e.fmul(total, constant(_WIDE, shape.scale / shape.softcap)))
        return e.fmul(bent, constant(_WIDE, shape.softcap))

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
        """The values weighted, as many numbers of as many heads at a time as there are registers for."""
        group, room = self.shape.group, self.e.path.registers // 2
        some_heads = min(group, room)
        some_parts = max(1, room // some_heads)
        for first in range(0, group, some_heads):
            heads = range(first, min(first + some_heads, group))
            for start in range(0, self._vectors, some_parts):
                parts = range(start, min(start + some_parts, self._vectors))
                self._attend(heads, parts, inverses)

    def _attend(self, heads: range, parts: range, inverses: list[Value]) -> None:
        e = self.e
        totals = {
            (head, part): e.variable(constant(_WIDE, 0.0)) for head in heads for part in parts
        }
        with e.loop(0, self.length) as token:
            cached = self._cached(self.values, token)
            if (heads.start, parts.start) == (0, 0):
                self._prefetch(self._cached(self.next_keys, token))
            values = self._numbers(cached, parts)
            if self._has_scales:
                scale = e.splat(self._scale_of(cached), LANES)
                values = [e.fmul(value, scale) for value in values]
            for head in heads:
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

    def _cached(self, base: Value, token: Value) -> Value:
        """Where a token's key or value is."""
        return self.e.at(base, token, self.shape.cached_bytes)

    def _prefetch(self, cached: Value) -> None:
        """Have a key or value in the caches soon: the first of a head would all be waited for."""
        for offset in range(0, self.shape.cached_bytes, CACHE_LINE):
            self.e.prefetch(self.e.at(cached, offset))

    def _numbers(self, cached: Value, parts: range) -> list[Value]:
        """Some vectors of a key or value; integers where it has a scale."""
        e, kind = self.e, self.shape.cache_kind
        item = LANES * KIND_BYTES[kind]
        return [
            e.fetch_numbers(e.at(cached, part * item), kind, LANES, self._mask(part))
            for part in parts
        ]

    @property
    def _has_scales(self) -> bool:
        return self.shape.cache_kind == KIND_INT8

    def _scale_of(self, cached: Value) -> Value:
        return self.e.fetch(self.e.at(cached, self.shape.head_dim), F32)
