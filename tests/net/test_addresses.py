"""Typed and remembered addresses, with a network of our own making."""

import asyncio
from pathlib import Path

import pytest

from potluck.errors import UnreachableError, UsageError
from potluck.ids import NodeId
from potluck.net.addresses import MAX_ENTRIES, AddressBook, Identified
from potluck.wire.messages import Address

LAPTOP = Identified(node_id=NodeId("1a" * 32), name="Laptop")
MAC = Identified(node_id=NodeId("2b" * 32), name="Mac")
HERE = Address(host="10.0.0.5", port=47777)
THERE = Address(host="10.0.0.6", port=5000)


class Network:
    """Who answers where."""

    def __init__(self, answering: dict[Address, Identified]) -> None:
        self.answering = answering
        self.asked: list[Address] = []

    async def __call__(self, address: Address) -> Identified:
        self.asked.append(address)
        if address not in self.answering:
            raise UnreachableError("nobody")
        return self.answering[address]


def names(book: AddressBook) -> list[str]:
    return sorted(found.name for found in book.found())


def test_a_typed_address_is_found_now_and_after_a_restart(tmp_path: Path) -> None:
    network = Network({HERE: LAPTOP})

    async def main() -> None:
        found = await AddressBook(tmp_path / "book.json", network).add("10.0.0.5")
        assert (found.name, found.addresses, found.protocol) == ("Laptop", (HERE,), None)

        again = AddressBook(tmp_path / "book.json", network)
        assert names(again) == []
        assert await again.probe([])
        assert names(again) == ["Laptop"]
        assert not await again.probe([])  # nothing new

    asyncio.run(main())


def test_the_book_lists_who_was_where_and_typed_addresses_of_nobody_known(tmp_path: Path) -> None:
    network = Network({HERE: LAPTOP})

    async def main() -> None:
        book = AddressBook(tmp_path / "book.json", network)
        await book.add("10.0.0.5")
        with pytest.raises(UnreachableError):
            await book.add("10.0.0.6:5000")
        assert book.kept() == {
            "10.0.0.5": ("10.0.0.5", (HERE,)),
            "10.0.0.6": ("10.0.0.6", (THERE,)),
        }

        book.remember(LAPTOP.node_id, "Laptop", (HERE,))
        assert book.kept() == {
            LAPTOP.node_id: ("Laptop", (HERE,)),
            "10.0.0.6": ("10.0.0.6", (THERE,)),
        }

    asyncio.run(main())


def test_a_typed_address_where_nobody_is_is_kept_for_later(tmp_path: Path) -> None:
    network = Network({})
    book = AddressBook(tmp_path / "book.json", network)

    async def main() -> None:
        with pytest.raises(UnreachableError):
            await book.add("10.0.0.5")
        network.answering[HERE] = LAPTOP
        await book.probe([])

    asyncio.run(main())

    assert names(book) == ["Laptop"]


def test_what_is_no_address_is_not_kept() -> None:
    book = AddressBook(None, Network({}))

    with pytest.raises(UsageError):
        asyncio.run(book.add("not an address"))
    asyncio.run(book.probe([]))
    assert names(book) == []


def test_a_remembered_peer_is_asked_at_all_its_addresses(tmp_path: Path) -> None:
    network = Network({THERE: LAPTOP})
    AddressBook(tmp_path / "book.json", None).remember(LAPTOP.node_id, "Laptop", (HERE, THERE))
    book = AddressBook(tmp_path / "book.json", network)

    asyncio.run(book.probe([]))

    assert [found.addresses for found in book.found()] == [(THERE,)]


def test_peers_that_are_found_otherwise_are_not_asked() -> None:
    network = Network({HERE: LAPTOP, THERE: MAC})
    book = AddressBook(None, network)
    book.remember(LAPTOP.node_id, "Laptop", (HERE,))
    book.remember(MAC.node_id, "Mac", (THERE,))

    asyncio.run(book.probe([LAPTOP.node_id]))

    assert network.asked == [THERE]


def test_one_missed_answer_is_not_a_death_and_two_are() -> None:
    network = Network({HERE: LAPTOP})
    book = AddressBook(None, network)
    book.remember(LAPTOP.node_id, "Laptop", (HERE,))

    async def main() -> list[list[str]]:
        seen: list[list[str]] = []
        for answering in ({HERE: LAPTOP}, {}, {HERE: LAPTOP}, {}, {}):
            network.answering = answering
            await book.probe([])
            seen.append(names(book))
        return seen

    assert asyncio.run(main()) == [["Laptop"], ["Laptop"], ["Laptop"], ["Laptop"], []]


def test_this_computer_is_not_found_at_its_own_address() -> None:
    book = AddressBook(None, Network({HERE: LAPTOP}))
    book.own = LAPTOP.node_id

    async def main() -> None:
        with pytest.raises(UsageError, match="this computer's own"):
            await book.add("10.0.0.5")
        await book.probe([])

    asyncio.run(main())

    assert names(book) == []


def test_a_node_with_two_addresses_is_one_entry() -> None:
    book = AddressBook(None, Network({HERE: LAPTOP, THERE: LAPTOP}))
    book.remember(LAPTOP.node_id, "Laptop", (HERE, THERE))

    asyncio.run(book.probe([]))

    assert [set(found.addresses) for found in book.found()] == [{HERE, THERE}]


def test_a_dropped_peer_is_forgotten_for_good(tmp_path: Path) -> None:
    network = Network({HERE: LAPTOP, THERE: LAPTOP})
    book = AddressBook(tmp_path / "book.json", network)

    async def main() -> None:
        await book.add("10.0.0.5")
        book.remember(LAPTOP.node_id, "Laptop", (THERE,))
        book.drop(LAPTOP.node_id)
        again = AddressBook(tmp_path / "book.json", network)
        await again.probe([])
        assert names(book) == names(again) == []

    asyncio.run(main())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"peers": {"../x": 1}}', b"\xff"])
def test_a_damaged_file_begins_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "book.json"
    path.write_bytes(content)

    book = AddressBook(path, Network({HERE: LAPTOP}))
    book.remember(LAPTOP.node_id, "Laptop", (HERE,))

    again = AddressBook(path, Network({HERE: LAPTOP}))
    asyncio.run(again.probe([]))
    assert names(again) == ["Laptop"]


def test_the_oldest_entries_give_way() -> None:
    network = Network({})
    book = AddressBook(None, network)
    for i in range(MAX_ENTRIES + 5):
        node_id = NodeId(f"{i:064x}")
        book.remember(node_id, "x", (Address(host=f"10.1.{i // 256}.{i % 256}", port=1),))

    asyncio.run(book.probe([]))

    assert len(network.asked) == MAX_ENTRIES
    assert Address(host="10.1.0.0", port=1) not in network.asked
