"""Formulas of TeX in Markdown, shown as code: Qt's Markdown would eat their signs. Pure.

In Unicode where that can show them, else as they were written.
"""

import re
from functools import lru_cache

from potluck_app.viewmodels.tex import readable

# A dollar opens a formula if text follows at once, and closes it after text and before no digit:
# "between $5 and $10" is no formula. Chinese is written around a formula without spaces.
_FORMULA = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<escaped>\\\$)"
    r"|\$\$(?P<block>[^$]+?)\$\$"
    r"|\\\[(?P<bracket>.+?)\\\]"
    r"|\\\((?P<round>.+?)\\\)"
    r"|(?<![A-Za-z0-9_$\\])\$(?P<inline>(?![\s\d.,]+\s)\S(?:[^$\n]*?\S)?)(?<!\\)\$(?![A-Za-z0-9_$])",
    re.DOTALL,
)


def formulas_as_code(markdown: str) -> str:
    """Return the text with each formula as code: in the line, or on lines of its own."""
    if "$" not in markdown and "\\(" not in markdown and "\\[" not in markdown:
        return markdown
    return _FORMULA.sub(_as_code, markdown)


def _as_code(found: re.Match[str]) -> str:
    if found["code"] is not None or found["escaped"] is not None:
        return found[0]
    inline = found["round"] or found["inline"]
    if inline is not None:
        return _code(_shown(inline).replace("\n", " "))
    display = found["block"] or found["bracket"]
    lines = [_code(line) for line in _shown(display).splitlines() if line.strip()]
    return "\n\n" + "  \n".join(lines) + "\n\n"


@lru_cache(maxsize=512)  # a text that grows is read again for each piece
def _shown(formula: str) -> str:
    return readable(formula) or formula


def _code(formula: str) -> str:
    text = formula.strip()
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
