from collections import Counter
from collections.abc import Collection

import pytest

from faults.scenario import KINDS, PROMPTS, SCHEMES, Question, in_order, scenario

MODELS = ("llama", "gemma3")
MANY = [scenario(seed, MODELS) for seed in range(2000)]


def test_a_seed_always_gives_the_same_run() -> None:
    assert [scenario(seed, MODELS) for seed in range(2000)] == MANY
    assert scenario(17, MODELS) != scenario(18, MODELS)


def test_all_kinds_schemes_models_and_numbers_of_sessions_are_drawn() -> None:
    assert {one.kind for one in MANY} == set(KINDS)
    assert {one.scheme for one in MANY} == set(SCHEMES)
    assert {one.model for one in MANY} == set(MODELS)
    assert {len(one.questions) for one in MANY} == set(range(1, PROMPTS + 1))
    assert {one.questions[0].sampled for one in MANY} == {False, True}
    assert {one.in_prefill for one in MANY} == {False, True}


@pytest.mark.parametrize(
    ("drawn", "all_of"),
    [
        ([one.kind for one in MANY], KINDS),
        ([(one.scheme, one.questions[0].sampled) for one in MANY], 2 * SCHEMES),
    ],
)
def test_each_has_its_share_of_many_runs(drawn: list[object], all_of: Collection[object]) -> None:
    assert len(set(drawn)) == len(all_of)
    assert min(Counter(drawn).values()) > len(MANY) / len(all_of) / 2


def test_a_given_kind_replaces_the_drawn_one_alone() -> None:
    given = [scenario(seed, MODELS, "kill-stage") for seed in range(100)]

    for one, drawn in zip(given, MANY, strict=False):
        assert one.kind == "kill-stage"
        assert (one.model, one.scheme, one.seconds) == (drawn.model, drawn.scheme, drawn.seconds)


def test_the_sessions_of_a_run_ask_different_questions() -> None:
    assert all(len(set(one.questions)) == len(one.questions) for one in MANY)


def test_a_question_is_made_of_its_number() -> None:
    prompts = {
        (number, long): Question(number=number, long=long, sampled=False).ids(256)
        for number in range(PROMPTS)
        for long in (False, True)
    }

    assert len({tuple(ids) for ids in prompts.values()}) == len(prompts)
    assert all(0 <= token < 256 for ids in prompts.values() for token in ids)
    assert prompts[3, True] == Question(number=3, long=True, sampled=True).ids(256)


@pytest.mark.parametrize(("sampled", "temperature"), [(False, 0), (True, 0.8)])
def test_a_question_says_how_it_is_sampled(sampled: bool, temperature: float) -> None:
    request = Question(number=0, long=False, sampled=sampled).request(256)

    assert request["temperature"] == temperature
    assert request["ignore_eos"] is True  # else a random model may end at once


def test_runs_with_the_same_model_loaded_follow_each_other() -> None:
    settings = [one.setting for one in in_order(MANY)]

    assert settings == sorted(settings)
