"""What the doctor says, as rows, and asking it again."""

from typing import Final, NamedTuple

from PySide6.QtCore import QObject, Signal

from potluck.api.values.doctor import Check, Diagnosis, Finding, FindingState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.tokens import Tone

_TITLES: Final[dict[Check, str]] = {
    "network": "Network",
    "multicast": "Finding each other",
    "firewall": "Firewall",
    "vpn": "VPN",
    "computers": "Other computers",
    "versions": "Version",
    "clock": "Clock",
    "disk": "Disk",
    "identity": "Keys",
    "engine": "Engine",
}
_PILLS: Final[dict[FindingState, tuple[str, Tone]]] = {
    "ok": ("OK", "ok"),
    "warning": ("Look here", "warn"),
    "problem": ("Problem", "err"),
    "unknown": ("Not known", "neutral"),
}
_TRIES: Final = "The doctor tries the network. This takes a few seconds…"


class FindingRow(NamedTuple):
    """One finding, as it is shown."""

    title: str
    pill: str
    tone: Tone
    text: str
    action: str
    command: str


class Doctor(QObject):
    """The last diagnosis.

    Attributes:
        rows: the findings, the worst first; empty before the first answer.
        summary: a sentence about them, or about what is under way.
        is_looking: whether the doctor looks just now.

    Signals:
        changed: something of this is other.
    """

    changed = Signal()

    def __init__(self, backend: Backend, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._backend = backend
        self.rows: tuple[FindingRow, ...] = ()
        self.summary = ""
        self.is_looking = False

    def examine(self) -> None:
        """Have the node look at this computer and its network, unless it does so already."""
        if self.is_looking:
            return
        self.is_looking, self.summary = True, _TRIES
        self.changed.emit()
        self._backend.call("POST", "/cluster/doctor", None, Diagnosis).then(
            self._on_diagnosis, self._on_problem
        )

    def report(self) -> str:
        """All findings as text, to hand on."""
        lines = [f"{row.pill}: {row.title}: {row.text} {row.action}".strip() for row in self.rows]
        return "\n".join(lines)

    def _on_diagnosis(self, diagnosis: Diagnosis) -> None:
        self.rows = tuple(finding_row(finding) for finding in diagnosis.findings)
        self._end(summary(diagnosis))

    def _on_problem(self, problem: Problem) -> None:
        self._end(problem.message)

    def _end(self, summary: str) -> None:
        self.is_looking, self.summary = False, summary
        self.changed.emit()


def finding_row(finding: Finding) -> FindingRow:
    """Return a finding in the words of the window."""
    text, tone = _PILLS[finding.state]
    return FindingRow(
        title=_TITLES[finding.check],
        pill=text,
        tone=tone,
        text=finding.sentence,
        action=finding.action,
        command=finding.command,
    )


def summary(diagnosis: Diagnosis) -> str:
    """Return one sentence about all findings."""
    states = [finding.state for finding in diagnosis.findings]
    parts = [
        wording.plural(count, one, many)
        for state, one, many in (
            ("problem", "problem", "problems"),
            ("warning", "thing to look at", "things to look at"),
        )
        if (count := states.count(state))
    ]
    if parts:
        return f"The doctor found {wording.listing(parts)}."
    return (
        "Nothing on this computer is in the way. If another computer does not appear, open the"
        " doctor there too."
    )
