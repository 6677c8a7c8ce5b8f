"""The kernels of a thread pool: blocks of a product shared out among threads that spin for work.

A job is a function of (arguments, first, last) and a number of blocks. Threads take a few blocks at a
time from a counter, so that one that is held up leaves more to the others. The caller works too, and
waits only for threads that have begun: a pool of which all sleep is as good as none.

One caller at a time. It writes a job only while the job is shut and nobody is active; a thread makes
itself active, and then looks again whether the job is open. Both are sequentially consistent, so either
the caller sees the thread, or the thread sees that the job is shut.
"""

from collections.abc import Sequence

from llvmlite import ir

from potluck.engine.kernels.emit import Emitter
from potluck.engine.kernels.ir_types import I32, I64, POINTER, VOID, Value, constant, internal
from potluck.engine.kernels.paths import Path

# Offsets; what threads write stands in cache lines of its own.
_FUNCTION, _ARGUMENTS, _BLOCKS, _STEP = 0, 8, 16, 24
_NEXT, _OPEN, _ACTIVE, STOPPING = 128, 256, 384, 512
JOB_BYTES = 640

PIECE = ir.FunctionType(VOID, [POINTER, I64, I64])  # arguments, first and last block

# job, how often to look before going to sleep → 1 if the pool is to stop
SERVE = ir.FunctionType(I32, [POINTER, I64])
# job, function, arguments, blocks, blocks taken at a time
RUN = ir.FunctionType(VOID, [POINTER, POINTER, POINTER, I64, I64])


def emit_serve(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Spin for work and do it; return when there has been none for a while."""
    work = _emit_work(module, f"{name}_work", path)
    function = ir.Function(module, SERVE, name)
    job, patience = function.args
    e = Emitter(function, path)
    idle = e.variable(constant(I64, 0))
    with e.forever() as leave:
        leave(_is_set(e, job, STOPPING))
        leave(e.icmp_signed(">=", idle.value, patience))
        has_blocks = e.icmp_signed("<", _look(e, job, _NEXT), e.fetch(e.at(job, _BLOCKS), I64))
        is_due = e.and_(_is_set(e, job, _OPEN), has_blocks)
        with e.if_else(is_due) as (due, not_due):
            with due:
                _add(e, job, _ACTIVE, 1)
                with e.if_then(_is_set(e, job, _OPEN)):
                    e.call(work, [job])
                _add(e, job, _ACTIVE, -1)
                idle.value = constant(I64, 0)
            with not_due:
                _pause(e)
                idle.value = e.add(idle.value, constant(I64, 1))
    e.ret(e.zext(_is_set(e, job, STOPPING), I32))
    return function


def emit_run(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Do a job with whoever is awake; return when all of it is done."""
    work = _emit_work(module, f"{name}_work", path)
    function = ir.Function(module, RUN, name)
    job, piece, arguments, blocks, step = function.args
    e = Emitter(function, path)
    for offset, value in ((_FUNCTION, piece), (_ARGUMENTS, arguments), (_BLOCKS, blocks)):
        e.put(value, e.at(job, offset))
    e.put(step, e.at(job, _STEP))
    _set(e, job, _NEXT, 0)
    _set(e, job, _OPEN, 1)
    e.call(work, [job])
    _set(e, job, _OPEN, 0)
    with e.forever() as leave:
        leave(e.icmp_signed("==", _look(e, job, _ACTIVE), constant(I64, 0)))
        _pause(e)
    e.ret_void()
    return function


def emit_shared(
    e: Emitter,
    pool: tuple[ir.Function, Value, Value],
    piece: ir.Function,
    arguments: Sequence[Value],
    blocks: int,
) -> None:
    """Call a piece for all its blocks: alone, or together with the pool.

    The pool is what `emit_run` made, where the job stands (null: there is no pool), and into how many
    parts to cut the blocks.
    """
    run, job, shares = pool
    memory = e.stack(I64, len(arguments))
    for index, argument in enumerate(arguments):
        e.put(argument, e.at(memory, 8 * index))
    count = constant(I64, blocks)
    is_alone = e.icmp_unsigned("==", e.ptrtoint(job, I64), constant(I64, 0))
    with e.if_else(is_alone) as (alone, together):
        with alone:
            e.call(piece, [memory, constant(I64, 0), count])
        with together:
            step = e.sdiv(count, shares)
            step = e.add(step, e.zext(e.icmp_signed("==", step, constant(I64, 0)), I64))
            e.call(run, [job, piece, memory, count, step])


def _emit_work(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Take blocks until none are left."""
    function = internal(ir.Function(module, ir.FunctionType(VOID, [POINTER]), name))
    job = function.args[0]
    e = Emitter(function, path)
    piece = e.fetch(e.at(job, _FUNCTION), PIECE.as_pointer())
    arguments = e.fetch(e.at(job, _ARGUMENTS), POINTER)
    blocks, step = (e.fetch(e.at(job, at), I64) for at in (_BLOCKS, _STEP))
    with e.forever() as leave:
        first = e.atomic_rmw("add", e.at(job, _NEXT), step, "seq_cst")
        leave(e.icmp_signed(">=", first, blocks))
        end = e.add(first, step)
        last = e.select(e.icmp_signed("<", end, blocks), end, blocks)
        e.call(piece, [arguments, first, last])
    e.ret_void()
    return function


def _look(e: Emitter, job: Value, offset: int) -> Value:
    return e.load_atomic(e.at(job, offset), "seq_cst", 8, typ=I64)


def _is_set(e: Emitter, job: Value, offset: int) -> Value:
    return e.icmp_signed("!=", _look(e, job, offset), constant(I64, 0))


def _set(e: Emitter, job: Value, offset: int, value: int) -> None:
    e.atomic_rmw("xchg", e.at(job, offset), constant(I64, value), "seq_cst")


def _add(e: Emitter, job: Value, offset: int, value: int) -> None:
    e.atomic_rmw("add", e.at(job, offset), constant(I64, value), "seq_cst")


def _pause(e: Emitter) -> None:
    """Leave the core to its other thread, and memory to the others, for a moment."""
    if e.path.architecture == "x86_64":
        e.intrinsic("llvm.x86.sse2.pause", VOID, [])
    elif e.path.architecture == "aarch64":
        e.intrinsic("llvm.aarch64.hint", VOID, [constant(I32, 1)])
