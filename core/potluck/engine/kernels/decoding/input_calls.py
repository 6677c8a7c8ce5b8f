"""What a decoding kernel calls to add the embedding that a layer has of its own."""

from dataclasses import dataclass

from potluck.engine.kernels.decoding.layer_inputs import InputShape
from potluck.engine.kernels.decoding.layer_parts import LayerParts
from potluck.engine.kernels.writing.ir_types import F32, NULL, constant
from potluck.model.powers import power


@dataclass(frozen=True, kw_only=True)
class InputCalls(LayerParts):
    """Emits what is added of a layer's embedding."""

    def _add_inputs(self, inputs: InputShape) -> None:
        """Do what `LayerInputs` does in torch."""
        e, step, layer, called = self.e, self.step, self.layer, self.called
        width, few = self.shape.hidden, inputs.size
        size, gates, given = e.index(few), step.input_gates, step.input_gates + few
        form = self.forms[inputs.context_format]
        embedding = form.as_is(step.hidden + width, width)
        form.multiply(layer.input_context, embedding, given, NULL, few, width)
        e.call(called.scale, [given, size, given, NULL, constant(F32, power(width, -0.5))])
        assert called.norm is not None
        epsilon = constant(F32, self.shape.epsilon)
        e.call(called.norm, [given, size, given, layer.context_norm, epsilon])
        row = step.inputs + layer.input_first
        e.call(called.add, [row, size, given, NULL, constant(F32, power(few, 0.5))])
        e.call(called.scale, [given, size, given, NULL, constant(F32, power(2.0, -0.5))])
        form = self.forms[inputs.gate_format]
        form.multiply(layer.input_gate, form.as_is(step.hidden, width), gates, NULL, few, width)
        form = self.forms[inputs.output_format]
        made = form.gated(gates, few, inputs.activation)
        form.multiply(layer.input_output, made, step.wide, NULL, width, few)
        added = [step.wide, e.index(width), step.hidden, layer.input_norm, epsilon]
        e.call(called.add_normed, added)
