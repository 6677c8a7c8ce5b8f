"""Blocks of GGUF hold what the `gguf` package says, to the bit, and integers stay integers."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from quantised_tensors import random_matrix
from torch import Tensor
from weight_formats import every_format

from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.kernels.products.gguf_blocks import block_integers, block_numbers, block_offsets
from potluck.engine.loading.dequantise import StoredRows
from potluck.engine.loading.targets import PackedTarget
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, PackedFormat
from potluck.model.quantized import GGUF_BLOCKS

WIDTH = 512
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # what the package can make itself
INTEGERS = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL")

OFFSETS = ["Q4_1", "Q4_K"]


def blocks_of(kind: str, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return bytes (rows, bytes of a row), and the values that the `gguf` package reads from them."""
    dtype = gguf.GGMLQuantizationType[kind]
    if kind in QUANTISED:
        blocks = gguf.quants.quantize(random_matrix(rows, WIDTH, seed).numpy(), dtype)
    else:
        blocks = random_blocks(kind, rows, seed)
    values = torch.from_numpy(gguf.quants.dequantize(blocks, dtype))
    return torch.from_numpy(blocks), values


def random_blocks(kind: str, rows: int, seed: int) -> np.ndarray:
    """Any bytes are blocks; only their scales, which are f16, must be numbers."""
    inputs, nbytes = GGUF_BLOCKS[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, WIDTH // inputs, nbytes), dtype=np.uint8)
    if kind == "MXFP4":  # its scale is an exponent in one byte
        blocks[..., 0] = random.integers(100, 130, blocks.shape[:2])
        return blocks.reshape(rows, -1)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for at in halves.get(kind, (0,)):
        scales = random.uniform(0.001, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", sorted(GGUF_BLOCKS))
def test_blocks_are_worth_what_the_package_says(kind: str) -> None:
    blocks, values = blocks_of(kind, rows=75)

    found = block_integers(kind, blocks)

    assert (found is not None) == (kind in (*INTEGERS, "MXFP4"))
    numbers = block_numbers(kind, blocks) if found is None else found.values()
    assert numbers.dtype == torch.float32
    assert torch.equal(numbers, values)


@pytest.mark.parametrize("kind", sorted(GGUF_BLOCKS))
def test_offsets_are_what_the_package_subtracts(kind: str) -> None:
    blocks, values = blocks_of(kind, rows=75)

    found = block_offsets(kind, blocks)

    assert (found is not None) == (kind in OFFSETS)
    if found is not None:
        assert torch.equal(found.values(), values)
        assert 0 <= int(found.integers.min()) <= int(found.integers.max()) <= 15


@pytest.mark.parametrize("kind", OFFSETS)
def test_with_offsets_only_scales_and_offsets_are_rounded(kind: str) -> None:
    blocks, values = blocks_of(kind, rows=48)
    packed = PackedWeight.empty(48, WIDTH, INT4_OFFSET)
    rows = StoredRows(f"GGUF_{kind}", WIDTH)

    target = PackedTarget(packed, 0, 48, ReferenceKernels())
    rows.fill(target, 0, memoryview(bytearray(blocks.numpy().tobytes())))

    found = block_offsets(kind, blocks)
    assert found is not None
    scales, offsets = found.scales, found.offsets
    assert offsets is not None
    rounded = replace(found, scales=scales.half().float(), offsets=offsets.half().float()).values()
    assert torch.equal(packed.dequantise(), rounded)
    assert kind == "Q4_K" or torch.equal(rounded, values)  # whose factors are f16 already
    largest = 15 * scales.abs() + offsets.abs()
    limit = 2.0**-11 * largest.repeat_interleave(32, 1) + 2.0**-24
    assert ((rounded - values).abs() <= 1.01 * limit).all()


def test_in_super_blocks_numbers_of_q4_k_stay_as_they_are() -> None:
    blocks, values = blocks_of("Q4_K", rows=48)
    packed = PackedWeight.empty(48, WIDTH, INT4_SUPER)

    target = PackedTarget(packed, 0, 48, ReferenceKernels())
    StoredRows("GGUF_Q4_K", WIDTH).fill(target, 0, memoryview(bytearray(blocks.numpy().tobytes())))

    assert torch.equal(packed.dequantise(), values)


@every_format
@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_packed_as_they_are(kind: str, weight_format: PackedFormat) -> None:
    blocks, values = blocks_of(kind, rows=48)
    packed = PackedWeight.empty(48, WIDTH, weight_format)
    rows = StoredRows(f"GGUF_{kind}", WIDTH)

    target = PackedTarget(packed, 0, 48, ReferenceKernels())
    rows.fill(target, 0, memoryview(bytearray(blocks.numpy().tobytes())))

    assert torch.equal(packed.dequantise(), values) == (
        weight_format is INT8 or (kind == "Q4_0" and weight_format in (INT4, INT4_OFFSET))
    )


def test_scales_that_are_no_numbers_are_no_integers_either() -> None:
    blocks = torch.full((16, GGUF_BLOCKS["Q8_0"][1]), 0x7F, dtype=torch.uint8)  # NaN in f16

    found = block_integers("Q8_0", blocks)

    assert found is not None
    assert found.scales.isnan().all()
