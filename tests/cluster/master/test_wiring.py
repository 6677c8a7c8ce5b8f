"""What a stage is told of the others of its plan, and of those of the plan before."""

from dataclasses import replace

import pytest
from fake_cluster import run
from fake_deployment import deployment_on, three

from potluck.cluster.master.deployment import Deployment
from potluck.store.registry import LocalModel
from potluck.wire.versions import READERS_SINCE


def test_a_stage_of_the_next_plan_is_told_who_had_its_layers_in_another_process(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        before = await deployment_on(model, desk, laptop, mac, layers=(1, 1, 2))
        before.wiring.ports = (11, 12, 13)
        planned = (await deployment_on(model, desk, laptop, layers=(1, 3))).planned
        computers = {c.node_id: c for c in (desk, laptop)}
        after = Deployment(
            planned=planned, epoch=8, computers=computers, changed=lambda: None, before=before
        )
        assert after.before is before
        first, second = (before.wiring.left_to(task, after.tasks) for task in after.tasks)
        assert (first.epoch, first.hops) == (7, ())  # it has its layer itself
        assert [(hop.node_id, hop.layers) for hop in second.hops] == [(mac.node_id, (2, 4))]
        assert {address.port for hop in second.hops for address in hop.addresses} == {13}

        await before.stop(keep={desk.node_id, laptop.node_id})  # the mac is unloaded
        assert before.wiring.left_to(after.tasks[1], after.tasks).hops == ()

    run(main())


def test_a_stage_of_another_replica_is_told_of_all_that_have_its_layers(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        ending = await deployment_on(model, desk, laptop, layers=(1, 3))
        ending.wiring.ports = (11, 12)
        heir = await deployment_on(model, mac, desk, layers=(2, 2))
        first, second = (ending.wiring.left_to(task, ()) for task in heir.tasks)
        assert [(hop.node_id, hop.layers) for hop in first.hops] == [
            (desk.node_id, (0, 1)),
            (laptop.node_id, (1, 2)),
        ]
        assert [(hop.node_id, hop.layers) for hop in second.hops] == [(laptop.node_id, (2, 4))]
        assert first.key == second.key == ending.wiring.load_of(0).key

    run(main())


def test_a_device_that_has_no_stage_of_the_next_plan_is_not_named_as_it_is_freed(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        before = await deployment_on(model, desk, laptop, layers=(2, 2))
        before.wiring.ports = (11, 12)
        before.tasks[1].stage = replace(before.tasks[1].stage, device="cuda:0")
        after = await deployment_on(model, desk, laptop, layers=(3, 1))
        assert before.wiring.left_to(after.tasks[0], after.tasks).hops == ()

    run(main())


def test_a_stage_is_told_which_share_each_rank_has_and_each_rank_who_has_whole_layers(
    model: LocalModel,
) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        group = await deployment_on(model, desk, laptop, mac, layers=(("Desk+Laptop", 4),))
        whole = await deployment_on(model, desk, laptop, mac, layers=(("Mac", 4),))
        group.wiring.ports, whole.wiring.ports = (11, 12), (13,)
        assert group.wiring.moves_conversations
        hops = group.wiring.left_to(whole.tasks[0], ()).hops
        shares = [hop.share for hop in hops]
        assert [share.rank for share in shares if share] == [0, 1]
        assert hops == group.wiring.cache_hops(whole.tasks[0])
        for rank in group.tasks:
            (hop,) = whole.wiring.left_to(rank, ()).hops
            assert (hop.node_id, hop.layers, hop.share) == (mac.node_id, (0, 4), None)

    run(main())


@pytest.mark.parametrize("version", [READERS_SINCE - 1, READERS_SINCE])
def test_caches_stay_for_nobody_where_no_other_plan_can_take_them(
    model: LocalModel, version: int
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        laptop.version = version
        wiring = (await deployment_on(model, desk, laptop, layers=(2, 2))).wiring
        wiring.ports = (11, 12)
        has_key = [wiring.load_of(index).key is not None for index in range(2)]
        assert has_key == [version >= READERS_SINCE] * 2

    run(main())
