import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.cluster.processes.messages import (
    EndLinks,
    EndSums,
    FromStage,
    Held,
    Holds,
    LoadProgress,
    LoadStage,
    Memory,
    Quantise,
    Quantised,
    Ready,
    StageLoaded,
    StageSettings,
    StageUnloaded,
    Start,
    TensorFile,
    ToStage,
    TrySums,
    UnloadStage,
    decode_from_stage,
    decode_to_stage,
    encode,
    read_frame,
)
from potluck.model.byte_runs import ByteRuns
from potluck.net.interfaces import Interface
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.measuring_messages import (
    MeasureStage,
    Profile,
    Profiled,
    StageMeasured,
    StageTimes,
    SumsMeasured,
    SumTime,
)
from potluck.wire.messages import (
    Address,
    DeviceInfo,
    Error,
    HeldStage,
    Hop,
    NodeInfo,
    PlanBefore,
    RankPlace,
    StepFailed,
    TensorInfo,
)

ME = NodeInfo(node_id="ab" * 32, name="Desk", version="0", os="Linux", arch="x")
DEVICE = DeviceInfo(kind="cpu", memory_total=10, memory_free=5)
TENSOR = TensorInfo(name="w", dtype="F32", shape=(2, 3), digest="cd" * 32, nbytes=24)
SLICE = TensorInfo(name="v", dtype="F32", shape=(1, 1), digest="ef" * 32, nbytes=4, whole="cd" * 32)
TIMES = StageTimes(
    weight_bytes=9,
    read_bytes_per_s=1e9,
    layers_ms=3.0,
    head_ms=0.0,
)
HOP = Hop(node_id="ab" * 32, addresses=(Address(host="::1", port=1),))
TO_STAGE: list[ToStage] = [
    Start(identity_folder="/somewhere", me=ME, memory_limit=7),
    StageSettings(memory_limit=None, threads=2),
    Profile(id=1, config={"a": [1, {"b": None}]}, scheme="f32", tokens=128),
    LoadStage(
        id=2,
        home="ef" * 32,
        epoch=3,
        model_id="ab" * 32,
        config={},
        scheme="bf16",
        layers=(0, 4),
        embedding=True,
        head=False,
        context=64,
        tensors=(
            TensorFile.of(TENSOR, Path("/model"), 8),
            TensorFile.of(SLICE, Path("/model"), 8, ByteRuns(period=9, count=2, runs=((1, 3),))),
        ),
        next_hop=HOP,
    ),
    UnloadStage(id=4),
    MeasureStage(id=6, epoch=3, position=16),
    TakeSessions(id=8, epoch=3, before=PlanBefore(epoch=3, key="ab" * 32)),
    EndSums(),
    EndLinks(own=(Interface("192.168.1.10", 24, 2, is_virtual=False, name="eth0"),)),
    TrySums(id=7, home="ef" * 32, ranks=RankPlace(rank=0, hops=(HOP, HOP))),
    Quantise(
        id=5,
        config={},
        shape=(2, 3),
        dtype="PACKED4",
        parts=(TensorFile.of(TENSOR, Path("/model"), 8),),
        path="/packed",
    ),
]
FROM_STAGE: list[FromStage] = [
    Ready(devices=(DEVICE,), activation_port=5),
    Memory(devices=(DEVICE,)),
    Profiled(re=1, device=DEVICE, decode_ms=(1.0,), prefill_ms=(2.0,), head_ms=3.0),
    LoadProgress(epoch=1, done=2, total=3),
    StageLoaded(re=2, seconds=0.5, memory_bytes=9, cache_tokens=64, layers_kept=3, layers_loaded=1),
    StageUnloaded(re=4),
    Holds(held=None),
    Holds(
        held=Held(
            home="ef" * 32,
            stage=HeldStage(
                device=DEVICE.id,
                model_id="ab" * 32,
                scheme="bf16",
                layers=(0, 4),
                embedding=True,
                head=False,
                epoch=3,
                context=64,
            ),
        ),
    ),
    StageMeasured(re=6, epoch=3, times=TIMES),
    TakingSessions(re=8, epoch=3),
    SumsMeasured(re=7, activation_port=5, times=(SumTime(nbytes=8, ms=0.5),)),
    Quantised(re=5, digest="ab" * 32, nbytes=7),
    Error(re=2, kind="engine", message="No.", data={"digest": "x", "n": 1}),
    StepFailed(epoch=1, session="s", step=2, kind="need_replay", message="No.", position=3),
]


@pytest.mark.parametrize("message", TO_STAGE, ids=lambda m: type(m).__name__)
def test_what_the_node_says_arrives_as_it_was_said(message: ToStage) -> None:
    frame = read_frame(io.BytesIO(encode(message)))
    assert frame is not None
    assert decode_to_stage(frame) == message


@pytest.mark.parametrize("message", FROM_STAGE, ids=lambda m: type(m).__name__)
def test_what_the_process_says_arrives_as_it_was_said(message: FromStage) -> None:
    frame = read_frame(io.BytesIO(encode(message)))
    assert frame is not None
    assert decode_from_stage(frame) == message


def test_frames_follow_one_another() -> None:
    stream = io.BytesIO(b"".join(map(encode, TO_STAGE)))
    read = [decode_to_stage(frame) for frame in iter(lambda: read_frame(stream), None)]
    assert read == TO_STAGE


@given(st.integers(min_value=0))
def test_a_stream_that_ends_in_a_frame_is_the_end(cut: int) -> None:
    whole = encode(TO_STAGE[0])
    assert read_frame(io.BytesIO(whole[: cut % len(whole)])) is None
