"""Which files are a model is seen by their names."""

from pathlib import Path

import gguf
import pytest
from gguf_writer import finish

from potluck.errors import BrokenModelError, UsageError
from potluck.store.gguf_files import find_gguf, gguf_files, gguf_name, gguf_parts, quantisations


def touch(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


def test_a_split_model_counts_once_and_what_sees_pictures_not_at_all(tmp_path: Path) -> None:
    touch(tmp_path, "mmproj-F16.gguf", "b-00002-of-00002.gguf", "b-00001-of-00002.gguf", "a.gguf")
    touch(tmp_path, "readme.md")

    assert [path.name for path in gguf_files(tmp_path)] == ["a.gguf", "b-00001-of-00002.gguf"]


def described(path: Path, architecture: str, **texts: str) -> Path:
    """Write a file without tensors, with these fields first."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in texts.items():
        writer.add_string(f"general.{name}", value)
    writer.add_array("tokenizer.ggml.tokens", ["a"])
    finish(writer)
    return path


def test_what_is_no_language_model_is_told_by_its_content(tmp_path: Path) -> None:
    model = described(tmp_path / "model.gguf", "llama", type="model", name="clip")
    described(tmp_path / "eyes.gguf", "clip")
    described(tmp_path / "pictures.gguf", "qwen2vl", type="mmproj")
    described(tmp_path / "lora.gguf", "llama", type="adapter")
    described(tmp_path / "weights.gguf", "llama", type="imatrix")
    touch(tmp_path, "model-mmproj-f16.gguf")

    assert gguf_files(tmp_path) == [model]
    assert find_gguf(tmp_path) == model


def test_a_file_that_cannot_be_read_counts_so_that_opening_it_says_why(tmp_path: Path) -> None:
    for name, data in (("a", b""), ("b", b"GGUF"), ("c", b"GGUF" + b"\xff" * 100)):
        (tmp_path / f"{name}.gguf").write_bytes(data)

    assert len(gguf_files(tmp_path)) == 3


def test_quantisations_of_one_model_are_the_largest_first(tmp_path: Path) -> None:
    names = ("Tiny-IQ2_XXS.gguf", "tiny-UD-Q4_K_XL.gguf", "Tiny-Q8_0-00001-of-00002.gguf")
    for size, path in enumerate(touch(tmp_path, *names)):
        path.write_bytes(bytes(1 + size))
    touch(tmp_path, "Tiny-F16-00001-of-00002.gguf")  # its second part is missing
    touch(tmp_path, "Tiny-Q8_0-00002-of-00002.gguf", "mmproj-Tiny-F16.gguf")

    assert [path.name for path in quantisations(tmp_path)] == list(reversed(names))
    assert quantisations(tmp_path / names[0]) == []
    touch(tmp_path, "Large-Q8_0.gguf")
    assert quantisations(tmp_path) == []


def test_the_only_file_is_found_and_of_several_none(tmp_path: Path) -> None:
    assert find_gguf(tmp_path) is None
    (file,) = touch(tmp_path, "a.gguf")

    assert find_gguf(tmp_path) == find_gguf(file) == file
    assert find_gguf(tmp_path / "readme.md") is None
    touch(tmp_path, "b.gguf")
    with pytest.raises(UsageError, match="2 GGUF models"):
        find_gguf(tmp_path)


def test_parts_are_found_from_any_of_them(tmp_path: Path) -> None:
    parts = touch(tmp_path, *(f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)))

    assert gguf_parts(parts[0]) == gguf_parts(parts[2]) == parts
    assert gguf_parts(tmp_path / "whole.gguf") == [tmp_path / "whole.gguf"]
    parts[1].unlink()
    with pytest.raises(BrokenModelError, match="lacks m-00002-of-00003"):
        gguf_parts(parts[0])


@pytest.mark.parametrize("count", ["00000", "99999"])
def test_an_absurd_count_is_refused(tmp_path: Path, count: str) -> None:
    with pytest.raises(BrokenModelError, match="cannot be one of"):
        gguf_parts(tmp_path / f"m-00001-of-{count}.gguf")


@pytest.mark.parametrize(
    ("file", "name"),
    [("Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M"), ("Tiny-00001-of-00003.gguf", "Tiny"), ("a.GGUF", "a")],
)
def test_a_name_leaves_out_what_all_have(file: str, name: str) -> None:
    assert gguf_name(Path(file)) == name
