"""Formulas of TeX as a line of Unicode."""
# ruff: noqa: RUF001 - signs of mathematics look like letters

import pytest

from potluck_app.viewmodels.tex import readable


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"x_{1,2} = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "x₁,₂ = (−b ± √(b² − 4ac))/(2a)"),
        (r"\sum_{i=1}^{n} i = \frac{n(n+1)}{2}", "∑ᵢ₌₁ⁿ i = n(n+1)/2"),
        (r"e^{i\pi} + 1 = 0", "e^(iπ) + 1 = 0"),
        (r"\int_0^\infty e^{-x^2}\,dx", "∫₀^∞ e^(−x²) dx"),
        (r"\lim_{x \to 0} \frac{\sin x}{x} = 1", "lim_(x → 0) ((sin x)/x) = 1"),
        (r"\left\{ x \in \mathbb{R} \mid x > 0 \right\}", "{ x ∈ ℝ | x > 0 }"),
        (r"\left. x^2 \right|_0^1", "x² |₀¹"),
        (r"\text{speed} = \frac{\text{distance}}{\text{time}}", "speed = distance/time"),
        (r"\vec{F} = m\vec{a}", "F⃗ = ma⃗"),
        (r"90^\circ, f'(x), \sqrt[3]{27}", "90°, f′(x), ³√27"),
        (r"\frac{\partial f}{\partial x}", "∂f/∂x"),
        (r"CO_2, 10^{-3}, A^T", "CO₂, 10⁻³, Aᵀ"),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "a = b\nc = d"),
    ],
)
def test_usual_formulas_are_a_line_of_unicode(formula: str, text: str) -> None:
    assert readable(formula) == text


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"\frac{1}{2}mv^2", "(1/2)mv²"),
        (r"2\frac{a}{b} + 1", "2(a/b) + 1"),
        (r"\left(\frac{a}{b}\right)^3", "(a/b)³"),
        (r"\frac{a+b}{c+d}", "(a+b)/(c+d)"),
        (r"\frac{a}{2b}", "a/(2b)"),
        (r"\frac{1}{\frac{1}{a}+\frac{1}{b}}", "1/(1/a+1/b)"),
        (r"\sqrt{x}y", "√(x)y"),
        (r"\sqrt{2x}", "√(2x)"),
        (r"a/\frac{b}{c}", "a/(b/c)"),
        (r"x \div \frac{a}{b}", "x ÷ (a/b)"),
        (r"x : \frac{a}{b}", "x : (a/b)"),
        (r"\frac{a}{b}/c", "a/b/c"),
        (r"a/{\frac{b}{c}}", "a/(b/c)"),
        (r"{\frac{a}{b}}^2 + {x}^2", "(a/b)² + x²"),
        (r"x = {\frac{a}{b}}", "x = a/b"),
    ],
)
def test_brackets_keep_what_belongs_together(formula: str, text: str) -> None:
    assert readable(formula) == text


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"a \\[6pt] b", "a\nb"),
        (r"a \\*[-0.5 em] b", "a\nb"),
        (r"a \\[2\baselineskip] b", "a\nb"),
        (r"a \\* b", "a\nb"),
        (r"a \\ [0, 1]", "a\n[0, 1]"),
        (r"a \\[0, 1]", "a\n[0, 1]"),
    ],
)
def test_the_height_of_a_new_line_is_not_shown(formula: str, text: str) -> None:
    assert readable(formula) == text


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"O(n\log n)", "O(n log n)"),
        (r"2\sin x", "2 sin x"),
        (r"f(n)\log n + x^2\cos x", "f(n) log n + x² cos x"),
        (r"-\sin(\cos x)", "−sin(cos x)"),
        (r"2\operatorname{rank}A", "2 rank A"),
        (r"\sin\left(x\right)", "sin(x)"),
    ],
)
def test_a_function_is_read_apart_from_its_factor(formula: str, text: str) -> None:
    assert readable(formula) == text


@pytest.mark.parametrize(
    "formula",
    [
        "_" * 1999,
        r"\sqrt" * 300,
        r"\bar" * 400,
        r"\frac" * 400,
        r"\mathbf" * 200 + "x",
        r"\sqrt[" * 300,
        "{" * 999 + "}" * 999,
    ],
)
def test_a_formula_that_is_too_deep_stays_as_it_is(formula: str) -> None:
    assert readable(formula) is None


@pytest.mark.parametrize(
    "formula",
    [
        r"\begin{pmatrix} 1 & 2 \end{pmatrix}",
        r"\underbrace{a + b}_{c}",
        r"\frac{a}{b",
        r"\frac{a}",
        r"a}b",
        r"\text{a \textbf{b}}",
        r"\overline{abc}",
        "{" * 100 + "}" * 100,
        "x" * 2001,
        "\\",
        "x^",
    ],
)
def test_what_is_not_known_whole_stays_as_it_is(formula: str) -> None:
    assert readable(formula) is None
