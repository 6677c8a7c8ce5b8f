"""A mixture of experts whose single tokens are one generated call; of many tokens each expert is itself."""

from torch import Tensor

from potluck.engine.kernels.experts import Expert, ExpertsDecoder
from potluck.engine.kernels.generated import GeneratedKernels
from potluck.engine.linear import PackedLinear
from potluck.engine.mlp import Experts, PackedMlp


class GeneratedExperts(Experts):
    """With hidden states in f32."""

    __slots__ = ("_decoder",)

    def __init__(self, experts: Experts, decoder: ExpertsDecoder) -> None:
        super().__init__(
            experts.router,
            experts.experts,
            per_token=experts.per_token,
            normalise=experts.normalise,
        )
        self._decoder = decoder

    def _add_one(self, total: Tensor, x: Tensor, weights: Tensor, chosen: Tensor) -> None:
        # In the order of the experts, as many tokens add them up.
        pairs = sorted(zip(chosen[0].tolist(), weights[0].tolist(), strict=True))
        numbers, factors = zip(*pairs, strict=True)
        total.add_(self._decoder(x, numbers, factors))


def generated_experts(experts: Experts) -> Experts:
    """The same with such a call; as they are where a matrix is not packed, or not in one piece."""
    weights: list[Expert] = []
    for expert in experts.experts:
        if not isinstance(expert, PackedMlp) or not isinstance(expert.gate_up, PackedLinear):
            return experts
        weights.append((expert.gate_up.weight, expert.down.weight))
    first = experts.experts[0]
    assert isinstance(first, PackedMlp)
    assert isinstance(first.down.kernels, GeneratedKernels)
    return GeneratedExperts(experts, ExpertsDecoder(first.down.kernels, weights, first.activation))
