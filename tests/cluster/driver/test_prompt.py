"""How many tokens of a prompt are sent at once beside the answers of others."""

import pytest

from potluck.cluster.driver.prompt import TILE, TOKEN_S, PromptPace


class Stages:
    """Two stages alike, and the answers of others, beside a prompt whose chunks have the size that the pace says.

    A token of the others waits for a chunk at each stage.
    """

    def __init__(self, others_s: float, *, read_ms: float = 15.0, token_ms: float = 2.0) -> None:
        self.pace = PromptPace()
        self.others_s, self.read_ms, self.token_ms = others_s, read_ms, token_ms

    def chunk_ms(self, tokens: int) -> float:
        return self.read_ms + self.token_ms * tokens

    def takes_s(self, tokens: int) -> float:
        """How long a token of the others takes beside chunks of this size."""
        return self.others_s + 2 * self.chunk_ms(tokens) / 1000

    def run(self, chunks: int, most: int = 256) -> int:
        """Compute so many chunks; return the size of the next one."""
        size = self.pace.beside_others(most)
        under_way = [size, size]
        for _ in range(chunks):
            self.pace.note_token(self.takes_s(max(under_way)))
            done = under_way.pop(0)
            self.pace.note_chunk(done, (self.chunk_ms(done),) * 2)
            under_way.append(self.pace.beside_others(most))
        return self.pace.beside_others(most)


@pytest.mark.parametrize("others_s", [0.03, 0.06, 0.1, 0.15])
@pytest.mark.parametrize("token_ms", [0.2, 1.0, 2.0])
def test_a_chunk_is_as_large_as_the_time_of_others_tokens_allows(
    others_s: float, token_ms: float
) -> None:
    stages = Stages(others_s, token_ms=token_ms)

    size = stages.run(200)

    assert stages.takes_s(size) <= TOKEN_S
    # One tile more could take so long as if each tile read the weights.
    assert (
        size == 256
        or stages.takes_s(size) + 2 * stages.chunk_ms(size) * TILE / size / 1000 > TOKEN_S
    )


def test_chunks_shrink_when_the_others_become_more() -> None:
    stages = Stages(0.03)
    before = stages.run(100)
    stages.others_s = 0.12

    after = stages.run(100)

    assert TILE < after < before
    assert stages.takes_s(after) <= TOKEN_S


def test_small_chunks_do_not_stay_small_because_a_token_takes_longer_in_them() -> None:
    stages = Stages(0.2)
    assert stages.run(100) == TILE
    stages.others_s = 0.05

    assert stages.run(100) >= 4 * TILE


def test_a_token_that_was_late_once_costs_half_a_chunk_at_most() -> None:
    stages = Stages(0.03)
    before = stages.run(100)
    stages.pace.note_token(30.0)

    assert before // 2 - TILE < stages.run(1) < before
    assert stages.run(100) == before


def test_a_chunk_is_one_tile_at_least_and_no_larger_than_one_without_others() -> None:
    assert Stages(5.0).run(100) == TILE
    assert Stages(0.0, read_ms=0.1, token_ms=0.01).run(100, most=64) == 64


def test_chunks_stay_as_they_are_while_others_get_no_tokens() -> None:
    pace = PromptPace()
    first = pace.beside_others(256)
    for _ in range(10):
        pace.note_chunk(first, (20.0, 20.0))

    assert pace.beside_others(256) == first
