"""What the doctor found: the answer to POST /cluster/doctor, and of `potluck doctor --json`. Pure."""

from typing import Literal, TypeAlias

from msgspec import Struct

Check: TypeAlias = Literal[
    "network",
    "multicast",
    "firewall",
    "vpn",
    "computers",
    "versions",
    "clock",
    "disk",
    "identity",
    "engine",
]
FindingState: TypeAlias = Literal[
    "ok",
    "warning",  # it may be in the way
    "problem",  # it is in the way
    "unknown",  # it could not be found out
]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was found.

    `code` names the sentence and is stable; with `data`, clients can say it in another language.
    """

    check: Check
    state: FindingState
    code: str
    sentence: str
    action: str = ""  # a sentence; empty: there is nothing to do
    command: str = (
        ""  # to copy into a terminal of this computer, or of the one that the action names
    )
    data: dict[str, str] = {}  # what the sentence, the action and the command name


class Diagnosis(Struct, frozen=True, kw_only=True):
    """All findings, in the order in which a person should read them."""

    findings: tuple[Finding, ...]

    @property
    def has_problem(self) -> bool:
        return any(finding.state == "problem" for finding in self.findings)
