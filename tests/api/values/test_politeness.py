"""When a computer lends nothing by itself."""

from typing import Any

import pytest

from potluck.api.values.politeness import (
    ACTIVE_S,
    CALM_S,
    SAYS,
    Facts,
    Rule,
    Rules,
    Withdrawal,
    reason,
    says,
    withdrawal,
)

ALL = Rules(activity=True)
REST = Facts()
SEEN: dict[Rule, Facts] = {
    "games": Facts(is_full_screen=True),
    "battery": Facts(is_on_battery=True),
    "memory": Facts(free_share=0.04),
    "heat": Facts(is_hot=True),
    "activity": Facts(idle_s=ACTIVE_S - 1),
}


@pytest.mark.parametrize("rule", SEEN)
def test_each_rule_counts_one_fact_and_only_if_it_is_on(rule: Rule) -> None:
    off: dict[str, Any] = {rule: False}

    assert reason(SEEN[rule], ALL) == rule
    assert reason(SEEN[rule], Rules(**({"activity": True} | off))) is None


@pytest.mark.parametrize(
    "facts", [REST, Facts(free_share=0.05), Facts(idle_s=ACTIVE_S)], ids=["rest", "memory", "idle"]
)
def test_a_computer_at_rest_is_lent(facts: Facts) -> None:
    assert reason(facts, ALL) is None


def test_at_first_the_owner_may_work_while_the_computer_helps() -> None:
    assert reason(SEEN["activity"], Rules()) is None
    assert reason(SEEN["games"], Rules()) == "games"


def test_of_several_reasons_the_one_is_said_that_people_notice() -> None:
    assert reason(Facts(is_full_screen=True, is_hot=True), ALL) == "games"


def test_it_goes_at_once_and_comes_back_after_a_minute_without_a_reason() -> None:
    gone = withdrawal(None, SEEN["games"], ALL, 100.0)
    assert gone == Withdrawal(rule="games", seen_s=100.0)

    between = withdrawal(gone, REST, ALL, 100.0 + CALM_S - 1)
    assert between == gone
    assert withdrawal(between, REST, ALL, 100.0 + CALM_S) is None


def test_a_reason_that_comes_again_within_the_minute_begins_another_one() -> None:
    gone = withdrawal(None, SEEN["games"], ALL, 0.0)
    again = withdrawal(gone, SEEN["battery"], ALL, 50.0)

    assert again == Withdrawal(rule="battery", seen_s=50.0)
    assert withdrawal(again, REST, ALL, 70.0) == again


def test_a_rule_that_is_turned_off_counts_no_more() -> None:
    gone = withdrawal(None, SEEN["battery"], ALL, 0.0)

    assert withdrawal(gone, SEEN["battery"], Rules(battery=False), 1.0) is None


def test_every_rule_has_its_words_and_what_is_not_known_has_none() -> None:
    assert SAYS.keys() == SEEN.keys() == set(Rules.__struct_fields__)
    assert says("battery") == "runs on its battery"
    assert says("owner") is None
    assert says(None) is None
