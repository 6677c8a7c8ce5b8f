"""`models`, `models search`, `pull`, `add` and `rm`, with a fake node."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import Server

from potluck.api.values.hub import DownloadRequest
from potluck.errors import GatedModelError

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]


def test_list_says_how_each_model_fits(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "list") == 0
    assert "About 11 tokens/s on this computer. About 19 with Attic." in capsys.readouterr().out


def test_search_without_words_lists_the_recommended(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "search") == 0

    shown = capsys.readouterr()
    for words in ("anna/tiny-GGUF", "8.2 billion", "apache-2.0", "5 GB (Q4_K_M)", "About 11"):
        assert words in shown.out
    assert "potluck models pull NAME" in shown.err


def test_search_without_words_waits_for_the_speeds(
    server: Server, potluck: Potluck, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cli.library.POLL_S", 0.0)
    server.backend.library.measuring = 2  # answers

    assert potluck("models", "search") == 0

    shown = capsys.readouterr()
    assert "Measuring how fast" in shown.err
    assert shown.out.count("About 11") == 1


def test_search_for_a_whole_name_says_its_variants(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "search", "anna/tiny-GGUF") == 0

    shown = capsys.readouterr().out
    assert "anna/tiny-GGUF: 8.2 billion, apache-2.0, https://" in shown
    assert "Q4_K_M (best here)" in shown


def test_search_by_words_asks_the_hub(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "search", "no", "such", "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"] == []


def test_search_without_the_internet_says_so(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.library.offline = True

    assert potluck("models", "search", "tiny") == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_pull_waits_until_the_model_is_there(
    server: Server, potluck: Potluck, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hf_mine\n"))
    assert potluck("models", "pull", "anna/tiny-GGUF:Q8_0", "--token") == 0

    library = server.backend.library
    assert library.downloads == [DownloadRequest(model="anna/tiny-GGUF", variant="Q8_0")]
    assert library.tokens == ["hf_mine"]
    assert "anna/tiny-GGUF (Q8_0) is here: /models/new" in capsys.readouterr().out


def test_pull_without_a_variant_leaves_the_choice_to_the_node(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("models", "pull", "anna/tiny-GGUF", "--json") == 0

    assert server.backend.library.downloads[0].variant is None
    assert json.loads(capsys.readouterr().out)["state"] == "done"


def test_pull_that_is_refused_is_one_sentence(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.library.error = GatedModelError("Accept its terms first.", page="https://x")

    assert potluck("models", "pull", "anna/tiny-GGUF") == 8
    said = capsys.readouterr().err
    assert "Asking the Hugging Face Hub for anna/tiny-GGUF" in said
    assert "Accept its terms first." in said


def test_pull_of_what_is_no_name_of_the_hub_is_refused(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "pull", "tiny") == 2
    assert "like Qwen/Qwen3-8B-GGUF" in capsys.readouterr().err


def test_folder_is_added_with_its_whole_path(
    server: Server,
    potluck: Potluck,
    capsys: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert potluck("models", "add", "mine") == 0
    assert server.backend.library.folders == [str(tmp_path / "mine")]
    assert "Found: one, two." in capsys.readouterr().out


def test_rm_asks_first(
    server: Server, potluck: Potluck, typed: Callable[[str], None], capsys: Output
) -> None:
    assert potluck("models", "rm", "big") == 2  # nobody could be asked
    typed("n\n")
    assert potluck("models", "rm", "big") == 0
    assert server.backend.library.deleted == []
    assert "Delete big (5 GB) from this computer?" in capsys.readouterr().err

    assert potluck("models", "rm", "big", "--yes") == 0
    assert server.backend.library.deleted == ["big"]
    assert "5 GB are free now" in capsys.readouterr().out


def test_rm_of_the_loaded_model_is_one_sentence(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "rm", "guide", "--yes") == 2
    assert "is loaded" in capsys.readouterr().err


def test_models_are_listed(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models") == 0
    shown = capsys.readouterr().out
    assert "guide (loaded)" in shown
    assert "5 GB" in shown

    potluck("models", "--json")
    big = json.loads(capsys.readouterr().out)[1]
    assert (big["name"], big["path"], big["nbytes"]) == ("big", "/models/big", 5_000_000_000)
    assert (big["current"], big["source"], big["fit"]["alone"]) == (False, "hub", True)
