import asyncio

import pytest
from fake_cluster import run

from potluck.cluster.activity import Activity


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nobody_has_needed_it_since_the_last_use() -> None:
    clock = Clock()
    activity = Activity(clock=clock)
    clock.now += 30

    assert activity.idle_s() == 30
    activity.use()
    assert activity.idle_s() == 0


def test_whoever_holds_it_keeps_it_from_being_idle() -> None:
    clock = Clock()
    activity = Activity(clock=clock)

    with activity.hold("window"):
        clock.now += 1000
        assert activity.is_held()
        assert activity.idle_s() == 0
    clock.now += 5

    assert not activity.is_held()
    assert activity.idle_s() == 5


def test_the_last_of_several_holders_counts() -> None:
    clock = Clock()
    activity = Activity(clock=clock)

    with activity.hold("request"):
        with activity.hold("request"), activity.hold("window"):
            pass
        clock.now += 50
        assert activity.idle_s() == 0


def test_a_holder_that_fails_lets_go() -> None:
    activity = Activity(clock=Clock())

    with pytest.raises(ValueError, match="broke"), activity.hold("serve"):
        raise ValueError("broke")

    assert not activity.is_held()


def test_who_has_not_seen_the_last_change_does_not_wait() -> None:
    async def main() -> None:
        activity = Activity()
        seen = activity.revision
        activity.touch()

        assert await activity.changed(seen) == seen + 1

    run(main())


def test_a_change_wakes_everyone_who_waits() -> None:
    async def main() -> None:
        activity = Activity()
        waiting = [asyncio.create_task(activity.changed(activity.revision)) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, timeout=0)
        assert not done
        activity.touch()

        assert await asyncio.gather(*waiting) == [activity.revision] * 3

    run(main())


def test_a_node_that_is_done_is_idle_until_it_is_used_again() -> None:
    activity = Activity(clock=Clock())

    activity.done()
    assert activity.idle_s() == float("inf")
    with activity.hold("request"):
        assert activity.idle_s() == 0
    assert activity.idle_s() == 0
