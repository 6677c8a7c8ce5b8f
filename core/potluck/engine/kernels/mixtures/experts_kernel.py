"""The kernel of a mixture's experts for many tokens: one call, in which threads share the work of all experts.

Each token has a pair with each expert that it chose. The pairs of an expert are neighbours in memory, expert by
expert, so that its weights are read once for all of its tokens. Threads take some blocks of rows of the experts
one after the other, whatever expert they belong to: an expert with few tokens keeps nobody waiting. A token's
results are then added up in the order of the experts, each with the bits that the layer's kernel has for one token.
"""

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.product_kernel import PackedProduct, emit_product
from potluck.engine.kernels.products.quantise_kernel import Quantise, emit_quantise
from potluck.engine.kernels.products.rows import Reading
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Record
from potluck.model.formats import PackedFormat

_LANES = 16
_WIDE = vector(F32, _LANES)


class Each(Record):
    """The arguments of a job for each expert. A block is one of the job of an expert, expert by expert."""

    arguments = Address(I8)  # a record for each expert
    blocks = Number()  # of the job of an expert; more than it has do nothing


class AddUp(Record):
    """The arguments of adding up. A block of the job is a token."""

    source = Address(KIND_F32)  # (pairs, width): the experts' results
    places = Address(I64)  # (tokens, experts of a token): which of them
    factors = Address(KIND_F32)  # (tokens, experts of a token)
    per_token = Number()
    width = Number()
    out = Address(KIND_F32)  # (tokens, width)


class Experts(Record):
    """The arguments of the kernel: those of its jobs, which are done one after the other."""

    inputs = Address(I8)  # `Each` of `Quantise`: the tokens of each expert
    gate_up = Address(I8)  # `Each` of `PackedProduct`
    gated = Address(I8)  # `Each` of `Quantise`
    down = Address(I8)  # `Each` of `PackedProduct`
    added = Address(I8)  # `AddUp`
    experts = Number()  # that have tokens
    tokens = Number()
    job = Address(I8)  # of the threads, or null
    shares = Number()


# An `Experts`.
EXPERTS = ir.FunctionType(VOID, [POINTER])


def emit_experts(
    module: ir.Module,
    name: str,
    path: Path,
    gate_up_format: PackedFormat,
    down_format: PackedFormat,
    activation: Reading,
) -> ir.Function:
    """Write factor x expert(token), added up for each token over the experts that it chose."""

    def each(piece: ir.Function, record: type[Record], what: str) -> ir.Function:
        return _emit_each(module, f"{name}_each_{what}", path, piece, record)

    quantise = emit_quantise(module, f"{name}_inputs", path, "plain", gathers=True)
    products = {
        held: each(
            emit_product(module, f"{name}_{held.dtype}", path, held), PackedProduct, held.dtype
        )
        for held in dict.fromkeys((gate_up_format, down_format))  # one, if both are the same
    }
    gate = emit_quantise(module, f"{name}_gated", path, activation)
    jobs = {
        "inputs": each(quantise, Quantise, "inputs"),
        "gate_up": products[gate_up_format],
        "gated": each(gate, Quantise, "gated"),
        "down": products[down_format],
    }
    add_up = _emit_add_up(module, f"{name}_add_up", path)
    run = emit_run(module, f"{name}_run", path)
    e = Emitter(ir.Function(module, EXPERTS, name), path)
    given = Experts.load(e.arguments[0])
    threads = OnThreads(e, run, given.job, given.shares)
    for field, job in jobs.items():
        arguments = given[field]
        threads.call(job, arguments, given.experts * Each.load(arguments).blocks)
    threads.call(add_up, given.added, given.tokens)
    return e.end()


def _emit_each(
    module: ir.Module, name: str, path: Path, piece: ir.Function, record: type[Record]
) -> ir.Function:
    """Write a job that does the job `piece` of each expert, with the expert's own arguments."""
    e, given, first, last = begin_piece(module, name, path, Each)
    block = e.variable(first)
    with e.forever() as leave:
        leave(block.value >= last)
        expert = block.value // given.blocks
        start = expert * given.blocks
        end = (start + given.blocks).at_most(last)
        arguments = given.arguments.skip(expert, record.nbytes)
        e.call(piece, [arguments, block.value - start, end - start])
        block.value = end
    return e.end()


def _emit_add_up(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Write a token's sum of factor x result, in the order of its pairs: a job of the threads."""
    e, given, first, last = begin_piece(module, name, path, AddUp)
    with e.loop(first, last) as token:
        pair, out = token * given.per_token, given.out + token * given.width
        for span in e.spans(given.width, _LANES):
            total = e.variable(constant(_WIDE, 0.0))
            with e.loop(pair, pair + given.per_token) as index:
                result = (given.source + given.places[index] * given.width)[span]
                total.value = total.value + result * e.splat(given.factors[index], _LANES)
            out[span] = total.value
    return e.end()
