"""Sessions and faults for many minutes: what becomes of the answers, and of every process's memory."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from faults.harness import Harness
from faults.judging import Verdict, judge
from faults.kinds import FAULTS, Scene
from faults.models import MODELS
from faults.report import aligned
from faults.scenario import DOUBLE, KINDS, Question, Scenario, scenario
from faults.stream import Stream

CLIENTS = 3  # that ask one question after the other
LASTS_S = 5.0  # of a fault that does not pass: then it is repaired
CALM_S = 4.0  # between a whole home and the next fault
SAMPLE_S = 2.0  # between two looks at the memory
POLL_S = 0.01
# One fault at a time, and a model that still fits then: every answer should go on.
SOAK_KINDS = sorted(
    kind
    for kind, when in KINDS.items()
    if when == "answer" and kind not in DOUBLE | {"kill-master"}
)
QUESTIONS = tuple(
    Question(number=number, long=number % 4 == 3, sampled=number % 2 == 1) for number in range(8)
)


@dataclass(slots=True)
class Soak:
    """What has been seen so far."""

    verdicts: dict[Verdict, int] = field(default_factory=lambda: defaultdict(int))
    why: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # of those not equal
    faults: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    memory: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # bytes

    def table(self) -> str:
        """Return the counts, and the memory of each process: at first, at last, and at most."""
        answers = ", ".join(f"{number} {verdict}" for verdict, number in self.verdicts.items())
        said = [f"answers: {answers}; faults: {sum(self.faults.values())}"]
        said += [f"  {number} x {why}" for why, number in self.why.items()]
        rows = [("PROCESS", "FIRST FIFTH", "LAST FIFTH", "MOST")]
        rows += [_memory_row(name, seen) for name, seen in sorted(self.memory.items())]
        return "\n".join([*said, aligned(rows)])


def _memory_row(name: str, seen: Sequence[int]) -> tuple[str, ...]:
    fifth = max(1, len(seen) // 5)
    values = median(seen[:fifth]), median(seen[-fifth:]), max(seen)
    return name, *(f"{value / 1e6:.0f} MB" for value in values)


def soak(harness: Harness, minutes: float, seed: int, say: Callable[[str], None]) -> Soak:
    """Ask and disturb for so many minutes. The scheme and the model are those of the seed."""
    base = scenario(seed, MODELS, SOAK_KINDS[0])
    expected = harness.prepare(base, QUESTIONS)
    seen = Soak()
    faults = Faults(harness, seed, base, say, seen)
    asked: dict[Stream, Question] = {}
    questions = count()
    end, sample_at = time.monotonic() + 60 * minutes, 0.0
    while (now := time.monotonic()) < end or asked:
        if now < end:
            faults.go_on(now)
            while len(asked) < CLIENTS:
                question = QUESTIONS[next(questions) % len(QUESTIONS)]
                asked[harness.ask([question])[0]] = question
        harness.give_up_silent(list(asked))
        for stream in [stream for stream in asked if not stream.is_alive()]:
            judged = judge(stream.answer, expected[asked.pop(stream)])
            seen.verdicts[judged.verdict] += 1
            if judged.verdict != "equal":
                seen.why[judged.why] += 1
                say(f"  {judged.verdict}: {judged.why}")
        if now > sample_at:
            sample_at = now + SAMPLE_S
            _look_at_memory(harness, seen)
        time.sleep(POLL_S)
    faults.repair()
    return seen


def _look_at_memory(harness: Harness, seen: Soak) -> None:
    for name, host in harness.cluster.hosts.items():
        for kind, nbytes in host.memory().items():
            seen.memory[f"{name} {kind}"].append(nbytes)


class Faults:
    """One fault after the other, each repaired before the next one."""

    def __init__(
        self,
        harness: Harness,
        seed: int,
        base: Scenario,
        say: Callable[[str], None],
        seen: Soak,
    ) -> None:
        self._harness, self._base, self._say, self._seen = harness, base, say, seen
        self._seeds = count(seed + 1)
        self._scene: Scene | None = None
        self._next_at = time.monotonic() + CALM_S

    def go_on(self, now: float) -> None:
        """Begin a fault, go on with it, or repair it, as is due."""
        if self._scene is not None:
            self._scene.act()
        if now < self._next_at:
            return
        if self._scene is not None:
            self.repair()
            self._next_at = now + CALM_S
        elif not self._harness.cluster.missing():
            self._begin(now)

    def _begin(self, now: float) -> None:
        drawn = scenario(next(self._seeds), [self._base.model])
        kind = SOAK_KINDS[int(drawn.victims[1] * len(SOAK_KINDS))]
        self._scene = Scene(self._harness.cluster, drawn)
        FAULTS[kind](self._scene)
        self._seen.faults[kind] += 1
        self._say(f"{kind}: {', '.join(self._scene.said)}")
        self._next_at = now + max(LASTS_S, drawn.seconds)

    def repair(self) -> None:
        """Undo the fault that there is."""
        if self._scene is not None:
            self._scene.repair()
        self._scene = None
