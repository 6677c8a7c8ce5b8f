"""A tokenizer and a template are files of strangers: what is wrong with them is said, in bounded memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from potluck.errors import BrokenModelError
from potluck.model.text.chat import ChatFormat

Write = Callable[..., Path]


def test_a_model_without_tokenizer_is_broken(tmp_path: Path) -> None:
    with pytest.raises(BrokenModelError, match=r"has no tokenizer, without"):
        ChatFormat.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "\x00"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", '{"chat_template": 3}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "x"}]}'),
        ("special_tokens_map.json", "{"),
        ("generation_config.json", "nonsense"),
        ("chat_template.jinja", "{% if %}"),
    ],
)
def test_a_broken_file_is_named(model_folder: Write, name: str, text: str) -> None:
    folder = model_folder(files={name: text})

    with pytest.raises(BrokenModelError, match=r"The model's .*"):
        ChatFormat.load(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"]
)
def test_a_byte_order_mark_is_no_damage(model_folder: Write, name: str) -> None:
    folder = model_folder(template="hello", files={"generation_config.json": {}, "config.json": {}})
    path = folder / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    chat = ChatFormat.load(folder)

    assert chat.render_chat([{"role": "user", "content": "x"}]) == "hello"


def test_bytes_that_are_no_text_are_a_broken_file(model_folder: Write) -> None:
    folder = model_folder()
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")

    with pytest.raises(BrokenModelError, match=r"chat_template\.jinja cannot be read"):
        ChatFormat.load(folder)


def test_a_tokenizer_that_fails_is_a_broken_file(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"hello": 0}, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    chat = ChatFormat.load(tmp_path)

    with pytest.raises(BrokenModelError, match=r"tokenizer\.json reads no text"):
        chat.encode("something else")


def test_a_tokenizer_that_panics_is_a_broken_file(model_folder: Write) -> None:
    folder = model_folder()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"]["special_tokens"] = {}  # which its own text begins with
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    with pytest.raises(BrokenModelError, match=r"tokenizer\.json"):
        ChatFormat.load(folder).encode("Hi")


def test_half_a_surrogate_pair_is_no_special_token(model_folder: Write) -> None:
    chat = ChatFormat.load(
        model_folder(
            files={
                "special_tokens_map.json": {"bos_token": "\ud800"},
                "tokenizer_config.json": {"eos_token": "\ud800"},
            }
        )
    )

    assert chat.decode(chat.encode("Hi")) == "Hi"


@pytest.mark.skipif(sys.platform != "linux", reason="memory cannot be limited")
def test_one_large_id_in_a_vocabulary_takes_no_memory(tmp_path: Path) -> None:
    Tokenizer(models.BPE(vocab={"a": 0, "b": 7}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace(": 7", f": {(1 << 31) - 1}"))
    program = (
        "import resource, sys; from pathlib import Path; from potluck.model.text.chat import ChatFormat\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "print(ChatFormat.load(Path(sys.argv[1])).encode('ab'))"
    )

    done = subprocess.run(  # our own words
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.stdout.strip() == f"[0, {(1 << 31) - 1}]"
