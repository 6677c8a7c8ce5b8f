from pathlib import Path

import pytest

from potluck.model.defaults import GenerationDefaults, load_defaults


def test_a_model_recommends_how_to_sample(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]}'
    )

    defaults = load_defaults(tmp_path)

    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.6, 20, None)


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": 20}', encoding="utf-8-sig")

    assert load_defaults(tmp_path).top_k == 20


def test_no_sampling_means_greedy(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')

    assert load_defaults(tmp_path).temperature == 0.0


@pytest.mark.parametrize("text", ["{", '{"top_p": 7}', "[]", "\xff"])
def test_advice_that_cannot_be_read_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_bytes(text.encode("latin-1"))

    assert load_defaults(tmp_path) == GenerationDefaults()


def test_no_advice_is_no_error(tmp_path: Path) -> None:
    assert load_defaults(tmp_path) == GenerationDefaults()
