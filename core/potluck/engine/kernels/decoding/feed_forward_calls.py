"""What a decoding kernel calls for the feed-forward of a layer: an MLP, experts, or both."""

from dataclasses import dataclass, replace

from potluck.engine.kernels.decoding.layer_parts import LayerParts
from potluck.engine.kernels.decoding.layer_records import Expert
from potluck.engine.kernels.decoding.layer_shape import MlpShape, NarrowShape
from potluck.engine.kernels.mixtures.moe_kernel import is_chosen
from potluck.engine.kernels.writing.ir_types import F32, NULL, Operand, constant
from potluck.engine.kernels.writing.memory import Pointer
from potluck.model.families.facts import Activation, gate_up_rows
from potluck.model.routing import Routing


@dataclass(frozen=True, kw_only=True)
class FeedForwardCalls(LayerParts):
    """Emits the feed-forward of one layer."""

    def _feed_forward(self) -> None:
        shape = self.shape
        if shape.routing is None:
            self._mlp()
        elif shape.beside is None:
            self._experts(shape.routing)
            self._sum(self.step.total, shape.hidden, sums=shape.sums_feed_forward)
            self._finish(self.step.total, "after_mlp")
        else:
            self._parallel(shape.routing, shape.beside)

    def _mlp(self) -> None:
        shape = self.shape
        form = self._form(shape.gate_up_format)
        if shape.is_side_by_side:
            inputs = form.as_is(self.step.normed, shape.hidden)
        else:
            inputs = self._read(form, "before_mlp")
        rows = gate_up_rows(shape.activation, shape.intermediate)
        self._product(form, "gate_up", inputs, rows)
        form = self._form(shape.down_format)
        learned = self.layer.learned
        inputs = form.gated(self.step.wide, shape.intermediate, shape.activation, learned)
        sums = shape.sums_feed_forward
        self._add(form, "down", inputs, shape.intermediate, "after_mlp", sums=sums)

    def _experts(self, routing: Routing) -> None:
        """Write what the experts make of the hidden states to `total`."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        width, is_beside = shape.hidden, shape.beside is not None
        normed = step.normed
        if not shape.is_side_by_side:
            normed = self._normed(layer.router_norm if is_beside else layer.before_mlp)
        addend = layer.router_bias
        self.router.multiply(layer.router, normed, step.routed, addend, routing.rows, width)
        told: Operand = NULL
        if routing.vocabulary is not None:
            told = layer.id_table + step.token * routing.per_token
        e.call(self.called.choose, [step.routed, layer.choice_bias, told, step.factors])
        if is_beside:
            normed = self.router.normed(step.hidden, width, layer.before_moe, shape.epsilon)
        form, read = self._form(shape.gate_up_format), normed
        if shape.narrow is not None:
            read = self._narrow(shape.narrow, normed)
        few = shape.expert_width
        inputs = read if routing.scales_input else form.as_is(read, few)
        # Zeros, made by a product: LLVM would turn a loop that writes them into a call of a C library.
        zero, one = constant(F32, 0.0), constant(F32, 1.0)
        e.call(self.called.scale, [read, e.index(few), step.total, NULL, zero])
        with e.loop(0, routing.count) as index:
            factor = step.factors[index]
            with e.if_then(is_chosen(e, factor)):
                if shape.has_expert_scales:
                    factor = factor * layer.expert_scales[index]
                if routing.scales_input:
                    e.call(self.called.scale, [read, e.index(few), step.added, NULL, factor])
                    scaled = form.as_is(step.added, few)
                    self._expert(layer.experts[index], shape.mlp, scaled, one, few)
                else:
                    self._expert(layer.experts[index], shape.mlp, inputs, factor, few)
        if shape.narrow is not None:
            self._widen(shape.narrow)
        if shape.shared is not None:
            is_changed = routing.scales_input or shape.narrow is not None
            if is_changed or shape.shared.gate_up_format != shape.gate_up_format:
                inputs = self.forms[shape.shared.gate_up_format].as_is(normed, width)
            last = e.index(routing.count)
            factor = constant(F32, routing.shared_scale)
            if routing.has_shared_gate:
                factor = step.factors[last]
            activation = shape.shared_activation
            self._expert(layer.experts[last], shape.shared, inputs, factor, width, activation)

    def _narrow(self, narrow: NarrowShape, normed: Pointer) -> Pointer:
        """Write the few numbers that experts read of the hidden states."""
        form, width, few = self.forms[narrow.first_format], self.shape.hidden, self.step.narrow
        inputs = form.as_is(normed, width)
        form.multiply(self.layer.narrow_first, inputs, few, NULL, narrow.size, width)
        return few

    def _widen(self, narrow: NarrowShape) -> None:
        """Make hidden states of the experts' total, in its place."""
        form, step, width = self.forms[narrow.last_format], self.step, self.shape.hidden
        inputs = form.as_is(step.total, narrow.size)
        form.multiply(self.layer.narrow_last, inputs, step.added, NULL, width, narrow.size)
        copied = [step.added, self.e.index(width), step.total, NULL, constant(F32, 1.0)]
        self.e.call(self.called.scale, copied)

    def _expert(
        self,
        expert: Expert,
        mlp: MlpShape,
        inputs: Pointer,
        factor: Operand,
        width: int,
        activation: Activation | None = None,
    ) -> None:
        """Add factor x expert, of so many numbers, to the total; the input stays as it is."""
        e, step = self.e, self.step
        self._gated(expert, mlp, inputs, width, activation)
        e.call(self.called.add, [step.added, e.index(width), step.total, NULL, factor])

    def _parallel(self, routing: Routing, mlp: MlpShape) -> None:
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        size, epsilon = e.index(shape.hidden), constant(F32, shape.epsilon)
        form = self.forms[mlp.gate_up_format]
        inputs = form.normed(step.hidden, shape.hidden, layer.before_mlp, shape.epsilon)
        self._gated(layer.experts[e.index(shape.last_expert)], mlp, inputs, shape.hidden)
        assert self.called.norm is not None
        norm = [layer.after_dense, epsilon]
        if shape.sums_feed_forward:  # both in one exchange, and so before the norms of both
            e.call(self.called.scale, [step.added, size, step.beside, NULL, constant(F32, 1.0)])
            self._experts(routing)
            self._sum(step.total, 2 * shape.hidden, sums=True)  # `beside` follows `total`
            e.call(self.called.norm, [step.beside, size, step.beside, *norm])
        else:
            e.call(self.called.norm, [step.added, size, step.beside, *norm])
            self._experts(routing)
        e.call(self.called.add_normed, [step.total, size, step.beside, layer.after_moe, epsilon])
        self._finish(step.beside, "after_mlp")

    def _gated(
        self,
        expert: Expert,
        mlp: MlpShape,
        inputs: Pointer,
        width: int,
        activation: Activation | None = None,
    ) -> None:
        """Write what an expert makes of the inputs, `width` of them, which stay as they are, to `added`."""
        step, size, activation = self.step, mlp.intermediate, activation or self.shape.activation
        last = replace(self.forms[mlp.down_format], memory=step.gated)
        form = self.forms[mlp.gate_up_format]
        rows = gate_up_rows(activation, size)
        form.multiply(expert.gate_up, inputs, step.wide, expert.gate_up_bias, rows, width)
        gated = last.gated(step.wide, size, activation)
        last.multiply(expert.down, gated, step.added, expert.down_bias, width, size)
