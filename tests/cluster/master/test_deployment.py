import asyncio

import pytest
from fake_cluster import FakeComputer, devices, failing, run, until
from fake_deployment import deployment_on, three

from potluck.cluster.master.stage_deployment import Retries
from potluck.errors import (
    BusyError,
    EngineError,
    IntegrityError,
    PeerError,
    PeerLostError,
    RemoteError,
    UnreachableError,
    VersionMismatchError,
)
from potluck.ids import NodeId
from potluck.store.registry import LocalModel
from potluck.wire.messages import Address
from potluck.wire.versions import RANKS_SINCE

AT_ONCE = Retries(pause_s=0.0)


def test_every_stage_gets_its_tensors_and_its_neighbour(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        pipeline = await deployment.start()

        assert [a.layers for c in (desk, laptop, mac) for a in c.assigned] == [
            (0, 1), (1, 3), (3, 4),
        ]  # fmt: skip
        assert desk.assigned[0].embedding
        assert {a.model for c in (desk, laptop, mac) for a in c.assigned} == {model.name}
        assert mac.assigned[0].head
        wanted = model.config.stage_tensors(range(1, 3), embedding=False, head=False)
        assert {info.name for info in laptop.assigned[0].tensors} == set(wanted)
        hops = [c.next_hops[0] for c in (desk, laptop, mac)]
        assert [hop and hop.node_id for hop in hops] == [laptop.node_id, mac.node_id, None]
        assert hops[0] is not None
        assert [a.port for a in hops[0].addresses] == [5000]
        assert pipeline.stages == 3
        assert [len(c.chains) for c in (desk, laptop, mac)] == [1, 0, 1]
        assert desk.calls == ["assign", "load", "connect"]
        await deployment.stop()

    run(main())


@pytest.mark.parametrize("others", [True, False])
def test_a_pipeline_is_exact_in_chunks_if_all_of_its_stages_are(
    model: LocalModel, others: bool
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        desk.is_exact_in_chunks = mac.is_exact_in_chunks = True
        laptop.is_exact_in_chunks = others
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        assert (await deployment.start()).is_exact_in_chunks == others
        await deployment.stop()

    run(main())


def test_the_ranks_of_a_group_know_each_other_and_one_of_them_stands_in_the_chain(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        layers = (("Desk", 1), ("Laptop+Mac", 3))
        deployment = await deployment_on(model, desk, laptop, mac, layers=layers)
        pipeline = await deployment.start()

        assert [c.assigned[0].layers for c in (desk, laptop, mac)] == [(0, 1), (1, 4), (1, 4)]
        assert [c.assigned[0].head for c in (desk, laptop, mac)] == [False, True, False]
        shares = [c.assigned[0].share for c in (desk, laptop, mac)]
        assert [s and (s.rank, s.shares) for s in shares] == [None, (0, (1, 1)), (1, (1, 1))]
        places = [c.ranks[0] for c in (desk, laptop, mac)]
        assert places[0] is None
        for rank, place in enumerate(places[1:]):
            assert place is not None
            assert place.rank == rank
            assert [hop.node_id for hop in place.hops] == [laptop.node_id, mac.node_id]
        hops = [c.next_hops[0] for c in (desk, laptop, mac)]
        assert [hop and hop.node_id for hop in hops] == [laptop.node_id, None, None]
        previous = [c.previous[0] for c in (desk, laptop, mac)]
        assert previous == [None, desk.node_id, laptop.node_id]
        assert pipeline.stages == 2
        assert [len(c.chains) for c in (desk, laptop, mac)] == [1, 1, 0]
        assert deployment.planned.pipeline_names == ("Desk", "Laptop + Mac")
        await deployment.stop()

    run(main())


def test_a_rank_with_an_older_program_is_named(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        laptop.version = RANKS_SINCE - 1
        deployment = await deployment_on(model, desk, laptop, layers=(("Desk+Laptop", 4),))
        with pytest.raises(VersionMismatchError, match="Laptop cannot compute layers together"):
            await deployment.start()
        assert laptop.assigned == []

    run(main())


def test_two_stages_of_a_computer_talk_over_loopback(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        laptop.addresses = (Address(host="10.0.0.2", port=4002),)
        laptop.devices = devices("cuda", "cpu")
        deployment = await deployment_on(model, desk, laptop, layers=(1, 2, 1))
        await deployment.start()

        assert [a.device for a in laptop.assigned] == [d.id for d in laptop.devices]
        assert [a.layers for a in laptop.assigned] == [(1, 3), (3, 4)]
        hops = [hop and [a.host for a in hop.addresses] for hop in laptop.next_hops]
        assert hops == [["127.0.0.1"], None]
        assert desk.next_hops[0] is not None
        assert [a.host for a in desk.next_hops[0].addresses] == ["10.0.0.2"]
        assert laptop.previous == [desk.node_id, laptop.node_id]
        names = ("Desk", "Laptop/cuda:0", "Laptop/cpu")
        assert deployment.planned.stage_names == names
        assert tuple(task.progress.name for task in deployment.tasks) == names
        for task, sent in zip(deployment.tasks, (0, 10, 20), strict=True):
            task.progress.sent = sent
        assert deployment.streamed_bytes == {"Desk": 0, "Laptop": 30}
        await deployment.stop()
        assert laptop.calls.count("unload") == 1

    run(main())


def test_a_device_that_refuses_is_named(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        laptop.devices = devices("cuda", "cpu")
        deployment = await deployment_on(model, desk, laptop, layers=(1, 2, 1))
        laptop.errors["load"] = failing(EngineError("No memory."))
        with pytest.raises(EngineError, match=r"^Laptop/cuda:0: No memory"):
            await deployment.start()
        await deployment.stop()

    run(main())


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_next_stage_that_cannot_be_reached_is_to_blame_and_not_who_calls_it(
    model: LocalModel, is_remote: bool
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        caller, called = (laptop, mac) if is_remote else (desk, laptop)
        away = UnreachableError("The computer cannot be reached.")
        remote = RemoteError(away.message, kind=away.code)
        caller.errors["load"] = failing(remote if is_remote else away)
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        with pytest.raises(PeerError):
            await deployment.start()

        assert deployment.culprit == called.node_id

    run(main())


@pytest.mark.parametrize(
    ("named", "blamed"),
    [("Attic", "Attic"), ("Mac", "Mac"), ("Stranger", "Laptop"), (None, "Laptop")],
)
def test_of_several_computers_that_a_stage_calls_the_one_it_names_is_to_blame(
    model: LocalModel, named: str | None, blamed: str
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        attic = FakeComputer("Attic", 4)
        ids = {c.name: c.node_id for c in (desk, laptop, mac, attic)} | {
            "Stranger": NodeId("ee" * 32)
        }
        data = {} if named is None else {"node": ids[named]}
        laptop.errors["load"] = failing(UnreachableError("It cannot be reached.", **data))
        layers = (("Desk", 1), ("Laptop+Mac", 2), ("Attic", 1))
        deployment = await deployment_on(model, desk, laptop, mac, attic, layers=layers)
        with pytest.raises(PeerError):
            await deployment.start()

        assert deployment.culprit == ids[blamed]

    run(main())


def test_one_computer_alone_has_one_connection(model: LocalModel) -> None:
    async def main() -> None:
        desk, *_ = three()
        deployment = await deployment_on(model, desk, layers=(4,))
        await deployment.start()
        assert len(desk.chains) == 1
        await deployment.stop()
        assert desk.chains[0].is_closed

    run(main())


def test_nothing_is_loaded_before_everything_is_sent(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        laptop.gates["send_weights"] = asyncio.Event()
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        starting = asyncio.create_task(deployment.start())
        await until(lambda: mac.calls == ["assign", "send_weights"])

        assert deployment.phase == "streaming"
        assert "load" not in desk.calls
        laptop.gates["send_weights"].set()
        await starting
        assert deployment.phase == "loading"
        await deployment.stop()

    run(main())


def test_progress_goes_forward_from_nothing_to_all(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        seen: list[float] = []
        deployment = await deployment_on(
            model, desk, laptop, mac, layers=(1, 2, 1),
            changed=lambda: seen.append(deployment.fraction),
        )  # fmt: skip
        await deployment.start()

        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(1.0)
        sizes = {name: sum(t.nbytes for t in c.assigned[0].tensors)
                 for name, c in (("Laptop", laptop), ("Mac", mac))}  # fmt: skip
        assert deployment.streamed_bytes == {"Desk": 0, **sizes}
        assert deployment.uses(laptop.node_id)
        assert not deployment.uses(FakeComputer("Other", 9).node_id)
        await deployment.stop()

    run(main())


def test_what_a_computer_has_is_not_sent(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        laptop.stores_weights = mac.stores_weights = True
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        await deployment.start()

        assert "send_weights" not in laptop.calls + mac.calls
        assert sum(deployment.streamed_bytes.values()) == 0
        assert deployment.fraction == pytest.approx(1.0)
        await deployment.stop()

    run(main())


def test_a_weights_link_that_breaks_is_made_again(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        laptop.errors["send_weights"] = failing(PeerLostError("broke"))
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        await deployment.start()

        assert laptop.calls == ["assign", "send_weights"] * 2 + ["load"]
        await deployment.stop()

    run(main())


def test_a_weights_link_that_always_breaks_is_an_error(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        laptop.errors["send_weights"] = failing(PeerLostError("broke"), AT_ONCE.attempts)
        deployment = await deployment_on(
            model, desk, laptop, mac, layers=(1, 2, 1), retries=AT_ONCE
        )

        with pytest.raises(PeerLostError, match="Laptop closed its connection before"):
            await deployment.start()
        assert "load" not in desk.calls + laptop.calls + mac.calls

    run(main())


def test_the_first_refusal_ends_the_others(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        laptop.gates["assign"] = asyncio.Event()  # never answers
        mac.errors["assign"] = failing(BusyError("Mac is lent to Ana."))
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))

        with pytest.raises(BusyError, match="Ana"):
            await deployment.start()

    run(main())


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_damaged_file_is_sent_again_and_loaded(model: LocalModel, is_remote: bool) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        remote = RemoteError("damaged")
        remote.data = {"kind": "integrity"}
        laptop.errors["load"] = failing(remote if is_remote else IntegrityError("damaged"))
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        await deployment.start()

        assert laptop.calls == ["assign", "send_weights", "load", "assign", "load"]
        await deployment.stop()

    run(main())


def test_a_computer_whose_files_are_damaged_again_and_again_is_an_error_that_says_what_to_do(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        laptop.errors["load"] = failing(IntegrityError("damaged"), 99)
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))

        with pytest.raises(IntegrityError, match=r"Laptop were damaged.*4 times.*models verify"):
            await deployment.start()
        assert laptop.calls.count("load") == 4

    run(main())


def test_any_other_refusal_to_load_is_an_error(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        refusal = RemoteError("no memory")
        refusal.data = {"kind": "out_of_memory"}
        laptop.errors["load"] = failing(refusal)
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))

        with pytest.raises(RemoteError, match="no memory"):
            await deployment.start()

    run(main())


def test_a_driver_that_reaches_one_end_only_lets_go_of_it(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        mac.errors["connect"] = failing(PeerLostError("gone"))
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))

        with pytest.raises(PeerLostError):
            await deployment.start()
        assert desk.chains[0].is_closed

    run(main())


def test_a_computer_lost_on_the_way_fails_the_start_although_nobody_asks_it(
    model: LocalModel,
) -> None:
    """The middle stage has no connection with the driver, so only its control link tells."""

    async def main() -> None:
        desk, laptop, mac = three()
        mac.gates["load"] = asyncio.Event()
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        starting = asyncio.create_task(deployment.start())
        await until(lambda: laptop.is_loaded and "load" in mac.calls)
        deployment.fail(PeerLostError("Laptop stopped answering."))
        mac.gates["load"].set()

        with pytest.raises(PeerLostError, match="Laptop"):
            await starting
        assert all(chain.is_closed for chain in (*desk.chains, *mac.chains))

    run(main())


def test_stopping_frees_everyone_and_does_not_wait_for_the_lost(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        pipeline = await deployment.start()
        laptop.errors["unload"] = failing(PeerLostError("gone"))
        await deployment.stop()

        assert not desk.is_loaded
        assert not mac.is_loaded
        assert pipeline.broken is not None
        assert desk.chains[0].is_closed
        assert mac.chains[0].is_closed

    run(main())


def test_stopping_before_the_start_is_done_is_fine(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        mac.gates["load"] = asyncio.Event()
        deployment = await deployment_on(model, desk, laptop, mac, layers=(1, 2, 1))
        starting = asyncio.create_task(deployment.start())
        await until(lambda: "load" in mac.calls)
        starting.cancel()
        await asyncio.wait([starting])
        await deployment.stop()

        assert "unload" in mac.calls

    run(main())
