"""The scan of a state space by chunks is its definition."""

import pytest
import torch
from torch import Tensor

from potluck.engine.layers.mamba import scan

HEADS, STATE, SIZE = 3, 8, 5


def inputs(tokens: int) -> list[Tensor]:
    """x, B, C, logarithms of decays, and a state that other tokens left."""
    torch.manual_seed(tokens)
    b, c = (torch.randn(tokens, HEADS, STATE) for _ in range(2))
    state = torch.randn(HEADS, STATE, SIZE)
    return [torch.randn(tokens, HEADS, SIZE), b, c, -torch.rand(tokens, HEADS), state]


def by_definition(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    """S := g S + B x', and S' C of each token, in f64."""
    x, b, c, decays, state = (each.double() for each in given)
    out: list[Tensor] = []
    for token in range(len(x)):
        state = state * decays[token].exp()[:, None, None]
        state = state + torch.einsum("hn,hp->hnp", b[token], x[token])
        out.append(torch.einsum("hnp,hn->hp", state, c[token]))
    return torch.stack(out), state


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
def test_chunks_and_tokens_are_the_definition(tokens: int) -> None:
    given = inputs(tokens)
    expected, state = by_definition(given)

    out = scan(*given)

    torch.testing.assert_close(out, expected.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(given[-1], state.float(), rtol=1e-4, atol=1e-4)
