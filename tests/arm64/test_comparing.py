"""Answers of two processors are compared number by number."""

from arm64.comparing import Answer, Answers, compare


def answered(path: str, ids: list[int], states: list[str], logprobs: list[float]) -> Answers:
    answer = Answer(ids=ids, states=states, logprobs=[each.hex() for each in logprobs])
    return Answers(path=path, answers={"int4": answer})


HERE = answered("avx2", [5, 7, 9], ["a", "b", "c"], [-0.5, -1.0, -0.25])


def test_equal_answers_on_the_path_that_is_due_are_right() -> None:
    there = answered("dotprod", [5, 7, 9], ["a", "b", "c"], [-0.5, -1.0, -0.25])

    is_right, (first, second) = compare("dotprod", HERE, there)

    assert is_right
    assert first == "dotprod: takes the path dotprod; here it is avx2"
    assert "equal hidden states" in second
    assert "up to 0.0e+00" in second


def test_another_path_is_wrong_with_equal_answers() -> None:
    there = answered("neon", [5, 7, 9], ["a", "b", "c"], [-0.5, -1.0, -0.25])

    assert compare("dotprod", HERE, there)[0] is False


def test_numbers_that_differ_are_told_and_are_not_wrong() -> None:
    there = answered("dotprod", [5, 7, 9], ["a", "x", "c"], [-0.5, -1.25, -0.25])

    is_right, lines = compare("dotprod", HERE, there)

    assert is_right
    assert "1 of 3 hidden states differ" in lines[1]
    assert "up to 2.5e-01" in lines[1]


def test_the_first_other_token_is_named() -> None:
    there = answered("dotprod", [5, 8, 9], ["a", "b", "c"], [-0.5, -1.0, -0.25])

    is_right, lines = compare("dotprod", HERE, there)

    assert not is_right
    assert "OTHER TOKENS from the 2. on" in lines[1]
