import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_cluster import FakeComputer, FakeComputers, devices, failing, run, until
from msgspec import structs
from packing_engine import Workplace

from potluck.api.values.network import Medium
from potluck.api.values.schema import Computer, ModelState, PlanRequest
from potluck.api.values.vitals import Vitals
from potluck.cluster.computer_views import ComputerViews, ranges_of
from potluck.cluster.events import ComputerLost, Events, ModelChanged
from potluck.cluster.master.master import Master
from potluck.cluster.master.models import Models
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.vocabulary import Failed
from potluck.cluster.membership.records import MemberRecord
from potluck.cluster.views import (
    deployment_plan,
    load_progress,
    loaded,
    model_state,
)
from potluck.errors import (
    DiskFullError,
    EngineError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
    UntrustedPeerError,
    VersionMismatchError,
)
from potluck.ids import NodeId
from potluck.net.advert import Found
from potluck.plan.viewing import Viewing
from potluck.store.registry import LocalModel
from potluck.wire import messages
from potluck.wire.messages import Address

SPLIT = PlanRequest(layers=(("Desk", 2), ("Laptop", 2)), context=64)


class Home:
    """A master with fake computers; its membership and its desk are what a test says."""

    def __init__(self, model: LocalModel, packing: Packing | None = None) -> None:
        self.desk, self.laptop = FakeComputer("Desk", 1), FakeComputer("Laptop", 2)
        self.desk.stores_weights = True
        self.computers = FakeComputers(self.desk, self.laptop)

        async def read(folder: Path, progress: Callable[[int, int], None]) -> LocalModel:
            progress(1, 2)
            self.seen.append(load_progress(self.master).fraction)
            self.while_read.append(model_state(self.master, None))
            return model

        self.seen: list[float] = []
        self.while_read: list[ModelState] = []
        events = Events()
        events.on(ModelChanged, lambda _: self.seen.append(load_progress(self.master).fraction))
        self.master = Master(
            computers=self.computers,
            models=Models(resolve=lambda words: Path(words or "guide"), read=read),
            events=events,
            packing=packing,
        )
        self.records = {
            self.laptop.node_id: MemberRecord(node_id=self.laptop.node_id, name="Laptop", color=3)
        }
        self.connected: list[Any] = [self.laptop]
        self.problems: dict[NodeId, PotluckError] = {}
        self.attempt: Any = None
        self.found: list[Found] = []
        self.worker = cast("Any", SimpleNamespace(reason=None, lease=None, vitals=Vitals()))
        self.slower: dict[NodeId, float] = {}
        attributes = (
            ("is_paused", False),
            ("lent_to", None),
            ("pause", None),
            ("vitals", None),
            ("medium", Medium()),
        )
        for attribute, value in attributes:
            setattr(self.laptop, attribute, value)
        cast("Any", self.laptop).link = SimpleNamespace(rtt_s=None)

    def view(self, name: str) -> Computer:
        membership = SimpleNamespace(
            records=self.records, connected=lambda: self.connected, problem=self.problems.get
        )
        views = ComputerViews(
            local=cast("Any", self.desk),
            membership=cast("Any", membership),
            master=self.master,
            pairings=cast("Any", SimpleNamespace(under_way=lambda _: self.attempt)),
            slower=lambda: self.slower,
        )
        return next(c for c in views.all(self.found, self.worker) if c.name == name)


def at_home(model: LocalModel, scenario: Callable[[Home], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Home(model))

    run(main())


def found(name: str, number: int) -> Found:
    return Found(
        node_id=NodeId(f"{number:064x}"),
        name=name,
        role="worker",
        addresses=(Address(host="127.0.0.1", port=9),),
        home=None,
        joinable=True,
        devices="",
        protocol=1,
    )


def test_a_load_goes_from_nothing_to_ready_and_never_back(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        assert model_state(home.master, None).state == "none"
        deployment = await home.master.load(SPLIT)

        assert home.seen == sorted(home.seen)
        done = load_progress(home.master)
        assert (done.state, done.fraction) == ("ready", 1.0)
        assert done.plan is not None
        assert [stage.layers for stage in done.plan.stages] == [(0, 2), (2, 4)]
        assert done.plan.epoch == deployment.epoch
        assert [t.name for t in loaded(deployment, was_there=False).nodes] == ["Desk", "Laptop"]
        assert loaded(deployment, was_there=True).nodes == ()
        state = model_state(home.master, 12.5)
        assert (state.state, state.tokens_per_s, state.context) == ("ready", 12.5, 64)

    at_home(model, scenario)


def test_a_computer_shows_what_it_is_doing(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        assert home.view("Laptop").state == "ready"
        gates = home.laptop.gates
        gates["send_weights"], gates["load"] = asyncio.Event(), asyncio.Event()
        loading = asyncio.create_task(home.master.load(SPLIT))
        await until(lambda: "send_weights" in home.laptop.calls)
        assert home.view("Laptop").state == "receiving"
        assert home.view("Laptop").progress == 0.0
        gates["send_weights"].set()
        await until(lambda: "load" in home.laptop.calls)
        assert (home.view("Laptop").state, home.view("Laptop").progress) == ("loading", 0.5)
        gates["load"].set()
        await loading
        there, here = home.view("Laptop"), home.view("Desk")
        assert (there.state, there.layers, there.color) == ("running", (2, 4), 3)
        assert (here.state, here.layers, here.is_self) == ("running", (0, 2), True)
        assert there.rtt_ms == pytest.approx(0.2)  # as it was measured for the plan

    at_home(model, scenario)


def test_the_devices_of_a_computer_are_shown_as_one(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        home.laptop.devices = devices("cuda", "cpu")
        request = PlanRequest(
            layers=(("Desk", 1), ("Laptop", 2), ("Laptop/cpu", 1)), scheme="f32", context=64
        )
        home.laptop.gates["load"] = asyncio.Event()
        loading = asyncio.create_task(home.master.load(request))
        await until(lambda: home.laptop.calls.count("load") == 2)
        there = home.view("Laptop")
        assert (there.state, there.progress, there.layers) == ("loading", 0.5, (1, 4))
        assert [(d.kind, d.index) for d in there.devices] == [("cuda", 0), ("cpu", 0)]
        home.laptop.gates["load"].set()
        deployment = await loading

        done = loaded(deployment, was_there=False)
        assert [t.name for t in done.nodes] == ["Desk", "Laptop"]
        for task, sent in zip(deployment.tasks, (0, 10, 20), strict=True):
            task.progress.sent, task.progress.total = sent, 30 if sent else 0
            task.progress.bytes_per_s = 5.0
        moved = load_progress(home.master).nodes[1]
        assert (moved.sent, moved.total, moved.bytes_per_s, moved.eta_s) == (30, 60, 5.0, 6.0)
        assert done.plan is not None
        assert [(s.node, s.device) for s in done.plan.stages] == [
            ("Desk", "cpu"), ("Laptop", "cuda:0"), ("Laptop", "cpu"),
        ]  # fmt: skip
        assert set(done.plan.alone) == {"Desk", "Laptop"}

    at_home(model, scenario)


def test_layers_of_a_computer_with_others_between_them_are_several_ranges(
    model: LocalModel,
) -> None:
    async def scenario(home: Home) -> None:
        home.laptop.devices = devices("cuda", "cpu")
        layers = (("Laptop", 1), ("Desk", 2), ("Laptop/cpu", 1))
        await home.master.load(PlanRequest(layers=layers, scheme="f32", context=64))

        there, here = home.view("Laptop"), home.view("Desk")

        assert (there.layers, there.ranges) == ((0, 4), ((0, 1), (3, 4)))
        assert (here.layers, here.ranges) == ((1, 3), ())

    at_home(model, scenario)


def test_while_another_model_is_planned_the_state_is_of_that_one(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        await home.master.load(SPLIT)
        assert home.master.deployment is not None
        _, stage = home.master.deployment.planned.plan.stages
        assert home.view("Laptop").memory_lent == stage.memory > 0
        await home.master.load(structs.replace(SPLIT, model="/models/Qwen3 8B"))
        state = home.while_read[-1]
        assert (state.name, state.plan, state.model_id) == ("Qwen3 8B", None, None)

    at_home(model, scenario)


def test_an_answer_under_way_is_counted(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        await home.master.load(SPLIT)
        assert home.master.turns is not None
        seen = len(home.seen)
        with home.master.turns.turn():
            assert model_state(home.master, None).answering == 1
            assert len(home.seen) == seen + 1
        assert model_state(home.master, None).answering == 0
        assert len(home.seen) == seen + 2

    at_home(model, scenario)


def test_packing_is_shown_and_so_is_that_the_disk_took_no_more(
    model: LocalModel, tmp_path: Path
) -> None:
    async def main() -> None:
        with Workplace(tmp_path) as workplace:
            home = Home(model, workplace.packing)
            workplace.engine.gate = asyncio.Event()
            workplace.engine.error = DiskFullError("The disk is full.")
            loading = asyncio.create_task(home.master.load(structs.replace(SPLIT, scheme="int4")))
            await until(lambda: workplace.engine.waiting)
            assert load_progress(home.master).state == "quantising"
            assert model_state(home.master, None).state == "preparing"
            assert model_state(home.master, None).message == f"Quantising {model.name} to int4"
            assert (home.view("Laptop").state, home.view("Laptop").layers) == ("ready", (2, 4))
            workplace.engine.gate.set()
            deployment = await loading

            assert home.seen == sorted(home.seen)
            assert "no room" in deployment_plan(deployment).explanation

    run(main())


def test_a_lost_computer_makes_the_model_one_that_is_to_be_planned_anew(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        await home.master.load(SPLIT)
        home.master.lost(
            ComputerLost(node_id=home.laptop.node_id, name="Laptop", how="stopped answering")
        )
        state = model_state(home.master, None)
        assert state.state == "failed"
        assert "plans anew" in (state.message or "")

    at_home(model, scenario)


def test_a_load_that_failed_says_why(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        home.laptop.errors["load"] = failing(EngineError("It burns."))
        with pytest.raises(EngineError):
            await home.master.load(SPLIT)
        state = model_state(home.master, None)
        assert state.state == "failed"
        assert "burns" in (state.message or "")

    at_home(model, scenario)


def test_why_a_paired_computer_is_not_there(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        home.connected = []
        node_id = home.laptop.node_id
        assert (home.view("Laptop").state, home.view("Laptop").reconnecting) == ("lost", False)
        home.found = [found("Laptop", 2)]
        assert home.view("Laptop").reconnecting
        assert "being connected" in (home.view("Laptop").detail or "")
        assert home.view("Laptop").address == "127.0.0.1:9"
        home.problems[node_id] = PeerLostError("It stopped answering.")
        assert (home.view("Laptop").state, home.view("Laptop").detail) == (
            "lost",
            "It stopped answering.",
        )
        assert home.view("Laptop").reconnecting
        home.problems[node_id] = UntrustedPeerError("Pair it again.")
        assert not home.view("Laptop").reconnecting
        assert (home.view("Laptop").state, home.view("Laptop").detail) == (
            "blocked",
            "Pair it again.",
        )
        home.problems[node_id] = VersionMismatchError("Update it.")
        assert home.view("Laptop").state == "version_differs"

    at_home(model, scenario)


def test_why_a_connected_computer_does_not_help(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        laptop = cast("Any", home.laptop)
        laptop.lent_to = "Ana's Mac"
        assert home.view("Laptop").detail == "It helps Ana's Mac."
        laptop.is_paused = True
        assert (home.view("Laptop").state, home.view("Laptop").online) == ("paused", True)
        laptop.pause = "is being used for a game or a film"
        assert home.view("Laptop").detail == "It is being used for a game or a film."

    at_home(model, scenario)


def test_a_computer_says_what_its_sensors_say_that_it_is_slow_and_that_it_lacked_memory(
    model: LocalModel,
) -> None:
    async def scenario(home: Home) -> None:
        plain = home.view("Laptop")
        assert (plain.vitals, plain.slower, plain.lacked_memory) == (None, None, False)
        cast("Any", home.laptop).vitals = messages.Vitals(battery=0.25, plugged=True, heat_c=70.0)
        home.worker.vitals = Vitals(heat_c=55.0)
        home.slower[home.laptop.node_id] = 2.5
        full = OutOfMemoryError("It is full.")
        home.master.shortages.heard(Failed(error=full, node_id=home.laptop.node_id), ())

        there, here = home.view("Laptop"), home.view("Desk")
        assert there.vitals == Vitals(battery=0.25, plugged=True, heat_c=70.0)
        assert (there.slower, there.lacked_memory) == (2.5, True)
        assert (here.vitals, here.slower, here.lacked_memory) == (Vitals(heat_c=55.0), None, False)

    at_home(model, scenario)


def test_strangers_are_found_asked_and_paired_with(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        home.found = [found("Mac", 7)]
        assert (home.view("Mac").state, home.view("Mac").joinable) == ("found", True)
        home.attempt = SimpleNamespace(machine=SimpleNamespace(code=None))
        assert home.view("Mac").state == "asking"
        home.attempt = SimpleNamespace(machine=SimpleNamespace(code="123 456"))
        assert home.view("Mac").state == "pairing"

    at_home(model, scenario)


def test_a_plan_says_that_a_computer_reads_pictures_only_while_it_does(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        deployment = await home.master.load(SPLIT)
        says = "Pictures are read by Attic."
        plan = deployment.planned.plan
        viewing = Viewing(plan=plan, ms=1.0, first_ms=9.0, explanation=says)
        deployment.planned = replace(deployment.planned, viewing=viewing)

        def said() -> str:
            view = model_state(home.master, None).plan
            assert view is not None
            return view.explanation

        assert says not in said()
        serving = SimpleNamespace(
            pipeline=None, phase="loading", planned=SimpleNamespace(plan=SimpleNamespace(stages=[SimpleNamespace(node=home.laptop.node_id, memory=0)])), tasks=(),
            uses=lambda node: node == home.laptop.node_id,
        )  # fmt: skip
        home.master.viewers.deployment = cast("Any", serving)
        assert says not in said()
        assert home.view("Laptop").reads_pictures == "soon"
        assert home.view("Desk").reads_pictures == "no"
        serving.pipeline = object()
        assert says in said()
        assert home.view("Laptop").reads_pictures == "yes"
        home.master.viewers.deployment = None
        assert home.view("Laptop").reads_pictures == "no"
        assert says in deployment_plan(deployment).explanation  # as it was planned

    at_home(model, scenario)


@pytest.mark.parametrize(
    ("layers", "ranges"),
    [
        ([(10, 20), (0, 5), (5, 10)], ((0, 20),)),
        ([(0, 0), (10, 20)], ((10, 20),)),
        ([(0, 4), (9, 9)], ((0, 4),)),
        ([(36, 36)], ((36, 36),)),  # the vocabulary
        ([], ()),
    ],
)
def test_an_empty_range_of_layers_is_left_out_beside_others(
    layers: list[tuple[int, int]], ranges: tuple[tuple[int, int], ...]
) -> None:
    assert ranges_of(layers) == ranges


def test_a_computer_that_reads_pictures_has_no_layers(model: LocalModel) -> None:
    async def scenario(home: Home) -> None:
        home.worker.lease = SimpleNamespace(layers=None, nbytes=5, is_loaded=True)
        here = home.view("Desk")
        assert (here.state, here.layers, here.ranges) == ("running", None, ())

    at_home(model, scenario)


@pytest.mark.parametrize(
    ("lease", "state", "progress"),
    [
        ({"is_loaded": True}, "running", None),
        ({"awaits_weights": True, "transfer": None}, "receiving", 0.0),
        ({"awaits_weights": True, "transfer": SimpleNamespace(sent=1, total=4)}, "receiving", 0.25),
        ({"progress": 0.5}, "loading", 0.5),
    ],
)
def test_a_computer_that_helps_shows_how_far_it_is(
    model: LocalModel, lease: dict[str, Any], state: str, progress: float | None
) -> None:
    async def scenario(home: Home) -> None:
        fields = {"is_loaded": False, "awaits_weights": False, "transfer": None, "progress": None}
        home.worker.lease = SimpleNamespace(layers=(4, 8), nbytes=5, **(fields | lease))
        here = home.view("Desk")
        assert (here.state, here.progress, here.layers) == (state, progress, (4, 8))
        assert here.memory_lent == 5
        home.worker.reason = "games"
        assert home.view("Desk").state == "paused"

    at_home(model, scenario)
