"""The kernel that sums numbers over the ranks of a group that are processes of one computer, in memory that they share.

Every rank has four buffers there, which it alone writes, and each buffer a line with a tag before its numbers. A sum
of more numbers than a buffer has is made in pieces. For a piece, a rank writes its numbers and then its tag, waits until
the buffers of the others have the same tag, and adds all in the order of the ranks: so all have the same bits.

A tag is made of the number of the step and that of the piece in it, so equal tags are equal pieces. A rank that writes
a piece has read the one before, and so knows that all others have written that, and hence read the one before that: it
may be overwritten. Only where a step was given up may a rank be slower than that. A buffer that is being written has
no tag, and whoever has read one looks at its tag again: then it is another one, and the sum has failed.

The order of memory is that of seqlocks (https://www.hpl.hp.com/techreports/2012/HPL-2012-68.pdf).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from potluck.engine.kernels.decoding.layer_records import SUM
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import emit_pause
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import I8, I64, KIND_F32, POINTER, internal
from potluck.engine.kernels.writing.memory import Address, Function, Number, Pointer, Record
from potluck.engine.kernels.writing.values import Value

PIECE = (
    1 << 14
)  # numbers: 64 KiB, so that what is written and what is read fit into a core's second cache
BUFFERS = 4  # of a rank: two for even steps, and two for odd ones
_LANES = 16
_TAG_BYTES = 128  # what processors fetch together
BUFFER_BYTES = _TAG_BYTES + 4 * PIECE
RANK_BYTES = BUFFERS * BUFFER_BYTES
MOST_PIECES = 1 << 24  # of a step

# What went wrong, in `failed`.
GIVEN_UP, OVERWRITTEN = 1, 2

# The number of a rank, and the tag that it has not written yet → not 0: wait no longer.
WAIT = ir.FunctionType(I64, [I64, I64])


class SharedSum(Record):
    """What the kernel is told, the argument of the `SUM`."""

    memory = Address(I8)  # the buffers of rank 0, then those of rank 1, …; aligned to a line
    rank = Number()
    step = Number()  # its number
    pieces = Number()  # that were summed in it; the kernel counts them
    failed = Number()  # not 0: nothing is summed any more
    patience = Number()  # how often a tag is looked at before each call of `wait`
    wait = Function(WAIT)


def tag_of(step: int, piece: int) -> int:
    """The tag of a piece of a step."""
    return step * MOST_PIECES + piece + 1


def emit_sum(module: ir.Module, name: str, path: Path, world: int) -> ir.Function:
    """Replace numbers by their sums over so many ranks."""
    add = _emit_piece(module, f"{name}_piece", path, world)
    e = Emitter(ir.Function(module, SUM, name), path)
    argument, numbers, count = e.arguments
    numbers = numbers.of(KIND_F32)
    with e.loop(0, count, PIECE) as first, e.if_then(_field(argument, "failed")[0].equals(0)):
        e.call(add, [argument, numbers + first, (count - first).at_most(PIECE)])
    return e.end()


def _emit_piece(module: ir.Module, name: str, path: Path, world: int) -> ir.Function:
    e = Emitter(internal(ir.Function(module, SUM, name)), path)
    argument, numbers, count = e.arguments
    given, numbers = SharedSum.load(argument), numbers.of(KIND_F32)
    pieces = given.pieces
    tag = given.step * MOST_PIECES + pieces + 1
    buffer = (given.step & 1) * 2 + (pieces & 1)
    first = given.memory.skip(buffer, BUFFER_BYTES)
    ranks = [first.skip(rank, RANK_BYTES) for rank in range(world)]
    with _written(e, first.skip(given.rank, RANK_BYTES), tag) as mine:
        for span in e.spans(count, _LANES):
            mine[span] = numbers[span]
    wait = _emit_wait(module, f"{name}_wait", path)
    failed = e.variable(e.index(0))
    for rank, place in enumerate(ranks):
        with e.if_then(failed.value.equals(0)):
            failed.value = e.call(wait, [argument, place, e.index(rank), tag])
    with e.if_then(failed.value.equals(0)):
        for span in e.spans(count, _LANES):
            total, *others = (_numbers(place)[span] for place in ranks)
            for other in others:
                total = total + other
            numbers[span] = total
        e.fence("acquire")
        for place in ranks:
            with e.if_then(_tag(place, "monotonic").differs(tag)):
                failed.value = e.index(OVERWRITTEN)
    _field(argument, "pieces")[0] = pieces + 1
    _field(argument, "failed")[0] = failed.value
    return e.end()


@contextmanager
def _written(e: Emitter, place: Pointer, tag: Value) -> Iterator[Pointer]:
    """Write the numbers of a buffer within this block, and then its tag."""
    e.atomic_rmw("xchg", place, e.index(0), "acq_rel")  # no number is written before it
    yield _numbers(place)
    e.atomic_rmw("xchg", place, tag, "release")


def _emit_wait(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Wait until a rank has written its numbers; 0 if it has."""
    kind = ir.FunctionType(I64, [POINTER, POINTER, I64, I64])
    e = Emitter(internal(ir.Function(module, kind, name)), path)
    argument, place, rank, tag = e.arguments
    given = SharedSum.load(argument)
    looks, failed = e.variable(e.index(0)), e.variable(e.index(0))
    with e.forever() as leave:
        leave(_tag(place, "acquire").equals(tag))
        leave(failed.value.differs(0))
        emit_pause(e)
        looks.value = looks.value + 1
        with e.if_then(looks.value >= given.patience):
            looks.value = e.index(0)
            with e.if_then(e.call(given.wait, [rank, tag]).differs(0)):
                failed.value = e.index(GIVEN_UP)
    return e.end(failed.value)


def _tag(place: Pointer, order: str) -> Value:
    return place.e.load_atomic(place, order, 8, typ=I64)


def _numbers(place: Pointer) -> Pointer:
    return place.skip(_TAG_BYTES).of(KIND_F32)


def _field(argument: Pointer, name: str) -> Pointer:
    return argument.of(I64) + list(SharedSum.fields).index(name)
