"""Integers stand where torch's sources for a device want them, and 8 bits are two matrices of 4."""

import pytest
import torch
from torch import Tensor
from torch_forms import CpuForm

from potluck.engine.accelerator.int4pack import (
    CudaForm,
    Int4Form,
    MpsForm,
    inner_k_tiles,
    int4_form,
    planes,
)
from potluck.engine.kernels.products.tensors import UnpackedRows
from potluck.model.formats import INT4_OFFSET, INT8

CPU = torch.device("cpu")


def nibbles(rows: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(16, (rows, width), dtype=torch.uint8, generator=generator)


def cuda_words(integers: Tensor, tiles: int) -> Tensor:
    """`matrix_to_m16n8k16_Bint4_layout` of int4mm.cu, one word after the other.

    Lane t of a warp has row t / 4, and of two neighbouring tiles of 16 inputs those at 2 (t mod 4),
    eight more, and the same in the second tile; the next input of each in the upper 16 bits.
    """
    rows, width = integers.shape
    words = torch.zeros((rows // 8, width // (16 * tiles), 32, tiles // 2), dtype=torch.int64)
    for n in range(words.shape[0]):
        for k in range(words.shape[1]):
            for t in range(32):
                row = integers[8 * n + t // 4]
                for pair in range(tiles // 2):
                    first = (k * tiles + 2 * pair) * 16 + 2 * (t % 4)
                    at = [first, first + 8, first + 16, first + 24]
                    order = at + [each + 1 for each in at]
                    word = sum(int(row[each]) << 4 * bit for bit, each in enumerate(order))
                    words[n, k, t, pair] = word
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@pytest.mark.parametrize(("width", "tiles"), [(32, 2), (64, 4), (96, 2), (128, 8), (256, 8)])
def test_the_order_of_a_tensor_core_is_undone(width: int, tiles: int) -> None:
    integers = nibbles(16, width)

    words = cuda_words(integers, tiles)

    assert inner_k_tiles(width) == tiles
    assert words.shape == CudaForm().empty(16, width, CPU).shape
    assert torch.equal(CudaForm().unpack(words), integers)


@pytest.mark.parametrize("width", [32, 64, 96, 128])
def test_the_order_of_apples_gpus_is_undone(width: int) -> None:
    form = MpsForm()
    integers = nibbles(16, width)
    packed = form.empty(16, width, CPU)
    # `weight_to_int4pack` of Quantized.metal: the even input in the low half, row after row.
    packed.view(torch.uint8).view(16, -1)[:] = integers[:, ::2] | integers[:, 1::2] << 4

    assert torch.equal(form.unpack(packed), integers)


@pytest.mark.parametrize("form", [CudaForm(), MpsForm(), CpuForm()], ids=["cuda", "mps", "cpu"])
def test_parts_of_the_memory_are_those_of_their_rows(form: Int4Form) -> None:
    whole = form.empty(64, 96, CPU)
    whole.zero_()

    form.rows_of(whole, 16, 48).fill_(7)

    assert (
        whole.view(64 // 8, -1).count_nonzero(1).bool().tolist()
        == [False] * 2 + [True] * 4 + [False] * 2
    )
    assert whole.nbytes == 64 * 96 // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torch_multiplies_with_eight_less_than_the_integers(dtype: torch.dtype) -> None:
    form = CpuForm()
    integers = nibbles(48, 96)
    scales, zeros, x = torch.rand(3, 48), torch.randn(3, 48), torch.randn(5, 96)
    packed = form.convert(integers)

    both = torch.stack((scales, zeros), -1).to(dtype)
    y = form.multiply(x.to(dtype), packed, both)

    spread = both.float().repeat_interleave(32, 0)  # (96, 48, 2)
    weight = (integers.float() - 8) * spread[..., 0].t() + spread[..., 1].t()
    expected = x.to(dtype).float() @ weight.t()
    assert ((y.float() - expected).norm() / expected.norm()).item() < 2 * torch.finfo(dtype).eps


def test_eight_bits_are_the_sum_of_two_matrices_of_four() -> None:
    integers = torch.arange(256, dtype=torch.uint8).repeat(16, 1).view(16, 8, 32)
    scales = torch.rand(16, 8)

    fours, fourscales, zeros = planes(UnpackedRows(integers, scales, None, INT8))

    values = (fours.view(16, 16, 32).float() - 8) * fourscales[..., None] + zeros[..., None]
    sums = values[:, :8] + values[:, 8:]
    expected = (integers.float() - 128) * scales[..., None]
    assert torch.allclose(sums, expected, rtol=0, atol=1e-5 * 128)
    assert int(fours.max()) == 15


def test_offsets_become_zeros() -> None:
    integers = torch.arange(512, dtype=torch.uint8).remainder_(16).repeat(16, 1).view(16, 16, 32)
    scales, offsets = torch.rand(16, 16), torch.randn(16, 16)

    fours, fourscales, zeros = planes(UnpackedRows(integers, scales, offsets, INT4_OFFSET))

    values = (fours.view(16, 16, 32).float() - 8) * fourscales[..., None] + zeros[..., None]
    expected = integers.float() * scales[..., None] - offsets[..., None]
    assert torch.allclose(values, expected, rtol=0, atol=1e-5)


def test_a_device_that_torch_has_no_product_for_has_no_form() -> None:
    assert isinstance(int4_form(torch.device("cuda")), CudaForm)
    assert isinstance(int4_form(torch.device("mps")), MpsForm)
    assert int4_form(torch.device("meta")) is None
