"""The signed list of a release: of which packages it is made, and who may sign it."""

import base64
from pathlib import Path

import pytest
import release_index
from native.project import (
    BuildError,
    maintainer,
    release_keys,
    version,
)
from native.project import (
    release_index as address_of_index,
)
from sealing import key_text, private_key

from potluck.update.freshness import DAY_S

SECRET, PUBLIC = release_index.new_key()
URL = "https://packages.invalid/v1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The packages of this version, and what lies beside them."""
    for name in (
        f"potluck-{version()}-linux-x86_64.tar.xz",
        f"potluck-{version()}-linux-x86_64.AppImage",  # what it installs is updated by the .tar.xz
        f"potluck-{version()}-macos-aarch64.dmg",
        f"potluck-{version()}-windows-x86_64.exe",
        f"potluck_{version()}_arm64.deb",
        f"potluck-{version()}.cdx.json",
        "SHA256SUMS",
    ):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_new_key_is_a_pair() -> None:
    assert key_text(private_key(SECRET).public_key()) == PUBLIC
    assert release_index.new_key()[0] != SECRET


def test_it_names_the_packages_of_all_systems(folder: Path) -> None:
    release_index.sign(folder, URL, SECRET, [PUBLIC])

    release = release_index.check(folder, [PUBLIC])

    assert release.version == version()
    assert {(p.system, p.machine, p.kind) for p in release.packages} == {
        ("linux", "x86_64", "tar"),
        ("linux", "aarch64", "deb"),
        ("macos", "aarch64", "macos"),
        ("windows", "x86_64", "windows"),
    }
    assert all(p.url == f"{URL}/{p.name}" for p in release.packages)


def test_it_is_signed_by_each_key_while_keys_change(folder: Path) -> None:
    secret, public = release_index.new_key()

    release_index.sign(folder, URL, f"{SECRET}\n{secret}\n", [public])

    for key in (PUBLIC, public):  # who knows the old one alone, and who knows the new one alone
        assert release_index.check(folder, [key]).version == version()


def test_a_file_that_was_changed_afterwards_is_found(folder: Path) -> None:
    release_index.sign(folder, URL, SECRET, [PUBLIC])
    (folder / f"potluck_{version()}_arm64.deb").write_text("another one")

    with pytest.raises(BuildError, match=r"arm64\.deb is not what"):
        release_index.check(folder, [PUBLIC])


@pytest.mark.parametrize("secret", ["", "nonsense", base64.b64encode(b"short").decode()])
def test_a_key_that_is_none_is_refused(folder: Path, secret: str) -> None:
    with pytest.raises(BuildError, match="POTLUCK_RELEASE_KEY is no"):
        release_index.sign(folder, URL, secret, [PUBLIC])


def test_a_key_that_packages_do_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(BuildError, match="no package would believe it"):
        release_index.sign(folder, URL, SECRET, [])
    assert not (folder / "release.json").exists()


def test_a_list_that_has_ended_is_no_list_until_it_is_renewed(folder: Path) -> None:
    now = 1_800_000_000
    release_index.sign(folder, URL, SECRET, [PUBLIC], now=now)
    old = release_index.check(folder, [PUBLIC], now=now)
    assert old.expires == now + 90 * DAY_S
    assert release_index.need_no_renewal(folder, [PUBLIC], now=now + 60 * DAY_S) == "2027-04-15"

    with pytest.raises(BuildError, match=r"gh workflow run renew\.yml --ref v"):
        release_index.need_no_renewal(folder, [PUBLIC], now=now + 61 * DAY_S)
    with pytest.raises(BuildError, match="good until"):
        release_index.check(folder, [PUBLIC], now=now + 91 * DAY_S)

    later = now + 91 * DAY_S
    release_index.renew(folder, SECRET, [PUBLIC], now=later)
    new = release_index.check(folder, [PUBLIC], now=later)
    assert (new.issued, new.packages) == (later, old.packages)


def test_only_a_list_of_our_own_that_is_older_is_renewed(folder: Path) -> None:
    secret, public = release_index.new_key()
    release_index.sign(folder, URL, secret, [public], now=7)

    with pytest.raises(BuildError, match="not signed by the makers"):
        release_index.renew(folder, SECRET, [PUBLIC])
    with pytest.raises(BuildError, match="not older than now"):
        release_index.renew(folder, secret, [public], now=7)


def test_a_package_of_another_version_is_refused(folder: Path) -> None:
    (folder / "potluck-99.0.0-linux-x86_64.tar.xz").touch()

    with pytest.raises(BuildError, match="not of version"):
        release_index.sign(folder, URL, SECRET, [PUBLIC])


def test_without_a_package_there_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no package"):
        release_index.sign(tmp_path, URL, SECRET, [PUBLIC])


def test_packages_ask_the_repository_that_builds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POTLUCK_RELEASE_INDEX", raising=False)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert address_of_index() == ""
    monkeypatch.setenv("GITHUB_REPOSITORY", "them/potluck")
    assert address_of_index() == (
        "https://github.com/them/potluck/releases/latest/download/release.json"
    )


def test_comments_are_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_RELEASE_KEYS", "one two")
    (tmp_path / "installers").mkdir()
    (tmp_path / "installers" / "release_keys.txt").write_text(f"# a word\n\n{PUBLIC}\n")

    assert release_keys(tmp_path) == [PUBLIC, "one", "two"]


def test_the_maintainer_is_that_of_the_project() -> None:
    assert maintainer() == "The Potluck authors <maintainers@potluck.invalid>"
