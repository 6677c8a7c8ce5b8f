"""What one run does, drawn from its seed: the same seed gives the same run, on every computer."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from potluck.model.schemes import Scheme

When: TypeAlias = Literal["answer", "store", "load"]

# Each kind of fault, and when it happens: while answers are under way, to a store before the model is
# loaded, or while it is loaded.
KINDS: dict[str, When] = {
    "kill-stage": "answer",  # the compute process of a worker
    "kill-node": "answer",  # the node of a worker; its compute process ends with it
    "kill-own-stage": "answer",  # the compute process of the master
    "freeze-stage": "answer",  # for some seconds
    "freeze-computer": "answer",
    "hang-stage": "answer",  # until the run is over
    "hang-computer": "answer",
    "cut": "answer",  # a worker's link, for some seconds
    "cut-for-good": "answer",
    "cut-master": "answer",  # the master's link, for a moment
    "loss": "answer",  # of frames on a worker's link, for some seconds
    "latency": "answer",
    "quit": "answer",  # a worker's node is ended by its owner
    "pause": "answer",  # a worker's owner pauses the lending
    "clock-jump": "answer",  # of a worker, or of the master
    "kill-master": "answer",  # the master's node, which is then started again
    "two-kills": "answer",  # the second one after the first answer has gone on
    "kill-in-recovery": "answer",  # the second one while the first one is recovered from
    "corrupt-store": "store",  # a tensor that a worker has is altered, cut short, or deleted
    "full-disk": "store",  # a worker has no room for weights
    "cut-transfer": "load",  # a worker's link, while it is sent weights
    "kill-transfer": "load",  # a worker's node, while it is sent weights
    "disk-fills": "load",  # a worker's disk, while it is sent weights
    "twice": "answer",  # frames on a worker's link arrive twice, for some seconds
    "reorder": "answer",  # frames on a worker's link arrive after later ones
    "slow-stage": "answer",  # it computes a fifth of the time, for some seconds
}
DOUBLE = {"two-kills", "kill-in-recovery"}
SCHEMES: tuple[Scheme, ...] = ("f32", "bf16", "int8", "int4")
SESSIONS = (1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 8)  # asked at once; one of these is drawn
PROMPTS = 8  # different ones of each length
PREFILL = 1 / 4  # of the runs have their fault while prompts are computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One prompt of token ids, with its sampling. It is made of these numbers alone."""

    number: int  # among the prompts of its length
    long: bool  # a long prompt with a short answer, or the other way round
    sampled: bool

    @property
    def max_tokens(self) -> int:
        return 48 if self.long else 192

    def ids(self, vocabulary: int) -> list[int]:
        source = random.Random(f"prompt {self.number} {self.long}")
        length = source.randint(150, 240) if self.long else source.randint(8, 48)
        return [source.randrange(vocabulary - 2) for _ in range(length)]

    def request(self, vocabulary: int) -> dict[str, object]:
        """Return the body of `POST /v1/completions`."""
        sampling = {"temperature": 0.8, "top_p": 0.95} if self.sampled else {"temperature": 0}
        return {
            "prompt": self.ids(vocabulary),
            "max_tokens": self.max_tokens,
            "seed": 1000 + self.number,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            **sampling,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run."""

    seed: int
    kind: str
    model: str
    scheme: Scheme
    questions: tuple[Question, ...]  # asked at once
    moment: float  # 0 to 1: when the fault happens, as a share of the first answer or of the load
    victims: tuple[float, float]  # 0 to 1: which workers, among those that have a stage
    seconds: float  # how long a passing fault lasts
    strength: float  # 0 to 1
    by_hand: bool  # a load that the fault happens to says which computers have the layers

    @property
    def in_prefill(self) -> bool:
        return self.questions[0].long

    @property
    def while_loading(self) -> bool:
        return KINDS[self.kind] != "answer"

    @property
    def computers(self) -> int:
        """How many computers the model needs: after two faults, two of four have to suffice."""
        return 2 if self.kind in DOUBLE else 3

    @property
    def setting(self) -> tuple[str, Scheme, int]:
        """What is loaded for this run."""
        return self.model, self.scheme, self.computers


def scenario(seed: int, models: Iterable[str], kind: str | None = None) -> Scenario:
    """Return the run of this seed. A kind that is given replaces the one drawn, and nothing else."""
    source = random.Random(f"run {seed}")
    drawn = source.choice(list(KINDS))
    kind = kind or drawn
    long = source.random() < PREFILL and KINDS[kind] == "answer"
    sampled = source.random() < 1 / 2
    sessions = source.choice(SESSIONS)
    numbers = source.sample(range(PROMPTS), sessions)
    return Scenario(
        seed=seed,
        kind=kind,
        model=source.choice(list(models)),
        scheme=source.choice(SCHEMES),
        questions=tuple(Question(number=n, long=long, sampled=sampled) for n in numbers),
        moment=source.uniform(0.02, 0.7),
        victims=(source.random(), source.random()),
        seconds=round(
            10 ** source.uniform(0, 1) if source.random() < 1 / 4 else source.uniform(0.3, 3), 2
        ),
        strength=source.random(),
        by_hand=source.random() < 1 / 2,
    )


def in_order(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return the runs so that those that need the same model loaded follow each other.

    Those that load it by themselves come last, since the next one has to load it again.
    """
    return sorted(scenarios, key=lambda one: (one.setting, one.while_loading, one.seed))
