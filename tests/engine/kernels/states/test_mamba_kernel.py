"""The kernels of a state space compute what torch does, with the same bits however tokens are cut."""

import pytest
import torch
from kernel_paths import every_generated
from torch import Tensor

from potluck.engine.caches.state_cache import StateCache
from potluck.engine.generated.mamba import mamba_heads
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.called.mamba import mamba
from potluck.engine.kernels.products.tensors import MambaTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.mamba import Mamba
from potluck.model.caches import CacheSizes, RecurrentCache
from potluck.model.mixing.mamba import MambaSpec

CPU, TOKENS = torch.device("cpu"), 70


def some_spec(head_size: int, groups: int) -> MambaSpec:
    return MambaSpec(
        hidden_size=32, block="mamba", heads=4, head_size=head_size, groups=groups, state_size=10, inputs=3,
        norm_eps=1e-5, has_bias=True,
    )  # fmt: skip


def some_tensors(spec: MambaSpec) -> MambaTensors:
    return MambaTensors(
        convolution=torch.randn(spec.inputs, spec.channels),
        bias=torch.randn(spec.channels),
        decays=-torch.rand(spec.heads),
        offsets=torch.randn(spec.heads),
        skips=torch.randn(spec.heads),
        norm=torch.randn(spec.values_size),
    )


def new_state(spec: MambaSpec) -> StateCache:
    cache = spec.cache(CacheSizes(number_bytes=4))
    assert isinstance(cache, RecurrentCache)
    made = StateCache(cache, CPU)
    made.resize(1, 0)
    return made


@every_generated
@pytest.mark.parametrize(("head_size", "groups"), [(5, 1), (16, 2), (70, 4)])
def test_the_kernels_compute_what_torch_does_however_tokens_are_cut(
    kernels: GeneratedKernels, head_size: int, groups: int
) -> None:
    torch.manual_seed(head_size)
    spec = some_spec(head_size, groups)
    tensors, rows = some_tensors(spec), torch.randn(TOKENS, sum(spec.input.rows))
    nothing = FloatLinear(torch.empty(0, 0), None, torch.nn.functional.linear)
    mixer = Mamba(spec, nothing, tensors, nothing, dtype=torch.float32)
    cache = new_state(spec)

    def computed(sizes: list[int]) -> tuple[Tensor, list[Tensor]]:
        state = [part.clone() for part in new_state(spec).state(0)]
        parts = [
            mamba(kernels, mamba_heads(spec), some.clone(), tensors, *state)
            for some in rows.split(sizes)
        ]
        return torch.cat(parts), state

    out, state = computed([TOKENS])
    cut, state_of_cut = computed([1, 1, 40, 7, 1, 20])

    expected = mixer.mix(rows.clone(), cache, Step(0, TOKENS, (), CPU))
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(state, cache.state(TOKENS), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert torch.equal(out, cut)
    assert all(torch.equal(one, other) for one, other in zip(state, state_of_cut, strict=True))
