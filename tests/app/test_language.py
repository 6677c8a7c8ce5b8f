"""The window in another language: all of it, and nothing of what others wrote."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fake_backend import computer
from PySide6.QtCore import QLocale
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, pairing, running_model, study_pc

from potluck.api.values.schema import Download, ModelEntry, Notice
from potluck.cluster import loss
from potluck.errors import NotEnoughMemoryError
from potluck_app import catalogue, language
from potluck_app.catalogue import Catalogue, File
from potluck_app.chats.values import Stats
from potluck_app.preferences import PreferencesFile
from potluck_app.resources import asset
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels import advice
from potluck_app.views.conversation.user_message import UserMessage
from potluck_app.views.main_window import MainWindow

APP = Path(language.__file__).parent
FILES = sorted(asset("languages").glob("*.json"))
STATS = Stats(tokens=118, tokens_per_s=7.9, time_to_first_token_s=1.2, loading_s=3)

# Files in which no text is for the person, or which say it in English on purpose (a report, a command).
OTHERS = {"__main__.py", "about.py", "catalogue.py", "exchange.py", "language.py"}
OTHERS |= {"stylesheet.py", "theme.py", "tokens.py", "highlighter.py", "words.py"}
OTHERS |= {"tex.py", "tex_symbols.py", "files.py"}
SQL = re.compile(
    r"[A-Z]{4,} |COMMIT|ROLLBACK|SQLITE_|messages m\b|m\.status|words (JOIN|MATCH)|^ AND "
)
CODE = re.compile(
    r"[a-z0-9_./:<>=*?&{} %-]*|[A-Z]+|_[A-Z][a-z]+|\(\?.*|\^.*|\[.*|[A-Za-z]+\+\S+|F\d"
)
# The words of a prompt to the model, an encoding's name, keys, names of types in annotations, and so on.
KEPT = {"Return", "Enter", "Shift+Return", "Up", "Esc", "F2", "Ctrl++", "Ctrl+=", "English", "hf_…"}
KEPT |= {"Row", "Waiting", "Failure", "Call", "Bearer {}", "potluck worker --join "}
KEPT |= {"data:image;base64,{}"}
KEPT |= {"Go"}  # GB in French, as a person types it
KEPT |= {"Markdown (*.md)", "JSON (*.json)", "Chats (*.json *.md)"}
KEPT |= {advice._ASK_FOR_SUMMARY, advice._SUMMARY}


def sources() -> Iterator[tuple[str, str]]:
    """All texts of the window in its source, with `{}` for what is put in, and where they are."""
    for path in sorted(APP.rglob("*.py")):
        if path.name in OTHERS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        inner = {
            id(v) for n in nodes if isinstance(n, ast.JoinedStr) for v in ast.walk(n) if v is not n
        }
        inner |= {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
        for node in nodes:
            if id(node) in inner:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value, f"{path.name}:{node.lineno}"
            elif isinstance(node, ast.JoinedStr):
                parts = (str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
                yield "".join(parts), f"{path.name}:{node.lineno}"


def is_for_people(text: str) -> bool:
    if text in KEPT or "%s" in text or SQL.search(text) or CODE.fullmatch(text):
        return False
    return re.search(r"[A-Za-z]{2}", text.replace("{}", "")) is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_text_of_the_source_is_in_every_language(path: Path) -> None:
    words = catalogue.read(path)

    missing = {
        f"{where}: {text}"
        for text, where in sources()
        if is_for_people(text) and words.of(text.replace("{}", "7")) is None
    }

    assert sorted(missing) == []


# What the node says while it loads a model, why the plan is so, and why there is none: made of parts.
SAID = (
    "Looking for the model · 3 %",
    "Qwen3 32B · Sending layers to Old laptop · 62 % · 2 min left",
    "Reading Qwen3-8B · 10 %",
    "Looking for your computers",
    "Measuring the computers · 10 %",
    "Quantising Qwen3-8B to int4",
    "Sending Qwen3-8B, 3.4 GB",
    "Loading Qwen3-8B",
    "A computer of this plan was lost. The next message plans anew.",
    "Desktop and Mac work together: about 37.8 tokens/s for one user. A token takes 24 ms of"
    " computing and 2.5 ms on the links.",
    "Desktop has layers 0 to 23: it is the fastest, and its memory holds no more.",
    "Mac has layers 24 to 35: the faster ones are full.",
    "Laptop gets nothing: with it a token would take 28 ms instead of 26 ms.",
    "Laptop cannot hold the model alone: 55 B are missing.",
    "Laptop does it alone: about 27.2 tokens/s for one user. A token takes 36 ms of computing and"
    " 0.7 ms on its way through Potluck; no link: all is on this computer. For 2 at once: 40 tokens/s together.",
    "Laptop has all 36 layers: it holds the whole model.",
    "Laptop alone would give 27.2 tokens/s.",
    "In int8 the model needs 9 GB with its cache, and your computers offer 5 GB; this is the best"
    " quality that fits.",
)
SAID += (
    "Mac is left out: it helps Attic just now. Laptop is left out: it runs on its battery.",
    "The computer cannot be reached at 10.0.0.5: no Potluck answers there; 10.0.0.6: nothing answers there in"
    " time. Is it switched on, in the same network, and does its firewall let Potluck in?",
    "Mac: One layer of this model has 1.2 GB, and this computer lends 512 MB. It cannot take part with this"
    " model.",
    "Mac: The compute process cannot be started: the memory is full. Restart Potluck; its log would be /log.",
    "config.json says hidden_size = 0, but it must be a whole number from 1 to 65536. The file is damaged or not"
    " of a model that Potluck can run.",
    "The GGUF file's llama.block_count must be at least 1. The file is damaged or not of a model that Potluck can"
    " run.",
    "The model is of the architecture Falcon, which Potluck cannot run yet. It needs norms that subtract the mean"
    " (LayerNorm), and attention beside the MLP; the nearest family that runs is Llama. It can run: Llama.",
    "The model in /m lacks tensor 'up_proj', a part of 'gate_up', which its config.json asks for; 12 others are"
    " there. Its weights and config.json are not of the same model, or a file with weights is missing.",
    "The compute process of Mac stopped (status 9). It is started again; its log is /log.",
    "/m/x.gguf cannot be read: it claims 123456 dimensions of a tensor; 4 are allowed. Download the file again.",
    "settings.json is not as it must be at port. Correct it, or delete it to start afresh.",
    "“Lists in Python” was saved as /home/me/Lists.md.",
    "Mac computes 2.5 times slower than measured: some of its layers are moved to Desk and Attic.",
    "About 8 to 12 tokens/s on Mac and Attic. About 3 on this computer alone. About 20 with Laptop.",
)
LOST = loss.computer_lost("Mac", "lost its compute process")
TOO_BIG = NotEnoughMemoryError(21_000_000_000, 16_900_000_000)
SAID += (
    TOO_BIG.message,
    loss.cannot_go_on(loss.computer_lost("Mac"), TOO_BIG).message,
    loss.cannot_load(LOST, TOO_BIG).message,
    loss.lost_while_loading("Mac", loss.process_lost(is_hung=True)).message,
)
ENGLISH = re.compile(
    r"\b(the|and|is|are|of|with|has|it|for|this|would|cannot|needs|your|model|all|must|least)\b"
)


@pytest.mark.parametrize("text", SAID)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_node_says_of_a_model_has_no_english_word_left(path: Path, text: str) -> None:
    said = catalogue.read(path).of(text)

    assert said is not None
    assert ENGLISH.findall(said) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_translation_has_the_places_of_its_text(path: Path) -> None:
    for text, target in catalogue.msgspec.json.decode(path.read_bytes(), type=File).texts.items():
        assert len(re.findall(r"\{[#=]?\}", text)) == len(re.findall(r"\{\d?\}", target)), text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reading_a_language_compiles_no_pattern(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hundreds of them take longer than the window's other steps, and most are never tried.
    compiled: list[str] = []
    monkeypatch.setattr(catalogue.re, "compile", compiled.append)

    catalogue.read(path)

    assert compiled == []


# --- how a text is found


@pytest.fixture
def words() -> Catalogue:
    texts = {
        "Ready": "Bereit",
        "{} said no.": "{} sagte nein.",
        "{#} and {#}": "{} und {}",
        "{} and {}": "{} und {}",
        "{}: {}": "{}: {}",
        "All {=}.": "Alle {}.",
        "are full": "sind voll",
        "{#}": "{}",
        "{#} of {} lent": "von {1} sind {0} weg",
        "this computer": "dieser Computer",
    }
    return Catalogue(File(name="Test", decimal=",", date="{2}.{1}.{0}", texts=texts))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("Ready", "Bereit"),
        ("this computer said no.", "dieser Computer sagte nein."),
        ("Mac and this computer said no.", "Mac und dieser Computer sagte nein."),
        ("9.8 GB of 12 GB lent", "von 12 GB sind 9,8 GB weg"),
        ("Mac · Ready · 1,200.5 MB", "Mac · Bereit · 1.200,5 MB"),
        ("Mac said no. Then it went.", "Mac sagte nein. Then it went."),
        ("Mac said no. Desk said no.", "Mac sagte nein. Desk sagte nein."),
        ("2027-03-31 said no.", "31.03.2027 sagte nein."),
        ("2027-03-31, 18:30 said no.", "31.03.2027, 18:30 sagte nein."),
        ("gpt-4o-2024-08-06 said no.", "gpt-4o-2024-08-06 sagte nein."),
        ("0.1.2", None),
        ("10.0.0.1:4711", None),
        ("An unknown thing and another", None),
        ("All are full.", "Alle sind voll."),
        ("All is well.", None),
        ("All is well: are full.", None),
        ("Mac: Ready", "Mac: Bereit"),
        ("Mac: An unknown thing", None),
        ("It said no: Mac and Desk", "It said no: Mac und Desk"),
        ("It said no: only one and another thing are here", None),
        ("Mac", None),
    ],
)
def test_a_text_is_found_whole_by_its_places_or_by_its_parts(
    words: Catalogue, text: str, result: str | None
) -> None:
    assert words.of(text) == result


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_two_sentences_that_belong_together_are_not_taken_apart(path: Path) -> None:
    """Else the second one may be found by a template of another text, with English words in its places."""
    read = catalogue.read(path)
    texts = msgspec.json.decode(path.read_bytes(), type=File).texts
    together = [text for text in texts if "{}" in text and "{=}" not in text and ". " in text]

    for text in together:
        values = [f"Xq{place}" for place in range(text.count("{}"))]
        numbered = text.replace("{#}", "7").format(*values)
        if (found := read.of(numbered)) is not None:
            assert found == texts[text].replace("{#}", "7").format(*values)
    assert len(together) > 100
    held = "This computer runs on its battery. It helps again a minute after that."
    assert "again" not in str(read.of(held))


def test_numbers_and_units_are_written_as_in_the_language() -> None:
    file = File(
        name="Test", decimal=",", thousands=" ", units={"GB": "Go"}, texts={"{#} free": "{} libres"}
    )

    words = Catalogue(file)

    assert words.of("1,200.5 GB free") == "1 200,5 Go libres"
    assert words.of("32,768 free") == "32 768 libres"
    assert words.of("2 h 5 min free") == "2 h 5 min libres"


def test_the_language_of_the_system_is_used_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QLocale, "system", lambda: QLocale("de_AT"))
    assert language.chosen("auto") == "de"
    assert language.chosen("en") == "en"
    monkeypatch.setattr(QLocale, "system", lambda: QLocale("ja_JP"))

    assert language.chosen("auto") == "en"


# --- the window


@pytest.fixture
def german(qapp: QApplication) -> Iterator[Catalogue]:
    installed = language.use(qapp, "de")
    yield catalogue.read(asset("languages", "de.json"))
    for translator in installed:
        qapp.removeTranslator(translator)


def shown(window: QWidget) -> Iterator[str]:
    """What a window shows, and what it says to a screen reader."""
    for widget in [window, *window.findChildren(QWidget)]:
        interface = QAccessible.queryAccessibleInterface(widget)
        if interface is not None and not isinstance(widget.parent(), UserMessage):
            yield interface.text(QAccessible.Text.Name)
            yield interface.text(QAccessible.Text.Description)
        yield widget.toolTip() if "<qt>" not in widget.toolTip() else ""
        if callable(hint := getattr(widget, "placeholderText", None)):
            yield str(hint())


@pytest.mark.qt
@pytest.mark.usefixtures("german")
def test_nothing_in_the_window_is_still_in_english(
    make_window: Callable[..., MainWindow],
    backend: ScriptedBackend,
    german: Catalogue,
    preferences: PreferencesFile,
    qtbot: QtBot,
) -> None:
    preferences.change(language="de")
    window = make_window(first_run=True)
    rest = list(shown(window.first_run))
    window = make_window()
    download = Download(id="d", model="a/b", variant="Q4", state="paused", done=1, total=2)
    backend.say(
        home(
            computer("Mac", "2", state="paused", rtt_ms=6.0, bytes_per_s=1e6),
            study_pc(),
            model=running_model(),
            pairings=(pairing("confirm"),),
            notices=(Notice(id=1, level="warning", text="Mac stopped answering."),),
            downloads=(download,),
        )
    )
    window.go(window.models)
    entries = (ModelEntry(name="Qwen", path="/q", nbytes=10**9, parameters=10**9, source="ollama"),)
    backend.last("/cluster/models").call.done.emit(entries)
    window.chat.composer.sent.emit("What is Potluck?", ())
    backend.replies[-1].text.emit("Ready")
    backend.replies[-1].finished.emit(ReplyEnd(stats=STATS))
    window.chat.find_bar.open_bar()
    dialogs = [window.cluster.open_add_dialog(), window.show_shortcuts()]

    for each in (window, *dialogs):
        rest += shown(each)

    rest = [text for text in rest if text != "0.1"]  # a version, which is no number
    assert {text for text in rest if (german.of(text) or text) != text} == set()
    assert "Einstellungen" in rest
    assert window.rail_buttons["settings"].text() == "Settings"  # as the program knows it


@pytest.mark.qt
@pytest.mark.usefixtures("german")
def test_what_a_person_wrote_stays_as_it_is(window: MainWindow, backend: ScriptedBackend) -> None:
    window.chat.composer.sent.emit("What is Potluck?", ())

    own = window.findChildren(UserMessage)[0]
    assert own.text.toPlainText() == "What is Potluck?"
    assert backend.chats[-1][-1].text == "What is Potluck?"
