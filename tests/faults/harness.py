"""Run scenarios: load, ask, disturb, judge, repair, and see that nothing is left over."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from faults.cluster import MASTER, WORKERS, Cluster
from faults.host import Counts, Host, TooLateError, eventually
from faults.judging import Answer, Judgement, judge, judge_error, stall_s, worst
from faults.kinds import FAULTS, Scene
from faults.models import LAYERS
from faults.report import Result
from faults.scenario import KINDS, Question, Scenario
from faults.stream import Stream
from faults.switch import Link
from potluck.api.schema import PlanRequest
from potluck.errors import PotluckError
from potluck.model.schemes import Scheme

POLL_S = 0.002
LOAD_S = 60.0
PROBE = Question(number=0, long=False, sampled=False)
PROBE_TOKENS = 16
PROBE_S = 30.0  # until another prompt has to be right
WHILE_SENT = Link(rate_mbit=40.0)  # so that the sending of weights has a middle
MORE_DESCRIPTORS = 12  # of a host than at first: connections come and go
VOCABULARY = 256


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

    # --- one run

    def run(self, scenario: Scenario) -> Result:
        """Carry out one scenario."""
        began = time.monotonic()
        self._load(scenario)
        expected = {
            question: self._undisturbed_answer(scenario, question)
            for question in (*scenario.questions, PROBE)
        }
        if not self._at_rest:
            self._at_rest = self._counts()
        scene = Scene(self.cluster, scenario)
        plan = self._plan()
        if KINDS[scenario.kind] == "load":
            fault_at, streams, load = self._load_under_fault(scene)
        else:
            fault_at, streams = self._answer_under_fault(scene)
            load = None
        self._follow(scene, streams)
        ended = time.monotonic()
        answers = [stream.answer for stream in streams]
        judgements = [
            judge(answer, expected[question])
            for question, answer in zip(scenario.questions, answers, strict=True)
        ]
        found = worst([*judgements, *([load] if load is not None else [])])
        next_prompt_s = self._probe(scene, expected[PROBE], ended)
        if next_prompt_s is None:
            found = Judgement("lost", f"{found.why}; no prompt was answered {PROBE_S:.0f} s later")
        repaired = time.monotonic()
        scene.repair()
        leaks = self._wait_until_whole()
        ready_s = time.monotonic() - repaired
        stalls = [s for answer in answers if (s := stall_s(answer, fault_at)) is not None]
        errors = [
            answer.ended_at - fault_at
            for answer in answers
            if answer.error is not None and answer.ended_at is not None
        ]
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
            equal=sum(one.verdict == "equal" for one in judgements),
            next_token_s=max(stalls, default=None),
            error_s=max(errors, default=None),
            next_prompt_s=next_prompt_s,
            ready_s=ready_s,
            took_s=time.monotonic() - began,
            leaks=leaks,
        )

    # --- before the fault

    def _load(self, scenario: Scenario) -> None:
        """Load the model of the scenario, unless it is loaded."""
        if self._loaded == scenario.setting:
            return
        self.cluster.client.unload()  # else what is loaded might stay as it is, with less memory
        request = self.cluster.choose(*scenario.setting)
        self.cluster.load(request)
        self._loaded = scenario.setting

    def _undisturbed_answer(self, scenario: Scenario, question: Question) -> Answer:
        key = scenario.model, scenario.scheme, question
        if key not in self._undisturbed:
            stream = Stream(self.cluster.client, question.request(VOCABULARY))
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

    def _answer_under_fault(self, scene: Scene) -> tuple[float, list[Stream]]:
        """Ask, wait for the moment, and let the fault happen."""
        scenario = scene.scenario
        streams = self._ask(scenario.questions)
        first = streams[0]
        if scenario.in_prefill:
            time.sleep(scenario.moment * 0.4 * (1 + len(streams) / 4))
        else:
            tokens = scenario.moment * scenario.questions[0].max_tokens
            while len(first.answer.ids) < tokens and first.is_alive():
                time.sleep(POLL_S)
        fault_at = time.monotonic()
        FAULTS[scenario.kind](scene)
        return fault_at, streams

    def _load_under_fault(self, scene: Scene) -> tuple[float, list[Stream], Judgement | None]:
        """Load while a fault happens, and ask then.

        Returns:
            When the fault was, the answers, and how the load is judged if it failed.
        """
        scenario = scene.scenario
        victim = self._by_hand(scene)
        self._loaded = None
        self.cluster.client.unload()
        request = replace_layers(self.cluster.choose(*scenario.setting), victim)
        if scenario.kind == "corrupt-store":
            FAULTS[scenario.kind](scene)
            eventually(lambda: not self.cluster.missing(), "the compute process is back", LOAD_S)
            fault_at = time.monotonic()
            load = Load(self.cluster, request)
        else:
            victim.empty_store()
            eventually(lambda: not self.cluster.missing(), "the node is back", LOAD_S)
            self.cluster.lan.set_link(victim.name, WHILE_SENT)
            load = Load(self.cluster, request)
            load.wait_for_share(victim.name, scenario.moment)
            fault_at = time.monotonic()
            FAULTS[scenario.kind](scene)
        deadline = time.monotonic() + LOAD_S
        while load.is_alive() and time.monotonic() < deadline:
            scene.act()
            time.sleep(POLL_S)
        judgement = None
        if load.is_alive():
            judgement = Judgement("lost", f"the load took more than {LOAD_S:.0f} s")
        elif load.error is not None:
            judgement = judge_error(load.error.message, load.error.code)
        scene.repair()
        if judgement is not None:
            load.join()
            eventually(lambda: not self.cluster.missing(), "all are back", LOAD_S)
            self.cluster.load(request)
        return fault_at, self._ask(scenario.questions), judgement

    def _by_hand(self, scene: Scene) -> Host:
        """Return the worker that will be given a third of the layers, whatever a plan would be."""
        return self.cluster.hosts[WORKERS[int(scene.scenario.victims[0] * len(WORKERS))]]

    def _ask(self, questions: Sequence[Question]) -> list[Stream]:
        client = self.cluster.client
        return [Stream(client, question.request(VOCABULARY)) for question in questions]

    def _follow(self, scene: Scene, streams: Sequence[Stream]) -> None:
        """Follow the answers to their ends, or until they bring nothing for too long."""
        while any(stream.is_alive() for stream in streams):
            scene.act()
            for stream in streams:
                if stream.is_alive() and time.monotonic() - stream.last_at > self.silence_s:
                    stream.give_up()
            time.sleep(POLL_S)

    # --- after the fault

    def _probe(self, scene: Scene, expected: Answer, since: float) -> float | None:
        """Ask until a prompt is answered. Return how long that took; None: too long, or wrong."""
        request = PROBE.request(VOCABULARY) | {"max_tokens": PROBE_TOKENS}
        while time.monotonic() - since < PROBE_S:
            stream = Stream(self.cluster.client, request)
            self._follow(scene, [stream])
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
            eventually(lambda: not self._left_over(), "nothing is left over", 5.0)
        except TooLateError:
            return self._left_over()
        return []

    def _left_over(self) -> list[str]:
        found: list[str] = []
        for name, now in self._counts().items():
            before = self._at_rest[name]
            if now.processes > before.processes:
                found.append(f"{name}: {now.processes} processes, {before.processes} at first")
            if now.descriptors > before.descriptors + MORE_DESCRIPTORS:
                found.append(
                    f"{name}: {now.descriptors} descriptors, {before.descriptors} at first"
                )
            if now.parts > before.parts:
                found.append(f"{name}: {now.parts} parts of transfers")
        return found

    def _counts(self) -> dict[str, Counts]:
        return {name: host.counts() for name, host in self.cluster.hosts.items()}


class Load(threading.Thread):
    """A load under way."""

    def __init__(self, cluster: Cluster, request: PlanRequest) -> None:
        super().__init__(daemon=True)
        self.error: PotluckError | None = None
        self._cluster, self._request = cluster, request
        self._shares: dict[str, float] = {}
        self.start()

    def run(self) -> None:
        try:
            for progress in self._cluster.client.load(self._request):
                for sent in progress.nodes:
                    self._shares[sent.name] = sent.sent / max(sent.total, 1)
        except PotluckError as error:
            self.error = error

    def wait_for_share(self, name: str, share: float) -> None:
        """Wait until so much of what this computer lacks was sent to it, or the load is over."""
        while self._shares.get(name, 0.0) < share and self.is_alive():
            time.sleep(POLL_S)


def replace_layers(request: PlanRequest, victim: Host) -> PlanRequest:
    """Share the layers out by hand among the master, this worker and another one."""
    other = next(name for name in WORKERS if name != victim.name)
    layers = tuple((name, LAYERS // 3) for name in (MASTER, victim.name, other))
    return msgspec.structs.replace(request, layers=layers)
