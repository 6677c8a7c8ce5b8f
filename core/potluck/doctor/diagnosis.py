"""All findings about what was seen. Pure."""

from collections.abc import Callable, Iterator
from typing import Final

from potluck.api.values.doctor import Diagnosis, Finding, FindingState
from potluck.doctor.computer_checks import (
    check_clock,
    check_disk,
    check_engine,
    check_firewall,
    check_identity,
    check_versions,
)
from potluck.doctor.facts import Facts
from potluck.doctor.network_checks import (
    check_choice,
    check_computers,
    check_multicast,
    check_network,
    check_vpn,
)

_CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    check_network,
    check_choice,
    check_vpn,
    check_firewall,
    check_multicast,
    check_computers,
    check_versions,
    check_clock,
    check_disk,
    check_identity,
    check_engine,
)
_URGENT: Final[tuple[FindingState, ...]] = ("problem", "warning", "unknown", "ok")


def diagnose(facts: Facts) -> Diagnosis:
    """Return the findings of all checks, the worst first, and in each state in the order of the checks."""
    findings = [finding for check in _CHECKS for finding in check(facts)]
    findings.sort(key=lambda finding: _URGENT.index(finding.state))
    return Diagnosis(findings=tuple(findings))
