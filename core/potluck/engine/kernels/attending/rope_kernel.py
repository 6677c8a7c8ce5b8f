"""The kernel between the first product of a layer and its attention: norm, rope and KV cache.

Queries, keys and values are f32, a token's heads one after the other. Rope is that of `transformers`:
(a, b) → (a cos - b sin, b cos + a sin) of the halves of what turns in a head. Queries and keys are normed
and turned in place; keys and values are also written to the cache, in its kind. Values may be normed on that way,
and may be the keys as they are before. Keys and values of another layer have all that already, and are only cached.
"""

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, WIDE, Cached, Heads
from potluck.engine.kernels.attending.attention_pairs import round_to_bf16
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.rows import read_row
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_bytes, emit_integers, emit_scale
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I32,
    KIND_F32,
    KIND_INT8,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, stack
from potluck.engine.kernels.writing.values import Value


class RopeAndCache(Record):
    """The arguments of norm, rope and caching. A block of the job is a token.

    Cosines and signed sines are `rotary_dim` numbers of a token, as `rotary.rotate` takes them: the
    halves of the cosines are equal, those of the sines opposite.
    """

    qkv = Address(KIND_F32)  # (T, H + 2 Hkv, K), or (T, H + Hkv, K), or (T, H, K)
    taken = Address(KIND_F32)  # (T, 2 Hkv, K) with norms and rope, if the shape takes them
    cosines = Address(KIND_F32)  # null: no rope
    sines = Address(KIND_F32)
    query_factors = Address(KIND_F32)  # of each token one, which multiplies its queries; null: none
    query_norm = Address(KIND_F32)  # never read where the shape has no norm
    key_norm = Address(KIND_F32)
    value_norm = Address(KIND_F32)
    keys = Address(I8)  # of the first head and position 0
    values = Address(I8)
    head_stride = Number()  # bytes from one head of the cache to the next
    position = Number()  # of the first token


def emit_rope_and_cache(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """Write norm, rope and caching of some tokens: a job of the threads."""
    e, given, first, last = begin_piece(module, name, path, RopeAndCache)
    half = shape.rotary_dim // 2
    with e.loop(first, last) as token:
        queries = given.qkv + token * shape.row_numbers
        keys = queries + shape.queries_size
        if shape.takes:
            keys = given.taken + token * (2 * shape.kv_size)
        own = () if shape.takes else ((keys, given.key_norm, shape.kv_heads, shape.head_dim),)
        turned = ((queries, given.query_norm, shape.heads, shape.query_step), *own)
        values = keys if shape.keys_are_values else keys + shape.head_dim * shape.kv_heads
        with e.loop(0, shape.kv_heads) as head:  # before keys are normed, which may be the values
            source = _value(e, shape, values + head * shape.value_dim, given.value_norm)
            target = _place(given, shape, given.values, head, token)
            _cache(e, shape, source, target, shape.value_dim)
        if not shape.qk_norm_after_rope:
            for heads, weight, count, step in turned:
                _norm(e, shape, heads, weight, count, step)
        with e.if_then(given.cosines.is_set):
            cosines, sines = given.cosines + token * (2 * half), given.sines + token * (2 * half)
            for heads, _, count, step in turned:
                with e.loop(0, count) as head:
                    rope(e, heads + head * step, cosines, sines + half, half)
        with e.if_then(given.query_factors.is_set):
            factor = given.query_factors[token]
            with e.loop(0, shape.heads) as head:
                query = queries + head * shape.query_step
                for span in e.spans(shape.head_dim, LANES):
                    query[span] = query[span] * factor
        if shape.qk_norm_after_rope:
            for heads, weight, count, step in turned:
                _norm(e, shape, heads, weight, count, step)
        with e.loop(0, shape.kv_heads) as head:
            target = _place(given, shape, given.keys, head, token)
            _cache(e, shape, keys + head * shape.head_dim, target, shape.head_dim)
    return e.end()


def _place(given: RopeAndCache, shape: Heads, cache: Pointer, head: Value, token: Value) -> Pointer:
    """Return where a head's key or value of a token is cached."""
    return cache.skip(head, given.head_stride).skip(given.position + token, shape.cached_bytes)


def _value(e: Emitter, shape: Heads, value: Pointer, weight: Pointer) -> Pointer:
    """Return where a head's value is, normed or scaled if the shape says so: then on the stack."""
    size = shape.value_dim
    if shape.value_norm:
        row = read_row(e, "normed", value, size, weight, constant(F32, shape.epsilon))
    elif shape.value_scale != 1.0:
        row = read_row(e, "scaled", value, size, number=constant(WIDE, shape.value_scale))
    else:
        return value
    made = stack(e, I8, 4 * shape.value_padded).of(KIND_F32)
    for span in e.spans(size, LANES):
        made[span] = row(span)
    return made


def _norm(e: Emitter, shape: Heads, heads: Pointer, weight: Pointer, count: int, step: int) -> None:
    """Norm each head by itself, or all together; nothing where the shape has no norm.

    `step` is from one head to the next.
    """
    match shape.qk_norm:
        case None:
            return
        case "head":
            with e.loop(0, count) as head:
                norm_row(e, heads + head * step, weight, shape.head_dim, shape.epsilon)
        case "projection":
            assert step == shape.head_dim
            norm_row(e, heads, weight, count * shape.head_dim, shape.epsilon)


def norm_row(e: Emitter, numbers: Pointer, weight: Pointer, width: int, epsilon: float) -> None:
    """Write the root mean square norm of a row in its place."""
    row = read_row(e, "normed", numbers, width, weight, constant(F32, epsilon))
    for span in e.spans(width, LANES):
        numbers[span] = row(span)


def rope(e: Emitter, head: Pointer, cosines: Pointer, sines: Pointer, half: int) -> None:
    """Turn the first numbers of a head, twice `half`, in their place. `sines` are those of the second half."""
    second = head + half
    for span in e.spans(half, LANES):
        a, b, cos, sin = (numbers[span] for numbers in (head, second, cosines, sines))
        head[span] = a * cos - b * sin
        second[span] = b * cos + a * sin


def emit_cached(
    e: Emitter, shape: Heads, cache: Pointer, position: Value, stride: Value, out: Pointer
) -> None:
    """Write what is cached of a position, the keys or the values of all heads, as f32: (Hkv, K)."""
    with e.loop(0, shape.kv_heads) as head:
        row = Cached(e, shape, cache.skip(head, stride))
        numbers, target = row.at(position), out + head * shape.head_dim
        for span in e.spans(shape.head_dim, LANES):
            target[span] = (
                numbers[span] * row.scale(position) if shape.has_scales else numbers[span]
            )


def _cache(e: Emitter, shape: Heads, source: Pointer, target: Pointer, size: int) -> None:
    """Write so many numbers of a head's key or value to the cache; a scale is behind those of a key."""
    if shape.cache_kind == KIND_INT8:
        quantise(e, source, target, size, shape.head_dim)
        return
    write_floats(e, shape, source, target, size)


def write_floats(e: Emitter, shape: Heads, source: Pointer, target: Pointer, size: int) -> None:
    """Write so many numbers to a cache of floats, rounded if attention cuts them."""
    for span in e.spans(size, LANES):
        numbers = round_to_bf16(source[span]) if shape.has_pairs else source[span]
        target.of(shape.cache_kind)[span] = numbers


def quantise(
    e: Emitter, source: Pointer, target: Pointer, head_dim: int, scale_at: int | None = None
) -> None:
    """Write a head's numbers as int8, and their scale: after them, or behind so many bytes."""
    largest = e.variable(constant(vector(I32, LANES), 0))
    for span in e.spans(head_dim, LANES):
        largest.value = source[span].magnitude_bits().at_least(largest.value)
    scale, inverse = emit_scale(e, e.bitcast(largest.value.reduce("umax"), F32))
    for span in e.spans(head_dim, LANES):
        target[span] = emit_bytes(e, emit_integers(e, source[span], inverse))
    target.skip(head_dim if scale_at is None else scale_at)[0] = scale
