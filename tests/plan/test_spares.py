"""Which layers each computer should have on its disk in case another one is lost."""

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
