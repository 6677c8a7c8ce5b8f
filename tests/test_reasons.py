"""People read sentences, never the text of an exception that a library or the system raised."""

import ast
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import potluck
import potluck_app
from potluck.reasons import reason

_ROOTS = [Path(next(iter(package.__path__))) for package in (potluck, potluck_app)]
_FOR_PROGRAMMERS = {
    "api/http/endpoint.py",  # the JSON that a program sent
    "settings.py",  # the file that its owner wrote by hand
    "model/text/template.py",  # a template's own refusal is written for people
    "engine/accelerator/graph_run.py",  # goes to the log
    "wire/codec.py",  # what another program sent, for who writes it
    "wire/proofs.py",
    "wire/connection.py",
}
_OWN = ("Error", "Problem")


def told_of(handler: ast.ExceptHandler) -> Iterator[int]:
    """The lines in which the text of what was caught is put into a sentence."""
    for node in ast.walk(handler):
        if isinstance(node, ast.FormattedValue) and handler.name in {
            part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)
        }:
            words = ast.unparse(node.value)
            if words in (handler.name, f"str({handler.name})") or "strerror" in words:
                yield node.lineno


def is_ours(handler: ast.ExceptHandler) -> bool:
    """Whether only errors with a sentence for people are caught."""
    kinds = ast.unparse(handler.type) if handler.type is not None else ""
    foreign = ("OSError", "Exception", "msgspec", "sqlite3", "ssl", "ValueError", "jinja2", "json")
    return not any(name in kinds for name in foreign)


@pytest.mark.parametrize("root", _ROOTS, ids=lambda root: root.name)
def test_no_sentence_holds_the_text_of_an_exception(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).as_posix() not in _FOR_PROGRAMMERS
        for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(handler, ast.ExceptHandler) and handler.name and not is_ours(handler)
        for line in told_of(handler)
    ]

    assert found == [], "use potluck.reasons.reason"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ECONNREFUSED, "Connect call failed ('10.77.0.9', 47777)"), "answers there"),
        (OSError("Multiple exceptions: [Errno 111] …"), "the system refuses it"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "not allowed"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (TimeoutError(), "in time"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "no text"),
        (ValueError("Expecting value: line 1 column 1 (char 0)"), "damaged"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), "the system refuses it"),
    ],
)
def test_what_the_system_refuses_is_said_in_plain_words(error: Exception, words: str) -> None:
    told = reason(error)

    assert words in told
    assert str(error) not in told or not str(error)
