"""The models: those on this computer, those of the Hub, and the downloads, with what can be done."""

from urllib.parse import quote

from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer, Signal

from potluck.api.values.hub import (
    Deleted,
    DeleteRequest,
    Download,
    DownloadAction,
    DownloadChange,
    DownloadRequest,
    FolderRequest,
    Found,
    HubAnswer,
    HubModel,
    HubToken,
    HubUser,
)
from potluck.api.values.schema import ClusterState, ModelEntry
from potluck.api.values.weights import Verified, VerifyProgress
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.viewmodels.model_rows import (
    DownloadRow,
    HubRow,
    ModelRow,
    download_row,
    hub_row,
    hub_title,
    model_rows,
)

_AGAIN_MS = 2000  # between two looks at the recommended models while speeds are measured
_GATED = "gated"  # code of GatedModelError
_MOST_LOOKS = 3  # in a row: the node leaves for the next look what takes it too long


class Library(QObject):
    """What the node knows of models, and what the person has asked about them.

    Attributes:
        message: a sentence about the last search, or empty.
        is_searching: a search is under way.
        is_measuring: the node measures how fast the computers are.
        awaited: names of models of the Hub about which something was asked just now.
        notes: by the name of a model of the Hub, a sentence about what could not be done.
        locked: the model of the Hub that is downloaded once a token is given.
        lock_note: a sentence about the token that was given, or empty.
        is_refused: the Hub does not take that token.
        checks: by the path of a model, a sentence about its check.
        damaged: the paths of models whose check has failed.

    Signals:
        changed: something of this is other.
        said: a sentence about something that was done.
        used: a model was chosen; it is being loaded.
    """

    changed = Signal()
    said = Signal(str)
    used = Signal()

    def __init__(self, backend: Backend, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._backend = backend
        self._entries: tuple[ModelEntry, ...] | None = None
        self._downloads: tuple[Download, ...] = ()
        self._recommended: HubAnswer | None = None
        self._found: HubAnswer | None = None  # None: nothing is searched for
        self._words = ""
        self._details: dict[str, HubModel] = {}
        self._wanted: tuple[str, str | None] | None = None  # waits for the token
        self._seen: object = None  # what the shown fits depend on
        self._looks = 0
        self.message = ""
        self.is_searching = self.is_measuring = False
        self.awaited: set[str] = set()
        self.notes: dict[str, str] = {}
        self.locked: str | None = None
        self.lock_note = ""
        self.is_refused = False
        self.checks: dict[str, str] = {}
        self.damaged: set[str] = set()
        self._again = QTimer(self, singleShot=True, interval=_AGAIN_MS)
        self._again.timeout.connect(self._ask_recommended)
        backend.state_changed.connect(self._on_state)
        if backend.state is not None:
            self._on_state(backend.state)

    # --- what is shown

    @property
    def models(self) -> tuple[ModelRow, ...] | None:
        """The models on this computer; None: that is not known yet."""
        return None if self._entries is None else model_rows(self._entries)

    @property
    def downloads(self) -> tuple[DownloadRow, ...]:
        return tuple(download_row(download) for download in self._downloads)

    @property
    def is_offline(self) -> bool:
        """Whether the Hub could not be reached by the last search."""
        return self._found is not None and self._found.offline

    @property
    def hub(self) -> tuple[HubRow, ...] | None:
        """The models that were found, else the recommended ones; None: they are not known yet."""
        if self._found is not None and not self.is_offline:
            return self._rows(self._found)
        return None if self._recommended is None else self.recommended

    @property
    def recommended(self) -> tuple[HubRow, ...]:
        """The recommended models, as far as they are known."""
        rows = [] if self._recommended is None else [*self._rows(self._recommended)]
        if rows and rows[0].badge[1] == "ok":
            rows[0] = replace(rows[0], is_best_choice=True)  # the node lists the best one first
        return tuple(rows)

    def _rows(self, answer: HubAnswer) -> tuple[HubRow, ...]:
        entries = self._entries or ()
        return tuple(hub_row(m, entries, self._details.get(m.name)) for m in answer.models)

    @property
    def is_found(self) -> bool:
        """Whether `hub` is what a search has found."""
        return self._found is not None and not self._found.offline

    def is_downloading(self, name: str) -> bool:
        """Return whether this model of the Hub is in the list of downloads and not done."""
        return any(d.model == name and d.state != "done" for d in self._downloads)

    # --- the node's answers

    def refresh(self) -> None:
        """Ask for everything that is shown."""
        self._looks = 0
        self._ask_models()
        self._ask_recommended()

    def refresh_models(self) -> None:
        """Ask for the models on this computer."""
        self._looks = 0
        self._ask_models()

    def _ask_models(self) -> None:
        self._backend.models().then(self._on_models, self._report)

    def _on_models(self, entries: tuple[ModelEntry, ...]) -> None:
        self._entries = entries
        self._looks += 1
        if self._looks < _MOST_LOOKS and any(
            e.parameters is None and not e.problem for e in entries
        ):
            self._ask_models()
        self.changed.emit()

    def _ask_recommended(self) -> None:
        call = self._backend.call("GET", "/cluster/hub/recommended", answer=HubAnswer)
        call.then(self._on_recommended, self._report)

    def _on_recommended(self, answer: HubAnswer) -> None:
        self._recommended, self.is_measuring = answer, answer.measuring
        if answer.measuring:
            self._again.start()
        self.changed.emit()

    def _on_state(self, state: ClusterState) -> None:
        done = frozenset(d.id for d in state.downloads if d.state == "done")
        online = tuple(c.node_id for c in state.computers if c.online)
        seen = (state.model.model_id, state.model.state == "ready", done, online)
        if state.downloads != self._downloads:
            self._downloads = state.downloads
            self.changed.emit()
        if seen != self._seen:
            self._seen = seen
            if self._entries is not None:
                self.refresh_models()
            if self._recommended is not None:
                self._ask_recommended()

    def _report(self, problem: Problem) -> None:
        if not problem.unreachable:  # the banner says that already
            self._backend.report(problem)

    # --- the Hub

    def search(self, words: str) -> None:
        """Search the Hub; without words, show what is recommended."""
        self._words, self.message = words.strip(), ""
        self.is_searching = bool(self._words)
        if not self._words:
            self._found = None
        else:
            asked, path = self._words, f"/cluster/hub/search?query={quote(self._words)}"
            self._backend.call("GET", path, answer=HubAnswer).then(
                lambda answer: self._on_found(asked, answer),
                lambda problem: self._on_found(asked, HubAnswer(message=problem.message)),
            )
        self.changed.emit()

    def _on_found(self, words: str, answer: HubAnswer) -> None:
        if words == self._words:
            self._found, self.message = answer, answer.message or ""
            self.is_searching = False
            self.changed.emit()

    def look(self, name: str) -> None:
        """Ask for the variants of a model of the Hub."""
        self._begin(name)
        call = self._backend.call("GET", f"/cluster/hub/models/{quote(name)}", answer=HubModel)
        call.then(self._on_details, lambda problem: self._fail(name, problem))

    def fold(self, name: str) -> None:
        """Show the variants of this model no longer."""
        self._details.pop(name, None)
        self.changed.emit()

    def _on_details(self, model: HubModel) -> None:
        self._details[model.name] = model
        self._end(model.name)

    def download(self, name: str, variant: str | None) -> None:
        """Download a variant of a model of the Hub; None is the best one here."""
        self._begin(name)
        body = DownloadRequest(model=name, variant=variant)
        self._backend.call("POST", "/cluster/downloads", body, Download).then(
            lambda _: self._end(name), lambda problem: self._on_refused(name, variant, problem)
        )

    def _on_refused(self, name: str, variant: str | None, problem: Problem) -> None:
        if problem.code == _GATED:
            self.locked, self._wanted, self.lock_note = name, (name, variant), ""
        self._fail(name, problem)

    def give_token(self, token: str) -> None:
        """Keep the token of the person's account at the Hub, and download what waits for it."""
        self.lock_note, self.is_refused = "Checking the token…", False
        call = self._backend.call("PUT", "/cluster/hub/token", HubToken(token=token), HubUser)
        call.then(self._on_token, self._on_token_refused)
        self.changed.emit()

    def _on_token(self, user: HubUser) -> None:
        self.locked, self.lock_note = None, ""
        self.said.emit(f"You are known to the Hub as {user.name}." if user.name else "Token kept.")
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self.download(*wanted)
        self.changed.emit()

    def _on_token_refused(self, problem: Problem) -> None:
        self.lock_note, self.is_refused = problem.message, True
        self.changed.emit()

    def _begin(self, name: str) -> None:
        self.notes.pop(name, None)
        self.awaited.add(name)
        self.changed.emit()

    def _end(self, name: str) -> None:
        self.awaited.discard(name)
        self.changed.emit()

    def _fail(self, name: str, problem: Problem) -> None:
        self.notes[name] = problem.message
        self._end(name)

    def change_download(self, download_id: str, action: DownloadAction) -> None:
        """Pause, resume or cancel a download, or take one that is done off the list."""
        path, body = f"/cluster/downloads/{download_id}", DownloadChange(action=action)
        self._backend.call("POST", path, body, Download).then(failed=self._report)

    # --- models on this computer

    def use(self, path: str | None) -> None:
        """Let the cluster run this model; None is the guide."""
        self._backend.load_model(path).failed.connect(self._report)
        self.used.emit()

    def add_folder(self, path: str) -> None:
        """Search this folder for models from now on."""
        call = self._backend.call(
            "POST", "/cluster/models/folders", FolderRequest(path=path), Found
        )
        call.then(self._on_added, self._report)

    def _on_added(self, found: Found) -> None:
        count = wording.plural(len(found.models), "model", "models")
        self.said.emit(f"{count} found: {wording.listing([*found.models[:3]])}.")
        self.refresh_models()

    def delete(self, path: str) -> None:
        """Delete a model that was downloaded."""
        call = self._backend.call(
            "POST", "/cluster/models/delete", DeleteRequest(model=path), Deleted
        )
        call.then(self._on_deleted, self._report)

    def _on_deleted(self, deleted: Deleted) -> None:
        name = hub_title(deleted.name)
        self.said.emit(f"Deleted {name}. {wording.size(deleted.nbytes)} are free again.")
        self.refresh_models()

    def check(self, path: str) -> None:
        """Check the weights of a model on this computer."""
        self.checks[path] = "Checking the weights…"
        self.changed.emit()

        check = self._backend.check_model(path)
        check.progress.connect(lambda progress: self._on_check(path, progress))
        check.failed.connect(lambda problem: self._say_check(path, problem.message, is_bad=True))

    def _on_check(self, path: str, progress: VerifyProgress) -> None:
        result = progress.result
        is_bad = result is not None and bool(result.models) and not result.is_intact
        self._say_check(path, _check_line(progress), is_bad=is_bad)

    def _say_check(self, path: str, line: str, *, is_bad: bool = False) -> None:
        self.checks[path] = line
        (self.damaged.add if is_bad else self.damaged.discard)(path)
        self.changed.emit()


def _check_line(progress: VerifyProgress) -> str:
    if progress.state != "ready":
        return f"Checking the weights · {wording.percent(progress.fraction)}"
    return _result_line(progress.result)


def _result_line(result: Verified | None) -> str:
    if result is None or not result.models:
        return "Nothing was checked."
    if result.is_intact:
        return "Checked: every byte is as it was."
    bad = next(model for model in result.models if model.damaged or model.problem)
    if bad.problem:
        return f"The model could not be read: {bad.problem}"
    count = wording.plural(len(bad.damaged), "part is", "parts are")
    return f"{count} damaged. Delete the model and download it again."
