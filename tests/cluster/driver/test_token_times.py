import pytest

from potluck.cluster.driver.token_times import WINDOW_S, TokenTimes


def test_the_mean_of_each_stage_is_known_after_a_while_of_computing() -> None:
    times = TokenTimes(2)
    for ms in (100.0, 700.0) * 6:
        assert times.stages_ms() is None
        times.note(WINDOW_S / 12, (ms, 10.0))

    assert times.stages_ms() == pytest.approx([400.0, 10.0])
    assert times.stages_ms() is None


def test_a_few_long_tokens_are_no_mean() -> None:
    times = TokenTimes(1)
    times.note(10 * WINDOW_S, (1.0,))

    assert times.stages_ms() is None


def test_a_peer_that_tells_of_other_stages_is_not_counted() -> None:
    times = TokenTimes(2)
    for _ in range(20):
        times.note(WINDOW_S, (1.0,))

    assert times.stages_ms() is None
    assert times.hops_ms() is None
