"""A rank's slice of a packed matrix."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from model_folders import CONFIG
from torch import Tensor
from weight_formats import every_format

from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.loading.slices import SlicedTarget
from potluck.engine.loading.targets import PackedTarget
from potluck.model.config import ModelConfig
from potluck.model.formats import INT4_SUPER, PackedFormat
from potluck.model.shares import Ranges, TensorSlice
from potluck.model.stored_slices import StoredSlice, stored_slice
from potluck.store.source import TensorSource

KERNELS = ReferenceKernels()
LLAMA = ModelConfig.from_dict(CONFIG)
ROWS, WIDTH = 70, 832  # the last block of rows and the last super-block are not whole
WEIGHT = torch.randn((ROWS, WIDTH), generator=torch.Generator().manual_seed(1))


def sliced(held: PackedFormat, part: TensorSlice) -> tuple[PackedWeight, SlicedTarget]:
    own = empty(held, part)
    return own, SlicedTarget(PackedTarget(own, 0, own.rows, KERNELS), part, (ROWS, WIDTH))


def empty(held: PackedFormat, part: TensorSlice) -> PackedWeight:
    rows, width = part.shape((ROWS, WIDTH))
    return PackedWeight.empty(rows, width, held)


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


CUTS = [
    TensorSlice(ranges=((0, 32),)),
    TensorSlice(ranges=((16, 32), (48, ROWS))),
    TensorSlice(axis="columns", ranges=((0, 96),)),
    TensorSlice(axis="columns", ranges=((256, 512), (768, WIDTH))),
    TensorSlice(axis="columns", ranges=((96, 160), (192, 640))),
]


@every_format
@pytest.mark.parametrize("part", CUTS, ids=str)
def test_what_a_rank_is_sent_gives_the_bytes_that_it_cuts_of_the_whole(
    tmp_path: Path, weight_format: PackedFormat, part: TensorSlice
) -> None:
    """Where blocks are cut, those are sent as a whole, and the rank cuts the rest."""
    whole = KERNELS.pack(WEIGHT, weight_format)
    expected, target = sliced(weight_format, part)
    target.fill_packed(0, whole.data)

    sent = sent_slice(tmp_path, whole.data, part, weight_format.dtype)
    own, within = empty(weight_format, part), sent.one.within
    if within is None:
        own.data[:] = sent.data
    else:
        packed = PackedTarget(own, 0, own.rows, KERNELS)
        SlicedTarget(packed, within, sent.one.shape).fill_packed(0, sent.data)

    assert torch.equal(own.data, expected.data)
    assert len(sent.data) < len(whole.data)


@pytest.mark.parametrize("part", CUTS, ids=str)
def test_a_slice_of_plain_numbers_is_cut_to_the_number(tmp_path: Path, part: TensorSlice) -> None:
    sent = sent_slice(tmp_path, WEIGHT.view(torch.uint8), part, "F32")

    values = sent.data.view(torch.float32).view(sent.one.shape)
    axis = 0 if part.axis == "rows" else 1
    pieces = [WEIGHT.narrow(axis, first, last - first) for first, last in part.ranges]
    assert sent.one.within is None
    assert torch.equal(values, torch.cat(pieces, axis))


@dataclass(frozen=True, slots=True)
class Sent:
    """What a rank is sent of a matrix."""

    one: StoredSlice
    data: Tensor


def sent_slice(folder: Path, data: Tensor, part: TensorSlice, dtype: str) -> Sent:
    """Cut out of the middle of a file, in pieces that end anywhere."""
    one = stored_slice(LLAMA, "any.weight", part, dtype, (ROWS, WIDTH))
    assert one is not None
    file, before = folder / "model", b"before"
    file.write_bytes(before + bytes(data.flatten().tolist()) + b"behind")
    source = TensorSource(path=file, offset=len(before), nbytes=one.nbytes, runs=one.runs)
    pieces = [source.read(at, 1000) for at in range(0, one.nbytes, 1000)]
    cut = b"".join(pieces)
    assert len(cut) == one.nbytes
    assert source.digest() == hashlib.sha256(cut).hexdigest()
    return Sent(one, torch.frombuffer(bytearray(cut), dtype=torch.uint8))
