"""Two whole nodes in one process: a computer is its owner's first, and sleeps when nobody uses it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cluster import Run, until
from whole_nodes import AT_REST, SPLIT, chat, eventually, load, paired, seen

from potluck.api.values.schema import Computer
from potluck.api.values.vitals import Vitals
from potluck.cluster import node, node_parts
from potluck.cluster.node import Node
from potluck.system import awake

pytestmark = [pytest.mark.slow, pytest.mark.net, pytest.mark.usefixtures("guide")]


def laptop_of(desk: Node) -> Computer:
    laptop = seen(desk, "Laptop")
    assert laptop is not None
    return laptop


def test_computers_stay_awake_while_they_answer_and_one_whose_owner_plays_is_planned_around(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    plays = [False]

    def hold() -> Callable[[], None]:
        held.append(1)
        return lambda: held.append(-1)

    monkeypatch.setattr(node_parts, "holding", lambda: hold)
    monkeypatch.setattr(node, "USE_S", 0.05)
    monkeypatch.setattr(awake, "RELEASE_S", 0.1)
    seen = Vitals(battery=0.5, heat_c=70.0)

    def sensed(before: Vitals) -> Vitals:
        if plays[0]:
            raise OSError("a sensor that fails")  # the rules go on
        return seen

    game = replace(AT_REST, is_full_screen=lambda: plays[0], vitals=sensed)
    monkeypatch.setattr(node_parts, "looks", lambda: game)
    monkeypatch.setattr(node, "LOOK_S", 0.05)
    monkeypatch.setattr("potluck.api.values.politeness.CALM_S", 0.1)

    async def main() -> None:
        async with paired(tmp_path) as (desk, laptop):
            await load(desk, SPLIT)
            await until(lambda: sum(held) == 0)
            held.clear()
            expected = await chat(desk)
            await until(lambda: sum(held) == 2)
            await until(lambda: sum(held) == 0)

            plays[0] = True
            await eventually(desk, lambda: laptop_of(desk).state == "paused")
            assert laptop_of(desk).detail == "It is being used for a game or a film."
            assert laptop_of(desk).vitals == seen  # what its own sensors say
            assert laptop.backend.state().node.withheld == "games"
            assert await chat(desk) == expected
            assert laptop.worker.lease is None

            plays[0] = False
            await eventually(desk, lambda: laptop_of(desk).state != "paused")
            assert laptop.backend.state().node.withheld is None

    run(main())
