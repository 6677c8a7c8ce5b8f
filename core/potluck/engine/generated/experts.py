"""Which mixtures have kernels that compute all experts of a chunk at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.mlp import Mlp, Together
from potluck.engine.pages import Scratch
from potluck.model.families.facts import Activation

if TYPE_CHECKING:
    from potluck.engine.kernels.called.generated import GeneratedKernels


def make_together(
    mlps: Sequence[Mlp],
    activation: Activation,
    kernels: "GeneratedKernels | None",
    scratch: Scratch,
    *,
    scales_input: bool = False,
) -> Together | None:
    """What computes all of these experts at once; None: no kernels do, or files have them in several formats.

    `scales_input`: their factors multiply what they read.
    """
    packed = [
        (mlp.gate_up, mlp.down)
        for mlp in mlps
        if isinstance(mlp.gate_up, PackedLinear) and isinstance(mlp.down, PackedLinear)
    ]
    formats = {(gate_up.weight.format, down.weight.format) for gate_up, down in packed}
    if kernels is None or len(packed) != len(mlps) or len(formats) != 1:
        return None
    # Imported late: it brings llvmlite, which does not load on every computer.
    from potluck.engine.kernels.called.experts import PackedExpert, PackedExperts

    experts = [
        PackedExpert(
            gate_up=gate_up.weight,
            down=down.weight,
            gate_up_bias=gate_up.bias,
            down_bias=down.bias,
        )
        for gate_up, down in packed
    ]
    return PackedExperts(experts, activation, kernels, scratch, scales_input=scales_input)
