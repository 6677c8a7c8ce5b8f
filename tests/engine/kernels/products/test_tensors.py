"""Where packed matrices lie in memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_formats import every_format

from potluck.engine.kernels import Arena, PackedWeight, ReferenceKernels, best_kernels
from potluck.model.formats import INT4, PackedFormat

SHAPES = [(16, 32), (33, 70), (1024, 2048), (5, 5), (70_000, 1024), (4096, 512)]


@every_format
def test_matrices_of_an_arena_do_not_touch_each_other(weight_format: PackedFormat) -> None:
    arena = Arena()
    matrices = [PackedWeight.empty(*shape, weight_format, arena) for shape in SHAPES]
    for number, matrix in enumerate(matrices):
        matrix.data.fill_(number)

    for number, matrix in enumerate(matrices):
        assert matrix.data.data_ptr() % 64 == 0
        assert int(matrix.data.min()) == int(matrix.data.max()) == number


@pytest.mark.parametrize("rows", [16, 4096])
def test_a_matrix_alone_has_just_its_bytes(rows: int) -> None:
    matrix = PackedWeight.empty(rows, 4096, INT4)
    matrix.data.zero_()

    assert matrix.nbytes == rows * 4096 * 9 // 16
    assert torch.count_nonzero(matrix.data) == 0


@every_format
@pytest.mark.parametrize("shape", [(33, 70), (64, 96)])
def test_rows_that_are_looked_up_are_those_of_the_whole_matrix(
    shape: tuple[int, int], weight_format: PackedFormat
) -> None:
    matrix = best_kernels().pack(torch.randn(shape), weight_format)
    rows = torch.tensor([0, shape[0] - 1, 17, 17, 15])

    found = matrix.look_up(rows)

    torch.testing.assert_close(found, matrix.dequantise()[rows], rtol=0, atol=0)
    assert matrix.look_up(rows[:1]).shape == (1, shape[1])


@every_format
@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 70), width=st.integers(1, 100), block=st.integers(0, 4))
def test_what_is_unpacked_has_the_values_of_the_matrix(
    weight_format: PackedFormat, rows: int, width: int, block: int
) -> None:
    weight = torch.randn((rows, width), generator=torch.Generator().manual_seed(rows))
    matrix = ReferenceKernels().pack(weight, weight_format)
    first = min(16 * block, (rows - 1) // 16 * 16)

    unpacked = matrix.unpack(first, rows)

    signed = unpacked.integers.int() - weight_format.zero_point
    if weight_format.codes is not None:
        signed = torch.tensor(weight_format.codes)[unpacked.integers.int()]
    values = signed * unpacked.scales.float()[..., None]
    assert (unpacked.offsets is not None) == weight_format.has_offsets
    if unpacked.offsets is not None:
        values = values - unpacked.offsets.float()[..., None]
    whole = values.flatten(1)
    assert len(whole) % 16 == 0
    assert torch.equal(whole[: rows - first, :width], matrix.dequantise(first))


@every_format
@pytest.mark.parametrize("part", [(0, 16), (16, 32), (48, 27)])
def test_rows_of_a_matrix_are_its_own_memory(
    weight_format: PackedFormat, part: tuple[int, int]
) -> None:
    matrix = ReferenceKernels().pack(torch.randn(75, 70), weight_format)
    first, rows = part

    some = matrix.rows_of(first, rows)

    assert torch.equal(some.dequantise(), matrix.dequantise(first, first + rows))
    some.data.zero_()
    assert not matrix.dequantise(first, first + rows).any()
