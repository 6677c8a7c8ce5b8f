"""Findings as they may stand in a public report: without names, addresses and folders. Pure."""

from potluck.api.values.doctor import Diagnosis, Finding
from potluck.doctor.sentences import say

# What of `Finding.data` says who lives there, and where. The rest are figures and names of programs. Adapters have
# names that people gave them: on Windows all, elsewhere those of VPNs (WireGuard's is that of its file).
PRIVATE = frozenset({"names", "older", "address", "adapters", "networks", "folder"})


def shareable(diagnosis: Diagnosis) -> Diagnosis:
    """The same findings, with a word in brackets in place of each name, address and folder.

    A finding of a program that knows others has its code alone.
    """
    return Diagnosis(findings=tuple(map(_shareable, diagnosis.findings)))


def _shareable(finding: Finding) -> Finding:
    told = {key: f"({key})" if key in PRIVATE else text for key, text in finding.data.items()}
    command = "" if "folder" in finding.data else finding.command  # it names the folder
    try:
        return say(finding.code, command, **told)
    except (
        KeyError
    ):  # the node runs another version: it has other findings, or says other things in them
        return Finding(check=finding.check, state=finding.state, code=finding.code, sentence="")
