"""A report that anyone may read says what is wrong, and not with whom."""

import re
from string import Formatter

import msgspec
import pytest

from potluck.api.values.doctor import Diagnosis, Finding
from potluck.doctor.remedies import make_private
from potluck.doctor.sentences import TEMPLATES, say
from potluck.doctor.sharing import PRIVATE, shareable

SECRETS = {
    "names": "Ana's Mac and Attic",
    "older": "Ana's Mac",
    "adapters": "Ana's WLAN and wg-attic",
    "address": "192.168.7.20:47777",
    "networks": "192.168.7.0/24 and fd00:7::/64",
    "folder": "/home/ana/.local/share/potluck",
}


def names_in(code: str) -> set[str]:
    template = TEMPLATES[code]
    parts = Formatter().parse(template.sentence + template.action)
    return {name for _, name, _, _ in parts if name}


@pytest.mark.parametrize("code", sorted(TEMPLATES))
def test_no_name_address_or_folder_is_in_a_report(code: str) -> None:
    data = {name: SECRETS.get(name, "x") for name in names_in(code)}
    command = make_private(SECRETS["folder"]) if "folder" in data else "potluck models prune"
    finding = say(code, command, **data)

    (shared,) = shareable(Diagnosis(findings=(finding,))).findings

    text = msgspec.json.encode(shared).decode()
    assert not re.search(r"(?i)\bana\b|attic|\d+\.\d+\.\d+\.\d+|fd00|/home", text)
    assert (shared.check, shared.state, shared.code) == (finding.check, finding.state, code)
    assert all(shared.data[name] == f"({name})" for name in data if name in PRIVATE)
    if not PRIVATE & data.keys():
        assert shared == finding


@pytest.mark.parametrize("code", ["disk_melts", "disk_not_written"])
def test_a_finding_of_a_node_with_another_version_keeps_its_code_alone(code: str) -> None:
    data = {"place": "/home/ana"}
    other = Finding(
        check="disk", state="warning", code=code, sentence="/home/ana melts.", data=data
    )

    (shared,) = shareable(Diagnosis(findings=(other,))).findings

    assert (shared.code, shared.sentence, shared.data) == (code, "", {})
