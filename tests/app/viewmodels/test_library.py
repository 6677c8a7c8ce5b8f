"""What is asked of the node about models, and what becomes of its answers."""

import pytest
from fake_library import FIT, TOO_BIG, model
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck.api.values.hub import (
    Deleted,
    DeleteRequest,
    Download,
    DownloadChange,
    DownloadRequest,
    FolderRequest,
    Found,
    HubAnswer,
    HubToken,
    HubUser,
)
from potluck.api.values.schema import ModelEntry
from potluck.api.values.weights import Verified, VerifiedModel, VerifiedStore, VerifyProgress
from potluck_app.http import Problem
from potluck_app.streams import Load
from potluck_app.viewmodels.library import Library

pytestmark = pytest.mark.qt

NAME = "anna/tiny-GGUF"
MINE = ModelEntry(name="mine", path="/mine", nbytes=1, parameters=1, fit=FIT)
DONE = Download(id="d1", model=NAME, variant="Q4_K_M", state="done", done=2, total=2, path="/new")


@pytest.fixture
def library(backend: ScriptedBackend) -> Library:
    return Library(backend)


def count(backend: ScriptedBackend, path: str) -> int:
    return backend.paths().count(path)


def test_models_are_asked_for_again_when_something_about_them_is_other(
    library: Library, backend: ScriptedBackend
) -> None:
    backend.say(home())
    assert backend.paths() == []  # nobody wants to see them yet
    library.refresh_models()
    backend.last("/cluster/models").call.done.emit((MINE,))
    assert library.models is not None
    assert [row.name for row in library.models] == ["mine"]

    backend.say(home())
    assert count(backend, "GET /cluster/models") == 1
    backend.say(home(model=running_model()))
    assert count(backend, "GET /cluster/models") == 2
    backend.say(home(model=running_model(), downloads=(DONE,)))
    assert count(backend, "GET /cluster/models") == 3


def test_models_that_took_the_node_too_long_are_asked_for_some_times_more(
    library: Library, backend: ScriptedBackend
) -> None:
    unread = ModelEntry(name="slow", path="/slow", nbytes=1)
    library.refresh_models()
    for _ in range(5):
        backend.last("/cluster/models").call.done.emit((unread,))

    assert count(backend, "GET /cluster/models") == 3


def test_recommended_models_are_asked_for_until_the_speeds_are_measured(
    library: Library, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    library._again.setInterval(0)
    library.refresh()
    path = "/cluster/hub/recommended"
    backend.last(path).call.done.emit(HubAnswer(models=(model(),), measuring=True))
    assert library.is_measuring
    qtbot.waitUntil(lambda: count(backend, f"GET {path}") == 2)

    backend.last(path).call.done.emit(HubAnswer(models=(model(), model("b/c", fit=TOO_BIG))))

    assert not library.is_measuring
    assert library.hub is not None
    assert [row.is_best_choice for row in library.hub] == [True, False]


def test_an_answer_to_an_older_search_is_not_shown(
    library: Library, backend: ScriptedBackend
) -> None:
    library.search("old & new")
    old = backend.asked[-1]
    assert old.path == "/cluster/hub/search?query=old%20%26%20new"
    library.search("new")
    old.call.done.emit(HubAnswer(models=(model(),)))
    assert library.is_searching

    backend.asked[-1].call.done.emit(HubAnswer(message="The Hub has no model for “new”."))

    assert (library.is_found, library.hub) == (True, ())
    assert library.message.startswith("The Hub has no model")
    library.search(" ")
    assert (library.is_found, library.message) == (False, "")


def test_without_the_internet_the_recommended_models_stay(
    library: Library, backend: ScriptedBackend
) -> None:
    library.refresh()
    backend.last("/cluster/hub/recommended").call.done.emit(HubAnswer(models=(model(),)))
    library.search("x")
    backend.asked[-1].call.done.emit(HubAnswer(offline=True, message="No internet."))

    assert (library.is_offline, library.message) == (True, "No internet.")
    assert library.hub is not None
    assert len(library.hub) == 1


def test_a_download_that_is_refused_says_why_beside_its_model(
    library: Library, backend: ScriptedBackend
) -> None:
    library.download(NAME, "Q8_0")
    asked = backend.last("/cluster/downloads")
    assert asked.body == DownloadRequest(model=NAME, variant="Q8_0")
    assert library.awaited == {NAME}

    asked.call.failed.emit(Problem("The disk is full.", code="disk_full"))

    assert (library.awaited, library.notes) == (set(), {NAME: "The disk is full."})
    assert library.locked is None


def test_a_model_with_terms_is_downloaded_once_a_token_is_given(
    library: Library, backend: ScriptedBackend
) -> None:
    library.download(NAME, None)
    backend.last("/cluster/downloads").call.failed.emit(Problem("Terms.", code="gated"))
    assert library.locked == NAME

    library.give_token("hf_wrong")
    backend.last("/cluster/hub/token").call.failed.emit(Problem("This token is not known."))
    assert (library.locked, library.lock_note) == (NAME, "This token is not known.")

    library.give_token("hf_right")
    asked = backend.last("/cluster/hub/token")
    assert (asked.method, asked.body) == ("PUT", HubToken(token="hf_right"))
    asked.call.done.emit(HubUser(has_token=True, name="anna"))

    assert library.locked is None
    assert count(backend, "POST /cluster/downloads") == 2


def test_downloads_are_those_of_the_node_and_are_changed_there(
    library: Library, backend: ScriptedBackend
) -> None:
    running = Download(id="d1", model=NAME, variant="Q8_0", state="running", done=1, total=2)
    backend.say(home(downloads=(running,)))
    assert [row.id for row in library.downloads] == ["d1"]
    assert library.is_downloading(NAME)

    library.change_download("d1", "pause")

    assert backend.last("/cluster/downloads/d1").body == DownloadChange(action="pause")
    backend.say(home(downloads=(DONE,)))
    assert not library.is_downloading(NAME)


def test_a_folder_is_added_and_a_model_deleted(library: Library, backend: ScriptedBackend) -> None:
    said: list[str] = []
    library.said.connect(said.append)
    library.add_folder("/models")
    asked = backend.last("/cluster/models/folders")
    assert asked.body == FolderRequest(path="/models")
    asked.call.done.emit(Found(models=("one", "two")))
    library.delete("/old")
    asked = backend.last("/cluster/models/delete")
    assert asked.body == DeleteRequest(model="/old")
    asked.call.done.emit(Deleted(name="a/old", nbytes=5 * 10**9))

    assert said == ["2 models found: one and two.", "Deleted old. 5 GB are free again."]
    assert count(backend, "GET /cluster/models") == 2


def verified(**changes: object) -> VerifyProgress:
    seen = VerifiedModel(name="mine", path="/mine", nbytes=1, **changes)  # type: ignore[arg-type]
    return VerifyProgress(state="ready", result=Verified(models=(seen,), store=VerifiedStore()))


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (VerifyProgress(state="checking", fraction=0.5), "Checking the weights · 50 %"),
        (verified(), "Checked: every byte is as it was."),
        (
            verified(damaged=("a", "b")),
            "2 parts are damaged. Delete the model and download it again.",
        ),
        (verified(problem="It is gone."), "The model could not be read: It is gone."),
    ],
)
def test_the_check_of_a_model_says_what_it_found(
    library: Library,
    backend: ScriptedBackend,
    monkeypatch: pytest.MonkeyPatch,
    progress: VerifyProgress,
    line: str,
) -> None:
    check = Load(backend, VerifyProgress)
    monkeypatch.setattr(backend, "check_model", lambda path: check)
    library.check("/mine")
    assert library.checks == {"/mine": "Checking the weights…"}

    check.progress.emit(progress)

    assert library.checks == {"/mine": line}


def test_a_model_that_cannot_be_loaded_is_said(
    library: Library, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    load = Load(backend)
    monkeypatch.setattr(backend, "load_model", lambda path: load)
    with qtbot.waitSignal(library.used):
        library.use("/mine")

    with qtbot.waitSignal(backend.problem) as said:
        load.failed.emit(Problem("No room."))

    assert said.args == ["No room."]
