"""All findings together, and the sentences of each."""

import re

import pytest

from potluck.api.values.doctor import Diagnosis
from potluck.doctor.diagnosis import diagnose
from potluck.doctor.facts import Facts, FirewallSeen
from potluck.doctor.sentences import TEMPLATES, Template, say

BLIND = Facts(version="1.0", now=1.8e9, port=47777)


@pytest.mark.parametrize("code", TEMPLATES)
def test_each_finding_is_a_whole_sentence_and_each_trouble_has_an_action(code: str) -> None:
    template = TEMPLATES[code]

    assert code.startswith(template.check)
    assert template.sentence.endswith(".")
    assert template.sentence[0].isupper() or template.sentence.startswith("{")
    assert bool(template.action) or template.state in ("ok", "unknown")
    assert not template.action or template.action.endswith(".")


@pytest.mark.parametrize("code", TEMPLATES)
def test_what_a_sentence_names_is_handed_on_for_other_languages(code: str) -> None:
    data = {name: f"<{name}>" for name in named(TEMPLATES[code])}

    finding = say(code, **data)

    assert finding.data == data
    assert all(value in finding.sentence + finding.action for value in data.values())


def named(template: Template) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", template.sentence + template.action))


def test_a_computer_of_which_nothing_could_be_seen_is_not_called_well_or_ill() -> None:
    found = diagnose(BLIND)

    assert {f.check for f in found.findings if f.state == "unknown"} >= {"network", "disk", "vpn"}
    assert not found.has_problem
    assert all(f.state != "problem" for f in found.findings)


def test_the_worst_is_said_first() -> None:
    blocked = FirewallSeen(name="ufw", is_on=True, lets_in=False)
    facts = Facts(version="1", now=0.0, port=1, firewall=blocked, adapters=())

    states = [finding.state for finding in diagnose(facts).findings]

    assert states == sorted(states, key=["problem", "warning", "unknown", "ok"].index)
    assert diagnose(facts).has_problem
    assert not Diagnosis(findings=()).has_problem
