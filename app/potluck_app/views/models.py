"""The Models page: the models on this computer, and the one that the cluster runs."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QFrame, QLabel, QWidget

from potluck.api.schema import ClusterState, LoadProgress, ModelEntry
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.streams import Load
from potluck_app.theme import Theme
from potluck_app.views.boxes import hbox, vbox
from potluck_app.views.controls import (
    ButtonIcon,
    ElidedLabel,
    Meter,
    Pill,
    TintedIcon,
    button,
    card_frame,
    clear,
    fill_page,
    label,
    make_page,
)


class ModelsView(QWidget):
    """The Models page."""

    def __init__(self, theme: Theme, backend: Backend, on_use: Callable[[], object]) -> None:
        super().__init__()
        make_page(self, "models-page", "Models")
        self._theme, self._backend, self._on_use = theme, backend, on_use
        self._entries: tuple[ModelEntry, ...] | None = None
        self._in_use: object = None  # the loaded model when the list was requested
        self._load: Load | None = None
        self.subtitle = label("", "body2", wrap=True)
        self._list = vbox(spacing=12)
        self._progress, self._line, self._meter = self._make_progress()

        choose = button("Choose a folder", "models-folder", self._choose_folder)
        ButtonIcon(choose, theme, "folder", lambda: theme.tokens.text)
        choose_file = button("Choose a GGUF file", "models-file", self._choose_file)
        titles = vbox(label("Models", "title"), self.subtitle, spacing=10)
        head = hbox((titles, 1), choose, choose_file, spacing=16)
        fill_page(self, "Models", head, self._progress, self._list)
        self._show_entries()

    def _make_progress(self) -> tuple[QFrame, QLabel, Meter]:
        frame = card_frame()
        frame.setObjectName("models-progress")
        line = label("", "body2", wrap=True, name="models-progress-line")
        meter = Meter(self._theme, "Progress of the model")
        vbox(line, meter, parent=frame, margins=(18, 14, 18, 16), spacing=8)
        frame.hide()
        return frame, line, meter

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Request the list of models again."""
        self._backend.models().then(self._on_models, self._on_no_models)

    def show_state(self, state: ClusterState | None) -> None:
        """Mark the model in use, and show the progress of a load."""
        self.setEnabled(state is not None)
        in_use = None if state is None else (state.model.model_id, state.model.state == "ready")
        if in_use is not None and in_use != self._in_use and self.isVisible():
            self._in_use = in_use
            self.refresh()
        line = wording.model_progress(state.model, state.transfers) if state else ""
        self._progress.setVisible(bool(line))
        if state is not None and line:
            self._line.setText(f"{wording.model_name(state.model.name)}: {line}")
            self._meter.setVisible(state.model.progress is not None)
            self._meter.show_fraction(state.model.progress or 0.0)

    def use(self, path: str | None) -> None:
        """Let the cluster run this model; None is the guide."""
        load = self._backend.load_model(path)
        load.progress.connect(self._on_progress)
        load.failed.connect(self._on_failed)
        self._load = load
        self._on_use()

    def _on_progress(self, progress: LoadProgress) -> None:
        if progress.state == "ready":
            self._load = None
            if self.isVisible():
                self.refresh()

    def _on_failed(self, problem: Problem) -> None:
        self._load = None
        self._backend.report(problem)

    def _on_models(self, entries: tuple[ModelEntry, ...]) -> None:
        if entries != self._entries:
            self._entries = entries
            self._show_entries()

    def _on_no_models(self, problem: Problem) -> None:
        if not problem.unreachable:  # the banner reports that already
            self._backend.report(problem)

    def _choose_folder(self) -> None:
        dialog = QFileDialog(self, "Choose a folder with a model")
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        self._open(dialog)

    def _choose_file(self) -> None:
        dialog = QFileDialog(self, "Choose a GGUF file")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilter("GGUF models (*.gguf)")
        self._open(dialog)

    def _open(self, dialog: QFileDialog) -> None:
        dialog.setDirectory(str(Path.home()))
        dialog.fileSelected.connect(self.use)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _show_entries(self) -> None:
        clear(self._list)
        entries = self._entries or ()
        for entry in entries:
            self._list.addWidget(self._card(entry))
        if self._entries is None:
            self.subtitle.setText("Looking for models…")
        else:
            count = wording.plural(len(entries), "model", "models")
            self.subtitle.setText(
                f"{count} on this computer. Your other computers receive only the layers they run."
            )

    def _card(self, entry: ModelEntry) -> QFrame:
        name = wording.model_name(entry.name)
        frame = card_frame()
        icon = TintedIcon(self._theme, "models", 24, lambda: self._theme.tokens.accent)
        texts = vbox(
            ElidedLabel(name, "section"),
            ElidedLabel(f"{wording.size(entry.nbytes)} · {entry.path}", "meta"),
            spacing=1,
        )
        row = hbox(icon, (texts, 1), parent=frame, margins=(16, 13, 16, 13), spacing=12)
        if entry.current:
            row.addWidget(Pill("In use", "ok"))
        else:
            use = button("Use", "model-use", lambda: self.use(entry.path))
            use.setAccessibleName(f"Use {name}")
            row.addWidget(use)
        return frame
