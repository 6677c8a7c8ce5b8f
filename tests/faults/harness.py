"""Run scenarios: load, ask, disturb, judge, repair, and see that nothing is left over."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from faults.cluster import MASTER, WORKERS, Cluster
from faults.host import Counts, Host, NodeClient, TooLateError, eventually
from faults.judging import Answer, Judgement, judge, stall_s, worst
from faults.kinds import FAULTS, Scene
from faults.loads import Load, by_hand
from faults.report import Result
from faults.scenario import KINDS, Question, Scenario
from faults.stream import Stream
from faults.switch import Link
from potluck.api.values.schema import PlanRequest
from potluck.errors import PotluckError
from potluck.model.schemes import Scheme

POLL_S = 0.002
LOAD_S = 60.0
PREFILL_S = 0.2  # of a long prompt, about
PROBE = Question(number=0, long=False, sampled=False)
PROBE_TOKENS = 16
PROBE_S = 30.0  # until another prompt has to be right
WHILE_SENT = Link(rate_mbit=40.0)  # so that the sending of weights has a middle
LEFT_OVER_S = 5.0  # for what ends by itself
MORE_DESCRIPTORS = 12  # of a host than at first: connections come and go
VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What came of a fault."""

    at: float  # when it happened
    streams: Sequence[Stream]
    load: Judgement | None = None  # how a load is judged that failed


@dataclass(slots=True)
class Harness:
    """Runs scenarios one after the other on one home.

    Args:
        cluster: the home.
        silence_s: how long an answer may bring nothing. Then it is lost.
    """

    cluster: Cluster
    silence_s: float
    _loaded: tuple[str, Scheme, int] | None = None
    _undisturbed: dict[tuple[str, Scheme, Question], Answer] = field(default_factory=dict)
    _at_rest: dict[str, Counts] = field(default_factory=dict[str, Counts])
    _reloading: Lock = field(default_factory=Lock)

    def run(self, scenario: Scenario) -> Result:
        """Carry out one scenario.

        Raises:
            PotluckError, RuntimeError, TooLateError: it did not come to a fault, or the home could
                not be repaired. Another home is needed then.
        """
        began = time.monotonic()
        expected = self.prepare(scenario, scenario.questions)
        scene = Scene(self.cluster, scenario)
        plan = self._plan()
        if scenario.while_loading:
            disturbed = self._load_under_fault(scene)
        else:
            disturbed = self._answer_under_fault(scene)
        self.follow(scene, disturbed.streams)
        next_prompt_s = self._probe(scene, expected[PROBE])
        repaired = time.monotonic()
        scene.repair()
        leaks = self._wait_until_whole()
        ready_s = time.monotonic() - repaired
        return _result(
            scene, plan, disturbed, expected, next_prompt_s, ready_s, leaks,
            took_s=time.monotonic() - began,
        )  # fmt: skip

    # --- before the fault

    def prepare(self, scenario: Scenario, questions: Iterable[Question]) -> dict[Question, Answer]:
        """Load the model of the scenario, unless it is loaded. Return the undisturbed answers."""
        if self._loaded != scenario.setting:
            self.cluster.client.unload()  # else what is loaded might stay, with less memory
            self.cluster.load(self._request(scenario))
            self._loaded = scenario.setting
        undisturbed = {q: self._undisturbed_answer(scenario, q) for q in (*questions, PROBE)}
        if not self._at_rest:
            self._at_rest = self._counts()
        return undisturbed

    def _request(self, scenario: Scenario) -> PlanRequest:
        return self.cluster.choose(*scenario.setting)

    def _undisturbed_answer(self, scenario: Scenario, question: Question) -> Answer:
        key = scenario.model, scenario.scheme, question
        if key not in self._undisturbed:
            stream = self.ask([question])[0]
            stream.join(self.silence_s)
            if not stream.answer.done:
                raise RuntimeError(f"Undisturbed, there is no answer: {stream.answer.error}")
            self._undisturbed[key] = stream.answer
        return self._undisturbed[key]

    def _plan(self) -> str:
        return " ".join(
            f"{stage.node}={stage.layers[1] - stage.layers[0]}" for stage in self.cluster.stages()
        )

    # --- the fault

    def _answer_under_fault(self, scene: Scene) -> Disturbed:
        """Ask, wait for the moment, and let the fault happen."""
        scenario = scene.scenario
        streams = self.ask(scenario.questions, lambda: self._next_node(scene))
        if scenario.in_prefill:
            time.sleep(scenario.moment * PREFILL_S * (1 + len(streams) / 4))
        else:
            first, tokens = streams[0], scenario.moment * scenario.questions[0].max_tokens
            while len(first.answer.ids) < tokens and first.is_alive():
                time.sleep(POLL_S)
        at = time.monotonic()
        FAULTS[scenario.kind](scene)
        return Disturbed(at, streams)

    def _load_under_fault(self, scene: Scene) -> Disturbed:
        """Load while a fault happens, and ask then. A load that failed is done again, repaired."""
        scenario, client = scene.scenario, self.cluster.client
        self._loaded = None
        request = self._request(scenario)
        if scenario.by_hand:
            victim = self.cluster.hosts[WORKERS[int(scenario.victims[0] * len(WORKERS))]]
            request = by_hand(request, victim)
        else:
            victim = scene.victim()  # the next plan has it too, since it is as good as the others
        client.unload()
        at, load = self._begin_load(scene, victim, request)
        deadline = time.monotonic() + LOAD_S
        while load.is_alive() and time.monotonic() < deadline:
            scene.act()
            time.sleep(POLL_S)
        judgement = load.judgement()
        scene.repair()
        if judgement is not None:
            load.join()
            self._wait("all are back")
            self.cluster.load(request)
        return Disturbed(at, self.ask(scenario.questions), judgement)

    def _begin_load(self, scene: Scene, victim: Host, request: PlanRequest) -> tuple[float, Load]:
        """Begin a load, and let the fault happen: to the store before, or while weights are sent."""
        kind, client = scene.scenario.kind, self.cluster.client
        scene.chosen = victim
        if kind == "corrupt-store":
            self.cluster.load(request)
        else:
            victim.empty_store()
            self._wait("the node is back")
        if KINDS[kind] == "store":
            FAULTS[kind](scene)
            self._wait("the compute process is back")
            return time.monotonic(), Load(client, request)
        self.cluster.lan.set_link(victim.name, WHILE_SENT)
        load = Load(client, request)
        load.wait_for_share(victim.name, scene.scenario.moment)
        at = time.monotonic()
        FAULTS[kind](scene)
        return at, load

    def _wait(self, what: str) -> None:
        eventually(lambda: not self.cluster.missing(), what, LOAD_S)

    def ask(
        self, questions: Sequence[Question], again: Callable[[], NodeClient] | None = None
    ) -> list[Stream]:
        """Ask all these questions at once. `again`: see `Stream`."""
        client = self.cluster.client
        return [Stream(client, question.request(VOCABULARY), again) for question in questions]

    def _next_node(self, scene: Scene) -> NodeClient:
        """Return the node that was started in place of the master's, with the model loaded.

        Raises:
            TooLateError: nothing has killed the master's node, or none takes its place.
        """
        if not scene.forgotten:
            raise TooLateError("The connection ended, and the node had no reason.")
        with self._reloading:
            eventually(lambda: self._has_loaded(scene.scenario), "the next node is there", LOAD_S)
            return self.cluster.client

    def _has_loaded(self, scenario: Scenario) -> bool:
        """Load the model of the scenario. Return whether it was loaded."""
        with suppress(PotluckError):  # the node that was killed may still be named
            self.cluster.load(self._request(scenario))
            return True
        return False

    def follow(self, scene: Scene, streams: Sequence[Stream]) -> None:
        """Follow the answers to their ends, or until they bring nothing for too long."""
        while any(stream.is_alive() for stream in streams):
            scene.act()
            self.give_up_silent(streams)
            time.sleep(POLL_S)

    def give_up_silent(self, streams: Sequence[Stream]) -> None:
        """Close the connections of the answers that have brought nothing for too long.

        The silence of an answer that waits for its turn counts from when any of the others was heard.
        """
        heard_at = max((stream.answer.last_at for stream in streams), default=0.0)
        for stream in streams:
            last_at = stream.answer.last_at
            if stream.answer.is_queued:
                last_at = max(last_at, heard_at)
            if stream.is_alive() and time.monotonic() - last_at > self.silence_s:
                stream.give_up()

    # --- after the fault

    def _probe(self, scene: Scene, expected: Answer) -> float | None:
        """Ask until a prompt is answered. Return how long that took; None: too long, or wrong."""
        since = time.monotonic()
        request = PROBE.request(VOCABULARY) | {"max_tokens": PROBE_TOKENS}
        while time.monotonic() - since < PROBE_S:
            scene.act()
            with suppress(PotluckError, TooLateError):
                if scene.forgotten:  # the master has been started again
                    self.cluster.load(self._request(scene.scenario))
                stream = Stream(self.cluster.client, request)
                self.follow(scene, [stream])
                if stream.answer.done:
                    right = stream.answer.ids == expected.ids[:PROBE_TOKENS]
                    return time.monotonic() - since if right else None
            time.sleep(0.1)
        return None

    def _wait_until_whole(self) -> list[str]:
        """Wait until all computers are back. Return what is left over or missing."""
        try:
            self.cluster.wait_until_ready()
        except TooLateError:
            missing = self.cluster.missing()
            for name in missing:
                self.cluster.hosts[name].kill_node()
                self.cluster.hosts[name].start(worker=name != MASTER)
            self.cluster.wait_until_ready()
            return [f"{name} came back only when it was restarted" for name in missing]
        try:
            eventually(lambda: not self._left_over(), "nothing is left over", LEFT_OVER_S)
        except TooLateError:
            return self._left_over()
        return []

    def _left_over(self) -> list[str]:
        found: list[str] = []
        for name, now in self._counts().items():
            before = self._at_rest[name]
            if len(now.processes) > len(before.processes):
                had, has = (", ".join(counts.processes) for counts in (before, now))
                found.append(f"{name}: the processes {has}; {had} at first")
            if now.descriptors > before.descriptors + MORE_DESCRIPTORS:
                found.append(
                    f"{name}: {now.descriptors} descriptors, {before.descriptors} at first"
                )
            if now.parts > before.parts:
                found.append(f"{name}: {now.parts} parts of transfers")
        return found

    def _counts(self) -> dict[str, Counts]:
        return {name: host.counts() for name, host in self.cluster.hosts.items()}


def _result(
    scene: Scene,
    plan: str,
    disturbed: Disturbed,
    expected: dict[Question, Answer],
    next_prompt_s: float | None,
    ready_s: float,
    leaks: list[str],
    *,
    took_s: float,
) -> Result:
    """Judge a run."""
    scenario, at = scene.scenario, disturbed.at
    answers = [stream.answer for stream in disturbed.streams]
    judged = [
        judge(answer, expected[question])
        for question, answer in zip(scenario.questions, answers, strict=True)
    ]
    found = worst([*judged, *([disturbed.load] if disturbed.load is not None else [])])
    if next_prompt_s is None:
        why = f"no prompt was answered rightly within {PROBE_S:.0f} s"
        found = Judgement("lost", f"{found.why} {why}".strip())
    stalls = [s for answer in answers if (s := stall_s(answer, at)) is not None]
    errors = [a.ended_at - at for a in answers if a.error is not None and a.ended_at is not None]
    return Result(
        seed=scenario.seed,
        kind=scenario.kind,
        model=scenario.model,
        scheme=scenario.scheme,
        sampled=scenario.questions[0].sampled,
        sessions=len(answers),
        plan=plan,
        what=", ".join(scene.said),
        verdict=found.verdict,
        why=found.why,
        equal=sum(one.verdict == "equal" for one in judged),
        next_token_s=max(stalls, default=None),
        error_s=max(errors, default=None),
        next_prompt_s=next_prompt_s,
        ready_s=ready_s,
        took_s=took_s,
        leaks=leaks,
    )
