"""Formulas as code."""

import pytest

from potluck_app.viewmodels.formulas import formulas_as_code


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("Then $x_1$ and $a + b$.", "Then `x₁` and `a + b`."),
        ("从$x$得到$y_1$。", "从`x`得到`y₁`。"),
        (r"So \(\frac{a}{b}\) is.", "So `a/b` is."),
        (r"So \(\unknown{a}{b}\) is.", r"So `\unknown{a}{b}` is."),
        ("So\n$$\na = b \\\\\nc\n$$\nis.", "So\n\n\n`a = b`  \n`c`\n\n\nis."),
        ("So\n$$\n\\unknown \\\\\nc\n$$\nis.", "So\n\n\n`\\unknown \\\\`  \n`c`\n\n\nis."),
        (r"So \[ e^x \] is.", "So \n\n`eˣ`\n\n is."),
    ],
)
def test_a_formula_becomes_code(markdown: str, shown: str) -> None:
    assert formulas_as_code(markdown) == shown


@pytest.mark.parametrize(
    "markdown",
    [
        "It costs $5 and $10.",
        "From $5-$10 each",
        "`$x$` and ``a`$y$`` stay",
        r"\$x\$ is escaped",
        "an open $x",
    ],
)
def test_money_and_code_stay_as_they_are(markdown: str) -> None:
    assert formulas_as_code(markdown) == markdown
