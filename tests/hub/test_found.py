import json
from pathlib import Path

import pytest
from model_folders import make_folder

from potluck.errors import UsageError
from potluck.hub.found import (
    MAX_RECENT,
    ModelFolder,
    Places,
    RecentFolders,
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

    models = list_models([mine, snapshot, mine], places=Places(hub=hub_cache))

    size = (mine / "model.safetensors").stat().st_size
    assert models == [
        ModelFolder(name="mine", path=mine, nbytes=size),
        ModelFolder(name="anna/tiny-llama", path=snapshot, nbytes=size, source="hub"),
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

    models = list_models([mine, tmp_path], places=Places(hub=hub_cache))

    assert [(model.name, model.path, model.nbytes) for model in models[:3]] == [
        ("mine", mine, 5),
        ("anna/tiny-GGUF/tiny-Q4_0", snapshot / "tiny-Q4_0.gguf", 10),
        ("anna/tiny-GGUF/tiny-Q8_0", snapshot / "tiny-Q8_0-00001-of-00002.gguf", 17),
    ]


def test_a_repository_of_quantisations_is_found_by_its_name(hub_cache, tmp_path):
    snapshot = hub_cache / "models--anna--tiny-GGUF" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf"):
        (snapshot / name).write_bytes(bytes(10))

    for words in ("anna/tiny-GGUF", "Tiny-gguf"):
        found = find_model(words, default=tmp_path, places=Places(hub=hub_cache))
        assert found == snapshot


def test_gguf_file_is_found_by_its_path_and_its_name(tmp_path, empty_cache):
    mine = tmp_path / "Tiny-Q4_0.gguf"
    mine.write_bytes(bytes(5))
    recent = RecentFolders(tmp_path / "recent.json")
    recent.add(mine)

    for words in (str(mine), "tiny-q4_0"):
        found = find_model(
            words, default=tmp_path, recent=recent.folders(), places=Places(hub=empty_cache)
        )
        assert found == mine
    mine.unlink()
    assert recent.folders() == []


def test_newest_snapshot_of_a_repository_is_the_one(hub_cache):
    repository = hub_cache / "models--anna--tiny-llama"
    newer = make_folder(repository / "snapshots" / ("d00d" * 10))
    for file in newer.iterdir():
        file.touch()

    assert [model.path for model in list_models(places=Places(hub=hub_cache))] == [newer]


def test_missing_and_damaged_caches_hold_nothing(empty_cache, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "models--x--y").mkdir(parents=True)

    assert list_models(places=Places(hub=empty_cache)) == []
    assert list_models(places=Places(hub=tmp_path / "file")) == []
    assert list_models([tmp_path / "gone"], places=Places(hub=tmp_path / "odd")) == []


def test_snapshot_with_a_blob_that_is_gone_is_not_offered(hub_cache):
    snapshot = hub_cache / "models--anna--tiny-llama" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").unlink()
    try:
        (snapshot / "model.safetensors").symlink_to(hub_cache / "gone")
    except OSError:
        pytest.skip("this account may not make links")

    assert list_models(places=Places(hub=hub_cache)) == []


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
    assert find_model(words, default=tmp_path, places=Places(hub=empty_cache)) == tmp_path


def test_path_name_and_last_part_of_a_name_find_the_model(hub_cache, tmp_path):
    mine = make_folder(tmp_path / "Mine")
    snapshot = hub_cache / "models--anna--tiny-llama" / "snapshots" / COMMIT

    def find(words: str) -> Path:
        return find_model(words, default=tmp_path, recent=[mine], places=Places(hub=hub_cache))

    assert find(f" {mine} ") == mine
    assert find("mine") == mine
    assert find("anna/tiny-llama") == find("Anna/Tiny-Llama") == find("tiny-llama") == snapshot


def test_whole_name_wins_over_a_last_part(hub_cache, tmp_path):
    mine = make_folder(tmp_path / "tiny-llama")

    found = find_model("tiny-llama", default=tmp_path, recent=[mine], places=Places(hub=hub_cache))

    assert found == mine


def test_unknown_model_is_an_error_that_names_those_that_are_there(hub_cache, tmp_path):
    with pytest.raises(UsageError, match=r"no model 'x/y'.*Download it.*are: anna/tiny-llama\."):
        find_model("x/y", default=tmp_path, places=Places(hub=hub_cache))
    with pytest.raises(UsageError, match=r"Give the folder that holds config\.json"):
        find_model("./nowhere", default=tmp_path, places=Places(hub=hub_cache))


# --- downloads


@pytest.mark.parametrize("words", ["x" * 4000, "~nobody-of-this-name/model", "a/" * 2000])
def test_words_that_are_no_path_are_no_model(empty_cache, tmp_path, words):
    with pytest.raises(UsageError, match="There is no model") as refused:
        find_model(words, default=tmp_path, places=Places(hub=empty_cache))
    assert len(refused.value.message) < 600


# --- what other programs have


def test_models_of_other_programs_are_listed_with_their_source(hub_cache, tmp_path):
    guide, lmstudio, ollama = tmp_path / "guide", tmp_path / "lmstudio", tmp_path / "ollama"
    make_folder(guide)
    published = lmstudio / "anna" / "Tiny-GGUF" / "Tiny-Q4_0.gguf"
    published.parent.mkdir(parents=True)
    published.write_bytes(bytes(5))
    weights = "application/vnd.ollama.image.model"
    for digit, magic in (("a", b"GGUF"), ("b", b"else")):
        manifest = ollama / "manifests/registry.ollama.ai/library/tiny" / digit
        manifest.parent.mkdir(parents=True, exist_ok=True)
        layer = {"digest": f"sha256:{digit * 64}", "mediaType": weights}
        manifest.write_text(json.dumps({"layers": [layer]}))
        (ollama / "blobs").mkdir(exist_ok=True)
        (ollama / "blobs" / f"sha256-{digit * 64}").write_bytes(magic)

    places = Places(hub=hub_cache, ollama=(ollama,), lmstudio=(lmstudio,))
    models = list_models(guide=guide, places=places)

    assert [(model.source, model.name, model.format) for model in models] == [
        ("potluck", "guide", "safetensors"),
        ("hub", "anna/tiny-llama", "safetensors"),
        ("lmstudio", "Tiny-Q4_0", "gguf"),
        ("ollama", "tiny:a", "gguf"),
    ]


def test_places_are_those_that_the_programs_document(tmp_path):
    moved = tmp_path / "elsewhere"
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{moved}\n")

    places = Places.of(tmp_path, {"OLLAMA_MODELS": "/big/ollama"})

    assert places.ollama[:2] == (Path("/big/ollama"), tmp_path / ".ollama" / "models")
    assert places.lmstudio[:2] == (moved / "models", tmp_path / ".lmstudio" / "models")


def test_folder_of_models_is_searched(tmp_path, empty_cache):
    first = make_folder(tmp_path / "models" / "first")
    second = make_folder(tmp_path / "models" / "anna" / "second")
    make_folder(tmp_path / "models" / ".hidden" / "third")
    make_folder(tmp_path / "models" / "a" / "b" / "c" / "too-deep")

    models = list_models([tmp_path / "models"], places=Places(hub=empty_cache))

    assert [model.path for model in models] == [first, second]


def test_variants_that_came_from_two_revisions_are_both_there(hub_cache):
    snapshots = hub_cache / "models--anna--tiny-llama" / "snapshots"
    for commit, name in (("d00d" * 10, "tiny-Q4_0.gguf"), ("f00d" * 10, "tiny-Q8_0.gguf")):
        (snapshots / commit).mkdir()
        (snapshots / commit / name).write_bytes(bytes(5))

    names = {model.name for model in list_models(places=Places(hub=hub_cache))}

    assert {"anna/tiny-llama/tiny-Q4_0", "anna/tiny-llama/tiny-Q8_0"} <= names


def test_model_that_lacks_some_of_its_files_is_not_offered(tmp_path, empty_cache):
    mine = make_folder(tmp_path / "mine")
    (mine / "model.safetensors").rename(mine / "model-00001-of-00002.safetensors")

    assert list_models([mine], places=Places(hub=empty_cache)) == []
