"""What a layer caches is arithmetic: rows, bytes, what moves and what can be trimmed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.model.cache_rows import KeysAndValues, Latent, State
from potluck.model.caches import (
    CHECKPOINT_TOKENS,
    CHECKPOINTS,
    MAX_CHUNK_TOKENS,
    WINDOW_SLACK,
    CacheSizes,
    ChunkCache,
    FullCache,
    RecurrentCache,
    RowsAndStateCache,
    WindowCache,
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


def test_a_latent_row_holds_what_all_heads_share_and_in_8_bits_a_scale_of_each_part() -> None:
    """DeepSeek-V3: 1152 bytes, where the keys and values of its 128 heads would take 81,920."""
    sizes = {bits: Latent(rank=512, rope=64, number_bytes=bits).nbytes for bits in (1, 2, 4)}

    assert sizes == {4: 2304, 2: 1152, 1: 512 + 4 + 64 + 4}
    assert FullCache(row=Latent(rank=512, rope=64, number_bytes=2)).nbytes(1000) == 1_152_000


def test_a_full_cache_has_a_row_of_each_token_and_can_be_trimmed_anywhere() -> None:
    full = FullCache(row=ROW)

    assert full.nbytes(1000) == 1000 * ROW.nbytes
    assert full.advance((0,), 10_000, 512) == (0,)
    assert [full.trim((0,), position) for position in (0, 1, 999)] == [0, 1, 999]


def test_a_token_reads_all_rows_those_of_its_window_or_one_state() -> None:
    row = KeysAndValues(heads=2, size=8, number_bytes=2)
    state = State(shapes=((3, 4),))

    assert [FullCache(row=row).read_bytes(tokens) for tokens in (1, 4096)] == [64, 64 * 4096]
    assert FullCache(row=Latent(rank=8, rope=4, number_bytes=2)).read_bytes(10) == 240
    windowed = WindowCache(row=row, window=100)
    assert [windowed.read_bytes(tokens) for tokens in (7, 100, 4096)] == [448, 6400, 6400]
    assert [RecurrentCache(row=state).read_bytes(tokens) for tokens in (1, 4096)] == [48, 48]


def test_a_window_has_its_tokens_and_the_slack_however_long_the_session_is() -> None:
    window = WindowCache(row=ROW, window=512)

    assert [window.rows(tokens) for tokens in (1, 1000, 1536, 1537, 1 << 20)] == [
        1, 1000, 1536, 1536, 1536
    ]  # fmt: skip
    assert window.nbytes(1 << 20) == (512 + WINDOW_SLACK) * ROW.nbytes


def test_the_longest_step_fits_in_beside_a_window_that_has_little_slack() -> None:
    window = WindowCache(row=ROW, window=10, chunk=50, slack=4)

    assert window.rows(1000) == 60
    assert window.advance((0,), 1000, 50) == (990,)


def test_what_a_layer_caches_depends_on_its_window() -> None:
    caches = [layer.cache(CacheSizes(number_bytes=2)) for layer in GEMMA.layers]

    assert caches == [WindowCache(row=ROW, window=512)] * 5 + [FullCache(row=ROW)]
    assert session_bytes(caches, 8192) == (5 * 1536 + 8192) * ROW.nbytes


def test_after_any_answer_three_quarters_of_the_slack_can_be_trimmed() -> None:
    """So 768 tokens: a regenerated answer is no replay."""
    cache = WindowCache(row=ROW, window=1024)
    held, answer = (0,), WINDOW_SLACK * 3 // 4

    for end in range(1, 10_000):
        held = cache.advance(held, end - 1, 1)
        start = max(0, end - answer)
        assert cache.trim(held, start) == start

    assert held[0] > 10_000 - cache.rows(10_000)
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
    held, position = (0,), 0
    for tokens, back in steps:
        tokens = min(tokens, chunk)
        moved = cache.advance(held, position, tokens)
        assert held[0] <= moved[0] <= max(0, position + 1 - window)
        assert position + tokens - moved[0] <= cache.rows(10**6)
        held, position = moved, position + tokens
        assert cache.trim(held, position - tokens) == position - tokens  # the step may be repeated
        wanted = max(0, position - back)
        position = cache.trim(held, wanted)
        assert position in (0, wanted)
        held = held if position else (0,)


def test_a_token_reads_its_chunk_alone_and_a_chunk_is_trimmed_to_where_it_begins() -> None:
    cache = ChunkCache(row=ROW, window=10)

    assert [cache.rows_read(tokens) for tokens in (0, 1, 10, 11, 29)] == [0, 1, 10, 1, 9]
    assert cache.trim((20,), 25) == 25
    assert cache.trim((21,), 25) == 0
    assert cache.rows(10**6) == WindowCache(row=ROW, window=10).rows(10**6)


@pytest.mark.parametrize("first", [0, 1, 100])
def test_a_window_is_trimmed_to_where_its_rows_begin_and_not_one_token_further(first: int) -> None:
    cache = WindowCache(row=ROW, window=10)

    assert cache.trim((first,), first + 9) == first + 9
    assert cache.trim((first,), first + 8) == (first + 8 if first == 0 else 0)


STATE = State(shapes=((32, 128, 128), (8192, 3)))  # of Qwen3-Next 80B


def test_a_state_and_its_checkpoints_take_the_same_bytes_however_long_the_session_is() -> None:
    cache = RecurrentCache(row=STATE)

    assert STATE.nbytes == 4 * (32 * 128 * 128 + 8192 * 3) == 2_195_456
    assert [cache.nbytes(tokens) for tokens in (0, 1, 1 << 20)] == [
        0, (1 + CHECKPOINTS) * STATE.nbytes, (1 + CHECKPOINTS) * STATE.nbytes
    ]  # fmt: skip


def test_a_checkpoint_is_made_before_each_chunk_and_now_and_then_before_a_token() -> None:
    cache, held = RecurrentCache(row=STATE, checkpoints=9, every=10), (0,) * 9
    steps = [
        (0, 7),
        (7, 2),
        (9, 1),
        *((position, 1) for position in range(10, 40)),
        (40, 5),
        (45, 1),
    ]

    for position, tokens in steps:
        held = cache.advance(held, position, tokens)

    assert held == (7, 17, 27, 37, 40, 0, 0, 0, 0)


def test_a_state_goes_back_to_the_last_checkpoint_that_is_not_too_late() -> None:
    cache, held = RecurrentCache(row=STATE), (30, 70, 10, 0)

    assert [cache.trim(held, position) for position in (9, 10, 69, 70, 1000)] == [0, 10, 30, 70, 70]


@pytest.mark.parametrize("checkpoints", [1, 2, CHECKPOINTS, 8])
@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_the_last_checkpoint_stays_and_no_more_than_so_many_are_held(
    checkpoints: int, tokens: int
) -> None:
    cache, held = RecurrentCache(row=STATE, checkpoints=checkpoints), (0,) * checkpoints
    for position in range(0, 20_000, tokens):
        before, held = held, cache.advance(held, position, tokens)
        assert len(held) == checkpoints
        assert len(set(held) - set(before)) <= 1
        assert position - max(held) < CHECKPOINT_TOKENS


@pytest.mark.parametrize(("checkpoints", "length", "most"), [(4, 8192, 2.5), (8, 32_768, 2.0)])
@pytest.mark.parametrize("tokens", [1, 256])
def test_to_go_back_takes_a_replay_of_a_few_times_as_many_tokens_and_not_of_all(
    checkpoints: int, length: int, most: float, tokens: int
) -> None:
    cache, held = RecurrentCache(row=STATE, checkpoints=checkpoints), (0,) * checkpoints
    for position in range(0, length, tokens):
        held = cache.advance(held, position, tokens)
        if position % 256 == 0:
            for missed in held:  # the worst wishes are those just before a checkpoint
                wish = max(0, missed - 1)
                back = position + tokens - wish
                assert wish - cache.trim(held, wish) <= most * (back + CHECKPOINT_TOKENS)


def test_rows_beside_a_state_go_on_where_the_state_can() -> None:
    rows = FullCache(row=KeysAndValues(heads=2, size=4, number_bytes=4))
    state = RecurrentCache(row=State(shapes=((3, 5),)), checkpoints=2)
    both = RowsAndStateCache(row=rows.row, tokens=rows, state=state)

    held = both.advance(both.advance((0, 0, 0), 0, 10), 10, 5)

    assert sorted(held[1:]) == [0, 10]
    assert [both.trim(held, position) for position in (12, 10, 9)] == [10, 10, 0]
    assert both.nbytes(100) == rows.nbytes(100) + state.nbytes(100)
    assert both.read_bytes(100) == rows.read_bytes(100) + state.read_bytes(100)
    assert both.shared(1000) == 0  # the state of another session is of no use
