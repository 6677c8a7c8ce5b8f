"""A rank's slice of a packed matrix."""

import pytest
import torch
from torch import Tensor
from weight_formats import every_format

from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.loading.slices import SlicedTarget
from potluck.engine.loading.targets import PackedTarget
from potluck.model.formats import INT4_SUPER, PackedFormat
from potluck.model.shares import Ranges, TensorSlice

KERNELS = ReferenceKernels()
ROWS, WIDTH = 70, 832  # the last block of rows and the last super-block are not whole
WEIGHT = torch.randn((ROWS, WIDTH), generator=torch.Generator().manual_seed(1))


def sliced(held: PackedFormat, part: TensorSlice) -> tuple[PackedWeight, SlicedTarget]:
    rows, width = part.shape((ROWS, WIDTH))
    own = PackedWeight.empty(rows, width, held)
    return own, SlicedTarget(PackedTarget(own, 0, rows, KERNELS), part, (ROWS, WIDTH))


def columns(values: Tensor, ranges: Ranges) -> Tensor:
    return torch.cat([values[:, first:last] for first, last in ranges], 1)


@every_format
@pytest.mark.parametrize(
    "part",
    [
        TensorSlice(ranges=((16, 32), (48, ROWS))),
        TensorSlice(axis="columns", ranges=((256, 512),)),
        TensorSlice(axis="columns", ranges=((0, 256), (512, WIDTH))),
    ],
    ids=str,
)
def test_packed_bytes_are_cut_as_they_are(weight_format: PackedFormat, part: TensorSlice) -> None:
    held = weight_format
    whole = KERNELS.pack(WEIGHT, held)
    own, target = sliced(held, part)

    half = held.nbytes(32, WIDTH)
    target.fill_packed(0, whole.data[:half])
    target.fill_packed(32, whole.data[half:])

    values = whole.dequantise()
    if part.axis == "columns":
        assert torch.equal(own.dequantise(), columns(values, part.ranges))
    else:
        assert torch.equal(own.dequantise(), torch.cat([values[16:32], values[48:]]))


def test_a_slice_that_cuts_a_super_block_is_packed_anew() -> None:
    whole = KERNELS.pack(WEIGHT, INT4_SUPER)
    part = TensorSlice(axis="columns", ranges=((96, 640),))
    own, target = sliced(INT4_SUPER, part)

    target.fill_packed(0, whole.data)

    exact = columns(WEIGHT, part.ranges)
    error = (own.dequantise() - exact).norm()
    assert error < 1.05 * (columns(whole.dequantise(), part.ranges) - exact).norm()


@pytest.mark.parametrize("first", [32, 256])
def test_integers_keep_their_steps_if_the_slice_is_of_whole_super_blocks(first: int) -> None:
    whole = KERNELS.pack(WEIGHT, INT4_SUPER)
    unpacked = whole.unpack(0, ROWS)
    assert unpacked.offsets is not None
    steps = whole.steps.permute(0, 3, 1, 2).flatten(0, 1)[:ROWS].float()
    part = TensorSlice(axis="columns", ranges=((first, WIDTH),))
    own, target = sliced(INT4_SUPER, part)

    integers = unpacked.integers.flatten(1).to(torch.int8)
    rows = ScaledIntegers(integers[:ROWS], unpacked.scales[:ROWS], unpacked.offsets[:ROWS], steps)
    target.fill_integers(0, rows)

    values = columns(whole.dequantise(), part.ranges)
    assert torch.equal(own.dequantise(), values) == (first == 256)
    assert (own.dequantise() - values).abs().max() < 0.25
