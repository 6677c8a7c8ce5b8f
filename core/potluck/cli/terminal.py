"""What the commands print and ask: tables, questions, and the progress of slow work.

Answers go to stdout. Progress and questions go to stderr: on a terminal as one line that changes,
elsewhere as a few plain lines.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import msgspec

from potluck.api.values.schema import LoadProgress, PlanRequest, Transfer
from potluck.cli.printing import put, say
from potluck.client import Client
from potluck.errors import UsageError, format_bytes

BAR = 20  # characters
STEP = 0.1  # without a terminal, print one line per tenth

PHASES = {
    "hashing": "Reading the model",
    "waiting": "Waiting for computers",
    "planning": "Planning",
    "quantising": "Quantising weights",
    "streaming": "Sending weights",
    "loading": "Loading",
    "ready": "Ready",
    "failed": "Failed",
}


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM): clean up as after Ctrl-C, and do not continue."""


def put_json(value: object) -> None:
    """Print the answer as one JSON document."""
    put(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; each column is as wide as its widest entry."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        put("  ".join(cells).rstrip())


def is_interactive() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> bool:
    """Ask a question until it is answered with yes or no. The end of the input means no."""
    while True:
        say(f"{question} [y/n] ", end="")
        line = sys.stdin.readline()
        if not line:
            return False
        match line.strip().lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
            case _:
                continue


def must_be_interactive(what: str, instead: str) -> None:
    """Refuse to guess an answer that only a person can give.

    Raises:
        UsageError: nobody is at a terminal.
    """
    if not is_interactive():
        raise UsageError(f"{what} must be confirmed at a terminal. {instead}")


class Progress:
    """One line that shows the progress of slow work. On a terminal `close` erases it."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._shown = ""
        self._last: tuple[str, int] | None = None

    def close(self) -> None:
        self._write("")

    def show(self, what: str, fraction: float, detail: str = "") -> None:
        if self._tty:
            full = round(BAR * fraction)
            bar = "█" * full + "░" * (BAR - full)
            self._write(f"{what}  {bar} {fraction:4.0%}  {detail}".rstrip())
            return
        step = (what, int(fraction / STEP))
        if step != self._last:
            self._last = step
            say(f"{what}: {fraction:.0%}{f' ({detail})' if detail else ''}")

    def _write(self, line: str) -> None:
        if not self._tty:
            return
        line = line[: shutil.get_terminal_size().columns - 1]
        if line != self._shown:
            padding = " " * (len(self._shown) - len(line))
            end = "" if line else "\r"
            say(end="\r")
            say(f"{line}{padding}", end=end)
            self._shown = line


def duration(seconds: float) -> str:
    """Minutes and seconds, such as `0:44`; from an hour on with hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe_transfer(transfer: Transfer) -> str:
    """Describe a transfer: `laptop 3.1 GB of 8.0 GB, 110.2 MB/s, 0:44 left`."""
    text = f"{transfer.name} {format_bytes(transfer.sent)} of {format_bytes(transfer.total)}"
    if transfer.bytes_per_s:
        text += f", {format_bytes(transfer.bytes_per_s)}/s"
    if transfer.eta_s is not None and transfer.sent < transfer.total:
        text += f", {duration(transfer.eta_s)} left"
    return text


def load(
    client: Client, request: PlanRequest, tell: Callable[[LoadProgress], None] = lambda _: None
) -> LoadProgress:
    """Load a model with progress on the terminal. Return the last progress, which has the plan.

    Args:
        client: of the node.
        request: what to load.
        tell: called with each progress.
    """
    last = None
    with closing(Progress()) as progress, closing(client.load(request)) as events:
        for last in events:
            tell(last)
            active = [x for x in last.nodes if x.sent < x.total]
            detail = "; ".join(describe_transfer(x) for x in active) or last.message
            progress.show(PHASES[last.state], last.fraction, detail)
    assert last is not None  # the client raises an error if `ready` never comes
    for warning in last.plan.warnings if last.plan is not None else ():
        say(warning)
    return last
