"""The part of the Settings page about the program itself: versions, licences, logs."""

from pathlib import Path

from PySide6.QtCore import QUrl, qVersion
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QFrame, QGridLayout, QWidget

from potluck.api.values.schema import ClusterState
from potluck_app import about
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import button, label
from potluck_app.views.widgets.dialogs import Dialog
from potluck_app.views.widgets.flow import Flow


class LicencesDialog(Dialog):
    """The packages that the program uses, with their versions and licences."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "licences", "Licences", width=560)
        grid = QGridLayout()
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(6)
        grid.setColumnStretch(1, 1)
        for row, package in enumerate(about.packages()):
            grid.addWidget(label(f"{package.name} {package.version}"), row, 0)
            grid.addWidget(label(package.license, "body2", wrap=True), row, 1)
        text = "Potluck uses these packages. Their licences come with them."
        close = button("Close", "licences-close", self.reject)
        self.fill(
            label("Licences", "title"), label(text, "body2", wrap=True), 4, grid, buttons=(close,)
        )


class AboutCard(QFrame):
    """Versions, licences, and the log.

    Args:
        log: the file of the node's log; None: there is none to show.
    """

    def __init__(self, log: Path | None) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._log, self._state = log, None
        self.lines = label("", "body2", wrap=True, name="about-lines")
        self.said = label("", "meta", wrap=True, name="about-said")
        self.said.hide()
        holder = QWidget()
        row = Flow(holder)
        row.addWidget(button("Licences", "about-licences", self.show_licences))
        if (page := about.homepage()) is not None:
            link = QUrl(page)
            row.addWidget(
                button("Project page", "about-page", lambda: QDesktopServices.openUrl(link))
            )
        if log is not None:
            row.addWidget(button("Open the folder of the logs", "about-logs", self._open_logs))
            row.addWidget(button("Copy for a report", "about-report", self._copy_report))
        hint = "A report has versions, devices and the last lines of the log. No message is in it."
        title = label("About Potluck", "section")
        parts = (title, self.lines, holder, label(hint, "meta", wrap=True), self.said)
        vbox(*parts, parent=self, margins=(20, 16, 20, 18), spacing=10)
        self.show_state(None)

    def show_state(self, state: ClusterState | None) -> None:
        """Show the versions, and what is known of this computer."""
        self._state = state
        self.lines.setText("\n".join(about.system_lines(state, qVersion())))

    def show_licences(self) -> LicencesDialog:
        """Show the licences of all packages."""
        dialog = LicencesDialog(self)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()
        return dialog

    def _open_logs(self) -> None:
        if self._log is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._log.parent)))

    def _copy_report(self) -> None:
        if self._log is not None:
            text = about.report(self._state, qVersion(), self._log)
            QGuiApplication.clipboard().setText(text)
            count = len(text.splitlines())
            self.said.setText(f"{count} lines were copied. Look at them before you send them.")
            self.said.show()
