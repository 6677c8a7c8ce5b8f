import pytest

from faults.judging import Answer, Judgement, judge, stall_s, worst

UNDISTURBED = Answer(asked_at=0.0, ids=[1, 2, 3, 4], text="abcd", done=True)


def answer(ids: list[int], *, text: str = "", done: bool = False, error: str = "") -> Answer:
    return Answer(
        asked_at=0.0, ids=ids, text=text, done=done, error=error or None, code="peer_lost"
    )


def test_the_same_tokens_and_the_same_text_are_equal() -> None:
    assert judge(answer([1, 2, 3, 4], text="abcd", done=True), UNDISTURBED).verdict == "equal"


def test_a_clear_error_after_a_right_beginning_is_an_error() -> None:
    told = judge(answer([1, 2], error="Laptop has gone. Ask again."), UNDISTURBED)

    assert told == Judgement("error", "Laptop has gone. Ask again.")


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (answer([1, 2]), "a bare end after 2 tokens"),
        (answer([1, 2, 3], text="abc", done=True), "ended after 3 tokens as if it were whole"),
        (answer([1, 2, 3, 4], text="abcx", done=True), "ended after 4 tokens as if it were whole"),
        (answer([1, 9, 3], error="It has gone."), "another token than undisturbed, at 1"),
        (answer([1, 2, 3, 4, 5], done=True), "another token than undisturbed, at 4"),
        (answer([1], error="KeyError: 'x'"), "an unclear error (peer_lost): KeyError: 'x'"),
        (answer([1], error="no sentence"), "an unclear error (peer_lost): no sentence"),
    ],
)
def test_everything_else_is_lost(seen: Answer, why: str) -> None:
    assert judge(seen, UNDISTURBED) == Judgement("lost", why)


def test_an_answer_that_was_given_up_is_lost_though_its_tokens_are_right() -> None:
    silent = Answer(asked_at=0.0, ids=[1, 2], given_up=True)

    assert judge(silent, UNDISTURBED) == Judgement("lost", "silence after 2 tokens")


def test_a_run_is_as_good_as_its_worst_answer() -> None:
    told = [Judgement("equal"), Judgement("lost", "x"), Judgement("error", "y")]

    assert worst(told) == Judgement("lost", "x")
    assert worst([told[0], told[2]]) == Judgement("error", "y")


@pytest.mark.parametrize(
    ("fault_at", "stall"),
    [(1.5, 2.5), (0.5, 2.0), (4.5, 0.5), (-3.0, 4.0)],  # the last: the answer waited for a load
)
def test_a_stall_is_the_longest_wait_for_a_token_after_the_fault(
    fault_at: float, stall: float
) -> None:
    seen = Answer(asked_at=0.0, times=[1.0, 2.0, 4.0, 5.0], done=True)
    seen.times = [1.0, 4.0, 5.0] if fault_at == 1.5 else seen.times

    assert stall_s(seen, fault_at) == stall


def test_an_answer_stalls_no_longer_when_it_was_told_that_others_have_their_turn_first() -> None:
    seen = Answer(asked_at=0.0, times=[1.0, 9.0, 10.0], told=[1.5, 6.0], done=True)

    assert stall_s(seen, 0.5) == 1.0
    assert stall_s(seen, 2.0) == 4.0


def test_an_answer_is_queued_from_when_it_is_told_so_until_its_next_token() -> None:
    seen = Answer(asked_at=0.0)
    assert seen.is_queued
    seen.times.append(1.0)
    assert not seen.is_queued
    seen.told.append(2.0)
    assert seen.is_queued
    assert seen.last_at == 2.0
    seen.times.append(3.0)
    assert not seen.is_queued


def test_an_answer_that_ended_with_an_error_or_before_the_fault_has_no_stall() -> None:
    assert stall_s(Answer(asked_at=0.0, times=[1.0, 2.0]), 1.5) is None
    assert stall_s(Answer(asked_at=0.0, times=[1.0], done=True), 1.5) is None
