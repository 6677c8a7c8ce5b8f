"""What a node can say in the window: every text of core that is written for a person.

The rule. The window shows what the node's API says: errors, notices, progress, reasons, plans, findings. So every
text of core with two words or more can come there, but for these:

- what is said elsewhere: in the terminal, to other programs, to a model, to the system (`ROOMS`);
- what is said to nobody: docstrings, annotations, comparisons, assertions, Python's own exceptions (their text is for
  logs: `potluck.reasons` has the words for people), and what stands in `UNSAID`;
- what is no language: patterns, formats of files, options (`_CODE`), and a few more in `KEPT`.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import potluck

CORE = Path(potluck.__file__).parent

ROOMS = (
    "cli/", "api/server.py", "client.py", "demo.py", "program_keys.py",  # the terminal
    "front/", "api/anthropic/", "api/ollama/", "api/responses/",  # other programs
    "api/v1/answers.py", "api/metrics.py", "api/http/operations.py",
    "model/answers/",  # models
    "system/qt_libraries.py",  # without Qt, no language is chosen
    "doctor/remedies.py", "system/elevation.py", "system/firewall_rules.py", "engine/accelerator/capabilities.py", "engine/accelerator/probe.py",  # commands; logs
)  # fmt: skip

# Calls and classes: logs, types, patterns, names of tasks and threads, the description of the API, states of a machine.
UNSAID = {"debug", "info", "warning", "error", "exception", "critical", "basicConfig"}
UNSAID |= {"setFormatter", "cast", "compile", "findall", "search", "partition", "replace", "split"}
UNSAID |= {"spawn", "create_task", "every", "Thread", "ThreadPoolExecutor", "Operation", "Literal"}
UNSAID |= {"Comment", "PairingState", "is_right"}
# Errors that only our own bug causes, and those of a request that is not as the API describes: only a program that
# is being written sends one.
UNSAID |= {"LocalProtocolError", "ProofError", "OSError"}
UNSAID |= {"RequestError", "UnsupportedParameterError", "_refuse", "_refused"}

KEPT = {"this field is required", "ask a model", "read the metrics"}  # parts of a RequestError
KEPT |= {
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "invalid buffer size",
}  # torch says it
KEPT |= {
    "root mean square",
    "biased layer",
    "sparse mixer",
    "with rope",
    "after dense",
    "windowed or dense",
    "loopback pseudo",
    "text/plain; version=0.0.4",
    "start: {}",
}

_CODE = re.compile(r"(?s)--.*|.*\n.*|<.*>|\W*\w*")
_TWO_WORDS = re.compile(r"[A-Za-z]{2,}[,;:.]? [A-Za-z{(]|[})] [a-z]{2,}")


class Text(NamedTuple):
    """A text of the source, with `{}` for what is put in, and the file and line where it is."""

    text: str
    where: str


def texts() -> list[Text]:
    """All texts that can come to the window."""
    found: dict[str, Text] = {}
    for path in sorted(CORE.rglob("*.py")):
        name = path.relative_to(CORE).as_posix()
        if name.startswith(ROOMS):
            continue
        for text, line in read(path.read_text(encoding="utf-8")):
            found.setdefault(text, Text(text, f"{name}:{line}"))
    return list(found.values())


def read(source: str) -> Iterator[tuple[str, int]]:
    """The texts for people in a source, with their lines."""
    reader = _Reader()
    reader.visit(ast.parse(source))
    for text, line in reader.found:
        if text not in KEPT and _TWO_WORDS.search(text) and not _CODE.fullmatch(text):
            yield text, line


class _Reader(ast.NodeVisitor):
    """Collects the texts of one file that are not said to nobody."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append((node.value.strip(), node.lineno))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = (str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        self.found.append(("".join(parts).strip(), node.lineno))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_Call(self, node: ast.Call) -> None:
        if (getattr(node.func, "attr", None) or getattr(node.func, "id", "")) not in UNSAID:
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if getattr(node.value, "id", "") not in UNSAID:
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name not in UNSAID:
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        named = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if not (isinstance(named, ast.Name) and hasattr(builtins, named.id)):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for child in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if child is not None:
                self.visit(child)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None: ...

    def visit_Assert(self, node: ast.Assert) -> None: ...
