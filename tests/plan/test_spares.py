"""Which layers each computer should have on its disk in case another one is lost."""

from dataclasses import replace

from potluck.ids import NodeId
from potluck.plan.spares import Share, spare_shares
from potluck.plan.stages import StagePlan

DESK, LAPTOP, MAC = NodeId("1"), NodeId("2"), NodeId("3")


def stages(*parts: tuple[NodeId, range]) -> list[StagePlan]:
    return [
        StagePlan(
            node=node,
            name=node,
            device="cpu",
            layers=layers,
            embedding=number == 0,
            head=number == len(parts) - 1,
            predicted_ms=1.0,
            head_ms=0.0,
            prefill_ms=1.0,
            memory=1,
        )
        for number, (node, layers) in enumerate(parts)
    ]


PLAN = stages((DESK, range(2)), (LAPTOP, range(2, 6)), (MAC, range(6, 8)))


def test_a_computer_lacks_what_it_would_compute_after_a_loss() -> None:
    without_laptop = stages((DESK, range(3)), (MAC, range(3, 8)))

    assert spare_shares(PLAN, [without_laptop]) == {
        DESK: Share(frozenset({2})),
        MAC: Share(frozenset({3, 4, 5})),
    }


def test_what_several_losses_need_is_put_together() -> None:
    without_laptop = stages((DESK, range(4)), (MAC, range(4, 8)))
    without_mac = stages((DESK, range(1)), (LAPTOP, range(1, 8)))

    assert spare_shares(PLAN, [without_laptop, without_mac]) == {
        DESK: Share(frozenset({2, 3})),
        MAC: Share(frozenset({4, 5})),
        LAPTOP: Share(frozenset({1, 6, 7}), head=True),
    }


def test_what_several_devices_of_a_computer_have_is_not_lacking() -> None:
    plan = stages((LAPTOP, range(2)), (LAPTOP, range(2, 5)), (MAC, range(5, 8)))

    after = stages((LAPTOP, range(5)), (DESK, range(5, 8)))

    assert spare_shares(plan, [after]) == {DESK: Share(frozenset({5, 6, 7}), head=True)}


def test_nothing_is_lacking_if_nothing_could_go_on() -> None:
    assert spare_shares(PLAN, []) == {}


def ranked(node: NodeId, layers: range, rank: int, shares: tuple[int, ...]) -> StagePlan:
    return replace(stages((node, layers))[0], embedding=False, head=False, rank=rank, shares=shares)


def test_a_rank_has_no_whole_layers_and_whole_ones_are_parts_of_any_rank() -> None:
    group = [ranked(LAPTOP, range(4), 0, (1, 1)), ranked(MAC, range(4), 1, (1, 1))]
    alone = stages((LAPTOP, range(4)))

    assert spare_shares(group, [alone]) == {
        LAPTOP: Share(frozenset(range(4)), embedding=True, head=True)
    }
    parts = {LAPTOP: Share(frozenset(range(4)), part=(0, (1, 1)))}
    parts[MAC] = Share(frozenset(range(4)), part=(1, (1, 1)))
    assert spare_shares([], [group]) == parts
    assert spare_shares(alone, [group]) == {MAC: parts[MAC]}
    assert spare_shares(group, [group]) == {}


def test_what_two_plans_need_of_a_layer_in_other_parts_is_kept_whole() -> None:
    some, others = ranked(MAC, range(2), 1, (1, 1)), ranked(MAC, range(1, 3), 1, (2, 1))

    assert spare_shares([], [[some], [others]]) == {MAC: Share(frozenset(range(3)))}
    assert spare_shares([some], [[others]]) == {
        MAC: Share(frozenset(range(1, 3)), part=(1, (2, 1)))
    }


def test_all_ranks_of_a_group_on_one_computer_are_whole_layers() -> None:
    both = [ranked(LAPTOP, range(4), rank, (1, 1)) for rank in range(2)]

    assert spare_shares([], [both]) == {LAPTOP: Share(frozenset(range(4)))}
    assert spare_shares(both, [stages((LAPTOP, range(4)))]) != {}
