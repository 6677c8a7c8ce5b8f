from typing import Any, cast

import msgspec
import pytest

from potluck.cluster.worker.lease import Lease, LeasedStage
from potluck.ids import Digest, HomeId, NodeId
from potluck.store.chunks import Missing
from potluck.wire.messages import Assign, DeviceId
from potluck.wire.shares import RankShare

GPU, CPU = DeviceId(kind="cuda"), DeviceId(kind="cpu")
A, B, C = (Digest(letter * 64) for letter in "abc")


def stage(start: int, stop: int, **missing: int) -> LeasedStage:
    """Layers, and what they lack: digests by their first letter."""
    assign = Assign(
        epoch=1,
        model_id="0" * 64,
        config={},
        scheme="f32",
        layers=(start, stop),
        embedding=False,
        head=False,
        context=8,
        tensors=(),
        model="Qwen3 8B",
    )
    lacking = [
        Missing(digest=Digest(letter * 64), nbytes=nbytes, offset=0)
        for letter, nbytes in missing.items()
    ]
    return LeasedStage(
        handle=cast("Any", None), assign=assign, tensors={}, missing=lacking, layer_count=36
    )


@pytest.fixture
def lease() -> Lease:
    """The GPU has the end of the model, the processor its beginning."""
    return Lease(
        home=HomeId("0" * 64),
        master=NodeId("1" * 64),
        master_name="Desk",
        epoch=1,
        link=cast("Any", None),
        stages={GPU: stage(4, 8, a=10), CPU: stage(0, 4, b=20, c=30)},
    )


def test_its_layers_are_those_of_all_devices(lease: Lease) -> None:
    assert lease.layers == (0, 8)


def test_its_owner_is_told_of_which_model_they_are(lease: Lease) -> None:
    assert lease.model == ("Qwen3 8B", 36)


def shared(
    ranks: dict[DeviceId, int], of: int = 2, layers: tuple[int, int] = (0, 36)
) -> dict[DeviceId, LeasedStage]:
    """Stages that are ranks of one group."""
    stages: dict[DeviceId, LeasedStage] = {}
    for device, rank in ranks.items():
        stages[device] = made = stage(*layers)
        share = RankShare(rank=rank, shares=(1,) * of)
        made.assign = msgspec.structs.replace(made.assign, share=share, embedding=True, head=True)
    return stages


def test_layers_between_those_of_two_devices_are_not_counted(lease: Lease) -> None:
    assert lease.held == (8, "layers")
    lease.stages[GPU] = stage(30, 36)
    assert lease.held == (10, "layers")
    lease.stages = {CPU: stage(36, 36)}
    assert lease.held == (0, "layers")


def test_a_tower_has_no_layers_and_is_not_taken_for_the_vocabulary(lease: Lease) -> None:
    tower = stage(0, 0)
    tower.assign = msgspec.structs.replace(tower.assign, tower=True)
    lease.stages = {GPU: tower}
    assert (lease.layers, lease.held) == (None, (0, "tower"))
    later = stage(4, 8)
    later.assign = msgspec.structs.replace(later.assign, tower=True)
    lease.stages = {GPU: later}
    assert (lease.layers, lease.held) == ((4, 8), (4, "layers"))


def test_a_model_is_whole_only_with_both_ends_and_all_of_each_layer(lease: Lease) -> None:
    whole = stage(0, 36)
    lease.stages = {CPU: whole}
    assert lease.held == (36, "layers")
    whole.assign = msgspec.structs.replace(whole.assign, embedding=True, head=True)
    assert lease.held == (36, "model")
    lease.stages = shared({CPU: 1})
    assert lease.held == (36, "shares")
    lease.stages = shared({CPU: 1, GPU: 0})
    assert lease.held == (36, "model")


def test_what_is_awaited_is_what_any_device_lacks(lease: Lease) -> None:
    assert lease.awaited() == {A: 10, B: 20, C: 30}
    assert lease.awaited(besides=CPU) == {A: 10}
    assert lease.awaits_weights
    lease.stages[CPU].missing = ()
    assert lease.awaits_weights
    lease.stages[GPU].missing = ()
    assert not lease.awaits_weights


def test_it_is_loaded_when_every_device_is(lease: Lease) -> None:
    assert (lease.progress, lease.is_loaded) == (0.0, False)
    lease.stages[GPU].progress = 0.5
    assert lease.progress == 0.25
    lease.stages[GPU].is_loaded = True
    assert (lease.progress, lease.is_loaded) == (0.5, False)
    lease.stages[CPU].is_loaded = True
    assert (lease.progress, lease.is_loaded) == (1.0, True)
    assert not lease.awaits_weights  # whatever was to be sent, it is there
