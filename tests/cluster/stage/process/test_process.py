"""A real stage process: what it measures and quantises, whom it trusts, and how it ends."""

import asyncio
import hashlib
import signal
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fake_cluster import Run
from model_folders import CONFIG
from stage_nodes import StageNode, until_soon

from potluck.cluster.master.stage_tensors import tensor_info
from potluck.cluster.processes.messages import Quantise, Start, TensorFile
from potluck.errors import (
    DiskFullError,
    IntegrityError,
    PeerLostError,
    PotluckError,
    UntrustedPeerError,
)
from potluck.net.interfaces import Interface
from potluck.net.transport import dial
from potluck.store.registry import LocalModel
from potluck.wire.measuring_messages import Profile

pytestmark = [pytest.mark.slow, pytest.mark.net]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_process_that_is_up_knows_its_device_and_listens(desk: StageNode) -> None:
    assert desk.handle.activation_port > 0
    assert [device.kind for device in desk.handle.devices]
    assert desk.handle.devices[0].memory_free > 0


def test_a_layer_is_measured(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        profile = await desk.handle.profile(Profile(config=dict(CONFIG), scheme="f32", tokens=16))

        assert all(ms > 0 for ms in profile.decode_ms)
        assert len(profile.prefill_ms) == len(profile.decode_ms) == 1
        assert profile.head_ms > 0
        assert profile.device.kind == desk.handle.devices[0].kind
        small = await desk.handle.profile(
            Profile(config=dict(CONFIG), scheme="int8", tokens=16, cache="int8")
        )
        assert all(ms > 0 for ms in small.decode_ms)

    run(main())


def test_what_is_no_model_cannot_be_measured_and_the_process_lives_on(
    desk: StageNode, run: Run
) -> None:
    async def main() -> None:
        with pytest.raises(PotluckError):
            await desk.handle.profile(
                Profile(config={"model_type": "toaster"}, scheme="f32", tokens=16)
            )
        await desk.handle.profile(Profile(config=dict(CONFIG), scheme="bf16", tokens=8))

    run(main())


def quantising(model: LocalModel, path: Path, name: str) -> Quantise:
    (entry,) = model.manifest.stage([name])
    source = model.sources[entry.digest]
    return Quantise(
        config=dict(model.manifest.config),
        shape=(entry.shape[0], entry.shape[1]),
        dtype="PACKED4",
        parts=(TensorFile.of(tensor_info(entry), source.path, source.offset),),
        path=str(path),
    )


def test_matrices_are_quantised_into_files(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(4)]
        jobs = [quantising(model, tmp_path / name, name) for name in names]
        made = await asyncio.gather(*map(desk.handle.quantise, jobs))

        for name, file in zip(names, made, strict=True):
            data = (tmp_path / name).read_bytes()
            assert (digest_of(data), len(data)) == (file.digest, file.nbytes)
        assert len({file.digest for file in made}) == len(names)

    run(main())


def test_a_matrix_that_cannot_be_quantised_is_an_error_that_says_why(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        job = quantising(model, tmp_path / "nowhere" / "file", "model.layers.0.mlp.up_proj.weight")
        with pytest.raises(DiskFullError, match="cannot be written"):
            await desk.handle.quantise(job)
        damaged = msgspec.structs.replace(job.parts[0], digest="ab" * 32)
        with pytest.raises(IntegrityError) as caught:
            await desk.handle.quantise(
                msgspec.structs.replace(job, parts=(damaged,), path=str(tmp_path / "file"))
            )
        assert caught.value.data["digest"] == "ab" * 32

    run(main())
    assert not list(tmp_path.iterdir())


def test_who_was_removed_from_the_home_is_cut_off_at_once(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        stranger = StageNode("Stranger", tmp_path, desk.identity)
        link = await stranger.connect(desk)
        desk.identity.revoke(stranger.identity.node_id)
        desk.trust_changed()

        with pytest.raises(PeerLostError):
            await link.receive()
        with pytest.raises(UntrustedPeerError):
            await stranger.connect(desk)

    run(main())


def test_a_damaged_home_leaves_the_old_trust_in_force(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        file = desk.identity.folder / "homes" / desk.home / "ca.pem"
        whole = file.read_bytes()
        file.write_bytes(b"not a certificate")
        desk.trust_changed()
        try:
            link = await laptop.connect(desk)
            link.close()
        finally:
            file.write_bytes(whole)
            desk.trust_changed()

        assert not desk.exits

    run(main())


def test_a_stage_port_takes_activations_and_nothing_else(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        link = await dial(
            [desk.address],
            laptop.identity,
            home=laptop.home,
            peer=desk.identity.node_id,
            purpose="weights",
            me=laptop.me,
        )
        with pytest.raises(PeerLostError):
            await link.receive()

    run(main())


def test_connections_of_stages_end_in_a_network_that_is_not_used(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        elsewhere = Interface("10.8.0.2", 24, 4, is_virtual=True, name="wg0", is_used=False)
        loopback = Interface("127.0.0.1", 8, 1, is_virtual=False, name="lo")
        link = await dial(
            [desk.address],
            laptop.identity,
            home=laptop.home,
            peer=desk.identity.node_id,
            purpose="activations",
            me=laptop.me,
        )
        desk.handle.end_links((elsewhere, loopback))
        await desk.handle.profile(Profile(config=dict(CONFIG), scheme="f32", tokens=8))
        assert not link.is_closed
        desk.handle.end_links((replace(loopback, is_used=False),))
        with pytest.raises(PeerLostError, match="uses another network now"):
            await link.receive()

    run(main())


def test_what_is_lent_follows_what_the_owner_says(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        desk.lend(12_345)
        await until_soon(lambda: desk.handle.devices[0].memory_free == 12_345)
        desk.lend(None)
        await until_soon(lambda: desk.handle.devices[0].memory_free > 12_345)

    run(main())


def test_the_log_says_what_the_device_computes_with(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        await until_soon(lambda: "device cpu" in desk.log.read_text(encoding="utf-8"))

    run(main())


def test_a_second_start_is_ignored(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        desk.handle._send(Start(identity_folder="/nowhere", me=desk.me))
        await desk.handle.profile(Profile(config=dict(CONFIG), scheme="f32", tokens=8))

    run(main())


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another process")
def test_a_process_that_crashes_says_where_in_its_log(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        node = StageNode("Desk", tmp_path)
        await node.handle.start()
        await node.handle.unload()  # no thread runs any more, which would change what is written
        process = node.handle._process
        assert process is not None
        process.send_signal(signal.SIGSEGV)
        await until_soon(lambda: node.exits)

        assert "engine.previous.log" in node.exits[0].message
        log = node.log.with_name("engine.previous.log").read_text(encoding="utf-8")
        assert "Segmentation fault" in log
        assert 'process.py", line' in log
        await node.handle.stop()

    run(main())
