"""`doctor`: what keeps the computers of a home apart, with the node of this computer or without one."""

import argparse

from potluck.api.values.doctor import Diagnosis, Finding
from potluck.cli.terminal import put, put_json, say
from potluck.client import NodeGoneError
from potluck.doctor.examination import Known, examine
from potluck.doctor.facts import Peer
from potluck.doctor.sharing import shareable
from potluck.launch import find
from potluck.net.addresses import AddressBook
from potluck.settings import Folders

_WORDS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "unknown": "not known"}
_INDENT = " " * 22  # as wide as the state and the check before the sentence


def doctor(options: argparse.Namespace) -> int:
    """Print all findings, the worst first. Returns 1 if there is a problem."""
    say("Looking at this computer and its network. This takes a few seconds.")
    diagnosis = _examine(Folders.of(options.home))
    if options.json:
        put_json(shareable(diagnosis))  # it is what a public report asks for
    else:
        for finding in diagnosis.findings:
            _put(finding)
    return 1 if diagnosis.has_problem else 0


def _examine(folders: Folders) -> Diagnosis:
    """Ask the node; where there is none that answers, look from here."""
    try:
        client = find(folders)
        if client is not None:
            return client.examine()
    except NodeGoneError as error:
        say(error.message)
    kept = AddressBook(folders.config / "addresses.json", None).kept().values()
    peers = tuple(Peer(name=name, addresses=addresses) for name, addresses in kept)
    return examine(Known(folders=folders.by_content, peers=peers))


def _put(finding: Finding) -> None:
    put(f"{_WORDS[finding.state]:9}  {finding.check:11}{finding.sentence}")
    for line in (finding.action, finding.command and f"  {finding.command}"):
        if line:
            put(_INDENT + line)
