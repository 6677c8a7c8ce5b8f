"""The gated delta rule by chunks, and by tokens, is its definition."""

import pytest
import torch
from torch import Tensor

from potluck.engine.layers.delta_rule import delta_rule, unit

HEADS, KEY, VALUE = 3, 8, 5


def inputs(tokens: int) -> list[Tensor]:
    """q, k, v, logarithms of decays, rates, and a state that other tokens left."""
    torch.manual_seed(tokens)
    q, k = (unit(torch.randn(tokens, HEADS, KEY)) for _ in range(2))
    decays = -torch.rand(tokens, HEADS)
    state = torch.randn(HEADS, KEY, VALUE)
    return [q, k, torch.randn(tokens, HEADS, VALUE), decays, torch.rand(tokens, HEADS), state]


def by_definition(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    """S := g S + k (rate (v - g S' k))', and S' q of each token, in f64."""
    q, k, v, decays, rates, state = (each.double() for each in given)
    out: list[Tensor] = []
    for token in range(len(q)):
        state = state * decays[token].exp()[:, None, None]
        known = torch.einsum("hkv,hk->hv", state, k[token])
        written = rates[token][:, None] * (v[token] - known)
        state = state + torch.einsum("hk,hv->hkv", k[token], written)
        out.append(torch.einsum("hkv,hk->hv", state, q[token]))
    return torch.stack(out), state


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
def test_chunks_and_tokens_are_the_definition(tokens: int) -> None:
    given = inputs(tokens)
    expected, state = by_definition(given)

    out = delta_rule(*given)

    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given[-1].double(), state, atol=1e-5, rtol=1e-5)


def test_keys_that_are_all_equal_stay_exact() -> None:
    """The triangular system is then the hardest: a series for its inverse would lose all digits."""
    given = inputs(64)
    given[1] = given[1][:1].expand(64, -1, -1).contiguous()
    given[3], given[4] = torch.full_like(given[3], -1e-3), torch.ones_like(given[4])
    expected, _ = by_definition(given)

    torch.testing.assert_close(delta_rule(*given).double(), expected, atol=1e-4, rtol=1e-4)
