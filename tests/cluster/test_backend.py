"""What the local API asks of a node, where a whole running node is not needed."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from air import Air
from fake_cluster import run

from potluck.api.values.benching import BenchRequest
from potluck.api.values.schema import ListenRequest, PlanRequest
from potluck.cluster import node_parts, presence
from potluck.cluster.backend import NodeBackend
from potluck.cluster.membership.named import named
from potluck.cluster.node import Node
from potluck.errors import NotFoundError, PairingError, UnreachableError, UsageError
from potluck.ids import NodeId
from potluck.net.advert import Advert
from potluck.settings import Folders, Settings, save_settings

pytestmark = pytest.mark.net


@pytest.fixture
def air() -> Iterator[Air]:
    air = Air()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_parts, "Discovery", air.discovery)
        patch.setattr(node_parts, "own_interfaces", frozenset)
        patch.setattr(presence, "announced", lambda _: ("127.0.0.1",))
        yield air


def backend_in(folder: Path) -> NodeBackend:
    """A node that was put together and not started."""
    folders = Folders.of(folder)
    save_settings(folders.settings_file, Settings(name="Desk"))
    return Node(folders).backend


async def appear(air: Air, name: str, number: int) -> NodeId:
    """Another computer announces itself; nobody listens there."""
    node_id = NodeId(f"{number:08x}" * 8)
    station = air.discovery(on_change=lambda: None)
    await station.start(Advert(node_id=node_id, name=name, role="idle", port=1, protocol=1))
    return node_id


def test_a_computer_is_found_by_name_by_id_and_by_the_beginning_of_it(
    air: Air, tmp_path: Path
) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)
        node_id = await appear(air, "Laptop", 7)
        for words in ("laptop", "LAPTOP", node_id, node_id[:8]):
            found = named(words, backend._parts.discovery.peers())
            assert found is not None
            assert found.node_id == node_id
        assert named("mac", backend._parts.discovery.peers()) is None
        with pytest.raises(UnreachableError):
            await backend.pair("laptop")

    run(main())


def test_two_computers_of_one_name_are_told_apart_by_their_ids(air: Air, tmp_path: Path) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)
        ids = [await appear(air, "Laptop", number) for number in (7, 8)]
        with pytest.raises(UsageError) as caught:
            await backend.pair("Laptop")
        assert all(node_id[:8] in str(caught.value) for node_id in ids)

    run(main())


def test_a_name_that_nobody_has_is_answered_with_those_there_are(air: Air, tmp_path: Path) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)
        await appear(air, "Laptop", 7)
        with pytest.raises(NotFoundError, match="Laptop"):
            await backend.pair("Mac")
        with pytest.raises(UnreachableError):
            await backend.pair("127.0.0.1:1")

    run(main())


def test_a_token_that_is_none_is_refused_before_anybody_is_dialled(
    air: Air, tmp_path: Path
) -> None:
    async def main() -> None:
        with pytest.raises(PairingError):
            await backend_in(tmp_path).join("not a token")

    run(main())


def test_a_typed_address_is_looked_at(air: Air, tmp_path: Path) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)
        await backend.connect("192.0.2.1")
        assert backend._parts.discovery.typed == ["192.0.2.1"]  # type: ignore[attr-defined]

    run(main())


def test_a_listener_serves_until_it_is_closed(air: Air, tmp_path: Path) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)
        listener = await backend.listen(ListenRequest(port=0))
        url = f"http://127.0.0.1:{listener.port}/v1/models"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(url)).status_code == 200
            with pytest.raises(UsageError, match="other programs on port"):
                await backend.listen(ListenRequest(port=listener.port))
            await backend.close_listener(listener.port)
            with pytest.raises(httpx.ConnectError):
                await client.get(url)
        with pytest.raises(UsageError):
            await backend.close_listener(listener.port)

    run(main())


def test_all_listeners_are_closed_at_the_end(air: Air, tmp_path: Path) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)
        ports = [(await backend.listen(ListenRequest(port=0))).port for _ in range(2)]
        await backend.close()
        async with httpx.AsyncClient(trust_env=False) as client:
            for port in ports:
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"http://127.0.0.1:{port}/v1/models")

    run(main())


def test_a_bench_that_the_context_has_no_room_for_is_refused_before_anything_is_measured(
    air: Air, tmp_path: Path
) -> None:
    async def main() -> None:
        backend = backend_in(tmp_path)  # whose engine never starts: to measure is to wait for it
        plan = PlanRequest(shape="qwen-0.5b", context=512)
        with pytest.raises(UsageError, match=r"smaller --prompt, or a --context of 520"):
            async for _ in backend.bench(BenchRequest(plan=plan, prompt=511)):
                pass
        with pytest.raises(UsageError, match=r"the context holds 32,768.* smaller --tokens"):
            async for _ in backend.bench(
                BenchRequest(plan=PlanRequest(shape="qwen-0.5b"), tokens=40_000)
            ):
                pass

    run(main())
