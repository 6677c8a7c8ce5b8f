"""Keys and values of int8: near to what they were, and never silently wrong."""

import torch

from potluck.engine.kernels.attending.cache import cached_width, dequantise_heads, quantise_heads


def test_a_number_is_half_a_step_away_at_most() -> None:
    heads = torch.randn(2, 3, 50, 64) * torch.logspace(-8, 8, 50)[:, None]

    cached = quantise_heads(heads)

    assert cached.dtype == torch.int8
    assert cached.shape == (2, 3, 50, cached_width(64, torch.int8))
    step = heads.abs().amax(-1, keepdim=True) / 127
    assert ((dequantise_heads(cached) - heads).abs() <= 0.501 * step).all()


def test_zeros_are_zeros_and_what_is_not_finite_shows() -> None:
    heads = torch.zeros(4, 10)
    heads[1, 3], heads[2, 4], heads[3, 5] = 1e-35, float("nan"), float("inf")

    numbers = dequantise_heads(quantise_heads(heads))

    assert (numbers[:2] == 0).all()
    assert not numbers[2].isfinite().any()
    assert not numbers[3].isfinite().all()


def test_a_head_of_any_size_is_read_back() -> None:
    cached = quantise_heads(torch.randn(1, 1, 8, 6))  # its scales begin between multiples of 4

    one = dequantise_heads(cached[:, :, 3:4])

    assert torch.equal(one, dequantise_heads(cached)[:, :, 3:4])


def test_16_bits_are_quantised_as_their_numbers() -> None:
    heads = torch.randn(5, 64).half()

    assert torch.equal(quantise_heads(heads), quantise_heads(heads.float()))


def test_other_kinds_are_as_wide_as_a_head() -> None:
    assert cached_width(64, torch.float16) == 64
    assert cached_width(10, torch.int8) == 14
