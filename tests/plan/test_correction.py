from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.plan.correction import MAX_AGE_S, MAX_RATIO, MIN_RATIO, Correction


def corrected(*ratios: float) -> float:
    correction = Correction()
    for ratio in ratios:
        correction.observe(ratio, 0.0)
    return correction.factor(0.0)


def test_without_any_answer_the_profile_is_believed() -> None:
    assert corrected() == 1.0


def test_one_answer_counts_half() -> None:
    assert corrected(3.0) == 2.0


def test_one_answer_in_a_busy_moment_among_others_counts_nothing() -> None:
    assert corrected(1.0, 4.0, 1.0) == 1.0


@given(ratio=st.floats(MIN_RATIO, MAX_RATIO), answers=st.integers(2, 100))
def test_answers_that_agree_are_believed(ratio: float, answers: int) -> None:
    assert corrected(*[ratio] * answers) == ratio


@given(st.lists(st.floats(0.0, 1e9), max_size=40))
def test_a_correction_is_bounded_whatever_was_measured(ratios: list[float]) -> None:
    assert MIN_RATIO <= corrected(*ratios) <= MAX_RATIO


def test_the_order_of_answers_makes_no_difference() -> None:
    assert len({corrected(*order) for order in permutations((0.7, 1.2, 2.0, 3.5, 0.9))}) == 1


def test_an_answer_is_forgotten_with_time() -> None:
    correction = Correction()
    correction.observe(3.0, 10.0)

    assert correction.factor(9.9 + MAX_AGE_S) == 2.0
    assert correction.factor(10.0 + MAX_AGE_S) == 1.0


def test_the_last_answers_count() -> None:
    assert corrected(*[4.0] * 50, *[1.5] * 15) == pytest.approx(1.5)


NEEDED = 4  # that outweigh the profile


@given(
    ratio=st.floats(MIN_RATIO, MAX_RATIO),
    before=st.integers(0, 20),
    more=st.integers(0, 20),
)
def test_as_many_as_are_needed_are_believed_and_fewer_not_at_all(
    ratio: float, before: int, more: int
) -> None:
    correction = Correction(needed=NEEDED, most=2 * NEEDED - 2)
    for _ in range(before):
        correction.observe(1.0, 0.0)
    for _ in range(NEEDED - 1):
        correction.observe(ratio, 0.0)
        assert correction.factor(0.0) == 1.0
    for _ in range(1 + more):
        correction.observe(ratio, 0.0)
        assert correction.factor(0.0) == ratio


def test_a_correction_that_is_forgotten_leaves_the_profile() -> None:
    correction = Correction()
    correction.observe(3.0, 0.0)
    correction.forget()

    assert correction.factor(0.0) == 1.0
