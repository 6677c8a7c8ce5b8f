"""What an inventory says of the tensors on a disk."""

import pytest

from potluck.ids import Digest
from potluck.store.inventory import Inventory

OLD, NEW = Digest("1" * 64), Digest("2" * 64)


@pytest.fixture
def inventory() -> Inventory:
    inventory = Inventory()
    inventory.note(NEW, 30, used=9.0)
    inventory.note(OLD, 5, used=3.0)
    return inventory


def test_tensor_that_grows_counts_once(inventory):
    inventory.note(OLD, 7, used=4.0)

    assert inventory.nbytes == 37
    assert inventory.size(OLD) == 7


def test_tensor_counts_with_the_part_beside_it(inventory):
    inventory.add(OLD, 2, used=1.0)

    assert inventory.sizes() == {OLD: 7, NEW: 30}
    assert inventory.nbytes == 37


def test_tensor_that_was_removed_does_not_count(inventory):
    inventory.remove(OLD)
    inventory.remove(OLD)

    assert (inventory.size(OLD), inventory.nbytes) == (0, 30)


def test_least_recently_used_comes_first(inventory):
    assert list(inventory.loose()) == [OLD, NEW]

    inventory.use(OLD, 10.0)

    assert list(inventory.loose()) == [NEW, OLD]


def test_tensor_is_loose_after_as_many_unpins_as_pins(inventory):
    inventory.pin([OLD])
    inventory.pin([OLD, OLD])  # one pin, as if each were named once
    inventory.unpin([OLD])
    assert OLD not in inventory.loose()

    inventory.unpin([OLD])
    assert OLD in inventory.loose()


def test_pins_outlive_a_disk_that_was_emptied(inventory):
    inventory.pin([OLD])
    inventory.clear()
    inventory.note(OLD, 5, used=3.0)

    assert inventory.loose() == {}


def test_unused_are_those_that_are_neither_used_nor_pinned(inventory):
    inventory.use(OLD, 0.0)
    assert inventory.unused() == [OLD]

    inventory.pin([OLD])
    assert inventory.unused() == []
