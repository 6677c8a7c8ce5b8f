import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest
from model_folders import make_folder

from potluck.errors import ModelError, UsageError
from potluck.store.hub import (
    MAX_RECENT,
    ModelFolder,
    RecentFolders,
    download_model,
    find_model,
    list_models,
)

COMMIT = "c0ffee" * 6 + "c0ff"


@pytest.fixture
def hub_cache(tmp_path) -> Path:
    """A Hub cache with one model, one data set and one model without safetensors."""
    cache = tmp_path / "hub"
    for repository in ("models--anna--tiny-llama", "datasets--anna--poems", "models--bob--pickled"):
        snapshot = cache / repository / "snapshots" / COMMIT
        make_folder(snapshot)
        (cache / repository / "refs").mkdir()
        (cache / repository / "refs" / "main").write_text(COMMIT)
        if "pickled" in repository:
            (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    return cache


@pytest.fixture
def empty_cache(tmp_path) -> Path:
    return tmp_path / "no-hub"


# --- the list


def test_models_of_the_hub_cache_and_recent_folders_are_listed_once(hub_cache, tmp_path):
    mine = make_folder(tmp_path / "mine")
    snapshot = hub_cache / "models--anna--tiny-llama" / "snapshots" / COMMIT

    models = list_models([mine, snapshot, mine], hub_cache=hub_cache)

    size = (mine / "model.safetensors").stat().st_size
    assert models == [
        ModelFolder(name="mine", path=mine, nbytes=size),
        ModelFolder(name="anna/tiny-llama", path=snapshot, nbytes=size),
    ]


def test_every_gguf_file_is_a_model_and_one_in_parts_is_one(hub_cache, tmp_path):
    snapshot = hub_cache / "models--anna--tiny-GGUF" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0-00001-of-00002.gguf", "mmproj-F16.gguf"):
        (snapshot / name).write_bytes(bytes(10))
    (snapshot / "tiny-Q8_0-00002-of-00002.gguf").write_bytes(bytes(7))
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(bytes(5))
    (tmp_path / "half-00001-of-00002.gguf").write_bytes(bytes(3))  # whose other part is missing

    models = list_models([mine, tmp_path], hub_cache=hub_cache)

    assert [(model.name, model.path, model.nbytes) for model in models[:3]] == [
        ("mine", mine, 5),
        ("anna/tiny-GGUF/tiny-Q4_0", snapshot / "tiny-Q4_0.gguf", 10),
        ("anna/tiny-GGUF/tiny-Q8_0", snapshot / "tiny-Q8_0-00001-of-00002.gguf", 17),
    ]


def test_gguf_file_is_found_by_its_path_and_its_name(tmp_path, empty_cache):
    mine = tmp_path / "Tiny-Q4_0.gguf"
    mine.write_bytes(bytes(5))
    recent = RecentFolders(tmp_path / "recent.json")
    recent.add(mine)

    for words in (str(mine), "tiny-q4_0"):
        found = find_model(words, default=tmp_path, recent=recent.folders(), hub_cache=empty_cache)
        assert found == mine
    mine.unlink()
    assert recent.folders() == []


def test_newest_snapshot_of_a_repository_is_the_one(hub_cache):
    repository = hub_cache / "models--anna--tiny-llama"
    newer = make_folder(repository / "snapshots" / ("d00d" * 10))
    for file in newer.iterdir():
        file.touch()

    assert [model.path for model in list_models(hub_cache=hub_cache)] == [newer]


def test_missing_and_damaged_caches_hold_nothing(empty_cache, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "models--x--y").mkdir(parents=True)

    assert list_models(hub_cache=empty_cache) == []
    assert list_models(hub_cache=tmp_path / "file") == []
    assert list_models([tmp_path / "gone"], hub_cache=tmp_path / "odd") == []


def test_snapshot_with_a_blob_that_is_gone_is_not_offered(hub_cache):
    snapshot = hub_cache / "models--anna--tiny-llama" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").unlink()
    try:
        (snapshot / "model.safetensors").symlink_to(hub_cache / "gone")
    except OSError:
        pytest.skip("this account may not make links")

    assert list_models(hub_cache=hub_cache) == []


# --- recent folders


def test_recent_folders_are_kept_latest_first_and_without_those_that_are_gone(tmp_path):
    file = tmp_path / "config" / "recent.json"
    first, second, third = (tmp_path / name for name in ("a", "b", "c"))
    for folder in (first, second, third):
        folder.mkdir()
        RecentFolders(file).add(folder)
    RecentFolders(file).add(first)
    third.rmdir()

    assert RecentFolders(file).folders() == [first, second]


def test_recent_folders_are_not_endless(tmp_path):
    recent = RecentFolders(tmp_path / "recent.json")
    for number in range(MAX_RECENT + 5):
        folder = tmp_path / str(number)
        folder.mkdir()
        recent.add(folder)

    assert len(recent.folders()) == MAX_RECENT
    assert recent.folders()[0].name == str(MAX_RECENT + 4)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xff", b'{"a": 1}', b"[1]"])
def test_damaged_list_of_recent_folders_is_an_empty_one(tmp_path, damage):
    file = tmp_path / "recent.json"
    file.write_bytes(damage)
    recent = RecentFolders(file)

    assert recent.folders() == []
    recent.add(tmp_path)
    assert recent.folders() == [tmp_path]


def test_list_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    recent = RecentFolders(tmp_path / "file" / "recent.json")

    recent.add(tmp_path)

    assert recent.folders() == []


# --- what a user means


@pytest.mark.parametrize("words", [None, "", "  "])
def test_no_words_mean_the_default(tmp_path, empty_cache, words):
    assert find_model(words, default=tmp_path, hub_cache=empty_cache) == tmp_path


def test_path_name_and_last_part_of_a_name_find_the_model(hub_cache, tmp_path):
    mine = make_folder(tmp_path / "Mine")
    snapshot = hub_cache / "models--anna--tiny-llama" / "snapshots" / COMMIT

    def find(words: str) -> Path:
        return find_model(words, default=tmp_path, recent=[mine], hub_cache=hub_cache)

    assert find(f" {mine} ") == mine
    assert find("mine") == mine
    assert find("anna/tiny-llama") == find("Anna/Tiny-Llama") == find("tiny-llama") == snapshot


def test_whole_name_wins_over_a_last_part(hub_cache, tmp_path):
    mine = make_folder(tmp_path / "tiny-llama")

    found = find_model("tiny-llama", default=tmp_path, recent=[mine], hub_cache=hub_cache)

    assert found == mine


def test_unknown_model_is_an_error_that_names_those_that_are_there(hub_cache, tmp_path):
    with pytest.raises(UsageError, match=r"no model 'x/y'.*Download it.*are: anna/tiny-llama\."):
        find_model("x/y", default=tmp_path, hub_cache=hub_cache)
    with pytest.raises(UsageError, match=r"Give the folder that holds config\.json"):
        find_model("./nowhere", default=tmp_path, hub_cache=hub_cache)


# --- downloads


@pytest.mark.parametrize("words", ["tiny", "../x", "a/b/c", "https://example.org/a", "/etc", ""])
def test_only_names_of_repositories_are_downloaded(words, empty_cache):
    with pytest.raises(UsageError, match="org/name"):
        download_model(words, hub_cache=empty_cache)


def test_download_without_a_network_is_a_sentence(empty_cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(ModelError, match=r"anna/tiny is not on this computer.*cannot be reached"):
        download_model("anna/tiny", hub_cache=empty_cache)


class FakeHub(BaseHTTPRequestHandler):
    """What of the Hub's API a download asks for."""

    files: dict[str, bytes]
    asked: list[str]
    refused: set[str]

    def do_HEAD(self) -> None:
        self.do_GET(with_body=False)

    def do_GET(self, *, with_body: bool = True) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in self.files.items()
        ]
        name = path.rpartition("/")[2]
        if with_body and name in self.refused:
            self.send_error(403)
        elif path.startswith("/api/models/anna/tiny/tree/"):
            self._answer(json.dumps(tree).encode(), with_body)
        elif path.startswith("/api/models/anna/tiny"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "anna/tiny", "sha": COMMIT, "siblings": siblings}
            self._answer(json.dumps(info).encode(), with_body)
        elif path.startswith("/anna/tiny/resolve/") and name in self.files:
            data = self.files[name]
            self._answer(data, with_body, ETag=f'"{hashlib.sha1(data).hexdigest()}"')
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, data: bytes, with_body: bool, **headers: str) -> None:
        self.send_response(200)
        for key, value in {"X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[tuple[str, type[FakeHub]]]:
    """A Hub on loopback with one model; its address and what it was asked."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "*")
    source = make_folder(tmp_path / "source")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    (source / "modeling.py").write_text("raise SystemExit")

    class Hub(FakeHub):
        files = {path.name: path.read_bytes() for path in source.iterdir()}  # noqa: RUF012
        asked: list[str] = []  # noqa: RUF012
        refused: set[str] = set()  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Hub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.net
@pytest.mark.slow
def test_download_fetches_what_a_model_needs_and_tells_how_far_it_is(hub, empty_cache):
    endpoint, served = hub
    told: list[tuple[int, int]] = []

    folder = download_model(
        "anna/tiny",
        progress=lambda *step: told.append(step),
        hub_cache=empty_cache,
        endpoint=endpoint,
    )

    wanted = {"config.json", "tokenizer.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert not any(name in path for path in served.asked for name in ("pytorch_model", ".py"))
    size = sum(len(served.files[name]) for name in wanted)
    assert told[-1] == (size, size)
    assert [model.name for model in list_models(hub_cache=empty_cache)] == ["anna/tiny"]


@pytest.mark.net
@pytest.mark.slow
def test_repository_that_is_not_there_is_a_sentence(hub, empty_cache):
    with pytest.raises(ModelError, match="The Hub has no model anna/other"):
        download_model("anna/other", hub_cache=empty_cache, endpoint=hub[0])


@pytest.mark.net
@pytest.mark.slow
def test_download_that_is_stopped_goes_on_another_time(hub, empty_cache):
    endpoint, served = hub

    def stop(_done: int, _total: int) -> None:
        raise UsageError("Stopped.")

    with pytest.raises(UsageError, match="Stopped"):
        download_model("anna/tiny", progress=stop, hub_cache=empty_cache, endpoint=endpoint)
    folder = download_model("anna/tiny", hub_cache=empty_cache, endpoint=endpoint)

    assert (folder / "model.safetensors").read_bytes() == served.files["model.safetensors"]


@pytest.mark.net
@pytest.mark.slow
def test_hub_that_refuses_a_file_is_a_sentence(hub, empty_cache):
    endpoint, served = hub
    served.refused.add("model.safetensors")

    with pytest.raises(ModelError, match="anna/tiny cannot be downloaded"):
        download_model("anna/tiny", hub_cache=empty_cache, endpoint=endpoint)
