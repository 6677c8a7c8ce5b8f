"""The dialog for files, where the system has none of its own: all that it says of a file is seen."""

from pathlib import Path

import pytest
from PySide6.QtWidgets import QFileDialog, QTreeView, QWidget
from pytestqt.qtbot import QtBot

from potluck_app.theme import Theme
from potluck_app.views.widgets.files import FileDialog

pytestmark = pytest.mark.qt


def test_no_date_and_no_kind_of_a_file_is_cut(qtbot: QtBot, theme: Theme, tmp_path: Path) -> None:
    (tmp_path / "A letter with a rather long name of its own.md").write_text("Dear")
    parent = QWidget()
    qtbot.addWidget(parent)
    dialog = FileDialog(theme, parent, "Choose a file")
    dialog.setOption(QFileDialog.Option.DontUseNativeDialog)
    dialog.setDirectory(str(tmp_path))
    dialog.show()
    files = dialog.findChild(QTreeView, "treeView")
    assert isinstance(files, QTreeView)
    qtbot.waitUntil(lambda: files.model().rowCount(files.rootIndex()) == 1)

    header = files.header()
    for column in (1, 2, 3):
        assert header.sectionSize(column) >= files.sizeHintForColumn(column), column
    assert header.sectionSize(0) > 200
    assert header.length() <= files.viewport().width()
