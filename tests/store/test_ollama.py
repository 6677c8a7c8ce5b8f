import json
from pathlib import Path

import pytest

from potluck.store.ollama import blob_name, is_blob, ollama_models
from potluck.store.registry import model_name

WEIGHTS = "application/vnd.ollama.image.model"
ADAPTER = "application/vnd.ollama.image.adapter"


def add(store: Path, manifest: str, *media_types: str, digit: str = "a") -> Path:
    """Add a model with a layer of each of these kinds; return the file of the first."""
    digests = [f"{digit}{number}" * 32 for number in range(len(media_types))]
    layers = [
        {"digest": f"sha256:{digest}", "mediaType": media, "size": 3}
        for digest, media in zip(digests, media_types, strict=True)
    ]
    path = store / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (store / "blobs").mkdir(exist_ok=True)
    for digest in digests:
        (store / "blobs" / f"sha256-{digest}").write_bytes(b"GGUF")
    return store / "blobs" / f"sha256-{digests[0]}"


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ("registry.ollama.ai/library/qwen3/8b", "qwen3:8b"),
        ("registry.ollama.ai/anna/poet/latest", "anna/poet:latest"),
        ("hf.co/bartowski/Qwen3-GGUF/Q4_K_M", "hf.co/bartowski/Qwen3-GGUF:Q4_K_M"),
    ],
)
def test_file_is_called_as_ollama_calls_its_model(tmp_path, manifest, name):
    blob = add(tmp_path, manifest, WEIGHTS, "application/vnd.ollama.image.template")

    assert is_blob(blob)
    assert ollama_models(tmp_path) == {blob: name}
    assert model_name(blob) == blob_name(blob) == name


def test_model_of_several_files_and_one_with_an_adapter_are_left_out(tmp_path):
    add(tmp_path, "registry.ollama.ai/library/two/latest", WEIGHTS, WEIGHTS)
    add(tmp_path, "registry.ollama.ai/library/tuned/latest", WEIGHTS, ADAPTER, digit="b")

    assert ollama_models(tmp_path) == {}


OUTSIDE = json.dumps({"layers": [{"digest": "sha256:../../x", "mediaType": WEIGHTS}]})


@pytest.mark.parametrize("text", ["", "{", "[]", OUTSIDE])
def test_damaged_manifest_names_nothing(tmp_path, text):
    add(tmp_path, "registry.ollama.ai/library/qwen3/8b", WEIGHTS)
    (tmp_path / "manifests/registry.ollama.ai/library/qwen3/8b").write_text(text)

    assert ollama_models(tmp_path) == {}


def test_file_without_a_manifest_has_its_own_name(tmp_path):
    blob = add(tmp_path, "registry.ollama.ai/library/qwen3/8b", WEIGHTS)
    (tmp_path / "manifests/registry.ollama.ai/library/qwen3/8b").unlink()

    assert blob_name(blob) == blob.name
    assert not is_blob(tmp_path / blob.name)
