"""Where packed matrices lie in memory."""

import pytest
import torch

from potluck.engine.kernels import Arena, PackedWeight, best_kernels

SHAPES = [(16, 32), (33, 70), (1024, 2048), (5, 5), (70_000, 1024), (4096, 512)]


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_matrices_of_an_arena_do_not_touch_each_other(bits: int) -> None:
    arena = Arena()
    matrices = [PackedWeight.empty(*shape, bits, arena) for shape in SHAPES]
    for number, matrix in enumerate(matrices):
        matrix.data.fill_(number)

    for number, matrix in enumerate(matrices):
        assert matrix.data.data_ptr() % 64 == 0
        assert int(matrix.data.min()) == int(matrix.data.max()) == number


@pytest.mark.parametrize("rows", [16, 4096])
def test_a_matrix_alone_has_just_its_bytes(rows: int) -> None:
    matrix = PackedWeight.empty(rows, 4096, 4)
    matrix.data.zero_()

    assert matrix.nbytes == rows * 4096 * 9 // 16
    assert torch.count_nonzero(matrix.data) == 0


@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize("shape", [(33, 70), (64, 96)])
def test_rows_that_are_taken_are_those_of_the_whole_matrix(
    shape: tuple[int, int], bits: int
) -> None:
    matrix = best_kernels().pack(torch.randn(shape), bits)
    rows = torch.tensor([0, shape[0] - 1, 17, 17, 15])

    taken = matrix.take(rows)

    torch.testing.assert_close(taken, matrix.dequantise()[rows], rtol=0, atol=0)
    assert matrix.take(rows[:1]).shape == (1, shape[1])
