"""A delta net with a decay for each channel of one session: `model/mixing/channel_delta.py` has the formulas."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.gates import GATE_FUNCTIONS
from potluck.engine.kernels.products.tensors import DeltaTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.channel_rule import channel_rule
from potluck.engine.layers.delta_rule import unit
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.products import Product
from potluck.engine.layers.recurrent import (
    RecurrentMixer,
    convolve,
    finish_convolution,
    finish_decays,
)
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.powers import power


@dataclass(slots=True)
class ChannelTensors(DeltaTensors):
    """What the mixer has beside its large matrices, in f32."""

    decay_up: Tensor  # (H·K, K): what decays are made of → these

    @property
    def nbytes(self) -> int:
        parts = (self.rates, self.convolution, self.decays, self.offsets, self.norm, self.decay_up)
        return sum(part.nbytes for part in parts)


def empty_channel_tensors(
    spec: ChannelDeltaSpec, device: torch.device
) -> tuple[ChannelTensors, dict[str, Tensor]]:
    """Allocate the small tensors.

    Returns:
        The tensors, and by the name in files the memory to fill. Call `finish_channel_tensors` after that.
    """
    tensors = ChannelTensors(
        rates=torch.empty(sum(spec.rates.rows), spec.hidden_size, device=device),
        convolution=torch.empty(spec.channels, 1, spec.inputs, device=device),
        decays=torch.empty(spec.value_heads, device=device),
        offsets=torch.empty(spec.decays_size, device=device),
        norm=torch.empty(spec.value_size, device=device),
        decay_up=torch.empty(spec.decays_size, spec.key_size, device=device),
    )
    sizes = [shape[0] for shape in spec.convolutions.values()]
    small = (*tensors.convolution.split(sizes), tensors.offsets, tensors.decays, tensors.norm)
    memory = dict(zip(spec.small_tensors, small, strict=True))
    matrices = (*tensors.rates.split(spec.rates.rows), tensors.decay_up)
    names = [name for one in (spec.rates, spec.decays) for name, _ in one.tensors()]
    return tensors, memory | dict(zip(names, matrices, strict=True))


def finish_channel_tensors(tensors: ChannelTensors, spec: ChannelDeltaSpec) -> None:
    """Bring what was loaded into the form that is computed with."""
    finish_convolution(tensors)
    if not spec.has_whole_decays:
        finish_decays(tensors)
    if spec.least_log is not None:
        tensors.decays.neg_()


class ChannelDeltaNet(RecurrentMixer[ChannelDeltaSpec, ChannelTensors]):
    """The mixer in torch."""

    __slots__ = ("_product", "gates")

    def __init__(
        self,
        spec: ChannelDeltaSpec,
        input: Linear,  # noqa: A002 - as the specification calls it
        gates: Linear,
        tensors: ChannelTensors,
        output: Linear,
        *,
        dtype: torch.dtype,
        product: Product = F.linear,
    ) -> None:
        """Make a mixer of hidden states of this dtype. `product` multiplies with matrices of f32."""
        super().__init__(spec, input, tensors, output, dtype=dtype)
        self.gates, self._product = gates, product

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) → queries, keys, values, gates, β, and what decays are made of: (T, …), f32."""
        spec = self.spec
        first, of_gates = self.input(x).split((spec.channels, spec.value_size), 1)
        rates = self._product(x.float(), self.tensors.rates, None)
        rates, of_decays = rates.split((spec.value_heads, spec.key_size), 1)
        decays = self._product(of_decays.contiguous(), self.tensors.decay_up, None)
        gates = self.gates(of_gates.contiguous())
        return torch.cat([first.float(), gates.float(), rates, decays], 1)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, H·V). The cache gets the state after these tokens."""
        assert isinstance(cache, StateCache)
        spec, tensors = self.spec, self.tensors
        before, state = cache.state(step.position)
        sizes = (spec.channels, spec.values_size, spec.value_heads, spec.decays_size)
        mixed, gates, rates, steps = rows.split(sizes, 1)
        mixed = convolve(mixed, before, tensors.convolution)
        q, k, v = (self._heads(part) for part in mixed.chunk(3, 1))
        q, k = unit(q) * power(spec.key_size, -0.5), unit(k)
        steps, decays = self._heads(steps + tensors.offsets), tensors.decays[:, None]
        if spec.least_log is None:
            logs = decays * F.softplus(steps)
        else:
            logs = spec.least_log * (decays * steps).sigmoid()
        out = channel_rule(q, k, v, logs, rates.sigmoid(), state)
        normed = torch.rms_norm(out, tensors.norm.shape, tensors.norm, spec.norm_eps)
        return normed.mul_(GATE_FUNCTIONS[spec.gate](self._heads(gates))).flatten(1).to(self._dtype)

    @property
    def matrices(self) -> tuple[Linear, ...]:
        return self.input, self.gates, self.output

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.gates.nbytes

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), self.spec.value_heads, -1)
