import hashlib
import json

import numpy as np
import pytest
from model_folders import CONFIG, GPTQ, gptq_tensors, make_folder, tensors_of, write_index

from potluck.errors import (
    BrokenModelError,
    InvalidConfigError,
    UnknownArchitectureError,
    UsageError,
)
from potluck.model.config import ModelConfig
from potluck.store import model_folder
from potluck.store.registry import open_model, random_model
from potluck.wire.frame import encode
from potluck.wire.messages import Assign

TIED = dict(CONFIG) | {"tie_word_embeddings": True}
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


def test_folder_is_opened_with_the_digest_and_place_of_every_tensor(folder, cache):
    model = open_model(folder, cache_dir=cache)

    tensors = tensors_of()
    assert {entry.name for entry in model.manifest.tensors} == tensors.keys()
    for entry in model.manifest.tensors:
        data = tensors[entry.name].tobytes()
        source = model.sources[entry.digest]
        assert entry.digest == hashlib.sha256(data).hexdigest()
        assert (entry.dtype, entry.shape) == ("F32", tensors[entry.name].shape)
        assert source.path.read_bytes()[source.offset :][: source.nbytes] == data
    assert model.manifest.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    assert (model.name, model.config.num_layers) == ("model", 2)


def test_same_weights_in_another_folder_and_other_shards_are_the_same_model(
    folder, tmp_path, cache
):
    sharded = make_folder(tmp_path / "copy", shards=3)

    one, other = (open_model(path, cache_dir=cache) for path in (folder, sharded))

    assert one.manifest == other.manifest
    assert len({source.path for source in other.sources.values()}) == 3


def test_two_fine_tunes_with_one_config_are_two_models(folder, tmp_path, cache):
    tuned = make_folder(tmp_path / "tuned", tensors=tensors_of(seed=1))

    one, other = (open_model(path, cache_dir=cache) for path in (folder, tuned))

    assert one.manifest.config == other.manifest.config
    assert one.manifest.model_id != other.manifest.model_id


def test_tied_embeddings_need_no_head_and_one_that_is_there_is_not_part_of_the_model(
    tmp_path, cache
):
    tensors = tensors_of(TIED)
    assert "lm_head.weight" not in tensors
    plain = make_folder(tmp_path / "plain", config=TIED)
    more = {"lm_head.weight": np.ones((64, 32), np.float32), "x.inv_freq": np.ones(9, np.float32)}
    extra = make_folder(tmp_path / "extra", config=TIED, tensors=tensors | more)

    one, other = (open_model(path, cache_dir=cache) for path in (plain, extra))

    assert one.manifest == other.manifest
    assert other.manifest.nbytes == sum(tensor.nbytes for tensor in tensors.values())


def test_tensors_with_the_same_bytes_are_sent_from_one_place(tmp_path, cache):
    tensors = tensors_of()
    for name in tensors:
        if "norm" in name:
            tensors[name] = np.ones(32, np.float32)

    model = open_model(make_folder(tmp_path / "m", tensors=tensors), cache_dir=cache)

    norms = [entry for entry in model.manifest.tensors if "norm" in entry.name]
    assert len(norms) == 5
    assert len({entry.digest for entry in norms}) == 1
    assert len(model.sources) == len(tensors) - 4


def test_hub_cache_folder_has_the_repositorys_name(tmp_path, cache):
    folder = make_folder(tmp_path / "models--org--tiny-model" / "snapshots" / "0a1b")

    assert open_model(folder, cache_dir=cache).name == "org/tiny-model"


def test_links_into_a_blob_folder_are_followed(folder, tmp_path, cache):
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    (folder / "model.safetensors").rename(blob)
    try:
        (folder / "model.safetensors").symlink_to(blob)
    except OSError:
        pytest.skip("this account may not make links")

    model = open_model(folder, cache_dir=cache)

    assert {source.path for source in model.sources.values()} == {blob.resolve()}


def test_missing_folder_and_folder_without_a_model_say_so(tmp_path, cache):
    with pytest.raises(UsageError, match="no folder"):
        open_model(tmp_path / "nowhere", cache_dir=cache)
    with pytest.raises(UsageError, match=r"no config\.json"):
        open_model(tmp_path, cache_dir=cache)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("{", InvalidConfigError),
        ("[1]", InvalidConfigError),
        ("[" * 100_000, InvalidConfigError),
        ("{}", InvalidConfigError),
        (json.dumps(dict(CONFIG) | {"half a pair": "\ud800"}), InvalidConfigError),
        (json.dumps(dict(CONFIG) | {"architectures": ["OtherModel"]}), UnknownArchitectureError),
    ],
)
def test_config_that_cannot_be_used_is_refused(folder, cache, config, error):
    (folder / "config.json").write_text(config)

    with pytest.raises(error):
        open_model(folder, cache_dir=cache)


def test_whatever_is_in_a_config_can_be_sent(tmp_path, cache):
    config = dict(CONFIG) | {"limits": [1 << 70, -(1 << 70), 10**400, float("nan")], "name": "日本"}
    model = open_model(make_folder(tmp_path / "model", config=config), cache_dir=cache)

    header, _ = encode(
        Assign(
            epoch=1,
            model_id=model.manifest.model_id,
            config=dict(model.manifest.config),
            scheme="f32",
            layers=(0, 2),
            embedding=True,
            head=True,
            context=128,
            tensors=(),
        )
    )

    assert "日本".encode() in header


def test_config_of_absurd_size_is_not_even_read(folder, cache):
    with (folder / "config.json").open("r+b") as file:
        file.truncate(model_folder.MAX_JSON + 1)  # a hole, which takes no room on the disk

    with pytest.raises(InvalidConfigError, match=r"config\.json has"):
        open_model(folder, cache_dir=cache)


def test_missing_tokenizer_is_named(folder, cache):
    (folder / "tokenizer.json").unlink()

    with pytest.raises(BrokenModelError, match=r"has no tokenizer, without which"):
        open_model(folder, cache_dir=cache)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("pytorch_model.bin", "pickle files only.*safetensors"),
        ("consolidated.00.pth", "pickle files only.*safetensors"),
        ("mmproj-Q4.gguf", "no weights.*safetensors and GGUF"),
        ("model-00001-of-00002.safetensors", "parts are missing"),
        ("readme.txt", "no weights.*safetensors"),
    ],
)
def test_folder_without_usable_weights_says_what_it_has(folder, cache, file, words):
    (folder / "model.safetensors").rename(folder / file)

    with pytest.raises(BrokenModelError, match=words):
        open_model(folder, cache_dir=cache)


@pytest.mark.parametrize("keep", [0, 5, 8, 60, -1])
def test_truncated_file_is_refused_with_both_sizes(folder, cache, keep):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])

    with pytest.raises(BrokenModelError, match=r"model\.safetensors is cut off: .* expected"):
        open_model(folder, cache_dir=cache)


def test_missing_shard_is_named(tmp_path, cache):
    folder = make_folder(tmp_path / "m", shards=2)
    (folder / SHARD).unlink()

    with pytest.raises(BrokenModelError, match=f"lacks {SHARD}: 1 of 2 files"):
        open_model(folder, cache_dir=cache)


def test_missing_tensor_is_named(tmp_path, cache):
    tensors = tensors_of()
    del tensors["model.layers.1.mlp.up_proj.weight"]

    with pytest.raises(BrokenModelError, match=r"lacks tensor model\.layers\.1\.mlp\.up_proj"):
        open_model(make_folder(tmp_path / "m", tensors=tensors), cache_dir=cache)


def test_wrong_shape_is_named_with_file_expected_and_found(tmp_path, cache):
    tensors = tensors_of()
    tensors["model.norm.weight"] = np.ones(31, np.float32)

    with pytest.raises(BrokenModelError, match=r"model\.norm\.weight in .*\[31\].*\[32\]"):
        open_model(make_folder(tmp_path / "m", tensors=tensors), cache_dir=cache)


def test_tensor_that_the_index_promises_elsewhere_is_refused(tmp_path, cache):
    folder = make_folder(tmp_path / "m", shards=2)
    write_index(folder, dict.fromkeys(tensors_of(), SHARD))

    with pytest.raises(BrokenModelError, match=f"expects tensor .* in {SHARD}"):
        open_model(folder, cache_dir=cache)


@pytest.mark.parametrize(
    "name",
    [
        "../model/model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "..",
        "",
        "weights.bin",
        "a\0.safetensors",
        7,
        None,
    ],
)
def test_shard_name_that_leaves_the_folder_goes_nowhere(tmp_path, cache, name):
    folder = make_folder(tmp_path / "m", shards=2)
    write_index(folder, {"model.norm.weight": name})

    with pytest.raises(BrokenModelError, match="not a safetensors file in the model's own folder"):
        open_model(folder, cache_dir=cache)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {}}', '{"weight_map": [1]}'])
def test_broken_index_is_refused(tmp_path, cache, text):
    folder = make_folder(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text(text)

    with pytest.raises(BrokenModelError, match=r"index\.json"):
        open_model(folder, cache_dir=cache)


def test_file_that_cannot_be_read_is_an_error_with_its_reason(folder, cache, monkeypatch):
    def failing(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(model_folder, "read_header", failing)

    with pytest.raises(BrokenModelError, match=r"cannot be read: you are not allowed to"):
        open_model(folder, cache_dir=cache)


def test_quantised_model_has_its_stored_tensors_in_the_manifest(tmp_path, cache):
    config = {**CONFIG, **GPTQ}
    tensors = gptq_tensors(config)
    folder = make_folder(tmp_path / "m", config=config, tensors=tensors | {"x.qweight": tensors["model.layers.0.mlp.up_proj.qweight"]})  # fmt: skip

    model = open_model(folder, cache_dir=cache)

    assert {entry.name for entry in model.manifest.tensors} == tensors.keys()
    stage = model.manifest.stage(model.config.layer_tensors(1))
    assert {entry.name for entry in stage} == {n for n in tensors if ".layers.1." in n}
    assert all(entry.digest in model.sources for entry in stage)


def test_quantised_model_that_lacks_a_part_is_refused(tmp_path, cache):
    config = {**CONFIG, **GPTQ}
    tensors = gptq_tensors(config)
    del tensors["model.layers.1.self_attn.v_proj.qzeros"]

    with pytest.raises(BrokenModelError, match=r"1\.self_attn\.v_proj\.qzeros"):
        open_model(make_folder(tmp_path / "m", config=config, tensors=tensors), cache_dir=cache)


def test_method_that_cannot_be_read_is_named(tmp_path, cache):
    config = dict(CONFIG) | {"quantization_config": {"quant_method": "exl9"}}
    folder = make_folder(tmp_path / "m", tensors=tensors_of())
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(InvalidConfigError, match=r"exl9.*It reads GPTQ"):
        open_model(folder, cache_dir=cache)


def test_a_shape_with_random_weights_is_a_model_without_files() -> None:
    model = random_model("tiny", CONFIG, seed=5)

    assert (model.name, model.seed, model.folder, model.words) == ("tiny", 5, None, None)
    assert model.config == ModelConfig.from_dict(CONFIG)
    assert (model.manifest.tensors, model.sources) == ((), {})
    assert dict(model.manifest.config) == dict(CONFIG)


def test_a_model_whose_tower_nothing_computes_reads_text_and_says_which_it_is(tmp_path, cache):
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": {**CONFIG, "model_type": "mistral"},
        "vision_config": {"model_type": "moonvit", "hidden_act": "relu"},
    }
    tensors = tensors_of() | {"vision_tower.patch_embed.weight": np.ones((2, 2), np.float32)}
    folder = make_folder(tmp_path / "model", config=config, tensors=tensors)

    model = open_model(folder, cache_dir=cache)

    assert model.config.tower is None
    assert model.blind == (
        "Mistral3ForConditionalGeneration sees by a tower of the kind moonvit, which Potluck does not compute."
    )
