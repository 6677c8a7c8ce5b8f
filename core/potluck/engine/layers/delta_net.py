"""A gated delta net of one session: convolution, recurrent state, gated norm."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.gates import GATE_FUNCTIONS
from potluck.engine.kernels.products.tensors import DeltaTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.delta_rule import delta_rule, unit
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.products import Product
from potluck.engine.layers.recurrent import (
    RecurrentMixer,
    convolve,
    finish_convolution,
    finish_decays,
)
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.powers import power

STATE = slice(2)  # the parts of a layer's state that `DeltaNetSpec.cache` has


def empty_tensors(
    spec: DeltaNetSpec, device: torch.device
) -> tuple[DeltaTensors, dict[str, Tensor]]:
    """Allocate a delta net's small tensors.

    Returns:
        The tensors, and by the name in files the memory to fill. Call `finish_tensors` after that.
    """
    heads = spec.value_heads
    tensors = DeltaTensors(
        rates=torch.empty(2 * heads, spec.hidden_size, device=device),
        convolution=torch.empty(spec.channels, 1, spec.inputs, device=device),
        decays=torch.empty(heads, device=device),
        offsets=torch.empty(heads, device=device),
        norm=torch.empty(spec.value_size, device=device),
    )
    small = (tensors.convolution, tensors.offsets, tensors.decays, tensors.norm)
    memory = dict(zip(spec.small_tensors, small, strict=True))
    parts = tensors.rates.split(spec.rates.rows)
    return tensors, memory | dict(
        zip((name for name, _ in spec.rates.tensors()), parts, strict=True)
    )


def finish_tensors(tensors: DeltaTensors, spec: DeltaNetSpec) -> None:
    """Bring what was loaded into the form that is computed with."""
    finish_convolution(tensors)
    if not spec.has_whole_decays:
        finish_decays(tensors)


class DeltaNet(RecurrentMixer[DeltaNetSpec, DeltaTensors]):
    """The mixer in torch."""

    __slots__ = ("_product",)

    def __init__(
        self,
        spec: DeltaNetSpec,
        input: Linear,  # noqa: A002 - as the specification calls it
        tensors: DeltaTensors,
        output: Linear,
        *,
        dtype: torch.dtype,
        product: Product = F.linear,
    ) -> None:
        """Make a mixer of hidden states of this dtype. `product` multiplies with matrices of f32."""
        super().__init__(spec, input, tensors, output, dtype=dtype)
        self._product = product

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) → the rows of `DeltaNetSpec.input` and of `rates`, (T, …), f32."""
        rates = self._product(x.float(), self.tensors.rates, None)
        return torch.cat([self.input(x).float(), rates], 1)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, H·V). The cache gets the state after these tokens."""
        assert isinstance(cache, StateCache)
        spec, tensors = self.spec, self.tensors
        before, state = cache.state(step.position, STATE)
        inputs, rates = rows.split([spec.channels + spec.values_size, 2 * spec.value_heads], 1)
        mixed, gates = self._in_order(inputs)
        mixed = convolve(mixed, before, tensors.convolution)
        q, k, v = mixed.split([spec.keys_size, spec.keys_size, spec.values_size], 1)
        q, k = (self._of_value_heads(unit(_heads(each, spec.key_heads))) for each in (q, k))
        q *= power(spec.key_size, -0.5)
        rates, steps = self._per_head(rates)  # β, and how far each decay goes
        log_decays = tensors.decays * F.softplus(steps + tensors.offsets)
        out = delta_rule(q, k, _heads(v, spec.value_heads), log_decays, rates.sigmoid(), state)
        normed = torch.rms_norm(out, tensors.norm.shape, tensors.norm, spec.norm_eps)
        gates = GATE_FUNCTIONS[spec.gate](_heads(gates, spec.value_heads))
        return normed.mul_(gates).flatten(1).to(self._dtype)

    def _in_order(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """All queries, keys and values, (T, channels), and the gates (T, H·V)."""
        spec = self.spec
        if not spec.has_joined_inputs:
            mixed, gates = inputs.split([spec.channels, spec.values_size], 1)
            return mixed, gates
        values = spec.group * spec.value_size
        of_heads = _heads(inputs, spec.key_heads)
        q, k, v, gates = of_heads.split([spec.key_size, spec.key_size, values, values], 2)
        return torch.cat([each.flatten(1) for each in (q, k, v)], 1), gates.flatten(1)

    def _per_head(self, rates: Tensor) -> tuple[Tensor, Tensor]:
        """The two numbers of each value head, (T, H) each."""
        if not self.spec.has_joined_rates:
            first, second = rates.chunk(2, 1)
        else:
            first, second = _heads(rates, self.spec.key_heads).chunk(2, 2)
        return first.flatten(1), second.flatten(1)

    def _of_value_heads(self, x: Tensor) -> Tensor:
        """(T, key heads, K) → (T, H, K): those of the key head of each value head."""
        group = self.spec.group
        if self.spec.has_tiled_heads:
            return x.repeat(1, group, 1)
        return x.repeat_interleave(group, 1)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(len(x), heads, -1) if x.is_contiguous() else x.reshape(len(x), heads, -1)
