"""The invented chats of the pictures."""

import time

from potluck_app.chats.history import History
from potluck_app.chats.values import Conversation, Message, Stats, new_id

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


def conversations(history: History) -> list[Conversation]:
    """Write chats of several days; the newest has a complete reply."""
    now = time.time()
    stats = Stats(tokens=118, tokens_per_s=7.9, time_to_first_token_s=1.2, prompt_tokens=3010)
    newest = Conversation(
        id=new_id(),
        title="Split a list in Python",
        updated=now,
        leaf="r2",
        messages=(
            Message(id="q", role="user", text="How do I split a list into chunks of n in Python?"),
            Message(id="r1", parent="q", role="assistant", text="Use a loop.", stats=stats),
            Message(id="r2", parent="q", role="assistant", text=REPLY, stats=stats),
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
