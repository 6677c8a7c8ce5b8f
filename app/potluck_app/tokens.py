"""The design tokens: every colour that the window uses, for light and for dark. Without Qt."""

from typing import Final, Literal, TypeAlias

from msgspec import Struct

Tone: TypeAlias = Literal["ok", "warn", "err", "accent", "neutral"]


class Tokens(Struct, frozen=True, kw_only=True):
    """The colours of one theme.

    `x_soft` is a background for text in `x`; `accent_on` is the colour of text on `accent`.
    """

    bg: str
    surface: str
    surface2: str
    sidebar: str
    border: str
    border_strong: str
    text: str
    text2: str
    text3: str
    accent: str
    accent_hover: str
    accent_on: str
    accent_soft: str
    ok: str
    ok_soft: str
    warn: str
    warn_soft: str
    warn_fill: str  # of a bar: brighter than text may be
    err: str
    err_soft: str
    code: str
    bubble: str

    def color(self, tone: Tone) -> str:
        """Return the colour that shows a meaning."""
        return self.text3 if tone == "neutral" else getattr(self, tone)

    def fill(self, tone: Tone) -> str:
        """Return the colour of a bar that shows a meaning."""
        return self.warn_fill if tone == "warn" else self.color(tone)


LIGHT: Final = Tokens(
    bg="#FAFAFB",
    surface="#FFFFFF",
    surface2="#F3F4F6",
    sidebar="#F3F4F7",
    border="#E3E5EA",
    border_strong="#868C99",
    text="#16181D",
    text2="#565C69",
    text3="#697080",
    accent="#3B5BDB",
    accent_hover="#3150C8",
    accent_on="#FFFFFF",
    accent_soft="#E8EDFD",
    ok="#176F31",
    ok_soft="#DDF4E4",
    warn="#8F5A00",
    warn_soft="#FFF1D6",
    warn_fill="#D47200",
    err="#C4232B",
    err_soft="#FDE7E8",
    code="#F5F6F8",
    bubble="#EEF1FB",
)

DARK: Final = Tokens(
    bg="#131519",
    surface="#1A1D22",
    surface2="#22262D",
    sidebar="#16181D",
    border="#2B3038",
    border_strong="#6B7483",
    text="#ECEEF2",
    text2="#A9B0BD",
    text3="#8B93A1",
    accent="#748FFC",
    accent_hover="#91A7FF",
    accent_on="#0B1020",
    accent_soft="#1B2443",
    ok="#4ADE80",
    ok_soft="#123020",
    warn="#F5B544",
    warn_soft="#33270F",
    warn_fill="#F5B544",
    err="#FF7B82",
    err_soft="#3A1719",
    code="#101216",
    bubble="#232A40",
)

NODE_COLORS: Final = ("#6C8CFF", "#12B886", "#F59F00", "#F06595", "#9F7AEA", "#22B8CF")
"""One per computer, the same in both themes. Never the only sign: the name always stands beside it."""

ON_NODE_COLOR: Final = "#0B1020"


def node_color(index: int) -> str:
    """Return the colour of a computer."""
    return NODE_COLORS[index % len(NODE_COLORS)]
