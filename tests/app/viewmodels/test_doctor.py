"""What the window shows of the doctor's findings."""

import pytest

from potluck.api.values.doctor import Diagnosis
from potluck.doctor.sentences import TEMPLATES, say
from potluck_app.viewmodels.doctor import finding_row, summary

OK = say("vpn_none")
WARNING = say("vpn_default", adapters="wg0")
PROBLEM = say("network_none")


@pytest.mark.parametrize("code", TEMPLATES)
def test_every_finding_has_a_row(code: str) -> None:
    template = TEMPLATES[code]
    names = {"networks", "adapters", "address", "names", "port", "reason", "firewall", "version"}
    names |= {"older", "running", "date", "difference", "free", "folder", "used", "limit"}

    row = finding_row(say(code, **dict.fromkeys(names, "x")))

    assert row.title
    assert row.pill
    assert (row.tone == "err") == (template.state == "problem")


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ((OK,), "Nothing on this computer is in the way."),
        ((WARNING, OK), "The doctor found 1 thing to look at."),
        ((PROBLEM, PROBLEM, WARNING), "The doctor found 2 problems and 1 thing to look at."),
    ],
)
def test_one_sentence_sums_up(findings: tuple, expected: str) -> None:
    assert summary(Diagnosis(findings=findings)).startswith(expected)
