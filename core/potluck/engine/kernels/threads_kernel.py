"""What the threads run: blocks of a job are shared among threads that spin for work.

A job is a function of (arguments, first, last) and a number of blocks. Threads take a few blocks at a
time from a counter, so that a slow thread leaves more to the others. The caller works too, and waits only
for threads that have begun: if all others sleep, it does the whole job.

One caller at a time. It writes a job only while the job is shut and nobody is active; a thread makes
itself active, and then looks again whether the job is open. Both are sequentially consistent, so either
the caller sees the thread, or the thread sees that the job is shut.
"""

from dataclasses import dataclass
from typing import TypeVar

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    I32,
    I64,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
)
from potluck.engine.kernels.writing.memory import Pointer, Record
from potluck.engine.kernels.writing.values import Value

# Bytes from the start of a job. What threads write has cache lines of its own.
_FUNCTION, _ARGUMENTS, _BLOCKS, _STEP = 0, 8, 16, 24
_NEXT, _OPEN, _ACTIVE, STOPPING = 128, 256, 384, 512
JOB_BYTES = 640

# What computes some blocks of a job: its arguments (a record), first block, the one after the last.
PIECE = ir.FunctionType(VOID, [POINTER, I64, I64])

# The job, how often to look for work → 1 if the thread is to end.
SERVE = ir.FunctionType(I32, [POINTER, I64])
# The job, a `PIECE`, its arguments, the number of blocks, blocks taken at a time.
RUN = ir.FunctionType(VOID, [POINTER, POINTER, POINTER, I64, I64])

R = TypeVar("R", bound=Record)


def begin_piece(
    module: ir.Module, name: str, path: Path, record: type[R]
) -> tuple[Emitter, R, Value, Value]:
    """Begin a function of the type `PIECE`.

    Returns:
        What it is written with, its arguments, its first block, and the one after its last.
    """
    e = Emitter(ir.Function(module, PIECE, name), path)
    arguments, first, last = e.arguments
    return e, record.load(arguments), first, last


def emit_serve(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Look for work and do it; return when there has been none for a while."""
    work = _emit_work(module, f"{name}_work", path)
    e = Emitter(ir.Function(module, SERVE, name), path)
    job, patience = e.arguments
    idle = e.variable(e.index(0))
    with e.forever() as leave:
        leave(_is_set(job, STOPPING))
        leave(idle.value >= patience)
        # The caller may be writing the number of blocks, so both access it atomically.
        has_blocks = _look(job, _NEXT) < _look(job, _BLOCKS)
        with e.if_else(_is_set(job, _OPEN) & has_blocks) as (due, not_due):
            with due:
                _add(job, _ACTIVE, 1)
                with e.if_then(_is_set(job, _OPEN)):
                    e.call(work, [job])
                _add(job, _ACTIVE, -1)
                idle.value = e.index(0)
            with not_due:
                emit_pause(e)
                idle.value = idle.value + 1
    return e.end(e.zext(_is_set(job, STOPPING), I32))


def emit_run(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Do a job together with the threads that are awake; return when all of it is done."""
    work = _emit_work(module, f"{name}_work", path)
    e = Emitter(ir.Function(module, RUN, name), path)
    job, piece, arguments, blocks, step = e.arguments
    for offset, value in ((_FUNCTION, piece), (_ARGUMENTS, arguments), (_STEP, step)):
        job.skip(offset)[0] = value
    _set(job, _BLOCKS, blocks)
    _set(job, _NEXT, 0)
    _set(job, _OPEN, 1)
    e.call(work, [job])
    _set(job, _OPEN, 0)
    with e.forever() as leave:
        leave(_look(job, _ACTIVE).equals(0))
        emit_pause(e)
    return e.end()


@dataclass(frozen=True)
class OnThreads:
    """Emits calls that share work among threads."""

    e: Emitter
    run: ir.Function  # made by `emit_run`
    job: Pointer  # null: the caller is alone
    shares: Value  # how many parts the blocks are cut into

    def call(self, piece: ir.Function, memory: Pointer, blocks: Operand) -> None:
        """Call a piece for all its blocks: alone, or together with the threads.

        Args:
            piece: of the type `PIECE`.
            memory: where its arguments are.
            blocks: their number, from zero on.
        """
        e, count = self.e, self.e.index(blocks)
        with e.if_else(self.job.is_null) as (alone, together):
            with alone:
                e.call(piece, [memory, e.index(0), count])
            with together:
                step = count // self.shares
                step = step + e.zext(step.equals(0), I64)
                e.call(self.run, [self.job, piece, memory, count, step])


def _emit_work(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Take blocks until none are left."""
    kind = ir.FunctionType(VOID, [POINTER])
    e = Emitter(internal(ir.Function(module, kind, name)), path)
    (job,) = e.arguments
    piece = job.skip(_FUNCTION).of(PIECE.as_pointer())[0]
    arguments = job.skip(_ARGUMENTS).of(POINTER)[0]
    blocks, step = (job.skip(offset).of(I64)[0] for offset in (_BLOCKS, _STEP))
    with e.forever() as leave:
        first = e.atomic_rmw("add", job.skip(_NEXT), step, "seq_cst")
        leave(first >= blocks)
        e.call(piece, [arguments, first, (first + step).at_most(blocks)])
    return e.end()


def _look(job: Pointer, offset: int) -> Value:
    return job.e.load_atomic(job.skip(offset), "seq_cst", 8, typ=I64)


def _is_set(job: Pointer, offset: int) -> Value:
    return _look(job, offset).differs(0)


def _set(job: Pointer, offset: int, value: Operand) -> None:
    job.e.atomic_rmw("xchg", job.skip(offset), job.e.index(value), "seq_cst")


def _add(job: Pointer, offset: int, value: int) -> None:
    job.e.atomic_rmw("add", job.skip(offset), job.e.index(value), "seq_cst")


def emit_pause(e: Emitter) -> None:
    """Tell the processor that this thread spins, which leaves more to the core's other thread."""
    if e.path.architecture == "x86_64":
        e.intrinsic("llvm.x86.sse2.pause", VOID, [])
    elif e.path.architecture == "aarch64":
        e.intrinsic("llvm.aarch64.hint", VOID, [constant(I32, 1)])
