"""Two whole nodes in one process, with real TLS and real stage processes; only discovery is without a network."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from byte_model import LAYERS
from fake_cluster import Run
from whole_nodes import QUESTION, SPLIT, chat, eventually, join, kill_engine, load, seen, stages

from potluck.api.events import Finished, Piece, Started
from potluck.api.prompts import GenerationRequest, SamplingOptions, TextPrompt
from potluck.api.values.schema import PlanRequest, RoleRequest
from potluck.api.values.weights import PruneRequest
from potluck.cluster.events import Events, Holds
from potluck.cluster.master.master import Master
from potluck.cluster.node import Node
from potluck.cluster.processes.messages import LoadProgress, LoadStage, StageLoaded
from potluck.errors import PairingError, PotluckError, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.net]


def test_paired_computers_see_each_other(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        await eventually(desk, lambda: [c.devices for c in desk.membership.connected()] != [()])
        there = seen(desk, "Laptop")
        assert there is not None
        assert (there.paired, there.online, there.state) == (True, True, "ready")
        assert there.color > 0
        assert desk.backend.state().node.role == "master"
        assert laptop.backend.state().node.role == "worker"
        await eventually(laptop, lambda: "Desk" in laptop.links.master_names())
        assert any("Desk" in notice.text for notice in laptop.backend.state().notices)

    run(main())


def test_a_model_is_streamed_once_and_answers_as_it_does_alone(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, PlanRequest(layers=(("Desk", LAYERS),), context=128))
        alone = await chat(desk)
        _, generator = await desk.master.ready(PlanRequest())
        sent = await load(desk, SPLIT)
        assert (await desk.master.ready(PlanRequest()))[1] is generator  # with its conversations
        assert stages(desk) == ["Desk", "Laptop"]
        assert sent["Laptop"] > 0
        assert sent["Desk"] == 0
        assert await chat(desk) == alone
        assert len(alone) > 0

        await desk.backend.unload()
        assert laptop.worker.lease is None
        assert sum((await load(desk, SPLIT)).values()) == 0
        assert desk.backend.state().model.tokens_per_s is None  # the speed was that of another plan
        assert await chat(desk) == alone
        assert desk.backend.state().model.tokens_per_s is not None
        lent = laptop.backend.state().node
        assert lent.lent_to == ("Desk",)
        assert (lent.lent_model, lent.lent_of) == (desk.backend.state().model.name, 6)
        assert (lent.lent_layers, lent.lent_as) == (4, "layers")

    run(main())


def test_no_file_of_either_computer_has_a_prompt_or_its_answer(
    desk: Node,
    laptop: Node,
    run: Run,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not in what they log, nor beside the caches that they keep on disk when a model is unloaded."""
    secret = "Mother's maiden name is Quirrelmoth-77."
    asked = msgspec.structs.replace(QUESTION, prompt=TextPrompt(secret * 16), max_tokens=16)
    plan = PlanRequest(layers=SPLIT.layers, context=1024, scheme="f32")
    caplog.set_level(logging.DEBUG)

    answers: list[str] = []

    async def main() -> None:
        await load(desk, plan)
        answers.append(await chat(desk, asked))
        await desk.backend.unload()

    run(main())
    told = [secret[:12].encode(), secret[-12:].encode(), answers[0].encode()]
    assert len(answers[0]) > 8
    said = "\n".join(record.getMessage() for record in caplog.records).encode()
    assert not any(text in said for text in told)
    looked: list[Path] = []
    for base in tmp_path_factory.getbasetemp().glob("nodes*"):
        for file in filter(Path.is_file, base.rglob("*")):
            looked.append(file)
            assert not any(text in file.read_bytes() for text in told), file
    caches = [file for file in looked if file.parent.name == "sessions"]
    assert caches
    assert any(file.name.startswith("engine") for file in looked)  # a log


def test_a_model_that_was_unloaded_goes_on_with_caches_from_the_disk(
    desk: Node, laptop: Node, run: Run
) -> None:
    plan = PlanRequest(layers=SPLIT.layers, context=1024, scheme="f32")
    story = "".join(f"{n} bottles, " for n in range(55))
    question = msgspec.structs.replace(QUESTION, prompt=TextPrompt(story))

    async def cached() -> int:
        events = [event async for event in desk.backend.generate(question)]
        (started,) = (event for event in events if isinstance(event, Started))
        return started.cached_tokens

    async def main() -> None:
        await load(desk, plan)
        assert await cached() == 0
        await desk.backend.unload()
        await load(desk, plan)
        assert len(story) - 64 <= await cached() < len(story)

        await desk.backend.prune_models(PruneRequest(dry_run=False))
        await laptop.backend.prune_models(PruneRequest(dry_run=False))
        assert not any(
            list((node.store.root.parent / "sessions").iterdir()) for node in (desk, laptop)
        )

    run(main())


def test_weights_that_are_deleted_or_altered_under_a_running_worker_are_repaired_in_the_next_load(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        before = await chat(desk)

        for tensor in laptop.store.root.glob("??/*"):  # of the same sizes: only digests can tell
            tensor.write_bytes(bytes(tensor.stat().st_size))
        await desk.backend.unload()
        assert (await load(desk, SPLIT))["Laptop"] > 0
        assert await chat(desk) == before

        shutil.rmtree(laptop.store.root)
        await desk.backend.unload()
        assert (await load(desk, SPLIT))["Laptop"] > 0
        assert await chat(desk) == before

    run(main())


def test_what_is_loaded_as_asked_is_ready_at_once(desk: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        before = desk.master.deployment
        assert await load(desk, SPLIT) == {}
        assert desk.master.deployment is before

    run(main())


def test_answers_at_the_same_time_do_not_mix(desk: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        questions = [
            GenerationRequest(
                prompt=TextPrompt(text),
                sampling=SamplingOptions(temperature=0.0),
                max_tokens=6,
                ignore_eos=True,
            )
            for text in ("one", "two", "three")
        ]
        one_by_one = [await chat(desk, question) for question in questions]
        together = await asyncio.gather(*(chat(desk, question) for question in questions))
        assert list(together) == one_by_one

    run(main())


def test_an_answer_nobody_listens_to_stops(desk: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        events = desk.backend.generate(QUESTION)
        await anext(events)
        await events.aclose()
        assert not desk.activity.is_held()
        assert await chat(desk)

    run(main())


def test_a_paused_worker_is_done_without_and_used_again_afterwards(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        alone = await chat(desk)
        await laptop.backend.set_role(RoleRequest(worker=True, paused=True))
        await eventually(desk, lambda: not desk.membership.available())
        there = seen(desk, "Laptop")
        assert there is not None
        assert there.state == "paused"
        assert any("paused" in notice.text for notice in desk.backend.state().notices)
        assert await chat(desk) == alone
        assert stages(desk) == ["Desk"]

        await laptop.backend.set_role(RoleRequest(worker=True, paused=False))
        await eventually(desk, lambda: desk.membership.available())
        await load(desk, SPLIT)
        assert stages(desk) == ["Desk", "Laptop"]
        assert await chat(desk) == alone

    run(main())


@pytest.mark.parametrize("whose", ["Desk", "Laptop"])
def test_an_engine_that_dies_costs_one_answer_at_most(
    desk: Node, laptop: Node, run: Run, whose: str
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        before = await chat(desk)
        victim = desk if whose == "Desk" else laptop
        kill_engine(victim)
        await eventually(desk, lambda: not desk.master.is_ready)

        assert await chat(desk) == before
        await eventually(victim, lambda: victim.processes.devices)
        await eventually(desk, lambda: desk.membership.available())
        await load(desk, SPLIT)
        assert stages(desk) == ["Desk", "Laptop"]
        assert await chat(desk) == before

    run(main())


def test_what_a_worker_lends_is_what_its_owner_says(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        def lent() -> int | None:
            there = seen(desk, "Laptop")
            return there.devices[0].memory_free if there and there.devices else None

        await laptop.backend.set_role(RoleRequest(worker=True, memory=123_456))
        await eventually(desk, lambda: lent() == 123_456)
        assert laptop.backend.state().node.memory_limit == 123_456
        await laptop.backend.set_role(RoleRequest(worker=True, memory=0))
        await eventually(desk, lambda: (lent() or 0) > 123_456)

    run(main())


def restarted(desk: Node) -> Master:
    """A master that knows nothing of the one before, on the same computers."""
    master = Master(computers=desk.membership, models=desk.models, events=Events())
    for computer in desk.membership.connected():
        (held,) = computer.held
        master.happened(Holds(node_id=computer.node_id, epoch=held.epoch))
    return master


def holds_what_is_deployed(desk: Node) -> bool:
    """Whether the worker has said that it holds its part: it says so twice a second at most."""
    (computer,) = desk.membership.connected()
    deployment = desk.master.deployment
    return deployment is not None and [h.epoch for h in computer.held] == [deployment.epoch]


def test_a_master_that_was_restarted_finds_the_layers_of_its_worker(
    desk: Node, laptop: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        (computer,) = desk.membership.connected()
        await eventually(desk, lambda: holds_what_is_deployed(desk))
        assert computer.held[0].layers == (2, LAYERS)
        lease = laptop.worker.lease
        assert lease is not None
        (stage,) = lease.stages.values()
        loads: list[StageLoaded] = []
        load_stage = stage.handle.load

        async def noted(
            message: LoadStage, progress: Callable[[LoadProgress], None]
        ) -> StageLoaded:
            loads.append(await load_stage(message, progress))
            return loads[-1]

        monkeypatch.setattr(stage.handle, "load", noted)
        master = restarted(desk)
        again = await master.load(SPLIT)
        assert sum(again.streamed_bytes.values()) == 0
        assert laptop.worker.lease is not None
        (stage_again,) = laptop.worker.lease.stages.values()
        assert stage_again.handle is stage.handle
        assert [(each.layers_kept, each.layers_loaded) for each in loads] == [(LAYERS - 2, 0)]
        await eventually(desk, lambda: [h.epoch for h in computer.held] == [again.epoch])
        assert laptop.worker.lease.before == {}

        await master.load(PlanRequest(layers=(("Desk", LAYERS),), scheme="f32"))
        await eventually(laptop, lambda: laptop.worker.lease is None)
        await desk.backend.unload()

    run(main())


def test_layers_that_no_plan_of_a_restarted_master_needs_are_given_back(
    desk: Node, laptop: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        (computer,) = desk.membership.connected()
        await eventually(desk, lambda: holds_what_is_deployed(desk))

        master = restarted(desk)  # kept: what it does for nobody in particular goes on
        await master.load(PlanRequest(layers=(("Desk", LAYERS),), scheme="f32"))
        await eventually(laptop, lambda: laptop.worker.lease is None)
        await eventually(desk, lambda: not computer.held)
        await desk.backend.unload()

    run(main())


def test_a_token_that_was_used_is_of_no_use(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        invite = await desk.backend.invite()
        await laptop.backend.join(invite.token)
        with pytest.raises(PairingError, match="used already"):
            await laptop.backend.join(invite.token)
        await eventually(desk, lambda: desk.membership.available())

    run(main())


def test_a_plan_says_who_would_do_what(desk: Node, run: Run) -> None:
    async def main() -> None:
        plan = await desk.backend.plan(SPLIT)
        assert [stage.layers for stage in plan.stages] == [(0, 2), (2, LAYERS)]
        assert set(plan.alone) == {"Desk", "Laptop"}

    run(main())


def test_a_load_that_is_closed_early_is_cancelled(desk: Node, run: Run) -> None:
    async def main() -> None:
        await desk.backend.unload()
        progress = desk.backend.load(SPLIT)
        await anext(progress)
        await progress.aclose()
        await eventually(desk, lambda: desk.master.state.phase is None)
        assert desk.master.deployment is None
        await load(desk, SPLIT)
        assert await chat(desk)

    run(main())


def test_a_model_that_is_not_there_is_an_error_and_the_next_load_works(
    desk: Node, run: Run, tmp_path: Path
) -> None:
    async def main() -> None:
        with pytest.raises(PotluckError):
            await load(desk, PlanRequest(model=str(tmp_path / "none")))
        assert desk.backend.state().model.state != "preparing"
        await load(desk, SPLIT)

    run(main())


def test_a_computer_that_was_removed_is_out_at_once(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        await desk.backend.forget(laptop.identity.node_id)

        assert not desk.membership.connected()
        there = seen(desk, "Laptop")
        assert there is not None
        assert not there.paired
        await eventually(laptop, lambda: not laptop.identity.homes)
        await eventually(laptop, lambda: laptop.worker.lease is None)
        assert any("removed" in notice.text for notice in laptop.backend.state().notices)
        assert await chat(desk)
        assert stages(desk) == ["Desk"]
        with pytest.raises(UsageError):
            await desk.backend.forget(laptop.identity.node_id)

        await join(desk, laptop)
        await load(desk, SPLIT)
        assert stages(desk) == ["Desk", "Laptop"]

    run(main())


def test_two_people_compare_six_digits(desk: Node, laptop: Node, run: Run) -> None:
    async def main() -> None:
        await desk.backend.forget(laptop.identity.node_id)
        await eventually(laptop, lambda: not laptop.identity.homes)
        asked = await desk.backend.pair("laptop")
        await eventually(laptop, lambda: any(p.code for p in laptop.backend.state().pairings))
        there = laptop.backend.state().pairings[-1]
        assert (asked.role, there.role) == ("master", "worker")
        assert asked.code == there.code
        await laptop.backend.decide_pairing(there.id, True)
        await desk.backend.decide_pairing(asked.id, True)
        await eventually(desk, lambda: desk.membership.available())

        assert await load(desk, SPLIT)
        assert stages(desk) == ["Desk", "Laptop"]

    run(main())


def test_an_answer_whose_tokens_are_guessed_is_the_one_without(
    desk: Node, laptop: Node, run: Run
) -> None:
    """Of two tokens one is chosen more often, so that guesses are right, mostly. A computer is lost in the middle of those."""
    sampling = SamplingOptions(
        temperature=1.0,
        seed=4,
        logit_bias=((97, 80.0), (98, 76.0)),
        logprobs=2,
        repetition_penalty=1.1,
    )
    question = msgspec.structs.replace(QUESTION, sampling=sampling, max_tokens=80)

    async def answered(*, loses: bool = False) -> tuple[list[int], int]:
        """The tokens, and how many were guessed."""
        tokens: list[int] = []
        async for event in desk.backend.generate(question):
            if isinstance(event, Piece):
                tokens += event.token_ids
                if loses and len(tokens) >= 40:
                    kill_engine(laptop)
                    loses = False
            elif isinstance(event, Finished):
                return tokens, event.timings.guessed_tokens
        raise AssertionError("the answer does not end")

    async def main() -> None:
        await load(desk, SPLIT)
        _, generator = await desk.master.ready(PlanRequest())
        with_guesses, some = await answered(loses=True)
        place = generator._places.largest
        assert place is not None
        place.pipeline.takes_drafts = False
        alone, none = await answered()

        assert alone == with_guesses
        assert len(alone) == 80
        assert none == 0 < some

    run(main())
