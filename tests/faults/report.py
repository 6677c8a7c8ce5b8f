"""The result of a run, and the table of many."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from faults.judging import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. Times are in seconds; None: it did not come to that."""

    seed: int
    kind: str
    model: str
    scheme: str
    sampled: bool
    sessions: int
    plan: str  # the stages before the fault
    what: str  # what the fault was
    verdict: Verdict
    why: str = ""
    equal: int = 0  # sessions whose answer equals the undisturbed one
    next_token_s: float | None = None  # from the fault, of the session that waited longest
    error_s: float | None = None  # from the fault to the last error
    next_prompt_s: float | None = None  # from the end of the answers until another prompt was right
    ready_s: float | None = None  # after the repair, until the home is whole again
    took_s: float = 0.0
    leaks: list[str] = field(default_factory=list[str])

    def line(self) -> str:
        """Say it in a line for people."""
        sampling = "sampled" if self.sampled else "greedy"
        many = f"{self.equal} of {self.sessions} equal"
        times = {
            "next token": self.next_token_s,
            "error": self.error_s,
            "next prompt": self.next_prompt_s,
            "ready": self.ready_s,
        }
        said = ", ".join(f"{name} {s:.2f} s" for name, s in times.items() if s is not None)
        words = [f"{self.seed:5} {self.kind:16} {self.model} {self.scheme} {sampling}", many]
        words += [self.verdict.upper() if self.verdict == "lost" else self.verdict, said, self.what]
        words += [self.plan, self.why, *self.leaks]
        return " | ".join(word for word in words if word) + f" | {self.took_s:.1f} s"


def table(results: Sequence[Result]) -> str:
    """Return a row for each kind of fault, and one for all."""
    by_kind: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_kind[result.kind].append(result)
    head = (
        "KIND",
        "RUNS",
        "EQUAL",
        "ERROR",
        "LOST",
        "LEAKS",
        "NEXT TOKEN",
        "WORST",
        "NEXT PROMPT",
        "WORST",
    )
    rows = [head, *(_row(kind, some) for kind, some in sorted(by_kind.items()))]
    return aligned([*rows, _row("all", results)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as lines, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_format(row, widths) for row in rows)


def _row(kind: str, results: Sequence[Result]) -> tuple[str, ...]:
    counts = [
        sum(one.verdict == verdict for one in results) for verdict in ("equal", "error", "lost")
    ]
    leaks = sum(bool(one.leaks) for one in results)
    next_token = [one.next_token_s for one in results if one.next_token_s is not None]
    next_prompt = [one.next_prompt_s for one in results if one.next_prompt_s is not None]
    numbers = (len(results), *counts, leaks)
    return kind, *map(str, numbers), *_times(next_token), *_times(next_prompt)


def _times(seconds: Sequence[float]) -> tuple[str, str]:
    """Return the median and the worst."""
    if not seconds:
        return "-", "-"
    return f"{median(seconds):.2f} s", f"{max(seconds):.2f} s"


def _format(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *rest = (
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([name, *rest])
