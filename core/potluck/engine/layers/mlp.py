"""The feed-forward of a layer: one gated MLP, or a mixture of experts (MoE), each a gated MLP."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.gates import Elementwise, gate, in_order
from potluck.engine.kernels import QuantisedInput, Router
from potluck.engine.layers.linear import Linear, PackedLinear
from potluck.engine.layers.products import Product
from potluck.engine.pages import Scratch
from potluck.errors import BrokenModelError
from potluck.model.families.facts import Activation
from potluck.model.routing import LEAST_SUM, Routing

_TOKENS = 64  # the gates and ups of so many tokens are in memory at a time, in f32


class Mlp(Protocol):
    """A gated MLP: down(activation(gate x) · (up x)) (https://arxiv.org/abs/2002.05202)."""

    @property
    def gate_up(self) -> Linear:
        """The matrix of gates and ups: all gates before all ups, or in pairs, as the activation says."""
        ...

    @property
    def down(self) -> Linear: ...

    @property
    def learned(self) -> Tensor | None:
        """The numbers of the activation that were learned, f32."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """(T, D) → (T, D)."""
        ...

    @property
    def nbytes(self) -> int: ...


class Gate(Protocol):
    """How an MLP's gates are applied: see `gate`."""

    def __call__(
        self, gate_up: Tensor, activation: Activation, learned: Tensor | None = None, /
    ) -> Tensor: ...


class GatedMlp:
    """An MLP of plain numbers."""

    __slots__ = ("_gate", "activation", "down", "gate_up", "learned")

    def __init__(
        self,
        gate_up: Linear,
        down: Linear,
        activation: Activation,
        gate: Gate = gate,
        learned: Tensor | None = None,
    ) -> None:
        self.gate_up, self.down, self.learned = gate_up, down, learned
        self.activation: Activation = activation
        self._gate = gate

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._gate(self.gate_up(x), self.activation, self.learned))

    @property
    def nbytes(self) -> int:
        learned = 0 if self.learned is None else self.learned.nbytes
        return self.gate_up.nbytes + self.down.nbytes + learned


class PackedMlp:
    """An MLP in which one kernel applies the activation and quantises the result for `down`.

    A chunk is computed a few tokens at a time, in the same scratch memory: gates and ups of a whole
    chunk would be the largest thing that prefill holds.
    """

    __slots__ = ("_apply", "_scratch", "activation", "down", "gate_up", "learned")

    def __init__(
        self,
        gate_up: Linear,
        down: PackedLinear,
        activation: Activation,
        scratch: Scratch | None = None,
        learned: Tensor | None = None,
        apply: Gate = gate,
    ) -> None:
        """Make an MLP. MLPs that never compute at the same time may share a `scratch`.

        `apply` applies an activation that has learned numbers, since no kernel quantises what it gives at once.
        """
        self.gate_up, self.down = gate_up, down
        self.learned, self._apply = learned, apply
        self.activation: Activation = activation
        self._scratch = scratch or Scratch()

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= _TOKENS:
            return self.down.multiply(self._gate(x))
        y = torch.empty_like(x)
        for some, out in zip(x.split(_TOKENS), y.split(_TOKENS), strict=True):
            self.down.multiply(self._gate(some), out)
        return y

    @property
    def nbytes(self) -> int:
        learned = 0 if self.learned is None else self.learned.nbytes
        return self.gate_up.nbytes + self.down.nbytes + learned

    def _gate(self, x: Tensor) -> QuantisedInput:
        kernels, gate_up = self.down.kernels, self.gate_up
        if isinstance(gate_up, PackedLinear):
            gates = self._scratch.floats(len(x), gate_up.weight.rows)
            gate_up.multiply(kernels.quantise(x), gates)
        else:
            gates = gate_up(x)
        if self.learned is not None:
            return kernels.quantise(self._apply(gates, self.activation, self.learned))
        return kernels.quantise_gated(gates, self.activation)


Together = Callable[[Tensor, Tensor, int, Tensor | None], Tensor | None]
"""How all experts are computed at once: `PackedExperts`."""
Route = Callable[..., Tensor]
"""How experts are chosen: see `route`. Only a router with a table of ids is given ids."""

_BY_ELEMENT = Elementwise()


def check_experts(table: Tensor, name: str, count: int) -> None:
    """Refuse a table of ids that has experts which are not there."""
    if not 0 <= int(table.min()) <= int(table.max()) < count:
        raise BrokenModelError(
            f"The table {name} names experts beyond the {count} that the model has: the files are damaged. Download"
            " the model again.",
            tensor=name,
        )


def route(
    x: Tensor,
    router: Router,
    ids: Tensor | None = None,
    *,
    product: Product = F.linear,
    apply: Elementwise = _BY_ELEMENT,
) -> Tensor:
    """Return what each expert's output is multiplied with, (T, rows), f32; negative where it is not chosen.

    The last column is the factor of the shared expert, if that has one. `ids` are those of the tokens, (T,), if a table
    says their experts; `product` multiplies with matrices of f32, and `apply` computes functions.
    """
    routing = router.routing
    products = product(x.float(), router.matrix, router.addend)
    scores, shared = products[:, : routing.count], products[:, routing.count :].sigmoid()
    match routing.function:
        case "softmax":
            probabilities = scores.softmax(-1)
        case "sigmoid":
            probabilities = apply(scores, "sigmoid")
        case "sqrtsoftplus":
            probabilities = apply(scores, "softplus").sqrt_()
        case "sparse mixer":
            return _sparse_mixture(scores, routing, apply)
    if router.id_table is not None:
        assert ids is not None
        chosen = router.id_table[ids.to(router.id_table.device).long()].long()
    else:
        chosen = _best(scores, probabilities, router)  # (T, k)
    factors = probabilities.gather(1, chosen)
    if routing.normalise:
        factors /= in_order(factors, -1, keepdim=True) + LEAST_SUM
    factors *= routing.scale
    result = torch.full_like(probabilities, -1.0).scatter_(1, chosen, factors)
    return torch.cat([result, shared], 1) if routing.has_shared_gate else result


def _sparse_mixture(scores: Tensor, routing: Routing, apply: Elementwise) -> Tensor:
    """What `route` returns for a sparse mixer: see `ScoreFunction`."""
    result, left = torch.full_like(scores, -1.0), scores
    for _ in range(routing.per_token):
        highest, best = left.max(-1, keepdim=True)
        below = (highest - scores) / scores.abs().maximum(highest)
        powers = apply(left - highest, "exponential").masked_fill(below > routing.jitter, 0.0)
        result.scatter_(1, best, routing.scale / in_order(powers, -1, keepdim=True))
        left = left.scatter(1, best, -torch.inf)
    return result


def _best(scores: Tensor, probabilities: Tensor, router: Router) -> Tensor:
    """The experts with the highest choices, (T, k)."""
    routing = router.routing
    choice = scores if routing.chooses_products else probabilities
    if router.bias is not None:
        choice = choice + router.bias
    if routing.groups > 1:
        choice = _in_best_groups(choice, routing)
    return choice.topk(routing.per_token, -1).indices


def _in_best_groups(choice: Tensor, routing: Routing) -> Tensor:
    """The choices (T, E), with -inf outside of the best groups."""
    groups = choice.view(len(choice), routing.groups, -1)
    best = (
        groups.topk(routing.best_in_group, -1)
        .values.sum(-1)
        .topk(routing.groups_per_token, -1)
        .indices
    )
    is_out = torch.ones(groups.shape[:2], dtype=torch.bool, device=choice.device)
    is_out.scatter_(1, best, False)
    return groups.masked_fill(is_out[..., None], -torch.inf).view_as(choice)


class MoE:
    """A mixture of experts: each token goes through the few that the router chooses, and through the shared one.

    Router, factors and sums are f32, whatever the dtype of the experts, since the choice compares
    numbers that are close to each other. Only chosen experts are computed. A token's experts are added in
    the order of their indices, also where kernels compute one token.
    """

    __slots__ = ("_route", "_together", "experts", "narrow", "router", "shared", "waits")

    def __init__(
        self,
        router: Router,
        experts: Sequence[Mlp],
        shared: Mlp | None = None,
        *,
        narrow: tuple[Linear, Linear] | None = None,
        route: Route = route,
        together: Together | None = None,
        waits: bool = True,
    ) -> None:
        """Make a mixture.

        Args:
            router: what chooses experts.
            experts: all of them.
            shared: the one that each token goes through.
            narrow: matrices (N, D) and (D, N), where experts, but the shared one, read and write N numbers.
            route: how experts are chosen.
            together: what computes the same as the experts; None: each is computed by itself.
            waits: whether one token waits until it is known here which experts its device has chosen.
        """
        self.router, self.experts, self.shared = router, tuple(experts), shared
        self.narrow = narrow
        self._route, self._together, self.waits = route, together, waits

    def __call__(
        self, x: Tensor, routed: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """(T, D) → (T, D). Each expert is computed once, for all the tokens that chose it.

        The router reads `routed`, or x as the experts do, and a table the tokens' `ids`.
        """
        by_id = () if self.router.id_table is None else (ids,)
        factors = self._route(x if routed is None else routed, self.router, *by_id)
        if self.narrow is None:
            total = self._chosen(x, factors)
        else:
            first, last = self.narrow
            total = last(self._chosen(first(x), factors).to(x.dtype)).float()
        if self.shared is not None:
            y, routing = self.shared(x), self.router.routing
            if routing.has_shared_gate:
                y = y * factors[:, -1:]
            elif routing.shared_scale != 1.0:
                y = y * routing.shared_scale
            total += y
        return total.to(x.dtype)

    def _chosen(self, x: Tensor, factors: Tensor) -> Tensor:
        """The sum of factor x expert, (T, D) or of the few numbers that experts have, f32."""
        total = None
        if self._together is not None:
            per_token = self.router.routing.per_token
            total = self._together(x, factors, per_token, self.router.scales)
        return self._one_by_one(x, factors) if total is None else total

    def _one_by_one(self, x: Tensor, factors: Tensor) -> Tensor:
        """The same, one expert after the other."""
        scales = self.router.scales
        is_chosen = ~(
            factors[:, : len(self.experts)] < 0
        )  # a factor that is not a number shows in the result
        experts, tokens = is_chosen.T.nonzero().unbind(-1)
        counts = experts.bincount(minlength=len(self.experts)).tolist()
        total = torch.zeros(x.shape, device=x.device)
        for index, rows in enumerate(tokens.split(counts)):
            if len(rows):
                factor = factors[rows, index, None]
                if scales is not None:
                    factor = factor * scales[index]
                if self.router.routing.scales_input:
                    y = self.experts[index]((x[rows] * factor).to(x.dtype)).float()
                else:
                    y = self.experts[index](x[rows]) * factor
                total.index_add_(0, rows, y)
        return total

    @property
    def mlps(self) -> tuple[Mlp, ...]:
        """The experts, and the shared one if there is one."""
        return self.experts if self.shared is None else (*self.experts, self.shared)

    @property
    def nbytes(self) -> int:
        router = self.router
        small = (router.bias, router.addend, router.scales, router.id_table)
        parts = (router.matrix, *small, *(self.narrow or ()))
        own = sum(part.nbytes for part in parts if part is not None)
        return own + sum(mlp.nbytes for mlp in self.mlps)
