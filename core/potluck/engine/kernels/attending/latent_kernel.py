"""The kernels of latent attention beside attention itself: what is cached of a token, and the products of heads.

A token's queries and what becomes its cached row are f32 (see `engine/layers/latent.py`). Attention wants *absorbed*
queries: of each head W_Kᵀ times its numbers without rope, `rank` of them, then those with rope. So it can have
the cached rows as keys of all heads (see `attention`).
"""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.rope_kernel import norm_row, quantise, write_floats
from potluck.engine.kernels.layout import CACHE_SCALE_BYTES
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import F32, I8, KIND_F32
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, stack
from potluck.engine.kernels.writing.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentHeads:
    """What the kernels of latent attention are written for."""

    attention: Heads  # of absorbed queries, over cached rows
    plain_dim: int  # numbers of a query without rope
    value_dim: int
    epsilon: float  # of the norm of the latent

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def rank(self) -> int:
        return self.attention.value_dim

    @property
    def rotary_dim(self) -> int:
        return self.attention.rotary_dim

    @property
    def row(self) -> int:
        """Numbers of a cached row, and of an absorbed query."""
        return self.attention.head_dim

    @property
    def query_dim(self) -> int:
        return self.plain_dim + self.rotary_dim


class LatentRows(Record):
    """The arguments of norm, rope and caching. A block of the job is a token."""

    queries = Address(
        KIND_F32
    )  # (T, stride), of which H·query_dim; those without rope are scaled in place
    latents = Address(KIND_F32)  # (T, stride), of which `row`; normed in place
    stride = Number()  # numbers from one token to the next
    absorbed = Address(KIND_F32)  # (T, H, row), where the numbers with rope are written
    cosines = Address(KIND_F32)
    sines = Address(KIND_F32)
    query_factors = Address(KIND_F32)  # of each token one, which multiplies its queries; null: none
    norm = Address(KIND_F32)
    keys = Address(I8)  # the cached row of position 0
    position = Number()  # of the first token


def emit_latent_rows(module: ir.Module, name: str, path: Path, shape: LatentHeads) -> ir.Function:
    """Write norm, rope and caching of some tokens: a job of the threads."""
    e, given, first, last = begin_piece(module, name, path, LatentRows)
    rotary, heads = shape.rotary_dim, shape.attention
    turned = stack(e, F32, rotary).of(KIND_F32)
    with e.loop(first, last) as token:
        angles = given.cosines + token * rotary, given.sines + token * rotary
        latents = given.latents + token * given.stride
        norm_row(e, latents, given.norm, shape.rank, shape.epsilon)
        _turn(e, shape, latents + shape.rank, angles, turned)
        target = given.keys.skip(given.position + token, heads.cached_bytes)
        _cache(e, shape, latents, turned, target)
        queries = given.queries + token * given.stride
        absorbed = given.absorbed + token * (shape.heads * shape.row)
        with e.loop(0, shape.heads) as head:
            query, out = queries + head * shape.query_dim, absorbed + head * shape.row
            _turn(e, shape, query + shape.plain_dim, angles, out + shape.rank)
            with e.if_then(given.query_factors.is_set):
                factor = given.query_factors[token]
                for numbers, count in ((query, shape.plain_dim), (out + shape.rank, rotary)):
                    for span in e.spans(count, LANES):
                        numbers[span] = numbers[span] * factor
    return e.end()


def _turn(
    e: Emitter, shape: LatentHeads, source: Pointer, angles: tuple[Pointer, Pointer], out: Pointer
) -> None:
    """Write the numbers with rope, turned."""
    half, (cosines, sines) = shape.rotary_dim // 2, angles
    for span in e.spans(half, LANES):
        a, b, cos, sin = (
            numbers[span] for numbers in (source, source + half, cosines, sines + half)
        )
        out[span] = a * cos - b * sin
        (out + half)[span] = b * cos + a * sin


def _cache(
    e: Emitter, shape: LatentHeads, latents: Pointer, turned: Pointer, target: Pointer
) -> None:
    """Write a row to the cache: the latent, then the key with rope."""
    rank, rotary = shape.rank, shape.rotary_dim
    if shape.attention.has_scales:
        quantise(e, latents, target, rank)
        quantise(e, turned, target.skip(rank + CACHE_SCALE_BYTES), rotary)
        return
    target = target.of(shape.attention.cache_kind)
    for source, count, place in ((latents, rank, target), (turned, rotary, target + rank)):
        write_floats(e, shape.attention, source, place, count)


class HeadProducts(Record):
    """The arguments of a product of each head. A block of the job is a head."""

    matrices = Address(I8)  # of all heads, one after the other
    source = Address(KIND_F32)  # of the first head
    source_stride = Number()  # numbers from one head to the next
    inputs = Address(I8)  # memory for the inputs of all heads
    out = Address(KIND_F32)
    out_stride = Number()


def head_of(given: HeadProducts, head: Value) -> tuple[Pointer, Pointer]:
    """Return where a head's source and output are."""
    return given.source + head * given.source_stride, given.out + head * given.out_stride
