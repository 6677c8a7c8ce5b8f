"""Folders, settings, the node's file and the locks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from potluck.settings import (
    AlreadyRunningError,
    Folders,
    NodeFile,
    Settings,
    SettingsError,
    computer_name,
    cpu_threads,
    engine_index,
    engine_locks,
    exclusive,
    load_settings,
    read_node_file,
    remove_node_file,
    save_settings,
    write_node_file,
)

NODE = NodeFile(pid=123, port=4567, token="secret", version="1.0")
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such permissions")


def test_a_home_holds_all_folders(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path / "home", {})

    kept = [folders.config, folders.data, folders.cache, folders.state]
    assert all(folder.parent == tmp_path / "home" for folder in kept)
    assert len(set(kept)) == 4
    assert not (tmp_path / "home").exists()


def test_the_word_goes_before_the_environment(tmp_path: Path) -> None:
    environ = {"POTLUCK_HOME": str(tmp_path / "b")}

    assert Folders.of(tmp_path / "a", environ).home == tmp_path / "a"
    assert Folders.of(None, environ).home == tmp_path / "b"
    assert Folders.of(None, {"POTLUCK_HOME": ""}).home is None


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert Folders.of(Path("here"), {}).home == tmp_path / "here"


def test_the_systems_places_are_apart_from_each_other() -> None:
    folders = Folders.of(None, {})

    kept = [folders.config, folders.data, folders.cache, folders.state]
    assert len(set(kept)) == 4
    assert all("potluck" in str(folder).lower() for folder in kept)


def test_the_computers_name_has_no_domain() -> None:
    assert computer_name()
    assert "." not in computer_name()


def test_settings_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "settings.json"
    settings = Settings(name="Attic", memory_limit=4_000_000_000, worker=True)

    save_settings(file, settings)

    assert load_settings(file) == settings
    assert [found.name for found in file.parent.iterdir()] == ["settings.json"]


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "none.json")

    assert settings == Settings()
    assert settings.shown_name == computer_name()


def test_what_a_later_version_wrote_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"name": "Attic", "colour": "blue"}')

    assert load_settings(file).shown_name == "Attic"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is damaged: it is no JSON"),
        ('{"name": 5}', "is not as it must be at name"),
        ('{"memory_limit": -1}', "memory_limit"),
    ],
)
def test_a_broken_file_is_told_and_kept(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)

    with pytest.raises(SettingsError, match=why) as caught:
        load_settings(file)

    assert str(file) in str(caught.value)
    assert file.read_text() == text


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError, match="cannot be"):
        save_settings(tmp_path / "file" / "settings.json", Settings())
    with pytest.raises(SettingsError, match="--home"):
        write_node_file(Folders.of(tmp_path / "file", {}), NODE)


def test_the_node_is_found_where_it_said(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, {})
    assert read_node_file(folders) is None

    write_node_file(folders, NODE)

    assert read_node_file(folders) == NODE


def test_a_broken_node_file_is_no_node(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, {})
    folders.state.mkdir()
    folders.node_file.write_text("nonsense")

    assert read_node_file(folders) is None


def test_a_node_removes_its_own_file_only(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, {})
    write_node_file(folders, NODE)

    remove_node_file(folders, NodeFile(pid=9, port=9, token="x", version="1"))
    assert read_node_file(folders) == NODE

    remove_node_file(folders, NODE)
    remove_node_file(folders, NODE)
    assert not folders.node_file.exists()


@posix
def test_the_token_is_private(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path / "home", {})

    write_node_file(folders, NODE)

    assert folders.node_file.stat().st_mode & 0o077 == 0
    assert folders.state.stat().st_mode & 0o077 == 0


def test_only_one_process_holds_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "state" / "lock"
    code = (
        "import sys, pathlib\n"
        "from potluck.settings import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"held"
        with pytest.raises(AlreadyRunningError), exclusive(lock, wait_s=0.1):
            pass
        other.kill()  # a crash frees it too

    with exclusive(lock):
        pass


def test_the_cpu_may_be_offered_as_several_devices() -> None:
    assert cpu_threads({}) == ()
    assert cpu_threads({"POTLUCK_CPUS": ""}) == ()
    assert cpu_threads({"POTLUCK_CPUS": "8"}) == (8,)
    assert cpu_threads({"POTLUCK_CPUS": "8, 4"}) == (8, 4)


@pytest.mark.parametrize("value", ["two", "0", "4,", "-1", "1,1,1,1,1,1,1,1,1", "4096", "²"])
def test_what_are_no_numbers_of_threads_is_said(value: str) -> None:
    with pytest.raises(SettingsError, match="POTLUCK_CPUS"):
        cpu_threads({"POTLUCK_CPUS": value})


def test_the_index_of_the_engine_is_an_address() -> None:
    mirror = Settings(engine_index="https://mirror.example/simple")

    assert engine_index(Settings(), {}) is None
    assert engine_index(mirror, {}) == "https://mirror.example/simple"
    assert engine_index(mirror, {"POTLUCK_ENGINE_INDEX": "http://10.0.0.2/simple"}) == (
        "http://10.0.0.2/simple"
    )
    for wrong in ("mirror.example", "file:///etc", "https://", "ftp://a/b"):
        with pytest.raises(SettingsError, match="POTLUCK_ENGINE_INDEX"):
            engine_index(Settings(), {"POTLUCK_ENGINE_INDEX": wrong})


def test_who_builds_torch_has_locks_of_their_own(tmp_path: Path) -> None:
    assert engine_locks({}) is None
    assert engine_locks({"POTLUCK_ENGINE_LOCKS": str(tmp_path)}) == tmp_path
