"""Rows of integers are the packed ones, whatever the shape and however many at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.engine.accelerator.integers import integer_rows
from potluck.engine.kernels import ReferenceKernels
from potluck.engine.kernels.layout import ZERO_POINT

CPU = torch.device("cpu")


@pytest.mark.parametrize("bits", [4, 5, 8])
@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 70), width=st.integers(1, 100), at_once=st.sampled_from([16, 32, 1024]))
def test_rows_are_worth_what_the_packed_ones_are(
    bits: int, rows: int, width: int, at_once: int
) -> None:
    weight = torch.randn((rows, width), generator=torch.Generator().manual_seed(rows))
    packed = ReferenceKernels().pack(weight, bits)

    parts = list(integer_rows(packed, CPU, at_once))

    assert [part.first for part in parts] == list(range(0, rows, at_once))
    values: list[Tensor] = []
    for part in parts:
        some = (part.integers.int() - ZERO_POINT[bits]) * part.scales.float()[..., None]
        assert (part.offsets is not None) == (bits == 5)
        values.append(some if part.offsets is None else some - part.offsets.float()[..., None])
    whole = torch.cat(values).flatten(1)
    assert torch.equal(whole[:rows, :width], packed.dequantise())
    assert all(len(part.integers) <= at_once for part in parts)
