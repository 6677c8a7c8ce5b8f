"""What the halves of a decoding kernel's layer have in common: norms, products with its matrices, and what is added."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.decoding.forms import FloatForm, Form
from potluck.engine.kernels.decoding.layer_records import Layer, Step
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.streams_kernel import StreamCalls, StreamShape
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import F32, I64, NULL, constant
from potluck.engine.kernels.writing.memory import Pointer
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, kw_only=True)
class Called:
    """The functions that a layer is made of."""

    mix: tuple[ir.Function, ...]
    scale: ir.Function
    add: ir.Function
    add_normed: ir.Function
    norm: ir.Function | None
    choose: ir.Function | None
    shares: ir.Function | None


@dataclass(frozen=True, kw_only=True)
class LayerParts:
    """Emits parts of one layer."""

    e: Emitter
    shape: LayerShape
    called: Called
    forms: dict[WeightFormat, Form]
    router: FloatForm
    step: Step
    layer: Layer

    @property
    def _hidden(self) -> Pointer:
        """What mixer and feed-forward read: the hidden states, or what was made of several streams."""
        return self.step.hidden if self.shape.streams is None else self.step.block

    def _form(self, held: WeightFormat | None) -> Form:
        assert held is not None
        return self.forms[held]

    def _normed(self, norm: Pointer) -> Pointer:
        """Write the normed hidden states in f32, to `normed`."""
        shape = self.shape
        hidden = self._hidden
        return self.router.normed(hidden, shape.hidden, norm, shape.epsilon, shape.norm_kind)

    def _read(self, form: Form, norm: str) -> Pointer:
        """Write the hidden states, normed if there are norms before, as the input of a product."""
        hidden, width = self._hidden, self.shape.hidden
        if self.shape.has_norms_before:
            shape = self.shape
            return form.normed(hidden, width, self.layer[norm], shape.epsilon, shape.norm_kind)
        return form.as_is(hidden, width)

    def _product(self, form: Form, matrix: str, inputs: Pointer, rows: int) -> None:
        """Write a product with the hidden states, plus its bias, to `wide`."""
        wide, bias = self.step.wide, self.layer[f"{matrix}_bias"]
        form.multiply(self.layer[matrix], inputs, wide, bias, rows, self.shape.hidden)

    def _sum(self, numbers: Pointer, count: int, *, sums: bool) -> None:
        """Replace so many numbers by their sums over the ranks of the group, if there are to be sums."""
        e, step = self.e, self.step
        if sums:
            with e.if_then(e.ptrtoint(step.sum, I64).differs(0)):
                e.call(step.sum, [step.sum_argument, numbers, e.index(count)])

    def _add(
        self, form: Form, matrix: str, inputs: Pointer, width: int, norm: str, *, sums: bool
    ) -> None:
        """Add the product of the matrix and the input to the hidden states."""
        e, shape, called = self.e, self.shape, self.called
        hidden, added = self.step.hidden, self.step.wide
        weights, bias = self.layer[matrix], self.layer[f"{matrix}_bias"]
        size = e.index(shape.hidden)
        if shape.adds_as_is and not sums:
            with e.if_else(bias.is_set) as (biased, plain):
                with biased:
                    form.multiply(weights, inputs, added, bias, shape.hidden, width)
                    e.call(called.add, [added, size, hidden, NULL, constant(F32, 1.0)])
                with plain:
                    form.multiply(weights, inputs, hidden, hidden, shape.hidden, width)
            return
        form.multiply(weights, inputs, added, bias, shape.hidden, width)
        self._sum(added, shape.hidden, sums=sums)
        self._finish(added, norm)

    def _streams(self, shape: StreamShape) -> StreamCalls:
        step, form = self.step, self.router
        return StreamCalls(
            e=self.e, shape=shape, form=form, streams=step.hidden, shares=step.stream_shares
        )

    def _read_streams(self, block: str) -> None:
        """Write what mixer or feed-forward reads, if there are several streams."""
        if (shape := self.shape.streams) is not None:
            assert self.called.shares is not None
            own = [self.layer[f"{block}_{part}"] for part in ("matrix", "base", "scale")]
            self._streams(shape).read((own[0], own[1], own[2]), self.called.shares, self.step.block)

    def _finish(self, added: Pointer, norm: str) -> None:
        """Add what attention or a feed-forward has made to the hidden states."""
        e, shape, hidden = self.e, self.shape, self.step.hidden
        size = e.index(shape.hidden)
        if shape.streams is not None:
            self._streams(shape.streams).write(added)
        elif shape.has_norms_after:
            own = shape.after_epsilon
            epsilon = constant(F32, shape.epsilon if own is None else own)
            e.call(self.called.add_normed, [added, size, hidden, self.layer[norm], epsilon])
        else:
            e.call(self.called.add, [added, size, hidden, NULL, constant(F32, shape.multiplier)])
