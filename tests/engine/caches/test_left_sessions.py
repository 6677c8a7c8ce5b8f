"""What is left of a plan's sessions: what another stage goes on with, and its size, which another thread may ask for."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tiny_models import SESSION, Pipeline, Reference

from potluck.engine import stage_sessions
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.moved_parts import bytes_moved
from potluck.engine.caches.session_cache import SharedRows
from potluck.errors import OutOfMemoryError


class EvictedMeanwhile:
    """A cache whose shared rows go while they are looked at."""

    own_bytes = 0

    def __init__(self) -> None:
        self.looks = 0

    @property
    def shared(self) -> SharedRows | None:
        self.looks += 1
        return SharedRows(nbytes=100) if self.looks == 1 else None


def test_a_session_that_is_evicted_while_its_size_is_asked_for_is_no_error() -> None:
    caches = cast("Any", {"a": EvictedMeanwhile()})
    shares = cast("Any", None)
    assert LeftSessions(caches, (), (), shares, is_in_force=False).nbytes == 100


@pytest.mark.parametrize(
    ("variant", "cut"), [("gemma 3", 2), ("gemma 4 e2b", 4), ("deepseek 4", 2)]
)
@pytest.mark.parametrize("last", [0, 1], ids=["the first stage last", "the second stage last"])
def test_layers_whose_stages_were_not_equally_far_go_on_together(
    make_reference: Callable[[str], Reference], variant: str, cut: int, last: int
) -> None:
    """The window of the one that was further ahead begins later."""
    reference = make_reference(variant)
    old, same = (Pipeline(reference, (cut,), chunk=16, slack=20) for _ in range(2))
    new = Pipeline(reference, chunk=16, slack=20)
    ids = reference.prompt(90)
    for chunk in ids[:40].split(16):
        old.run(chunk)
        same.run(chunk)
    ahead = old.stages[0]
    ahead.forward(SESSION, ids[40:56], epoch=1, step=9, position=40, ids=ids[40:56])
    receiver = new.stages[0].expect_rows(SESSION, 0, 40, epoch=1)
    both = [stage.left(is_in_force=False) for stage in old.stages]
    for left in both if last else both[::-1]:
        rows = left.rows(SESSION, range(reference.config.num_layers), 40)
        while (piece := rows.next()) is not None:
            receiver.write(piece)
    receiver.finish()
    new.position = 40

    for chunk in ids[40:].split(7):
        assert torch.equal(new.run(chunk), same.run(chunk))


def test_a_cache_that_layers_share_moves_once(
    make_reference: Callable[[str], Reference],
) -> None:
    reference = make_reference("gemma 4 e2b")
    stage = reference.stage(head=False)
    stage.open(SESSION, epoch=1)
    stage.forward(SESSION, reference.prompt(20), epoch=1, step=1, position=0)
    rows = stage.left(is_in_force=False).rows(SESSION, range(reference.config.num_layers), 20)
    pieces = list(iter(rows.next, None))
    owned = [stage.caches[owner] for owner in sorted(set(stage.cache_owners))]
    assert sum(piece.data.nbytes for piece in pieces) == bytes_moved(owned, 0, 20)
    taken = stage.left(is_in_force=False).rows(SESSION, range(4, 6), 20)
    assert {piece.layer for piece in iter(taken.next, None)} == {4, 5}  # though others own them


def test_what_is_said_to_move_counts_a_shared_cache_once(
    make_reference: Callable[[str], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_reference("gemma 4 e2b").stage(head=False)
    stage.open(SESSION, epoch=1)
    owned = [stage.caches[owner] for owner in sorted(set(stage.cache_owners))]
    assert len(owned) < len(stage.caches)
    monkeypatch.setattr(stage_sessions, "MOST_MOVED_BYTES", bytes_moved(owned, 0, 20))
    stage.expect_rows(SESSION, 0, 20, epoch=1)
    with pytest.raises(OutOfMemoryError):
        stage.expect_rows(SESSION, 0, 21, epoch=1)
