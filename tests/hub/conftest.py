"""A Hub on loopback, and the repositories that the tests ask for."""

from collections.abc import Iterator

import pytest
from hub_stand_in import HubStandIn, Repo, serving_hub
from model_folders import CONFIG, make_folder

from potluck.hub.remote import Hub


@pytest.fixture(scope="session")
def running_hub() -> Iterator[HubStandIn]:
    with serving_hub() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> HubStandIn:
    """A Hub without repositories. All other tests are offline; its address is on loopback."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # of processes
    monkeypatch.setenv("HF_ENDPOINT", running_hub.address)
    running_hub.reset()
    return running_hub


@pytest.fixture
def tiny(hub: HubStandIn, tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """A small model in safetensors, with files that nobody needs."""
    folder = make_folder(tmp_path_factory.mktemp("repo") / "tiny")
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    more = {"pytorch_model.bin": b"pickle", "README.md": b"# Tiny", "onnx/model.onnx": b"x"}
    info = {"config": {"architectures": CONFIG["architectures"]}}
    return hub.add(
        Repo("anna/tiny", files | more, info | {"safetensors": {"parameters": {}, "total": 9}})
    )


@pytest.fixture
def quantised(hub: HubStandIn) -> Repo:
    """A repository with GGUF files of a model that `anna/tiny` is."""
    names = ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "mmproj-F16.gguf", "tiny-TQ1_0.gguf")
    files = {name: bytes(1000 * (number + 1)) for number, name in enumerate(names)}
    info = {"cardData": {"base_model": "anna/tiny"}, "gguf": {"architecture": "llama", "total": 9}}
    return hub.add(Repo("anna/tiny-GGUF", files, info))


@pytest.fixture
def asking(hub: HubStandIn) -> Hub:
    """One who asks that Hub, without a token."""
    return Hub(lambda: None, hub.address)
