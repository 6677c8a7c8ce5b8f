"""A home's files: what is read is checked."""

from pathlib import Path

import pytest

from potluck.errors import IdentityError
from potluck.ids import NodeId
from potluck.net import homes
from potluck.wire import certificates


@pytest.fixture
def joined(tmp_path: Path) -> tuple[Path, NodeId]:
    """The folder of a home that a worker joined."""
    key, home_key = certificates.new_key(), certificates.new_key()
    node = certificates.self_signed(key, "Laptop")
    authority = certificates.new_authority(home_key, "home")
    member = certificates.issue_member(authority, home_key, node, "worker")
    folder = tmp_path / certificates.public_key_digest(authority)
    homes.write_home(folder, authority, member, "Anna's home", NodeId("ab" * 32))
    return folder, NodeId(certificates.public_key_digest(node))


def test_a_home_is_read_as_it_was_written(joined: tuple[Path, NodeId]) -> None:
    folder, node_id = joined
    homes.write_revoked(folder, [NodeId("cd" * 32)])

    home = homes.read_home(folder, node_id)

    assert (home.home_id, home.name, home.role) == (folder.name, "Anna's home", "worker")
    assert home.master == "ab" * 32
    assert home.revoked == {"cd" * 32}


def test_a_home_in_anothers_folder_is_refused(joined: tuple[Path, NodeId]) -> None:
    folder, node_id = joined
    moved = folder.rename(folder.with_name("ef" * 32))

    with pytest.raises(IdentityError, match="of another home"):
        homes.read_home(moved, node_id)


def test_a_home_of_another_node_is_refused(joined: tuple[Path, NodeId]) -> None:
    folder, _ = joined

    with pytest.raises(IdentityError, match="another computer"):
        homes.read_home(folder, NodeId("12" * 32))


@pytest.mark.parametrize("listed", ["{}", "[1", "\x00"])
def test_a_damaged_list_of_revoked_is_an_error_and_not_an_empty_list(
    joined: tuple[Path, NodeId], listed: str
) -> None:
    folder, node_id = joined
    (folder / "revoked.json").write_text(listed)

    with pytest.raises(IdentityError, match=r"revoked\.json"):
        homes.read_home(folder, node_id)


def test_a_removed_home_leaves_nothing(joined: tuple[Path, NodeId]) -> None:
    folder, _ = joined

    homes.remove_home(folder)

    assert not folder.exists()
