"""The kernel of a gated delta net between its two products: convolution, state, gated norm.

A block of the job is a key head with its value heads, for all tokens in their order: so a token has the same bits
alone and among others, and one kernel is both that of a token in a layer's kernel and that of a prompt's chunk. All
intermediate numbers are written where the input was. A value head's matrix is gone through some columns at a time,
which stay in the first cache while the tokens change them: columns do not depend on each other.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.states.recurrent_kernel import (
    LANES,
    WIDE,
    each_columns,
    emit_convolution,
)
from potluck.engine.kernels.threads_kernel import OnThreads, begin_piece
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import (
    EMIT_ACTIVATION,
    emit_exp,
    emit_inverse_length,
    emit_inverse_rms,
    emit_sigmoid,
    emit_softplus,
)
from potluck.engine.kernels.writing.ir_types import F32, KIND_F32, Operand, constant
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.mixing.delta_net import DeltaHeads

_EPSILON = 1e-6  # of the norm of queries and keys; no config has it


class DeltaNet(Record):
    """The arguments. Addresses of tokens are those of the first one."""

    inputs = Address(KIND_F32)  # queries, keys, values and gates of the tokens; overwritten
    rates = Address(KIND_F32)  # what β and decays are computed of; overwritten
    stride = Number()  # numbers from one token to the next, in both
    tokens = Number()
    convolution = Address(KIND_F32)  # (inputs, channels)
    decays = Address(KIND_F32)  # (H,), below zero, unless logarithms of decays have a bound
    offsets = Address(KIND_F32)  # (H,), or (H·K,) if channels have decays of their own
    norm = Address(KIND_F32)  # (V,)
    before = Address(KIND_F32)  # (inputs - 1, channels), the state of the convolution
    state = Address(KIND_F32)  # (H, K, V)
    out = Address(KIND_F32)  # (tokens, H·V)


def emit_delta_net(module: ir.Module, name: str, path: Path, shape: DeltaHeads) -> ir.Function:
    """Write the kernel: a job of the threads, whose blocks are key heads."""
    assert not (shape.has_tiled_heads and (shape.has_joined_inputs or shape.has_joined_rates))
    e, given, first, last = begin_piece(module, name, path, DeltaNet)
    with e.loop(first, last) as key_head:
        _KeyHead(e, shape, given, key_head).emit()
    return e.end()


def call_delta_net(
    threads: OnThreads, kernel: ir.Function, shape: DeltaHeads, layer: Record, **places: Pointer
) -> None:
    """Emit the call of the kernel for one token.

    Args:
        threads: that share the work.
        kernel: as `emit_delta_net` has written it.
        shape: of the layer.
        layer: has the fields of what the layer has of its own.
        places: the fields of the token.
    """
    own = ("convolution", "decays", "offsets", "norm", "before", "state")
    fields = {name: layer[name] for name in own}
    arguments = DeltaNet.store(threads.e, stride=0, tokens=1, **fields, **places)
    threads.call(kernel, arguments, shape.key_heads)


@dataclass(frozen=True)
class _ValueHead:
    """Where a value head has what."""

    index: Value  # among all
    values: Value  # the first of its values, among a token's inputs
    channel: Value  # likewise, among the channels of the convolution
    gates: Value
    rate: Value  # among a token's rates
    decay: Value


@dataclass(frozen=True)
class _KeyHead:
    """Emits a key head and its value heads, for all tokens."""

    e: Emitter
    shape: DeltaHeads
    given: DeltaNet
    index: Value

    def emit(self) -> None:
        shape, e = self.shape, self.e
        queries, keys = self._queries, self._keys
        self._convolve(queries, self.index * shape.key_size, shape.key_size)
        channel = self.index * shape.key_size + shape.keys_size
        self._convolve(keys, channel, shape.key_size)
        with self._each_token() as token:
            inputs = self._inputs(token)
            self._normalise(inputs + queries, shape.key_size**-0.5)
            self._normalise(inputs + keys, 1.0)
        with e.loop(0, shape.group) as member:
            head = self._value_head(member)
            self._convolve(head.values, head.channel, shape.value_size)
            self._rates(head)
            for columns in each_columns(e, shape.value_size):
                self._remember(head, columns)
            self._gate(head)

    @property
    def _queries(self) -> Value:
        """The first query, among a token's inputs."""
        shape, size = self.shape, self.shape.key_size
        if shape.has_joined_inputs:  # all numbers of a key head
            size = 2 * shape.key_size + 2 * shape.group * shape.value_size
        return self.index * size

    @property
    def _keys(self) -> Value:
        between = self.shape.key_size if self.shape.has_joined_inputs else self.shape.keys_size
        return self._queries + between

    def _value_head(self, member: Value) -> _ValueHead:
        shape = self.shape
        if shape.has_tiled_heads:
            index = member * shape.key_heads + self.index
        else:
            index = self.index * shape.group + member
        channel = index * shape.value_size + 2 * shape.keys_size
        values, gates = channel, channel + shape.values_size
        if shape.has_joined_inputs:
            values = self._queries + (2 * shape.key_size) + member * shape.value_size
            gates = values + shape.group * shape.value_size
        rate, decay = index, index + shape.value_heads
        if shape.has_channel_decays:
            decay = index * shape.key_size + shape.value_heads
        if shape.has_joined_rates:
            rate = self.index * (2 * shape.group) + member
            decay = rate + shape.group
        return _ValueHead(index, values, channel, gates, rate, decay)

    def _each_token(self) -> AbstractContextManager[Value]:
        return self.e.loop(0, self.given.tokens)

    def _inputs(self, token: Operand) -> Pointer:
        return self.given.inputs + self.e.index(token) * self.given.stride

    def _convolve(self, place: Value, channel: Value, width: int) -> None:
        """Put some numbers of all tokens through the convolution and SiLU, where they are."""
        for span in self.e.spans(width, LANES):
            emit_convolution(self.e, self.shape, self.given, channel, place, span)

    def _normalise(self, numbers: Pointer, factor: float) -> None:
        """Give a vector this length."""
        e, width = self.e, self.shape.key_size
        scale = emit_inverse_length(e, numbers, width, constant(F32, _EPSILON)) * factor
        for span in e.spans(width, LANES):
            numbers[span] = numbers[span] * scale

    def _rates(self, head: _ValueHead) -> None:
        """Replace what β and the decay are computed of by these."""
        e, given, decay = self.e, self.given, self.given.decays[head.index]
        with self._each_token() as token:
            rates = given.rates + token * given.stride
            rates[head.rate] = emit_sigmoid(e, self._wide(rates[head.rate])).lane(0)
            if self.shape.has_channel_decays:
                self._channel_decays(head, rates, decay)
                return
            size = emit_softplus(e, self._wide(rates[head.decay] + given.offsets[head.index]))
            rates[head.decay] = emit_exp(e, size * decay).lane(0)

    def _channel_decays(self, head: _ValueHead, rates: Pointer, decay: Value) -> None:
        """The same of the decays of all channels of a head."""
        e, shape = self.e, self.shape
        here, offsets = rates + head.decay, self.given.offsets + head.index * shape.key_size
        for span in e.spans(shape.key_size, LANES):
            step = here[span] + offsets[span]
            if shape.least_log is None:
                logs = emit_softplus(e, step) * decay
            else:
                logs = emit_sigmoid(e, step * decay) * shape.least_log
            here[span] = emit_exp(e, logs)

    def _wide(self, number: Value) -> Value:
        return self.e.splat(number, LANES)

    def _remember(self, head: _ValueHead, columns: list[Span]) -> None:
        """Have all tokens change these columns of the matrix, and read from them."""
        e, given, shape = self.e, self.given, self.shape
        size = shape.value_size
        state = given.state + head.index * (shape.key_size * size)
        zero = constant(WIDE, 0.0)
        with self._each_token() as token:
            inputs = self._inputs(token)
            rates = given.rates + token * given.stride
            rate, decays, is_each = rates[head.rate], rates + head.decay, shape.has_channel_decays
            keys, queries = inputs + self._keys, inputs + self._queries
            known = [e.variable(zero) for _ in columns]
            with e.loop(0, shape.key_size) as row:
                factor = keys[row] * decays[row] if is_each else keys[row]
                key, numbers = self._wide(factor), state + row * size
                for total, span in zip(known, columns, strict=True):
                    total.value = e.multiply_add(numbers[span], key, total.value)
            values = inputs + head.values
            whole = None if is_each else rates[head.decay]
            written = [
                (values[span] - (total.value if whole is None else total.value * whole)) * rate
                for total, span in zip(known, columns, strict=True)
            ]
            results = [e.variable(zero) for _ in columns]
            with e.loop(0, shape.key_size) as row:
                key, query = self._wide(keys[row]), self._wide(queries[row])
                numbers = state + row * size
                decay = self._wide(decays[row]) if whole is None else whole
                for new, result, span in zip(written, results, columns, strict=True):
                    number = e.multiply_add(new, key, numbers[span] * decay)
                    numbers[span] = number
                    result.value = e.multiply_add(number, query, result.value)
            out = self._out(head, token)
            for result, span in zip(results, columns, strict=True):
                out[span] = result.value

    def _gate(self, head: _ValueHead) -> None:
        """Norm what was read, and multiply it with the gates."""
        e, given, shape = self.e, self.given, self.shape
        size, activate = shape.value_size, EMIT_ACTIVATION[shape.gate]
        with self._each_token() as token:
            out, gates = self._out(head, token), self._inputs(token) + head.gates
            inverse = emit_inverse_rms(e, out, size, constant(F32, shape.norm_eps))
            for span in e.spans(size, LANES):
                out[span] = out[span] * inverse * given.norm[span] * activate(e, gates[span])

    def _out(self, head: _ValueHead, token: Value) -> Pointer:
        shape = self.shape
        start = token * shape.values_size + head.index * shape.value_size
        return self.given.out + start
