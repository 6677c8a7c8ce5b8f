"""The vision tower of a GGUF model is the projector beside it; what is none leaves a model of text."""

import dataclasses
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf_projectors import write_projector, write_seeing
from gguf_writer import TOKENS
from PIL import Image
from safetensors.torch import load_file
from seeing_models import SEEING, SeeingModel, SeeingPipeline, make_seeing_model
from tiny_models import difference, loaded

from potluck.cluster.driver.model_text import Conversation
from potluck.cluster.text.process import encode_conversation, read_pictures
from potluck.model.naming import decoder_names
from potluck.model.text.chat import ChatFormat
from potluck.model.vision.spec import is_of_tower
from potluck.store.gguf_model import read_gguf
from potluck.store.registry import LocalModel, open_model

WIDE = {"hidden_size": 32, "intermediate_size": 64}  # whole blocks of Q8_0
TEMPLATE = (
    "{% for m in messages %}{% for p in m.content %}"
    "{{ '<|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}"
)
TOLD = [
    "qwen 2", "qwen 2.5", "qwen 3", "qwen 3 with experts", "qwen 3.5", "gemma 3", "mistral 3", "pixtral",
    "gemma 4", "gemma 4, with bounds", "gemma 4, without a tower", "internvl", "llama 4", "llava",
    "llava next", "idefics 3", "glm 4", "glm 4 with experts", "light on ocr",
]  # fmt: skip
UNTOLD = {
    "llama 4": {"attention_chunk_size": 8192}
}  # what files never say, as all real models have it
TAIL = torch.tensor([9, 33, 12], dtype=torch.int32)


def opened(seeing: SeeingModel, model: LocalModel) -> SeeingModel:
    """The same prompt for the model of the files."""
    return dataclasses.replace(seeing, reference=loaded(model, seeing.reference))


@pytest.mark.parametrize("variant", TOLD)
def test_a_model_with_its_projector_is_that_of_the_safetensors(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, text, eye, whole = SEEING[variant]
    monkeypatch.setitem(SEEING, variant, (name, text | UNTOLD.get(variant, {}), eye, whole))
    seeing = make_seeing_model(variant, tmp_path / "hub")
    file, _ = write_seeing(tmp_path / "hub", tmp_path / "files")

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.blind is None
    assert read_gguf(file) == model.manifest.config
    ids = torch.cat([seeing.ids, TAIL])
    ours = SeeingPipeline(opened(seeing, model)).run(ids, (len(ids),))
    theirs = SeeingPipeline(seeing).run(ids, (len(ids),))
    assert difference(ours, theirs) < 1e-5
    assert model.words is not None
    form = read_pictures(model.words)
    assert form is not None
    assert (form.mean, form.deviation) == ((0.5, 0.4, 0.3), (0.5, 0.25, 0.2))
    assert form.side == seeing.picture.height // seeing.picture.rows
    if variant == "idefics 3":
        assert (form.most, form.step, form.square) == (68, 34, 32)


@pytest.mark.parametrize("variant", ["llava", "llava next"])
@pytest.mark.parametrize(
    ("left_out", "fields"),
    [
        (
            ("encoder.layers.2.", "post_layernorm"),
            {"block_count": 2, "projection_dim": 768, "is_first": 1},
        ),
        (("encoder.layers.2.", "post_layernorm"), {"block_count": 2, "projection_dim": 768}),
        ((), {"feature_layer": 2, "projection_dim": 768}),
    ],
    ids=["first files", "with its kind", "with its layer"],
)
def test_other_files_of_llava_have_the_same_tower(
    left_out: tuple[str, ...], fields: dict[str, int], variant: str, tmp_path: Path
) -> None:
    """Their `projection_dim` is CLIP's own, and those of the first converter have no layer that is not used, and name no kind."""
    seeing = make_seeing_model(variant, tmp_path / "hub")
    file, projector = write_seeing(tmp_path / "hub", tmp_path / "files")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    stored = load_file(tmp_path / "hub" / "model.safetensors")
    names = decoder_names(stored)
    tower = {
        ours: stored[name]
        for name, ours in names.items()
        if is_of_tower(ours) and not any(part in ours for part in left_out)
    }
    projector.unlink()
    write_projector(projector, config, tower, is_old=True, fields=fields)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.blind is None
    ids = torch.cat([seeing.ids, TAIL])
    ours = SeeingPipeline(opened(seeing, model)).run(ids, (len(ids),))
    assert difference(ours, seeing.logits(ids)) < 1e-5


@pytest.mark.parametrize(
    ("variant", "fields", "why"),
    [
        ("llava next", {"merge_type": "flat"}, "mm_patch_merge_type must be spatial_unpad"),
        ("llava", {"feature_layer": 9}, "must be one of the tower's layers"),
    ],
)
def test_what_is_more_than_llavas_tower_leaves_a_model_of_text(
    variant: str, fields: dict[str, int], why: str, tmp_path: Path
) -> None:
    make_seeing_model(variant, tmp_path / "hub")
    file, _ = write_seeing(tmp_path / "hub", tmp_path / "files", fields=fields)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.config.tower is None
    assert why in (model.blind or "")


def test_the_text_of_glm_4_has_its_rope_as_its_file_orders_it_without_a_projector_too(
    tmp_path: Path,
) -> None:
    make_seeing_model("glm 4", tmp_path / "hub")
    file, projector = write_seeing(tmp_path / "hub", tmp_path / "files")
    projector.unlink()

    config = open_model(file, cache_dir=tmp_path / "cache").config

    assert config.architecture == "Glm4ForCausalLM"
    assert not config.paired_rope  # as it is in files of GLM-4 that reads text alone


def test_rows_stand_in_the_prompt_where_the_vocabulary_has_no_token_for_them(
    tmp_path: Path,
) -> None:
    make_seeing_model("llava", tmp_path / "hub")
    template = "{% for m in messages %}{{ m.content + '▁' }}{% endfor %}"
    file, _ = write_seeing(tmp_path / "hub", tmp_path / "files", template=template)
    words = open_model(file, cache_dir=tmp_path / "cache").words
    assert words is not None
    drawn = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(drawn, "PNG")
    parts = [{"type": "image"}, {"type": "text", "text": "a"}]
    conversation = Conversation(
        messages=[{"role": "user", "content": parts}], pictures=(drawn.getvalue(),)
    )
    chat = ChatFormat.load(words)

    prompt = encode_conversation(chat, conversation, read_pictures(words))

    (picture,) = prompt.pictures
    rows = picture.rows * picture.columns
    assert chat.token_id("<image>") is None
    assert prompt.token_ids.count(prompt.picture_token) == rows
    rest = [each for each in prompt.token_ids if each != prompt.picture_token]
    assert rest[-1] == TOKENS.index("▁")
    assert prompt.picture_token < len(TOKENS)


def test_a_picture_stands_in_the_prompt_as_the_files_say(tmp_path: Path) -> None:
    make_seeing_model("qwen 3", tmp_path / "hub")
    marks = ("<|image_pad|>",)
    into, sizes = tmp_path / "files", (64, 4096)
    file, _ = write_seeing(
        tmp_path / "hub", into, more_tokens=marks, template=TEMPLATE, sizes=sizes
    )
    words = open_model(file, cache_dir=tmp_path / "cache").words
    assert words is not None
    drawn = io.BytesIO()
    Image.new("RGB", (300, 250), "red").save(drawn, "PNG")
    parts = [{"type": "image"}, {"type": "text", "text": "a"}]
    conversation = Conversation(
        messages=[{"role": "user", "content": parts}], pictures=(drawn.getvalue(),)
    )

    prompt = encode_conversation(ChatFormat.load(words), conversation, read_pictures(words))

    (picture,) = prompt.pictures
    assert (picture.height, picture.width) == (56, 64)
    rows = picture.rows * picture.columns
    assert prompt.token_ids.count(prompt.picture_token) == rows == 7 * 8
    assert prompt.picture_token == len(TOKENS)
    assert picture.mean == (0.5, 0.4, 0.3)


def test_a_picture_is_a_line_of_its_own_where_the_template_of_the_file_knows_none(
    tmp_path: Path,
) -> None:
    make_seeing_model("internvl", tmp_path / "hub")
    marks, template = (
        ("<img>", "<IMG_CONTEXT>", "</img>"),
        "{% for m in messages %}{{ m.content + '▁' }}{% endfor %}",
    )
    file, _ = write_seeing(
        tmp_path / "hub", tmp_path / "files", more_tokens=marks, template=template
    )
    words = open_model(file, cache_dir=tmp_path / "cache").words
    assert words is not None
    drawn = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(drawn, "PNG")
    parts = [{"type": "image"}, {"type": "text", "text": "a"}]
    conversation = Conversation(
        messages=[{"role": "user", "content": parts}], pictures=(drawn.getvalue(),)
    )

    prompt = encode_conversation(ChatFormat.load(words), conversation, read_pictures(words))

    opens, row, closes = range(len(TOKENS), len(TOKENS) + 3)
    (picture,) = prompt.pictures
    start = list(prompt.token_ids).index(opens)
    rows = picture.rows * picture.columns
    seen = prompt.token_ids[start + 1 : start + 1 + rows]
    assert set(seen) == {row}
    assert prompt.token_ids[start + 1 + rows] == closes
    assert prompt.token_ids[-1] == TOKENS.index("▁")


@pytest.mark.parametrize(("kind", "most"), [("F16", 0.03), ("BF16", 0.03), ("Q8_0", 0.03)])
def test_first_files_in_fewer_bits_are_nearly_that_model(
    kind: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, text, eye, whole = SEEING["gemma 3"]
    monkeypatch.setitem(SEEING, "wide", (name, text, eye | WIDE, whole))
    seeing = make_seeing_model("wide", tmp_path / "hub")
    file, _ = write_seeing(tmp_path / "hub", tmp_path / "files", kind=kind, is_old=True)

    model = open_model(file, cache_dir=tmp_path / "cache")

    reference = opened(seeing, model).reference
    for scheme in ("f32", "int8"):
        tower = reference.weights(range(0), embedding=True, scheme=scheme).tower
        assert tower is not None
        assert 0 < difference(tower(seeing.numbers), seeing.rows()) < most


def test_gemma_3_of_ollama_has_its_tower_in_its_own_file(tmp_path: Path) -> None:
    seeing = make_seeing_model("gemma 3", tmp_path / "hub")
    file, _ = write_seeing(tmp_path / "hub", tmp_path / "files", is_one=True)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.blind is None
    assert read_gguf(file) == model.manifest.config
    ours = SeeingPipeline(opened(seeing, model)).run(seeing.ids, (len(seeing.ids),))
    assert difference(ours, seeing.logits()) < 1e-5
    assert model.words is not None
    form = read_pictures(model.words)
    assert form is not None
    assert (form.mean, form.side) == ((0.5, 0.5, 0.5), 8)


def test_a_tower_in_a_models_own_file_that_is_damaged_leaves_a_model_of_text(
    tmp_path: Path,
) -> None:
    make_seeing_model("gemma 3", tmp_path / "hub")
    config = json.loads((tmp_path / "hub" / "config.json").read_text(encoding="utf-8"))
    config["vision_config"]["num_hidden_layers"] = 3
    (tmp_path / "hub" / "config.json").write_text(json.dumps(config))
    file, _ = write_seeing(tmp_path / "hub", tmp_path / "files", is_one=True)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.config.tower is None
    assert model.blind is not None
    assert "lacks tensor vision_tower.encoder.layers.2" in model.blind


@pytest.mark.parametrize("place", ["snapshots/a", "snapshots/b"])
def test_a_projector_in_the_cache_of_hugging_face_is_found_above_or_in_another_revision(
    place: str, tmp_path: Path
) -> None:
    make_seeing_model("gemma 3", tmp_path / "hub")
    folder = tmp_path / "models--one--model" / "snapshots" / "a" / "Q8_0"
    file, projector = write_seeing(tmp_path / "hub", folder)
    there = tmp_path / "models--one--model" / place
    there.mkdir(parents=True, exist_ok=True)
    projector.rename(there / projector.name)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.config.tower is not None


def test_a_projector_above_a_folder_of_the_users_is_not_looked_for(tmp_path: Path) -> None:
    make_seeing_model("gemma 3", tmp_path / "hub")
    file, projector = write_seeing(tmp_path / "hub", tmp_path / "models" / "mine")
    projector.rename(tmp_path / "models" / projector.name)

    assert open_model(file, cache_dir=tmp_path / "cache").config.tower is None


def cut_off(projector: Path) -> None:
    os.truncate(projector, projector.stat().st_size - 1)


def of_another_folder(projector: Path) -> None:
    make_seeing_model("mistral 3", projector.parent / "other")
    _, other = write_seeing(projector.parent / "other", projector.parent / "others")
    other.replace(projector)


REFUSED: list[tuple[dict[str, object], Callable[[Path], None] | None, str]] = [
    ({"projector_type": "resampler"}, None, "of the kind 'resampler', which Potluck does not"),
    ({"projection_dim": 48}, None, "gemma3 of 48 numbers, where gemma3 of 32 is"),
    ({"block_count": 0}, None, "clip.vision.block_count must be from 1 to 256"),
    ({"block_count": 1 << 31}, None, "clip.vision.block_count must be from 1 to 256"),
    ({"block_count": 3}, None, "lacks tensor vision_tower.encoder.layers.2"),
    ({"head_count": 5}, None, "a tower of sizes that Potluck does not compute"),
    ({}, cut_off, "is cut off"),
    ({}, of_another_folder, "pixtral of 32 numbers, where gemma3 of 32 is"),
]


@pytest.mark.parametrize(("fields", "damage", "why"), REFUSED)
def test_a_model_whose_projector_is_none_of_its_own_reads_text_and_says_why(
    fields: dict[str, object],
    damage: Callable[[Path], None] | None,
    why: str,
    tmp_path: Path,
) -> None:
    make_seeing_model("gemma 3", tmp_path / "hub")
    file, projector = write_seeing(tmp_path / "hub", tmp_path / "files", fields=fields)
    if damage is not None:
        damage(projector)

    model = open_model(file, cache_dir=tmp_path / "cache")

    assert model.config.tower is None
    assert model.config.architecture == "Gemma3ForCausalLM"
    assert model.blind is not None
    assert projector.name in model.blind or "The GGUF file's clip" in model.blind
    assert why in model.blind
    assert model.words is not None
    assert read_pictures(model.words) is None


def test_of_several_projectors_that_of_the_model_is_taken_whatever_it_is_called(
    tmp_path: Path,
) -> None:
    make_seeing_model("gemma 3", tmp_path / "hub")
    file, small = write_seeing(tmp_path / "hub", tmp_path / "files", kind="F16")
    large = small.with_name("vision.gguf")  # its fields say what it is
    write_seeing(tmp_path / "hub", tmp_path / "more")[1].replace(large)
    cut_off(write_seeing(tmp_path / "hub", tmp_path / "broken")[1])
    (tmp_path / "broken" / small.name).replace(small.with_name("mmproj-broken.gguf"))

    for expected in (large, small):
        model = open_model(file, cache_dir=tmp_path / "cache")

        assert model.config.tower is not None
        assert {source.path for source in model.sources.values()} == {file, expected}
        expected.unlink()

    assert "mmproj-broken.gguf is cut off" in str(
        open_model(file, cache_dir=tmp_path / "cache").blind
    )


def test_ollamas_manifest_names_the_projector(tmp_path: Path) -> None:
    make_seeing_model("gemma 3", tmp_path / "hub")
    files = write_seeing(tmp_path / "hub", tmp_path / "files")
    store, layers = tmp_path / "store", []
    (store / "blobs").mkdir(parents=True)
    for digit, kind, path in zip("ab", ("model", "projector"), files, strict=True):
        path.replace(store / "blobs" / f"sha256-{digit * 64}")
        media = f"application/vnd.ollama.image.{kind}"
        layers.append({"mediaType": media, "digest": f"sha256:{digit * 64}"})
    manifest = store / "manifests/registry.ollama.ai/library/gemma3/4b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": layers}))

    model = open_model(store / "blobs" / f"sha256-{'a' * 64}", cache_dir=tmp_path / "cache")

    assert (model.name, model.blind) == ("gemma3:4b", None)
    assert model.config.tower is not None
