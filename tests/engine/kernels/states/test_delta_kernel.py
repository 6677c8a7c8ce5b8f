"""The kernel of a gated delta net computes what torch does, with the same bits however tokens come."""

from dataclasses import replace

import pytest
import torch
from kernel_paths import BEST, on_path
from torch import Tensor

from potluck.engine.caches.state_cache import StateCache
from potluck.engine.generated.delta_net import GeneratedDeltaNet
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.paths import Path
from potluck.engine.layers.attention import Step
from potluck.engine.layers.delta_net import DeltaNet, empty_tensors, finish_tensors
from potluck.engine.layers.linear import FloatLinear
from potluck.model.caches import CacheSizes, RecurrentCache
from potluck.model.mixing.delta_net import DeltaNetSpec

CPU = torch.device("cpu")
SPEC = DeltaNetSpec(
    hidden_size=32, key_heads=2, value_heads=6, key_size=16, value_size=24, inputs=4, norm_eps=1e-6,
    gate="silu", has_joined_inputs=True, has_joined_rates=True,
)  # fmt: skip
SPECS = {
    "joined": SPEC,
    "apart": replace(SPEC, has_joined_inputs=False, has_joined_rates=False),
    "rates joined": replace(SPEC, has_joined_inputs=False),
    "tiled, whole decays": replace(
        SPEC, has_joined_inputs=False, has_joined_rates=False, has_tiled_heads=True,
        has_whole_decays=True,
    ),
    "odd sizes, sigmoid": replace(
        SPEC, key_size=10, value_size=83, inputs=3, value_heads=2, gate="sigmoid"
    ),
}  # fmt: skip
TOKENS = 21


def make_mixers(spec: DeltaNetSpec, kernels: GeneratedKernels) -> tuple[DeltaNet, DeltaNet]:
    """By torch and by kernels, with the same random weights."""
    torch.manual_seed(0)
    tensors, memory = empty_tensors(spec, CPU)
    for name, part in memory.items():
        part.copy_(torch.randn(part.shape) * 0.3)
        if name.endswith("A_log"):
            part.sub_(2)
            if spec.has_whole_decays:
                part.copy_(-part.exp())
    finish_tensors(tensors, spec)
    first, last = (
        FloatLinear(torch.randn(sum(one.rows), one.width) * 0.2, None, torch.nn.functional.linear)
        for one in (spec.input, spec.output)
    )
    dtype = torch.float32
    return (
        DeltaNet(spec, first, tensors, last, dtype=dtype),
        GeneratedDeltaNet(spec, first, tensors, last, dtype=dtype, kernels=kernels),
    )


def run(mixer: DeltaNet, rows: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """What the mixer makes of rows in pieces of these sizes, and the state after them."""
    cache_spec = mixer.spec.cache(CacheSizes(number_bytes=4))
    assert isinstance(cache_spec, RecurrentCache)
    cache, position, out = StateCache(cache_spec, CPU), 0, list[Tensor]()
    cache.resize(cache_spec.rows(1), 0)
    for some in rows.clone().split(sizes):
        out.append(mixer.mix(some, cache, Step(position, len(some), (), CPU)))
        position += len(some)
    return torch.cat(out), torch.cat([part.flatten() for part in cache.state(position)])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(on_path(BEST.name, BEST, name, case=name) for name in SPECS),
        *(on_path(path.name, path, "joined", case="joined") for path in host_paths()[1:]),
    ],
)
@torch.inference_mode()
def test_the_kernel_computes_what_torch_does_with_the_same_bits_however_tokens_come(
    path: Path, name: str
) -> None:
    kernels = GeneratedKernels(path, threads=2)
    plain, generated = make_mixers(SPECS[name], kernels)
    rows = plain.project(torch.randn(TOKENS, SPEC.hidden_size))

    expected = run(plain, rows, (TOKENS,))
    whole = run(generated, rows, (TOKENS,))
    pieces = run(generated, rows, (5, 1, 1, 13, 1))
    kernels.close()

    for ours, theirs, again in zip(whole, expected, pieces, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
        assert torch.equal(again, ours)
