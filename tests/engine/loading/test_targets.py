"""Targets take rows as files have them, and keep them in the order that is computed with."""

import gguf
import pytest
import torch
from quantised_tensors import random_matrix
from torch import Tensor

from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.loading.dequantise import StoredRows
from potluck.engine.loading.targets import PackedTarget, PairedTarget, TensorTarget
from potluck.model.formats import INT8
from potluck.model.row_order import PairedRows

INPUTS = 512


def as_llama_cpp_has_them(rows: Tensor, heads: int) -> Tensor:
    """`LlamaModel.permute` of convert_hf_to_gguf.py."""
    halves = rows.view(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape).contiguous()


@pytest.mark.parametrize("head", [64, 20])
@pytest.mark.parametrize("dtype", ["F16", "GGUF_Q8_0", "GGUF_Q5_1"])
def test_rows_of_heads_come_back_into_order(dtype: str, head: int) -> None:
    weight = random_matrix(20 * head, INPUTS)
    kind = gguf.GGMLQuantizationType[dtype.removeprefix("GGUF_")]
    blocks = gguf.quants.quantize(as_llama_cpp_has_them(weight, heads=20).numpy(), kind)
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
    filled = torch.empty_like(weight)
    target = PairedTarget(TensorTarget(filled), PairedRows(head=head, count=head))
    rows = StoredRows(dtype, INPUTS)

    for first in range(0, len(blocks), target.step):  # as a loader reads them
        piece = blocks[first : first + target.step]
        rows.fill(target, first, memoryview(bytearray(piece)))

    assert torch.equal(filled, torch.from_numpy(expected).float())


def test_a_bias_of_heads_comes_back_into_order() -> None:
    bias = torch.arange(60.0)
    stored = as_llama_cpp_has_them(bias, heads=3).numpy()
    filled = torch.empty(60)

    target = PairedTarget(TensorTarget(filled), PairedRows(head=20, count=20))
    StoredRows("F32", 1).fill(target, 0, memoryview(bytearray(stored)))

    assert torch.equal(filled, bias)


def test_only_the_rows_that_rope_turns_are_put_into_order() -> None:
    filled = torch.empty(24, 2)
    rows = torch.arange(24.0)[:, None].expand(-1, 2)

    target = PairedTarget(TensorTarget(filled), PairedRows(head=12, first=3, count=6))
    target.fill(0, rows)

    head = [0, 1, 2, 3, 5, 7, 4, 6, 8, 9, 10, 11]
    assert filled[:, 0].tolist() == [*head, *(12 + row for row in head)]


def test_packed_rows_in_pairs_keep_their_integers() -> None:
    packed = PackedWeight.empty(48, INPUTS, INT8)
    integers = torch.randint(-127, 128, (48, INPUTS), dtype=torch.int8)
    scales = torch.rand(48, INPUTS // 32).half().float()

    pairs = PairedRows(head=24, count=16)
    target = PairedTarget(PackedTarget(packed, 0, 48, ReferenceKernels()), pairs)
    target.fill_integers(0, ScaledIntegers(integers, scales))

    values = integers.float() * scales.repeat_interleave(32, 1)
    expected = values.unflatten(0, (2, 24))[:, pairs.order].flatten(0, 1)
    assert torch.equal(packed.dequantise(), expected)
