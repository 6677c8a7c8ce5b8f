"""What a layer caches is arithmetic: rows, bytes, what moves and what can be trimmed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.model.caches import (
    MAX_CHUNK_TOKENS,
    WINDOW_SLACK,
    FullCache,
    KeysAndValues,
    WindowCache,
    layer_cache,
    session_bytes,
)
from potluck.model.config import ModelConfig

ROW = KeysAndValues(heads=2, size=16, number_bytes=2)
GEMMA = ModelConfig.from_dict(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 6,
        "vocab_size": 100,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    }
)


def test_a_row_holds_a_key_and_a_value_of_each_head_and_in_8_bits_their_scales() -> None:
    sizes = {bits: KeysAndValues(heads=2, size=16, number_bytes=bits).nbytes for bits in (1, 2, 4)}

    assert sizes == {4: 2 * 2 * 16 * 4, 2: 2 * 2 * 16 * 2, 1: 2 * 2 * (16 + 4)}


def test_a_full_cache_has_a_row_of_each_token_and_can_be_trimmed_anywhere() -> None:
    full = FullCache(row=ROW)

    assert full.nbytes(1000) == 1000 * ROW.nbytes
    assert full.advance(0, 10_000, 512) == 0
    assert [full.trim(0, position) for position in (0, 1, 999)] == [0, 1, 999]


def test_a_window_has_its_tokens_and_the_slack_however_long_the_session_is() -> None:
    window = WindowCache(row=ROW, window=512)

    assert [window.rows(tokens) for tokens in (1, 1000, 1536, 1537, 1 << 20)] == [
        1, 1000, 1536, 1536, 1536
    ]  # fmt: skip
    assert window.nbytes(1 << 20) == (512 + WINDOW_SLACK) * ROW.nbytes


def test_the_longest_step_fits_in_beside_a_window_that_has_little_slack() -> None:
    window = WindowCache(row=ROW, window=10, chunk=50, slack=4)

    assert window.rows(1000) == 60
    assert window.advance(0, 1000, 50) == 990


def test_what_a_layer_caches_depends_on_its_window() -> None:
    caches = [layer_cache(GEMMA, layer, 2) for layer in range(6)]

    assert caches == [WindowCache(row=ROW, window=512)] * 5 + [FullCache(row=ROW)]
    assert session_bytes(caches, 8192) == (5 * 1536 + 8192) * ROW.nbytes


def test_after_any_answer_three_quarters_of_the_slack_can_be_trimmed() -> None:
    """So 768 tokens: a regenerated answer is no replay."""
    cache = WindowCache(row=ROW, window=1024)
    first, answer = 0, WINDOW_SLACK * 3 // 4

    for end in range(1, 10_000):
        first = cache.advance(first, end - 1, 1)
        start = max(0, end - answer)
        assert cache.trim(first, start) == start

    assert first > 10_000 - cache.rows(10_000)
    assert WINDOW_SLACK >= MAX_CHUNK_TOKENS


@given(
    window=st.integers(1, 40),
    chunk=st.integers(1, 30),
    slack=st.integers(0, 40),
    steps=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60)), max_size=60),
)
def test_whatever_is_sent_what_a_step_looks_at_is_held_and_the_step_fits(
    window: int, chunk: int, slack: int, steps: list[tuple[int, int]]
) -> None:
    cache = WindowCache(row=ROW, window=window, chunk=chunk, slack=slack)
    first = position = 0
    for tokens, back in steps:
        tokens = min(tokens, chunk)
        moved = cache.advance(first, position, tokens)
        assert first <= moved <= max(0, position + 1 - window)
        assert position + tokens - moved <= cache.rows(10**6)
        first, position = moved, position + tokens
        assert cache.trim(first, position - tokens) == position - tokens  # the step may be repeated
        wanted = max(0, position - back)
        position = cache.trim(first, wanted)
        assert position in (0, wanted)
        first = first if position else 0


@pytest.mark.parametrize("first", [0, 1, 100])
def test_a_window_is_trimmed_to_where_its_rows_begin_and_not_one_token_further(first: int) -> None:
    cache = WindowCache(row=ROW, window=10)

    assert cache.trim(first, first + 9) == first + 9
    assert cache.trim(first, first + 8) == (first + 8 if first == 0 else 0)
