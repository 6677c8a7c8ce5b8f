"""The largest magnitude is found by the bits of the numbers."""

import math

import pytest
import torch
from kernel_paths import BEST

from potluck.engine.kernels import Kernels, ReferenceKernels
from potluck.engine.kernels.called.generated import GeneratedKernels

KERNELS = [GeneratedKernels(BEST), ReferenceKernels()]


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("signs", [-1, 0, 1])
def test_the_largest_is_found_wherever_it_stands(
    kernels: Kernels, dtype: torch.dtype, signs: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (1, 3, 31, 64, 127, 128, 129, 300):
        numbers = torch.randn(count, generator=generator).to(dtype)
        numbers = numbers if not signs else signs * numbers.abs()
        for place in range(0, count, 7):
            some = numbers.clone()
            some[place] = 9.0 * (signs or -1)

            assert kernels.largest(some) == 9.0
            some[place] = math.copysign(math.inf, signs or -1)
            assert kernels.largest(some) == math.inf
            some[-1] = math.nan
            assert math.isnan(kernels.largest(some))


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
def test_of_rows_apart_from_each_other_only_their_numbers_count(kernels: Kernels) -> None:
    numbers = torch.ones(8, 40)
    numbers[:, 33] = 7.0

    assert kernels.largest(numbers[:, :33]) == 1.0
    assert kernels.largest(numbers[3:5]) == 7.0
    assert kernels.largest(numbers[:0]) == 0.0
