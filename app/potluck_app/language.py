"""The language of the window: which there are, which is used, and how a text is said in it."""

import logging
from pathlib import Path
from typing import Final

import msgspec
from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QObject, QTranslator

from potluck_app import catalogue
from potluck_app.resources import asset

logger = logging.getLogger(__name__)

CONTEXT: Final = "potluck"
_ENGLISH = "en"


def said(text: str) -> str:
    """Return a text in the language of the window."""
    return QCoreApplication.translate(CONTEXT, text) if text else text


def languages() -> dict[str, str]:
    """Return the languages that there are: their codes, and their names in themselves."""
    found = {_ENGLISH: "English"}
    for path in sorted(asset("languages").glob("*.json")):
        try:
            found[path.stem] = msgspec.json.decode(path.read_bytes(), type=catalogue.File).name
        except (OSError, msgspec.MsgspecError):
            logger.exception("the words of a language cannot be read")
    return found


def chosen(choice: str) -> str:
    """Return the code of the language to use: the chosen one, or for "auto" that of the system."""
    known = languages()
    if choice in known:
        return choice
    wanted = (name.partition("-")[0] for name in QLocale.system().uiLanguages())
    return next((code for code in wanted if code in known), _ENGLISH)


class _Words(QTranslator):
    """Says the texts of the window in one language."""

    def __init__(self, words: catalogue.Catalogue, parent: QObject) -> None:
        super().__init__(parent)
        self._words = words

    def isEmpty(self) -> bool:
        return False

    def translate(  # pyright: ignore[reportIncompatibleMethodOverride] - None: another one may know
        self, context: str, text: str, disambiguation: str | None = None, n: int = -1
    ) -> str | None:
        return self._words.of(text) if context == CONTEXT else None


def use(app: QCoreApplication, code: str) -> list[QTranslator]:
    """Say all texts from now on in a language. What is shown already stays as it is.

    Returns:
        What was installed, the words of Qt's own dialogs and ours.
    """
    path = asset("languages", f"{code}.json")
    if code == _ENGLISH:
        return []
    installed: list[QTranslator] = []
    own = QTranslator(app)
    folder = Path(QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath))
    if own.load(f"qtbase_{code}", str(folder)):
        installed.append(own)
    try:
        installed.append(_Words(catalogue.read(path), app))
    except (OSError, msgspec.MsgspecError):
        logger.exception("the words of a language cannot be read")
    for translator in installed:
        app.installTranslator(translator)
    return installed
