"""Which GPUs a computer has, as their makers' programs and files say, and how some of them are hidden."""

from pathlib import Path

import pytest

from potluck.system.commands import Ask
from potluck.system.graphics import NO_MPS, Gpu, amd_targets, find_gpus, hiding

FIRST = "GPU-8f3c2b1a-0000-1111-2222-333344445555"
SECOND = "GPU-01234567-89ab-cdef-0123-456789abcdef"
NVIDIA = (
    Gpu("nvidia", f"nvidia:{FIRST}", "NVIDIA GeForce RTX 4070", FIRST),
    Gpu("nvidia", f"nvidia:{SECOND}", "NVIDIA GeForce RTX 4070 (2)", SECOND),
)
AMD = (
    Gpu("amd", "amd:00ab12cd34ef5678", "AMD-gfx1101", "0"),
    Gpu("amd", "amd:1", "AMD-gfx90a", "1"),
)


def asking(answer: str | None, asked: list[tuple[str, ...]] | None = None) -> Ask:
    def ask(*words: str, deadline_s: float) -> str | None:
        if asked is not None:
            asked.append(words)
        return answer

    return ask


def found(
    answer: str | None = None,
    *,
    nodes: Path = Path("/nowhere"),
    system: tuple[str, str] = ("linux", "x86_64"),
    **environ: str,
) -> tuple[Gpu, ...]:
    return find_gpus(
        asking(answer), environ, amd_nodes=nodes, system=system[0], machine=lambda: system[1]
    )


def test_nvidias_tool_names_its_gpus_and_two_of_one_kind_are_told_apart() -> None:
    name = "NVIDIA GeForce RTX 4070"
    assert found(f"{FIRST}, {name}\n{SECOND}, {name}\n") == NVIDIA


@pytest.mark.parametrize("answer", [None, "", "No devices were found\n", "GPU-; rm, X\n", ",\n"])
def test_what_is_no_list_of_gpus_has_none(answer: str | None) -> None:
    assert found(answer) == ()


def test_amds_driver_lists_processors_too_which_are_left_out(tmp_path: Path) -> None:
    nodes = {
        "0": "cpu_cores_count 16\nsimd_count 0\n",
        "2": "simd_count 120\ngfx_target_version 110001\nunique_id 48152893583218296\n",
        "10": "simd_count 208\ngfx_target_version 90010\nunique_id 0\nname of two words\n",
    }
    for number, facts in nodes.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "properties").write_text(facts)
    (tmp_path / "11").mkdir()  # without facts

    assert found(nodes=tmp_path) == AMD
    assert amd_targets(tmp_path) == ("gfx1101", "gfx90a")


def test_apples_gpu_is_that_of_its_processor() -> None:
    (gpu,) = found(system=("darwin", "arm64"))
    assert (gpu.maker, gpu.id) == ("apple", "apple:mps")
    assert gpu.name
    assert found(system=("darwin", "x86_64")) == ()


def test_where_a_variable_says_already_what_is_seen_nothing_is_offered_or_hidden() -> None:
    asked: list[tuple[str, ...]] = []
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    assert find_gpus(asking("x", asked), environ, amd_nodes=Path("/nowhere"), system="linux") == ()
    assert asked == []
    assert hiding(NVIDIA, [NVIDIA[0].id], environ) == {}


def test_who_hides_nothing_sets_no_variable() -> None:
    assert hiding(NVIDIA, (), {}) == {}
    assert hiding((), (), {}) == {}


def test_a_gpu_that_is_gone_hides_no_other_one() -> None:
    assert hiding(NVIDIA, ["nvidia:GPU-gone"], {}) == {}


def test_of_nvidias_gpus_those_that_are_on_are_named() -> None:
    assert hiding(NVIDIA, [NVIDIA[0].id], {}) == {"CUDA_VISIBLE_DEVICES": SECOND}
    assert hiding(NVIDIA, [gpu.id for gpu in NVIDIA], {}) == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_when_the_driver_does_not_answer_all_of_its_gpus_are_hidden() -> None:
    assert hiding((), [NVIDIA[0].id], {}) == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_amds_gpus_are_hidden_by_number_and_the_rest_are_numbered_anew() -> None:
    assert hiding((*NVIDIA, *AMD), [AMD[0].id], {}) == {
        "ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    assert hiding(AMD, [gpu.id for gpu in AMD], {}) == {
        "ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1",
    }  # fmt: skip


def test_apples_gpu_is_hidden_by_a_variable_of_ours() -> None:
    gpu = Gpu("apple", "apple:mps", "Apple M2", "mps")
    assert hiding([gpu], [gpu.id], {}) == {NO_MPS: "1"}
