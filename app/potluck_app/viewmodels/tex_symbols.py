"""The signs of TeX that Unicode has, and which commands have which kind. See `tex`.

Source: The Comprehensive LaTeX Symbol List, and Unicode's chart of superscripts and subscripts.
"""
# ruff: noqa: RUF001 - signs of mathematics look like letters

from typing import Final

_GREEK = (
    "alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι"
    " kappa κ lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ"
    " phi φ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ"
    " Upsilon Υ Phi Φ Psi Ψ Omega Ω"
)
_SIGNS = (
    "cdot · times × div ÷ pm ± mp ∓ leq ≤ le ≤ leqslant ≤ geq ≥ ge ≥ geqslant ≥ neq ≠ ne ≠ approx ≈"
    " equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ infty ∞ partial ∂ nabla ∇ sum ∑ prod ∏ int ∫"
    " iint ∬ oint ∮ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖"
    " emptyset ∅ varnothing ∅ forall ∀ exists ∃ nexists ∄ neg ¬ lnot ¬ land ∧ wedge ∧ lor ∨ vee ∨"
    " to → rightarrow → longrightarrow ⟶ Rightarrow ⇒ implies ⟹ Longrightarrow ⟹ leftarrow ← gets ←"
    " Leftarrow ⇐ leftrightarrow ↔ Leftrightarrow ⇔ iff ⟺ mapsto ↦ uparrow ↑ downarrow ↓ ldots …"
    " dots … dotsc … cdots ⋯ dotsb ⋯ vdots ⋮ circ ∘ degree ° angle ∠ perp ⊥ parallel ∥ mid | vert |"
    " lvert | rvert | Vert ‖ lVert ‖ rVert ‖ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉"
    " star ⋆ ast ∗ bullet • oplus ⊕ otimes ⊗ odot ⊙ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ prime ′"
    " therefore ∴ because ∵ square □ blacksquare ■ checkmark ✓ lbrace { rbrace } colon :"
)


def _commands(names: str) -> frozenset[str]:
    return frozenset(f"\\{name}" for name in names.split())


_PAIRS = f"{_GREEK} {_SIGNS}".split()
SIGNS: Final = {f"\\{name}": sign for name, sign in zip(_PAIRS[::2], _PAIRS[1::2], strict=True)} | {
    "\\,": " ",
    "\\;": " ",
    "\\:": " ",
    "\\>": " ",
    "\\!": "",
    "\\ ": " ",
    "\\quad": "   ",
    "\\qquad": "   ",
    "\\\\": "\n",
    "\\{": "{",
    "\\}": "}",
    "\\|": "‖",
    "\\%": "%",
    "\\$": "$",
    "\\&": "&",
    "\\#": "#",
    "\\_": "_",
    "\\displaystyle": "",
    "\\textstyle": "",
    "\\limits": "",
    "\\nolimits": "",
    "\\nonumber": "",
}
CHARACTERS: Final = {"-": "−", "'": "′", "&": " ", "~": " ", "*": "∗"}
FRACTIONS: Final = _commands("frac dfrac tfrac cfrac")
FUNCTIONS: Final = _commands(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min sup inf lim"
    " limsup liminf det dim ker deg gcd arg hom Pr"
)
PLAIN: Final = _commands(
    "mathbf mathrm mathit mathsf mathtt mathcal mathscr mathfrak boldsymbol bm boxed"
)
"""Commands for a kind of letters, which a line of text does without."""
TEXTS: Final = _commands("text textbf textit textrm mbox")
SIZES: Final = _commands("left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr middle")
MARKS: Final = {
    "\\bar": "\u0304",
    "\\overline": "\u0304",
    "\\hat": "\u0302",
    "\\tilde": "\u0303",
    "\\vec": "\u20d7",
    "\\dot": "\u0307",
    "\\ddot": "\u0308",
}
"""Signs that combine with the letter before them."""
DOUBLE: Final = dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True))
ROWS: Final = frozenset(
    (
        "aligned",
        "align",
        "align*",
        "gather",
        "gather*",
        "gathered",
        "equation",
        "equation*",
        "split",
    )
)
"""Environments that are rows of formulas."""
SUPERSCRIPTS: Final = dict(
    zip(
        "0123456789+−=()abcdefghijklmnoprstuvwxyzT",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀ",
        strict=True,
    )
)
SUBSCRIPTS: Final = dict(
    zip("0123456789+−=()aehijklmnoprstuvx,", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ,", strict=True)
)
