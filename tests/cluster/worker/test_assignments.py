"""Assignments that are not what they should be."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from byte_model import save_byte_tokenizer
from fake_engine import assign
from model_folders import CONFIG, GPTQ, gptq_tensors, make_folder
from seeing_models import make_seeing_model

from potluck.cluster.master.stage_tensors import tensor_info
from potluck.cluster.worker.assignments import check_assignment
from potluck.errors import BrokenModelError, ModelError
from potluck.store.registry import LocalModel, open_model
from potluck.wire.shares import RankShare


def test_random_weights_have_no_tensors(model: LocalModel) -> None:
    with pytest.raises(BrokenModelError):
        check_assignment(msgspec.structs.replace(assign(model, 0, 2), seed=3))


def test_an_assignment_must_name_exactly_the_tensors_of_its_layers(model: LocalModel) -> None:
    good = assign(model, 0, 2)
    assert len(check_assignment(good)) == len(good.tensors)
    first, *rest = good.tensors
    for tensors in ((), tuple(rest), (first, *good.tensors), (msgspec.structs.replace(first, name="x"), *rest)):  # fmt: skip
        with pytest.raises(BrokenModelError, match="the assignment"):
            check_assignment(msgspec.structs.replace(good, tensors=tensors))


@pytest.mark.parametrize(
    "changes", [{"shape": (1, 1)}, {"nbytes": 4}, {"nbytes": 1 << 49}, {"dtype": "I64"}]
)
def test_a_tensor_of_the_wrong_size_is_refused(model: LocalModel, changes: Any) -> None:
    good = assign(model, 0, 2)
    first = msgspec.structs.replace(good.tensors[0], **changes)
    with pytest.raises(BrokenModelError, match="in the assignment"):
        check_assignment(msgspec.structs.replace(good, tensors=(first, *good.tensors[1:])))


def test_an_assignment_of_a_quantised_model_names_the_parts_of_its_matrices(tmp_path: Path) -> None:
    config = {**CONFIG, **GPTQ, "num_hidden_layers": 4}
    folder = make_folder(tmp_path / "model", config=config, tensors=gptq_tensors(config))
    good = assign(open_model(folder, cache_dir=tmp_path / "cache"), 0, 2)

    assert len(good.tensors) == 1 + 2 * (7 * 4 + 2)
    assert set(check_assignment(good)) == {info.digest for info in good.tensors}
    for which in ("o_proj.qweight", "up_proj.scales"):
        fewer = tuple(info for info in good.tensors if not info.name.endswith(f"0.mlp.{which}"))
        fewer = tuple(info for info in fewer if not info.name.endswith(f"0.self_attn.{which}"))
        with pytest.raises(BrokenModelError, match=which.replace(".", r"\.")):
            check_assignment(msgspec.structs.replace(good, tensors=fewer))


def test_a_vision_tower_is_assigned_alone_or_beside_layers_but_not_beside_another(
    tmp_path: Path,
) -> None:
    seeing = make_seeing_model("mistral 3", tmp_path)
    save_byte_tokenizer(tmp_path)
    model = open_model(seeing.reference.tensors[0].path.parent, cache_dir=tmp_path / "cache")
    names = model.config.tower_tensors()
    infos = tuple(tensor_info(entry) for entry in model.manifest.stage(names))
    tower = msgspec.structs.replace(
        assign(model, 0, 1), layers=(0, 0), embedding=False, head=False, tensors=infos, tower=True
    )
    assert len(check_assignment(tower)) == len(infos) == len(names)
    layers = assign(model, 2, 4)
    both = msgspec.structs.replace(layers, tensors=(*layers.tensors, *infos), tower=True)
    assert len(check_assignment(both)) == len(layers.tensors) + len(infos)

    share = RankShare(rank=0, shares=(1, 1))
    for which, changes in (
        (tower, {"embedding": True}),
        (tower, {"head": True}),
        (both, {"embedding": True}),
        (both, {"share": share}),
    ):
        with pytest.raises(BrokenModelError, match="together with other parts"):
            check_assignment(msgspec.structs.replace(which, **changes))
    for changes in ({"layers": (0, 1)}, {"tensors": infos[1:]}):
        with pytest.raises(BrokenModelError, match="the assignment"):
            check_assignment(msgspec.structs.replace(tower, **changes))


def test_a_model_of_text_has_no_vision_tower(model: LocalModel) -> None:
    tower = msgspec.structs.replace(
        assign(model, 0, 1), layers=(0, 0), embedding=False, head=False, tensors=(), tower=True
    )
    with pytest.raises(BrokenModelError, match="reads no pictures"):
        check_assignment(tower)


@pytest.mark.parametrize("layers", [(2, 2), (3, 1), (0, 5), (4, 6)])
def test_layers_that_the_model_does_not_have_are_refused(
    model: LocalModel, layers: tuple[int, int]
) -> None:
    with pytest.raises(BrokenModelError, match="4 layers"):
        check_assignment(msgspec.structs.replace(assign(model, 0, 2), layers=layers))


@pytest.mark.parametrize("config", [{}, {"model_type": "toaster"}, {"architectures": 3}])
def test_a_config_of_no_model_is_refused(model: LocalModel, config: Any) -> None:
    with pytest.raises(ModelError):
        check_assignment(msgspec.structs.replace(assign(model, 0, 2), config=config))
