"""The kernel between the first product of a layer and its attention: norm, turn and cache.

Queries, keys and values are f32, a token's heads one after the other. Turning is that of
`transformers`: (a, b) → (a cos - b sin, b cos + a sin) of the halves of what turns in a head. Queries
and keys are turned in place, keys and values also written to the cache, in its kind.
"""

from functools import partial

from llvmlite import ir

from potluck.engine.kernels.attention import LANES, Heads
from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.functions import (
    emit_bytes,
    emit_integers,
    emit_inverse_rms,
    emit_scale,
)
from potluck.engine.kernels.ir_types import (
    F32,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    KIND_INT8,
    POINTER,
    VOID,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.paths import Path

# qkv, tokens, cosines or null, signed sines, norm of queries, norm of keys, keys, values, bytes from
# one head of the cache to the next
ROTATE = ir.FunctionType(VOID, [POINTER, I64, *[POINTER] * 6, I64])


def emit_rotate(module: ir.Module, name: str, path: Path, shape: Heads) -> ir.Function:
    """Norm, where the shape has one, turn, where there are angles, and cache some tokens.

    Cosines and signed sines are f32, `rotary_dim` of a token, as `rotary.rotate` takes them: the halves
    of the cosines are equal, those of the sines opposite. `keys` and `values` are where those of the
    first head and token go.
    """
    function = ir.Function(module, ROTATE, name)
    qkv, tokens, cosines, sines, query_norm, key_norm, keys, values, stride = function.args
    e = Emitter(function, path)
    turns = e.icmp_unsigned("!=", e.ptrtoint(cosines, I64), constant(I64, 0))
    head_bytes, angle_bytes = 4 * shape.head_dim, 4 * shape.rotary_dim
    with e.loop(0, tokens) as token:
        row = e.at(qkv, token, head_bytes * (shape.heads + 2 * shape.kv_heads))
        key_row = e.at(row, head_bytes * shape.heads)
        value_row = e.at(key_row, head_bytes * shape.kv_heads)
        _emit_norms(e, shape, (row, query_norm), (key_row, key_norm))
        with e.if_then(turns):
            cos, sin = (e.at(angles, token, angle_bytes) for angles in (cosines, sines))
            positive = e.at(sin, angle_bytes // 2)
            with e.loop(0, shape.heads + shape.kv_heads) as head:
                _turn(e, e.at(row, head, head_bytes), cos, positive, shape.rotary_dim // 2)
        with e.loop(0, shape.kv_heads) as head:
            offset = e.add(e.mul(head, stride), e.mul(token, constant(I64, shape.cached_bytes)))
            for source, cache in ((key_row, keys), (value_row, values)):
                _write(e, e.at(source, head, head_bytes), e.at(cache, offset), shape)
    e.ret_void()
    return function


def _emit_norms(
    e: Emitter, shape: Heads, queries: tuple[Value, Value], keys: tuple[Value, Value]
) -> None:
    """Of each head by itself, or of all heads of queries, and all of keys, together."""
    for (numbers, weight), heads in ((queries, shape.heads), (keys, shape.kv_heads)):
        match shape.qk_norm:
            case None:
                return
            case "head":
                with e.loop(0, heads) as head:
                    one = e.at(numbers, head, 4 * shape.head_dim)
                    _norm(e, one, weight, shape.head_dim, shape.epsilon)
            case "projection":
                _norm(e, numbers, weight, heads * shape.head_dim, shape.epsilon)


def _norm(e: Emitter, numbers: Value, weight: Value, width: int, epsilon: float) -> None:
    fetch = partial(_fetch, e, numbers)
    inverse = e.splat(emit_inverse_rms(e, e.value(numbers).of(0), width, LANES, epsilon), LANES)

    def scale(index: Value, mask: Value | None) -> None:
        normed = e.fmul(fetch(index, mask), inverse)
        value = e.fmul(normed, _fetch(e, weight, index, mask))
        e.put_numbers(value, e.at(numbers, index, 4), KIND_F32, mask)

    e.vectors(constant(I64, width), LANES, scale)


def _turn(e: Emitter, numbers: Value, cosines: Value, sines: Value, half: int) -> None:
    second = e.at(numbers, 4 * half)

    def turn(index: Value, mask: Value | None) -> None:
        addresses = (numbers, second, cosines, sines)
        a, b, cos, sin = (_fetch(e, address, index, mask) for address in addresses)
        turned = e.fsub(e.fmul(a, cos), e.fmul(b, sin))
        e.put_numbers(turned, e.at(numbers, index, 4), KIND_F32, mask)
        turned = e.fadd(e.fmul(b, cos), e.fmul(a, sin))
        e.put_numbers(turned, e.at(second, index, 4), KIND_F32, mask)

    e.vectors(constant(I64, half), LANES, turn)


def _write(e: Emitter, source: Value, target: Value, shape: Heads) -> None:
    """A head's key or value into the cache."""
    if shape.cache_kind == KIND_INT8:
        _write_integers(e, source, target, shape.head_dim)
        return

    def write(index: Value, mask: Value | None) -> None:
        value = _fetch(e, source, index, mask)
        here = e.at(target, index, KIND_BYTES[shape.cache_kind])
        e.put_numbers(value, here, shape.cache_kind, mask)

    e.vectors(constant(I64, shape.head_dim), LANES, write)


def _write_integers(e: Emitter, source: Value, target: Value, head_dim: int) -> None:
    largest = e.variable(constant(vector(I32, LANES), 0))

    def look(index: Value, mask: Value | None) -> None:
        value = _fetch(e, source, index, mask)
        size = e.magnitude_bits(value)
        largest.value = e.select(e.icmp_unsigned(">", size, largest.value), size, largest.value)

    def write(index: Value, mask: Value | None) -> None:
        value = _fetch(e, source, index, mask)
        integers = emit_bytes(e, emit_integers(e, value, inverse))
        here = e.at(target, index)
        if mask is None:
            e.put(integers, here)
        else:
            e.put_some(integers, here, mask)

    e.vectors(constant(I64, head_dim), LANES, look)
    scale, inverse = emit_scale(e, e.bitcast(e.reduce("umax", largest.value), F32))
    e.vectors(constant(I64, head_dim), LANES, write)
    e.put(scale, e.at(target, head_dim))


def _fetch(e: Emitter, numbers: Value, index: Value, mask: Value | None) -> Value:
    return e.fetch_numbers(e.at(numbers, index, 4), KIND_F32, LANES, mask)
