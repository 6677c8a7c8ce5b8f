"""All that a command prints goes through one place, which lets nothing steer the terminal."""

import ast
import io
import sys
from pathlib import Path

import pytest

import potluck
from potluck.cli.markdown import BOLD, Span
from potluck.cli.printing import has_styles, layers, put, put_spans, say

CORE = Path(potluck.__file__).parent
PRINTING = CORE / "cli" / "printing.py"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def writes(file: Path) -> list[str]:
    """Return the calls that write to the terminal by themselves."""
    calls = (
        node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)
    )
    names = (ast.unparse(call.func) for call in calls)
    direct = ("print", "input", "sys.stdout.write", "sys.stderr.write")
    return [name for name in names if name in direct]


def test_no_other_module_prints() -> None:
    assert writes(PRINTING) == ["print"]
    files = [file for file in CORE.rglob("*.py") if file != PRINTING]
    assert {str(file): writes(file) for file in files if writes(file)} == {}


def test_strangers_words_in_an_error_of_the_command_line_steer_nothing(
    potluck: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(potluck)
    assert potluck("chat", "--scheme", "\x1b[2Jx") == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal that shows styles."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


def test_a_style_surrounds_text_that_cannot_have_one_itself(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", screen)

    put_spans([Span("a\x1b[0mb", BOLD), Span("\x9bc")])
    assert (
        screen.getvalue()
        == "\x1b[1ma\N{REPLACEMENT CHARACTER}[0mb\x1b[0m\N{REPLACEMENT CHARACTER}c"
    )


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_styles_can_be_turned_off(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert not has_styles(screen)


def test_a_file_gets_no_styles(capsys: pytest.CaptureFixture[str]) -> None:
    put_spans([Span("a", BOLD)])
    put("\u202eb")
    say("c\x07", style=BOLD)
    assert capsys.readouterr() == ("a\N{REPLACEMENT CHARACTER}b\n", "c\N{REPLACEMENT CHARACTER}\n")


def test_one_layer_is_named_as_one() -> None:
    assert (layers(0, 1), layers(2, 6)) == ("layer 0", "layers 2 to 5")
