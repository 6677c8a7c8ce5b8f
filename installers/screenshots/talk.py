"""The invented chats of the pictures."""

import base64
import time

from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QColor, QImage, QLinearGradient, QPainter

from potluck.cluster.loss import cannot_go_on, computer_lost
from potluck.errors import ContextExceededError, NotEnoughMemoryError
from potluck_app.chats.history import History
from potluck_app.chats.values import Attachment, Conversation, Message, Stats, new_id
from potluck_app.streams import _INTERRUPTED
from potluck_app.views.widgets.pictures import encoded

REPLY = '''Use a **slice in a generator** — it works for any sequence:

```python
def chunks(seq, n):
    """Yield slices of length n."""
    for i in range(0, len(seq), n):
        yield seq[i:i + n]   # the last one may be shorter

print(list(chunks(list(range(7)), 3)))
```

- `list(chunks(x, 3))` gives a list of lists
- for iterators use `itertools.batched` (Python 3.12+)
'''

_STATS = Stats(tokens=118, tokens_per_s=7.9, time_to_first_token_s=1.2, prompt_tokens=3010)
ANSWER = Message(role="assistant", text=REPLY, stats=_STATS)
RICH = Message(
    role="assistant",
    stats=_STATS,
    text="""## Two bulges

The **moon** pulls the near side more than the far side, so that the water has *two* bulges. See
[the physics](https://example.org/tides).

| Who pulls | Share | Period |
|:--|--:|--:|
| Moon | 68 % | 12.4 h |
| Sun | 32 % | 12.0 h |

> The tide-raising force falls with the cube of the distance.

1. New moon and full moon: *spring* tides
   - both pull along one line
2. Half moon: *neap* tides

The force is $F = 2GMmr/d^3$, and so:

$$\\frac{F_{moon}}{F_{sun}} = \\frac{M_m}{M_s}\\left(\\frac{d_s}{d_m}\\right)^3$$

---

```sh
curl --silent --location "https://example.org/tides?station=hamburg&days=14&format=json" | jq '.tides[] | {time, height}'
```

![a chart of the tides](https://example.org/tides.png)
""",
)
THOUGHTFUL = Message(
    role="assistant",
    stats=_STATS,
    text="<think>It is odd. Its digits sum to 13, so 3 is out. 7 x 55 = 385, no. 11: 3 - 9 + 1 = -5,"
    " no. 13 x 30 = 390, no. 17 x 23 = 391.</think>No: **391 = 17 x 23**.",
)
SEEN = Message(
    role="assistant", stats=_STATS, text="At a lake between mountains, early in the **morning**."
)
FRENCH = Message(
    role="assistant",
    stats=_STATS,
    text="Chère Madame Weber, merci de votre lettre. Nous viendrons **samedi**, vers midi.",
)
FAILED = Message(
    role="assistant",
    text="Dear Mrs. Weber, thank",
    status="failed",
    error=cannot_go_on(
        computer_lost("MacBook Air"), NotEnoughMemoryError(18_600_000_000, 14_600_000_000)
    ).message,
)
STOPPED = Message(role="assistant", text="Dear Mrs. Weber, thank", status="stopped", stats=_STATS)
INTERRUPTED = Message(
    role="assistant", text="Dear Mrs. Weber, thank", status="failed", error=_INTERRUPTED
)
TOO_BIG = NotEnoughMemoryError(28_700_000_000, 24_600_000_000).message
UNKEPT = (
    "The file of your chats, /home/anna/.local/share/potluck/chats.sqlite, cannot be used: it is damaged."
    " It stays as it is; what you write now is not kept. Restore it from a backup, or move it away to"
    " begin anew."
)
FORMULAS = Message(
    role="assistant",
    stats=_STATS,
    text=r"""For $ax^2 + bx + c = 0$ with $a \neq 0$, the solutions are

$$x_{1,2} = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}$$

1. The discriminant \(\Delta = b^2 - 4ac\) says how many there are.
2. If \(\Delta < 0\), they are complex: \(x \in \mathbb{C}\).

Their sum and product follow from the coefficients:

\[
x_1 + x_2 = -\frac{b}{a}, \qquad x_1 \cdot x_2 = \frac{c}{a}
\]

For large $n$, $\sum_{i=1}^{n} i = \frac{n(n+1)}{2} \approx \frac{n^2}{2}$. It costs $5 at most.
""",
)
TOO_LONG = Message(
    role="assistant",
    text="",
    status="failed",
    error=ContextExceededError(
        "the conversation has 2132",
        "Shorten it, start a new conversation, or load the model with a larger context.",
        context=2048,
    ).message,
    code="context_length_exceeded",
)


def question(text: str) -> Message:
    return Message(role="user", text=text)


def photo(name: str, width: int = 1200, height: int = 800, hue: int = 210) -> Attachment:
    """Draw a lake between mountains."""
    image = QImage(width, height, QImage.Format.Format_RGB32)
    painter = QPainter(image)
    sky = QLinearGradient(0, 0, 0, height * 0.7)
    sky.setColorAt(0, QColor.fromHsv(hue, 140, 230))
    sky.setColorAt(1, QColor.fromHsv(hue, 30, 250))
    painter.fillRect(image.rect(), sky)
    painter.setPen(Qt.PenStyle.NoPen)
    for middle, peak, value in ((0.25, 0.2, 150), (0.7, 0.3, 120), (0.5, 0.5, 90)):
        painter.setBrush(QColor.fromHsv(hue, 90, value))
        corners = ((middle - 0.45, 0.7), (middle, peak), (middle + 0.45, 0.7))
        painter.drawPolygon([QPointF(x * width, y * height) for x, y in corners])
    painter.fillRect(0, height * 7 // 10, width, height, QColor.fromHsv(hue, 120, 180))
    painter.end()
    return Attachment(name=name, picture=base64.b64encode(encoded(image)).decode())


def chat(title: str, asked: Message, answer: Message) -> Conversation:
    """Return a conversation of one question and its answer."""
    messages = (replace(asked, id="q"), replace(answer, id="r", parent="q"))
    return Conversation(id=new_id(), title=title, updated=time.time(), leaf="r", messages=messages)


def conversations(history: History) -> list[Conversation]:
    """Write chats of several days; the newest has a complete reply."""
    now = time.time()
    newest = Conversation(
        id=new_id(),
        title="Split a list in Python",
        updated=now,
        leaf="r2",
        messages=(
            Message(id="q", role="user", text="How do I split a list into chunks of n in Python?"),
            Message(id="r1", parent="q", role="assistant", text="Use a loop.", stats=_STATS),
            Message(id="r2", parent="q", role="assistant", text=REPLY, stats=_STATS),
        ),
    )
    others = [
        ("Recipe for four people", 0.02),
        ("Translate the letter", 0.03),
        ("Garden irrigation plan", 3),
        ("Holiday packing list", 5),
    ]
    result = [newest] + [
        Conversation(id=new_id(), title=title, updated=now - days * 86400) for title, days in others
    ]
    for conversation in result:
        history.save(conversation)
    return result


def many() -> list[Conversation]:
    """Return chats for a long list; they are not written."""
    titles = (
        "Why is the sky blue in the afternoon and red in the evening, seen from the same balcony?",
        "Letter to the landlord about the heating",
        "Python",
        "Quiz for a birthday of eight-year-olds",
        "Donaudampfschifffahrtsgesellschaftskapitänsmütze",
        "日本への旅行",
    )
    now = time.time()
    return [
        Conversation(id=new_id(), title=title, updated=now - (place + 1) * 2 * 86400)
        for place, title in enumerate(titles * 4)
    ]
