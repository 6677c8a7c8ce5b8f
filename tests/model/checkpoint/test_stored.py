"""What is stored is told apart from what is not the model's."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from model_folders import CONFIG

from potluck.errors import BrokenModelError
from potluck.model.checkpoint import stored as module
from potluck.model.checkpoint.stored import stored_bytes
from potluck.model.config import ModelConfig
from potluck.model.quantized import Quantization
from potluck.model.schemes import Scheme

GPTQ = Quantization(method="gptq", bits=4, group_size=32, zero_offset=1)
PLAIN = {"a": (2, 3)}
MATRIX = {"x.weight": (16, 64), "x.bias": (16,)}


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def find_stored(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, Tensor],
    quantization: Quantization | None,
    *,
    scheme: Scheme | None = None,
) -> dict[str, tuple[Tensor, ...]]:
    config = dataclasses.replace(ModelConfig.from_dict(CONFIG), quantization=quantization)
    return module.find_stored(config, expected, found, scheme=scheme, where="here")


def tensor(name: str, dtype: str, shape: tuple[int, ...], nbytes: int | None = None) -> Tensor:
    return Tensor(name, dtype, shape, stored_bytes(dtype, shape) or 0 if nbytes is None else nbytes)


def named(*tensors: Tensor) -> dict[str, Tensor]:
    return {one.name: one for one in tensors}


def gptq(**changes: Tensor) -> dict[str, Tensor]:
    parts = {
        "qweight": tensor("x.qweight", "I32", (8, 16)),
        "qzeros": tensor("x.qzeros", "I32", (2, 2)),
        "scales": tensor("x.scales", "F16", (2, 16)),
        "bias": tensor("x.bias", "F16", (16,)),
    }
    return named(*(parts | changes).values())


def test_plain_numbers_are_one_tensor_and_others_are_no_fault() -> None:
    found = named(tensor("a", "BF16", (2, 3)), tensor("rotary.inv_freq", "F32", (9,)))

    assert find_stored(PLAIN, found, None) == {"a": (found["a"],)}


def test_a_quantised_matrix_is_its_parts_and_a_bias_is_plain() -> None:
    found = gptq()

    stored = find_stored(MATRIX, found, GPTQ)

    assert [part.name for part in stored["x.weight"]] == ["x.qweight", "x.qzeros", "x.scales"]
    assert stored["x.bias"] == (found["x.bias"],)


def test_an_optional_part_is_taken_where_it_is_there() -> None:
    order = tensor("x.g_idx", "I32", (64,))

    stored = find_stored(MATRIX, gptq(g_idx=order), GPTQ)

    assert stored["x.weight"][-1] is order


def test_a_matrix_that_was_left_in_plain_numbers_is_read_as_that() -> None:
    plain = tensor("x.weight", "BF16", (16, 64))
    found = named(plain, tensor("x.bias", "BF16", (16,)))

    assert find_stored(MATRIX, found, GPTQ)["x.weight"] == (plain,)


@pytest.mark.parametrize("name", ["x.weight_scale", "x.weight_scale_inv"])
def test_bytes_have_their_scale_under_either_name(name: str) -> None:
    found = named(tensor("x.weight", "F8_E4M3", (16, 64)), tensor(name, "BF16", (16, 1)))
    expected = {"x.weight": (16, 64)}

    stored = find_stored(expected, found, Quantization(method="fp8"))

    assert stored["x.weight"] == tuple(found.values())


def test_blocks_of_gguf_are_one_tensor() -> None:
    found = named(tensor("x.weight", "GGUF_Q4_0", (16, 64)), tensor("x.bias", "F32", (16,)))

    stored = find_stored(MATRIX, found, Quantization(method="gguf"))

    assert stored["x.weight"] == (found["x.weight"],)


@pytest.mark.parametrize(
    ("found", "words", "name"),
    [
        ({}, r"here lacks tensor a \[2, 3\]", "a"),
        (named(tensor("a", "F32", (3, 2))), r"a in here has shape \[3, 2\].*\[2, 3\]", "a"),
        (named(tensor("a", "F8_E4M3", (2, 3))), "a as F8_E4M3.*does not say how", "a"),
        (named(tensor("a", "GGUF_Q4_0", (2, 3))), "a in here is stored as GGUF_Q4_0", "a"),
        (named(tensor("a", "F32", (2, 3), 23)), "a in here has 23 bytes", "a"),
    ],
)
def test_plain_tensors_that_do_not_fit_the_config_are_named(
    found: dict[str, Tensor], words: str, name: str
) -> None:
    with pytest.raises(BrokenModelError, match=words) as caught:
        find_stored(PLAIN, found, None)

    assert caught.value.data["tensor"] == name


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (named(tensor("x.bias", "F16", (16,))), r"x.qweight \[8, 16\], a part of x.weight"),
        (gptq(scales=tensor("y.scales", "F16", (2, 16))), "lacks tensor x.scales"),
        (gptq(scales=tensor("x.scales", "F16", (1, 16))), r"x.scales .*\[1, 16\]"),
        (gptq(qzeros=tensor("x.qzeros", "F16", (2, 2))), "x.qzeros .* stored as F16"),
        (gptq(g_idx=tensor("x.g_idx", "I32", (63,))), r"x.g_idx .*\[63\]"),
        (gptq(bias=tensor("x.bias", "I32", (16,))), "x.bias .* stored as I32"),
    ],
)
def test_parts_that_do_not_fit_the_config_are_named(found: dict[str, Tensor], words: str) -> None:
    with pytest.raises(BrokenModelError, match=words):
        find_stored(MATRIX, found, GPTQ)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (tensor("x.weight", "GGUF_Q1_0", (16, 64)), "GGUF_Q1_0"),
        (tensor("x.weight", "I32", (16, 64)), "stored as I32"),
        (tensor("x.weight", "GGUF_Q4_0", (16, 63)), r"\[16, 63\]"),
        (tensor("x.weight", "GGUF_Q4_0", (16, 64), 18), "18 bytes"),
    ],
)
def test_blocks_of_gguf_that_cannot_be_are_named(bad: Tensor, words: str) -> None:
    found = named(bad, tensor("x.bias", "F32", (16,)))

    with pytest.raises(BrokenModelError, match=words):
        find_stored(MATRIX, found, Quantization(method="gguf"))


def test_a_vector_of_blocks_is_refused() -> None:
    found = named(tensor("x.bias", "GGUF_Q8_0", (32,)))

    with pytest.raises(BrokenModelError, match="stored as GGUF_Q8_0"):
        find_stored({"x.bias": (32,)}, found, Quantization(method="gguf"))


def test_a_matrix_that_is_packed_in_the_scheme_is_taken() -> None:
    packed = tensor("x.weight", "PACKED4", (16, 64))
    found = named(packed, tensor("x.bias", "F32", (16,)))

    assert find_stored(MATRIX, found, GPTQ, scheme="int4")["x.weight"] == (packed,)
    for scheme in ("int8", "bf16", None):
        with pytest.raises(BrokenModelError, match="stored as PACKED4"):
            find_stored(MATRIX, found, GPTQ, scheme=scheme)
    short = named(tensor("x.weight", "PACKED4_SUPER", (16, 64), 12))
    with pytest.raises(BrokenModelError, match="12 bytes"):
        find_stored({"x.weight": (16, 64)}, short, None, scheme="int4")
