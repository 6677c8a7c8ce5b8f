"""The style sheet, made from the tokens: it changes what Qt's Fusion style draws differently.

A widget is selected by dynamic properties, not by its name: `kind` of a button or a label, `card`
of a frame. Radii: pill 9, control 8, navigation 10, card 12, composer and bubble 14. Spacing is 4,
8, 12, 16, 24 or 32.
"""

import re
from collections.abc import Callable

from potluck_app.tokens import Tokens

_FONT_SIZE = re.compile(r"font-size: (\d+)px")


def stylesheet(t: Tokens, mono: str, px: Callable[[int], int]) -> str:
    """Return the style sheet of the whole application; `px` scales the sizes of text."""
    parts = _surfaces(t), _labels(t, mono), _buttons(t), _inputs(t, mono), _lists(t), _bars(t)
    return _FONT_SIZE.sub(lambda found: f"font-size: {px(int(found[1]))}px", "".join(parts))


def _surfaces(t: Tokens) -> str:
    return f"""
QMainWindow, QDialog, QWidget[page="true"] {{ background: {t.bg}; }}
QWidget[side="true"] {{ background: {t.sidebar}; border: none; border-right: 1px solid {t.border}; }}
QFrame[card="true"] {{ background: {t.surface}; border: 1px solid {t.border}; border-radius: 12px; }}
QFrame[card="attention"] {{
    background: {t.surface}; border: 1px solid {t.accent}; border-radius: 12px;
}}
QFrame[bubble="true"] {{ background: {t.bubble}; border: none; border-radius: 14px; }}
QFrame[code="true"] {{ background: {t.code}; border: 1px solid {t.border}; border-radius: 12px; }}
QFrame[chip="true"] {{ background: {t.surface}; border: 1px solid {t.border}; border-radius: 8px; }}
QWidget[drawer="true"] {{
    background: {t.sidebar}; border: none; border-left: 1px solid {t.border};
}}
QFrame[composer="true"] {{
    background: {t.surface}; border: 1px solid {t.border_strong}; border-radius: 14px;
}}
QFrame[composer="focused"] {{
    background: {t.surface}; border: 1px solid {t.accent}; border-radius: 14px;
}}
QFrame[tone="info"] {{ background: {t.accent_soft}; border: none; border-radius: 8px; }}
QFrame[tone="warning"] {{ background: {t.warn_soft}; border: none; border-radius: 8px; }}
QFrame[tone="error"] {{ background: {t.err_soft}; border: none; border-radius: 8px; }}
QFrame[rule="true"] {{ background: {t.border}; border: none; max-height: 1px; min-height: 1px; }}
QToolTip {{
    background: {t.surface2}; color: {t.text}; border: 1px solid {t.border}; padding: 4px 8px;
}}
QMenu {{
    background: {t.surface}; color: {t.text}; border: 1px solid {t.border}; padding: 6px;
}}
QMenu::item {{ padding: 7px 28px 7px 12px; border-radius: 6px; }}
QMenu::item:selected {{ background: {t.accent_soft}; color: {t.text}; }}
QMenu::item:disabled {{ color: {t.text3}; }}
QMenu::separator {{ height: 1px; background: {t.border}; margin: 6px 4px; }}
QMenu::icon {{ padding-left: 8px; }}
QMenu::indicator {{ width: 16px; height: 16px; background: transparent; border: none; }}
QComboBox {{
    background: {t.surface}; color: {t.text}; border: 1px solid {t.border_strong}; border-radius: 8px;
    padding: 0 10px; min-height: 33px;
}}
QComboBox::drop-down {{ border: none; width: 24px; }}
QComboBox::down-arrow {{ image: none; }}
QHeaderView::section {{
    background: {t.surface}; color: {t.text2}; border: none; border-bottom: 1px solid {t.border};
    padding: 4px 6px; font-size: 12px;
}}
"""


def _labels(t: Tokens, mono: str) -> str:
    return f"""
QLabel {{ color: {t.text}; background: transparent; border: none; }}
QLabel[kind="title"] {{ font-size: 22px; font-weight: 600; }}
QLabel[kind="section"] {{ font-size: 16px; font-weight: 600; }}
QLabel[kind="strong"] {{ font-weight: 600; }}
QLabel[kind="body2"] {{ color: {t.text2}; }}
QLabel[kind="meta"] {{ color: {t.text2}; font-size: 12px; }}
QLabel[kind="group"] {{ color: {t.text2}; font-size: 12px; }}
QLabel[kind="small"] {{ color: {t.text2}; font-size: 11px; }}
QLabel[kind="error"] {{ color: {t.err}; }}
QLabel[kind="code"] {{ font-size: 28px; font-weight: 600; }}
QLabel[kind="mono"] {{ font-family: "{mono}"; font-size: 13px; }}
QLabel[tone="info"] {{ color: {t.accent}; }}
QLabel[tone="warning"] {{ color: {t.warn}; }}
QLabel[tone="error"] {{ color: {t.err}; }}
QLabel[pill="ok"] {{ color: {t.ok}; background: {t.ok_soft}; }}
QLabel[pill="warn"] {{ color: {t.warn}; background: {t.warn_soft}; }}
QLabel[pill="err"] {{ color: {t.err}; background: {t.err_soft}; }}
QLabel[pill="accent"] {{ color: {t.accent}; background: {t.accent_soft}; }}
QLabel[pill="neutral"] {{ color: {t.text2}; background: {t.surface2}; }}
QLabel[pill] {{ font-size: 12px; font-weight: 600; border-radius: 9px; padding: 1px 10px 2px 10px; min-height: 16px; }}
"""


def _buttons(t: Tokens) -> str:
    # The focus ring takes the place of the border, so nothing moves.
    return f"""
QPushButton {{
    background: {t.surface}; color: {t.text}; border: 1px solid {t.border}; border-radius: 8px;
    padding: 0 13px; min-height: 32px; max-height: 32px;
}}
QPushButton:hover {{ background: {t.surface2}; }}
QPushButton:pressed {{ background: {t.border}; }}
QPushButton:disabled {{ color: {t.text3}; }}
QPushButton:focus {{ border: 2px solid {t.accent}; padding: 0 12px; min-height: 30px; max-height: 30px; }}
QPushButton[kind="primary"] {{
    background: {t.accent}; color: {t.accent_on}; border-color: {t.accent}; font-weight: 600;
}}
QPushButton[kind="primary"]:hover {{ background: {t.accent_hover}; border-color: {t.accent_hover}; }}
QPushButton[kind="primary"]:disabled {{
    background: {t.surface2}; color: {t.text3}; border-color: {t.border};
}}
QPushButton[kind="primary"]:focus {{ border: 2px solid {t.text}; }}
QPushButton[kind="danger"] {{ color: {t.err}; }}
QPushButton[kind="danger"]:hover {{ background: {t.err_soft}; }}
QPushButton[kind="choice"] {{ text-align: left; }}
QPushButton[kind="choice"]:checked {{
    background: {t.accent_soft}; color: {t.accent}; border-color: {t.accent};
}}
QPushButton[kind="card"] {{
    border-radius: 12px; padding: 0; min-height: 52px; max-height: 400px;
}}
QPushButton[kind="card"]:focus {{ min-height: 50px; max-height: 398px; }}
QToolButton {{
    background: transparent; color: {t.text2}; border: 2px solid transparent; border-radius: 8px;
    padding: 0 6px; min-height: 28px; font-size: 12px;
}}
QToolButton:hover {{ background: {t.surface2}; color: {t.text}; }}
QToolButton:pressed {{ background: {t.border}; }}
QToolButton:focus {{ border-color: {t.accent}; }}
QToolButton:disabled {{ color: {t.text3}; }}
QToolButton::menu-indicator {{ image: none; }}
QToolButton[kind="inline"] {{ border: none; padding: 0; min-height: 32px; }}
QToolButton[kind="picture"] {{ padding: 0; min-height: 0; }}
QToolButton[kind="rail"] {{
    border-radius: 10px; font-size: 11px; padding: 5px 0 3px 0; min-width: 56px; min-height: 47px;
}}
QToolButton[kind="rail"]:checked {{ background: {t.accent_soft}; color: {t.accent}; }}
QToolButton[kind="picker"] {{
    background: {t.surface}; color: {t.text}; border: 1px solid {t.border}; font-size: 14px;
    padding: 0 12px; min-height: 32px;
}}
QToolButton[kind="picker"]:hover {{ background: {t.surface2}; }}
QToolButton[kind="picker"]:focus {{ border: 2px solid {t.accent}; padding: 0 11px; min-height: 30px; }}
QCheckBox {{ color: {t.text}; spacing: 8px; }}
"""


def _inputs(t: Tokens, mono: str) -> str:
    return f"""
QLineEdit {{
    background: {t.surface}; color: {t.text}; border: 1px solid {t.border}; border-radius: 8px;
    padding: 0 10px; min-height: 33px; max-height: 33px;
    selection-background-color: {t.accent}; selection-color: {t.accent_on};
}}
QLineEdit[kind="field"] {{ border-color: {t.border_strong}; }}
QLineEdit[wrong="true"] {{ border-color: {t.err}; }}
QLineEdit:focus {{ border: 2px solid {t.accent}; padding: 0 9px; min-height: 31px; max-height: 31px; }}
QLineEdit[kind="mono"] {{ font-family: "{mono}"; font-size: 13px; }}
QTextEdit, QPlainTextEdit {{
    background: transparent; color: {t.text}; border: none;
    selection-background-color: {t.accent}; selection-color: {t.accent_on};
}}
QPlainTextEdit[kind="field"] {{
    background: {t.surface}; border: 1px solid {t.border_strong}; border-radius: 8px; padding: 6px 8px;
}}
QPlainTextEdit[kind="field"]:focus {{ border: 2px solid {t.accent}; padding: 5px 7px; }}
QLineEdit[kind="row"] {{ min-height: 27px; max-height: 27px; }}
QTextBrowser[kind="meta"] {{ color: {t.text2}; font-size: 12px; }}
QTextEdit[kind="body2"] {{ color: {t.text2}; }}
"""


def _lists(t: Tokens) -> str:
    return f"""
QListView {{ background: transparent; border: none; outline: none; }}
QScrollArea {{ background: transparent; border: none; }}
QScrollArea > QWidget > QWidget {{ background: transparent; }}
QScrollBar:vertical {{ background: transparent; width: 10px; margin: 2px; }}
QScrollBar::handle:vertical {{ background: {t.border}; border-radius: 3px; min-height: 32px; }}
QScrollBar::handle:vertical:hover {{ background: {t.border_strong}; }}
QScrollBar:horizontal {{ background: transparent; height: 10px; margin: 2px; }}
QScrollBar::handle:horizontal {{ background: {t.border}; border-radius: 3px; min-width: 32px; }}
QScrollBar::handle:horizontal:hover {{ background: {t.border_strong}; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
QAbstractScrollArea::corner {{ background: transparent; border: none; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
"""


def _bars(t: Tokens) -> str:
    return f"""
QSlider {{ min-height: 22px; }}
QSlider::groove:horizontal {{ height: 4px; background: {t.surface2}; border-radius: 2px; }}
QSlider::sub-page:horizontal {{ height: 4px; background: {t.accent}; border-radius: 2px; }}
QSlider::handle:horizontal {{
    width: 16px; height: 16px; margin: -6px 0; border-radius: 8px; background: {t.accent};
    border: none;
}}
QSlider::handle:horizontal:hover {{ background: {t.accent_hover}; }}
"""
