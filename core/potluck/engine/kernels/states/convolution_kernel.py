"""The kernel of a short convolution between its two products: C · (w * (B · x)).

A job takes some channels of all tokens, in their order. So a token has the same bits alone and among others.
"""

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.states.recurrent_kernel import LANES
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import KIND_F32
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.mixing.short_convolution import ConvolutionSizes

_CHANNELS = 64  # in a block


class Convolution(Record):
    """The arguments. Addresses of tokens are those of the first one."""

    inputs = Address(KIND_F32)  # B, C and x of the tokens
    stride = Number()  # numbers from one token to the next
    tokens = Number()
    convolution = Address(KIND_F32)  # (inputs, D)
    bias = Address(KIND_F32)  # (D,), if the shape has one
    before = Address(KIND_F32)  # (inputs - 1, D), the last inputs of the convolution
    out = Address(KIND_F32)  # (tokens, D)


def blocks_of_convolution(shape: ConvolutionSizes) -> int:
    """Return how many blocks the job has."""
    return -(-shape.channels // _CHANNELS)


def call_short_convolution(
    threads: OnThreads, job: ir.Function, shape: ConvolutionSizes, layer: Record, **places: Pointer
) -> None:
    """Emit the call for one token.

    Args:
        threads: that share the work.
        job: as `emit_short_convolution` has written it.
        shape: of the layer.
        layer: has the fields of what the layer has of its own.
        places: the fields of the token.
    """
    fields = {name: layer[name] for name in ("convolution", "bias", "before")}
    arguments = Convolution.store(threads.e, stride=0, tokens=1, **fields, **places)
    threads.call(job, arguments, blocks_of_convolution(shape))


def emit_short_convolution(
    module: ir.Module, name: str, path: Path, shape: ConvolutionSizes
) -> ir.Function:
    """Take all tokens through the convolution: a job of the threads. A block is some channels."""
    e, given, first, last = begin_piece(module, name, path, Convolution)
    with e.loop(first, last) as block:
        channel = block * _CHANNELS
        width = (e.index(shape.channels) - channel).at_most(_CHANNELS)
        for span in e.spans(width, LANES):
            _emit_channels(e, shape, given, channel, span)
    return e.end()


def _emit_channels(
    e: Emitter, shape: ConvolutionSizes, given: Convolution, channel: Value, span: Span
) -> None:
    size = shape.size
    before, weights = given.before + channel, given.convolution + channel
    factors = [(weights + i * size)[span] for i in range(shape.inputs)]
    added = (given.bias + channel)[span] if shape.has_bias else None
    last = [e.variable((before + i * size)[span]) for i in range(shape.inputs - 1)]
    with e.loop(0, given.tokens) as token:
        b = given.inputs + (token * given.stride + channel)
        c, x = b + size, b + 2 * size
        numbers = [*(one.value for one in last), b[span] * x[span]]
        total = added
        for number, factor in zip(numbers, factors, strict=True):
            total = number * factor if total is None else e.multiply_add(number, factor, total)
        assert total is not None
        (given.out + (token * size + channel))[span] = c[span] * total
        for one, number in zip(last, numbers[1:], strict=True):
            one.value = number
    for i, one in enumerate(last):
        (before + i * size)[span] = one.value
