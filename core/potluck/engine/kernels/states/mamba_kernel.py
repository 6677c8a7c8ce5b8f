"""The kernels of a state space (Mamba 2) between its two products: convolution, states, gated norm.

Three jobs, one after the other: some channels of the convolution, then heads, for all tokens in their order, then
tokens, whose groups are normed. So a token has the same bits alone and among others. All intermediate numbers are
written where the input was, or to the result.
"""

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.states.recurrent_kernel import LANES, each_columns, emit_convolution
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import (
    emit_exp,
    emit_inverse_rms,
    emit_silu,
    emit_softplus,
)
from potluck.engine.kernels.writing.ir_types import F32, KIND_F32, Operand, constant
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.mixing.mamba import MambaHeads

_CHANNELS = 64  # of the convolution, in a block


class Mamba(Record):
    """The arguments. Addresses of tokens are those of the first one."""

    inputs = Address(KIND_F32)  # z, x, B, C and steps of the tokens; overwritten
    stride = Number()  # numbers from one token to the next
    tokens = Number()
    convolution = Address(KIND_F32)  # (inputs, channels)
    bias = Address(KIND_F32)  # (channels,)
    decays = Address(KIND_F32)  # (H,), below zero
    offsets = Address(KIND_F32)  # (H,)
    skips = Address(KIND_F32)  # (H,)
    norm = Address(KIND_F32)  # (H·P,)
    before = Address(KIND_F32)  # (inputs - 1, channels), the state of the convolution
    state = Address(KIND_F32)  # (H, N, P)
    out = Address(KIND_F32)  # (tokens, H·P)


MambaJobs = tuple[ir.Function, ...]
"""Convolution, states and norms, if there are any."""


def emit_mamba(module: ir.Module, name: str, path: Path, shape: MambaHeads) -> MambaJobs:
    """Write the jobs of the threads."""
    jobs = (
        emit_convolutions(module, f"{name}_convolution", path, shape),
        emit_states(module, f"{name}_states", path, shape),
    )
    return (*jobs, emit_norms(module, f"{name}_norms", path, shape)) if shape.has_norm else jobs


def blocks_of_jobs(shape: MambaHeads, tokens: Operand) -> tuple[Operand, ...]:
    """Return how many blocks each of the jobs has."""
    blocks = -(-shape.channels // _CHANNELS), shape.heads
    return (*blocks, tokens) if shape.has_norm else blocks


def call_mamba(
    threads: OnThreads, jobs: MambaJobs, shape: MambaHeads, layer: Record, **places: Pointer
) -> None:
    """Emit the calls for one token.

    Args:
        threads: that share the work.
        jobs: as `emit_mamba` has written them.
        shape: of the layer.
        layer: has the fields of what the layer has of its own.
        places: the fields of the token.
    """
    own = ("convolution", "bias", "decays", "offsets", "skips", "norm", "before", "state")
    fields = {name: layer[name] for name in own}
    arguments = Mamba.store(threads.e, stride=0, tokens=1, **fields, **places)
    for job, blocks in zip(jobs, blocks_of_jobs(shape, 1), strict=True):
        threads.call(job, arguments, blocks)


def emit_convolutions(module: ir.Module, name: str, path: Path, shape: MambaHeads) -> ir.Function:
    """Put x, B and C of all tokens through the convolution and SiLU, where they are. A block is some channels."""
    e, given, first, last = begin_piece(module, name, path, Mamba)
    with e.loop(first, last) as block:
        channel = block * _CHANNELS
        width = (e.index(shape.channels) - channel).at_most(_CHANNELS)
        for span in e.spans(width, LANES):
            emit_convolution(
                e, shape, given, channel, channel + shape.values_size, span, given.bias
            )
    return e.end()


def emit_states(module: ir.Module, name: str, path: Path, shape: MambaHeads) -> ir.Function:
    """Have all tokens change a head's state, read from it, and multiply with their gates. A block is a head."""
    e, given, first, last = begin_piece(module, name, path, Mamba)
    with e.loop(first, last) as head:
        for columns in each_columns(e, shape.head_size):
            _remember(e, given, shape, head, columns)
    return e.end()


def _remember(
    e: Emitter, given: Mamba, shape: MambaHeads, head: Value, columns: list[Span]
) -> None:
    size, rows, inner = shape.head_size, shape.state_size, shape.values_size
    state = given.state + head * (rows * size)
    place = head * size
    group = head // (shape.heads // shape.groups) * rows
    offset, decay, skip = given.offsets[head], given.decays[head], given.skips[head]
    with e.loop(0, given.tokens) as token:
        z = given.inputs + token * given.stride
        x, b = z + inner, z + (2 * inner)
        c, steps = b + shape.shared_size, b + (2 * shape.shared_size)
        width = emit_softplus(e, e.splat(steps[head] + offset, LANES))
        kept = emit_exp(e, width * decay)
        written = [(x + place)[span] * width for span in columns]
        results = [e.variable((x + place)[span] * skip) for span in columns]
        with e.loop(0, rows) as row:
            key, query = (e.splat((one + group)[row], LANES) for one in (b, c))
            numbers = state + row * size
            for new, result, span in zip(written, results, columns, strict=True):
                number = e.multiply_add(new, key, numbers[span] * kept)
                numbers[span] = number
                result.value = e.multiply_add(number, query, result.value)
        out, gates = given.out + (token * inner + place), z + place
        for result, span in zip(results, columns, strict=True):
            out[span] = result.value * emit_silu(e, gates[span])


def emit_norms(module: ir.Module, name: str, path: Path, shape: MambaHeads) -> ir.Function:
    """Norm each group of the results. A block is a token."""
    e, given, first, last = begin_piece(module, name, path, Mamba)
    size = shape.values_size // shape.groups
    with e.loop(first, last) as token, e.loop(0, shape.groups) as group:
        out = given.out + (token * shape.values_size + group * size)
        weights = given.norm + group * size
        inverse = emit_inverse_rms(e, out, size, constant(F32, shape.norm_eps))
        for span in e.spans(size, LANES):
            out[span] = out[span] * inverse * weights[span]
    return e.end()
