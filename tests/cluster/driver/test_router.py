"""Which replica a prompt goes to."""

from dataclasses import replace

from potluck.cluster.driver.router import USUAL_ANSWER, Load, route, seconds

DESK = Load(token_s=0.05, prompt_token_s=0.005)


def test_a_new_prompt_goes_to_the_replica_with_the_fewest_answers() -> None:
    assert route([replace(DESK, answers=2), replace(DESK, answers=1)], 100) == 1
    assert route([DESK, DESK], 100) == 0


def test_a_replica_that_is_twice_as_fast_bears_twice_as_many_answers() -> None:
    slow = replace(DESK, token_s=0.1)
    answers = [0, 0]
    for _ in range(9):
        loads = [replace(one, answers=n) for one, n in zip((DESK, slow), answers, strict=True)]
        answers[route(loads, 10)] += 1
    assert answers == [6, 3]


def test_answers_in_different_stages_slow_each_other_down_less() -> None:
    pipeline = replace(DESK, stages=4)
    assert route([replace(DESK, answers=1), replace(pipeline, answers=3)], 10) == 1
    assert route([replace(DESK, answers=1), replace(pipeline, answers=5)], 10) == 0


def test_a_conversation_stays_where_its_caches_are() -> None:
    # To compute 4,000 tokens takes 20 s, and one more answer beside others 13 s.
    there = replace(DESK, answers=1, cached=3990)
    assert route([DESK, there], 4000) == 1
    assert route([DESK, replace(there, answers=2)], 4000) == 0


def test_a_short_beginning_is_computed_again_rather_than_waited_for() -> None:
    assert route([DESK, replace(DESK, answers=1, cached=300)], 400) == 0


def test_prompts_that_are_to_be_computed_first_count() -> None:
    reads = replace(DESK, answers=1, tokens_ahead=8000)
    decodes = replace(DESK, answers=2)
    assert route([reads, decodes], 100) == 1


def test_more_tokens_than_the_prompt_has_are_no_gain() -> None:
    assert seconds(replace(DESK, cached=900), 100) == USUAL_ANSWER * 0.05
