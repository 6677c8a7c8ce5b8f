"""Make MLPs and mixtures of experts from their specifications."""

import torch
from torch import Tensor

from potluck.engine.accelerator import experts_of
from potluck.engine.gates import finish_learned
from potluck.engine.generated.experts import make_together
from potluck.engine.kernels import Router
from potluck.engine.layers.linear import Linear, PackedLinear
from potluck.engine.layers.mlp import (
    GatedMlp,
    Mlp,
    MoE,
    PackedMlp,
    check_experts,
    route,
)
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.loading.matrices import MatrixBuilder
from potluck.model.layers import DenseSpec, MoeSpec, ParallelSpec
from potluck.model.powers import power


class FeedForwardBuilder(MatrixBuilder):
    """Makes feed-forwards."""

    def _mlp(self, prefix: str, spec: DenseSpec) -> Mlp:
        gate_up, down = self._linear(prefix, spec.gate_up), self._linear(prefix, spec.down)
        apply = self._ops.gate if self.generated is None else self.generated.gate
        learned = self._learned(prefix, spec)
        if isinstance(down, PackedLinear):
            return PackedMlp(gate_up, down, spec.activation, self.scratch, learned, apply)
        return GatedMlp(gate_up, down, spec.activation, apply, learned)

    def _learned(self, prefix: str, spec: DenseSpec) -> Tensor | None:
        """The numbers of the activation that were learned."""
        if spec.numbers:
            given = torch.tensor(spec.numbers, device=self._device)
            finish_learned(given)
            return given
        if not spec.learned:
            return None
        learned = torch.empty(len(spec.learned), device=self._device)
        for name, part in zip(spec.learned, learned.split(1), strict=True):
            self._filling.tensor(prefix + name, part)
        self._filling.then(lambda: finish_learned(learned))
        return learned

    def _moe(self, prefix: str, spec: MoeSpec) -> MoE:
        routing = spec.experts.routing
        mlps = [self._mlp(prefix, spec.expert(index)) for index in range(routing.count)]
        scales_input, placed, together = routing.scales_input, None, None
        if self.run_kernels is None:
            gate = self._ops.gate
            placed = experts_of(mlps, spec.activation, gate, scales_input=scales_input)
        else:
            together = make_together(
                mlps, spec.activation, self.generated, self.scratch, scales_input=scales_input
            )
        return MoE(
            self._router(prefix, spec),
            mlps,
            None if spec.shared is None else self._mlp(prefix, spec.shared),
            narrow=self._narrow(prefix, spec),
            route=route if self.generated is None else self.generated.route,
            together=together or placed,
            waits=placed is None,
        )

    def _narrow(self, prefix: str, spec: MoeSpec) -> tuple[Linear, Linear] | None:
        if spec.narrow is None:
            return None
        first, last = spec.narrow
        return self._linear(prefix, first), self._linear(prefix, last)

    def _parallel(self, prefix: str, spec: ParallelSpec, eps: float) -> ParallelMoE:
        moe = spec.moe
        assert moe.router_norm is not None
        router_norm = self.norm(prefix + moe.router_norm, eps)
        root = power(moe.hidden_size, -0.5)
        self._filling.then(lambda: router_norm.weight.mul_(root))
        return ParallelMoE(
            self._mlp(prefix, spec.dense),
            self._moe(prefix, moe),
            spec.norms.map(lambda name: self.norm(f"{prefix}{name}.weight", eps)),
            router_norm,
        )

    def _router(self, prefix: str, spec: MoeSpec) -> Router:
        routing, rows = spec.experts.routing, spec.router.rows
        matrix = torch.empty(routing.rows, spec.hidden_size, device=self._device)
        for name, part in zip(spec.router.parts, matrix.split(rows), strict=True):
            self._filling.tensor(f"{prefix}{name}.weight", part)
        addend = None
        if spec.router.has_bias:
            addend = torch.empty(routing.rows, device=self._device)
            for name, part in zip(spec.router.parts, addend.split(rows), strict=True):
                self._filling.tensor(f"{prefix}{name}.bias", part)
        small = (spec.choice_bias, spec.expert_scales)
        bias, scales = (self._vector(prefix, name, routing.count) for name in small)
        return Router(matrix, bias, routing, addend, scales, self._id_table(prefix, spec))

    def _id_table(self, prefix: str, spec: MoeSpec) -> Tensor | None:
        """The experts of each token's id, (ids, chosen); None: they are not chosen so."""
        routing = spec.experts.routing
        if (name := spec.id_table) is None or routing.vocabulary is None:
            return None
        shape = routing.vocabulary, routing.per_token
        table = torch.empty(shape, dtype=torch.int32, device=self._device)
        self._filling.tensor(prefix + name, table)
        self._filling.then(lambda: check_experts(table, prefix + name, routing.count))
        return table
