"""A row of the embedding and the head of one token are what the matrices say."""

import weakref

import pytest
import torch
from kernel_paths import BEST, every_path
from weight_formats import every_format

from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.decoding.ends import EmbeddingLookup, Head
from potluck.engine.kernels.paths import Path
from potluck.model.formats import INT4, INT8, PackedFormat

WIDTH, EPSILON = 80, 1e-5


@every_path
@every_format
def test_a_row_is_that_of_the_matrix_times_the_multiplier(
    path: Path, weight_format: PackedFormat
) -> None:
    kernels = GeneratedKernels(path)
    weight = kernels.pack(torch.randn(131, WIDTH), weight_format)
    look_up = EmbeddingLookup(kernels, weight, 1.3)
    out = torch.empty(96)  # whole groups of 32

    for row in (0, 5, 16, 130):
        look_up(row, out.data_ptr())

        expected = weight.look_up(torch.tensor([row]))[0] * torch.tensor(1.3)
        assert torch.equal(out[:WIDTH], expected)


@every_path
@every_format
@pytest.mark.parametrize("threads", [1, 2])
def test_logits_are_the_product_with_the_normed_hidden_states(
    path: Path, weight_format: PackedFormat, threads: int
) -> None:
    kernels = GeneratedKernels(path, threads)
    weight, norm = kernels.pack(torch.randn(131, WIDTH), weight_format), torch.randn(WIDTH)
    head = Head(kernels, norm, 0.5, weight)

    for _ in range(20):
        # Their squares add up to 3.5 x 80, so that the norm is exact: one over the root of 3.5 + 0.5.
        hidden = torch.tensor([3.0, 2.0, 1.0, 0.0]).repeat(20)[torch.randperm(WIDTH)][None]
        best = head(hidden.data_ptr())

        expected = kernels.multiply(weight, kernels.quantise(hidden / 2 * norm))[0]
        assert torch.equal(head.logits, expected)
        assert best == expected.argmax()
    kernels.close()


@every_path
@pytest.mark.parametrize("rows", [(3, 70), (2, 18), (17, 130), (129, 130)], ids=str)
def test_of_equal_logits_the_first_is_the_best(path: Path, rows: tuple[int, int]) -> None:
    kernels = GeneratedKernels(path)
    weight = -torch.ones(131, WIDTH)
    weight[list(rows)] = -0.5
    head = Head(kernels, torch.ones(WIDTH), EPSILON, kernels.pack(weight, INT8))
    hidden = torch.ones(1, WIDTH)

    assert head(hidden.data_ptr()) == rows[0]


@every_path
def test_logits_that_are_too_large_for_f32_have_no_best(path: Path) -> None:
    kernels = GeneratedKernels(path)
    weight = torch.rand(131, WIDTH) * 1e5
    head = Head(kernels, torch.full((WIDTH,), 1e36), EPSILON, kernels.pack(weight, INT8))
    hidden = torch.ones(1, WIDTH)

    assert head(hidden.data_ptr()) is None
    assert head.logits.isposinf().any()
    assert not head.logits.isnan().any()


@every_path
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_have_no_best(path: Path, number: float) -> None:
    kernels = GeneratedKernels(path)
    head = Head(kernels, torch.ones(WIDTH), EPSILON, kernels.pack(torch.randn(131, WIDTH), INT4))
    hidden = torch.ones(1, WIDTH)
    hidden[0, 3] = number

    assert head(hidden.data_ptr()) is None
    assert not head.logits.isfinite().all()


def test_what_the_ends_compute_with_lives_as_long_as_they_do() -> None:
    kernels = GeneratedKernels(BEST)
    weight, norm = kernels.pack(torch.randn(131, WIDTH), INT4), torch.randn(WIDTH)
    matrix, weights_of_norm = weakref.ref(weight.data), weakref.ref(norm)

    look_up = EmbeddingLookup(kernels, weight)
    del weight
    assert matrix() is not None
    weight = kernels.pack(torch.randn(131, WIDTH), INT4)
    head_matrix = weakref.ref(weight.data)
    head = Head(kernels, norm, EPSILON, weight)
    del weight, norm
    assert head_matrix() is not None
    assert weights_of_norm() is not None

    del look_up, head
    assert (matrix(), head_matrix(), weights_of_norm()) == (None, None, None)
