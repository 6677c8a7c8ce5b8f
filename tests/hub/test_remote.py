"""What the Hub is asked, and how its refusals read. The Hub is one on loopback."""

import pytest
from hub_stand_in import TOKEN, HubStandIn, Repo, unsupported

from potluck.errors import (
    GatedModelError,
    HubError,
    NotFoundError,
    OfflineError,
    TooManyRequestsError,
    UnknownArchitectureError,
)
from potluck.hub.remote import Hub, require_known
from potluck.model.config import ModelConfig

pytestmark = pytest.mark.net


def test_search_says_what_can_be_said_before_a_look(hub: HubStandIn, tiny: Repo, asking: Hub):
    hub.add(unsupported())

    found, snake = asking.search("anna")

    assert (found.name, found.downloads, found.license) == ("anna/tiny", 42, "apache-2.0")
    assert (found.parameters, found.gated, found.problem) == (9, False, None)
    assert found.page == "https://huggingface.co/anna/tiny"
    assert snake.problem is not None
    assert "MambaForCausalLM, which Potluck cannot run yet" in snake.problem


def test_repository_has_the_files_of_its_model_and_no_others(tiny: Repo, asking: Hub):
    repository = asking.look("anna/tiny")

    (variant,) = repository.variants
    names = [file.name for file in variant.files]
    assert set(names) <= {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "tokenizer_config.json",
    }
    assert names[-1] == "model.safetensors"
    assert len(variant.files[-1].digest) == 64
    assert repository.model.context == 128
    assert [(v.name, v.nbytes) for v in repository.model.variants] == [
        ("safetensors", sum(len(tiny.files[name]) for name in names))
    ]


def test_each_quantisation_is_a_variant_and_has_the_config_of_its_base(
    tiny: Repo, quantised: Repo, asking: Hub
):
    repository = asking.look("anna/tiny-GGUF")

    assert [(v.name, v.nbytes) for v in repository.model.variants] == [
        ("Q8_0", 2000 + 3000),  # each with the projector
        ("Q4_K_M", 1000 + 3000),
    ]
    assert [f.name for f in repository.variants[1].files] == ["tiny-Q4_K_M.gguf", "mmproj-F16.gguf"]
    config = repository.config_of(repository.variants[1])
    assert config is not None
    quantization = ModelConfig.from_dict(config).quantization
    assert quantization is not None
    assert (quantization.method, quantization.bits, quantization.fits_offsets) == ("gguf", 4, True)


def test_base_that_cannot_be_seen_leaves_the_config_unknown(quantised: Repo, asking: Hub):
    repository = asking.look("anna/tiny-GGUF")

    assert repository.config_of(repository.variants[0]) is None
    require_known("anna/tiny-GGUF", repository, repository.variants[0])  # its family is known


def test_file_that_would_lie_outside_of_its_folder_is_left_out(hub: HubStandIn, asking: Hub):
    names = ("../../x-Q8_0.gguf", "/x-Q6_K.gguf", "a\\..\\x-Q5_0.gguf", "c:x-Q4_0.gguf")
    hub.add(Repo("anna/evil", {name: bytes(9) for name in (*names, "sub/x-Q4_1.gguf")}))

    assert [variant.name for variant in asking.look("anna/evil").variants] == ["Q4_1"]


def test_file_whose_size_or_digest_cannot_be_true_is_left_out(hub: HubStandIn, asking: Hub):
    good = {"rfilename": "x-Q4_1.gguf", "size": 9, "lfs": {"sha256": "a" * 64}}
    bad = [
        {"rfilename": "x-Q8_0.gguf", "size": -9},
        {"rfilename": "x-Q6_K.gguf", "size": 1 << 60},
        {"rfilename": "x-Q5_0.gguf", "size": None},
        {"rfilename": "x-Q5_1.gguf", "lfs": {"sha256": "../../../x"}},
        {"rfilename": "x-Q4_0.gguf", "lfs": None, "blobId": "0"},
    ]
    hub.add(Repo("anna/lies", {}, {"siblings": [good, *(good | each for each in bad)]}))

    assert [variant.name for variant in asking.look("anna/lies").variants] == ["Q4_1"]


def test_repository_that_calls_itself_a_path_is_refused(hub: HubStandIn, asking: Hub):
    hub.add(Repo("anna/evil", {}, {"id": "..\\..\\x/y"}))

    with pytest.raises(HubError, match="does not say"):
        asking.look("anna/evil")
    assert asking.search("evil") == []


@pytest.mark.parametrize("answer", [b"<html>Log in first", b'{"id": 3}', b"[" * 100_000])
def test_answer_that_cannot_be_read_is_a_sentence(
    hub: HubStandIn, tiny: Repo, asking: Hub, answer: bytes
):
    hub.answer = answer

    with pytest.raises(HubError, match="cannot be read"):
        asking.look("anna/tiny")
    with pytest.raises(HubError, match="cannot be read"):
        asking.search("tiny")


def test_answer_without_an_end_is_not_read_to_it(
    hub: HubStandIn, tiny: Repo, asking: Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("potluck.hub.remote.MAX_ANSWER", 1000)
    hub.answer = b" " * 5000

    with pytest.raises(HubError, match="too long"):
        asking.look("anna/tiny")


def test_unknown_family_is_refused_before_a_download(hub: HubStandIn, asking: Hub):
    hub.add(unsupported())
    repository = asking.look("anna/snake")

    assert repository.model.problem is not None
    with pytest.raises(UnknownArchitectureError, match="Mamba"):
        require_known("anna/snake", repository, repository.variants[0])


def test_pickle_files_alone_are_no_form_that_is_read(hub: HubStandIn, asking: Hub):
    hub.add(Repo("anna/pickled", {"pytorch_model.bin": b"x"}))

    problem = asking.look("anna/pickled").model.problem

    assert problem is not None
    assert "no form that Potluck reads" in problem


def test_repository_that_is_not_there_is_not_found(hub: HubStandIn, asking: Hub):
    with pytest.raises(NotFoundError, match="no model anna/none that everybody may see"):
        asking.look("anna/none")
    with pytest.raises(NotFoundError, match="no model no-slash/"):
        asking.look("no-slash/")


def test_gated_model_names_the_page_where_its_terms_are(hub: HubStandIn, tiny: Repo, asking: Hub):
    tiny.gated = True

    repository = asking.look("anna/tiny")
    with pytest.raises(GatedModelError, match="make a token") as refused:
        asking.require_access("anna/tiny", repository.revision, "config.json")

    assert (repository.model.gated, repository.config) == (True, None)
    assert refused.value.data["page"] == "https://huggingface.co/anna/tiny"
    allowed = Hub(lambda: TOKEN, hub.address)
    assert allowed.look("anna/tiny").config is not None
    allowed.require_access("anna/tiny", repository.revision, "config.json")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [(429, TooManyRequestsError, "too many requests"), (500, HubError, "error of its own")],
)
def test_hub_that_refuses_is_a_sentence(
    hub: HubStandIn, asking: Hub, status: int, kind: type[Exception], words: str
):
    hub.status = status

    with pytest.raises(kind, match=words):
        asking.search("tiny")


def test_hub_that_cannot_be_reached_is_offline():
    nobody = Hub(lambda: None, "http://127.0.0.1:9")

    with pytest.raises(OfflineError, match="cannot be reached"):
        nobody.search("tiny")
    with pytest.raises(OfflineError):
        nobody.look("anna/tiny")


def test_token_is_that_of_a_user(hub: HubStandIn, asking: Hub):
    assert asking.user(TOKEN) == "anna"
    with pytest.raises(GatedModelError, match="does not know the token"):
        asking.user("hf_wrong")
