"""Messages of a `wheels` connection: a computer takes files of the engine from another one of its home.

Files are named by their SHA-256 alone. Whoever lacks them dials, asks what is there, and takes some of it; they
travel as tensors do, in `chunk`s. Packages of a newer Potluck are such files, too; the main computer tells of them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.wire.fields import Hex, Name, Size, Text
from potluck.wire.messages import Message, NeedTensor, Told

MAX_ASKED = 256  # an engine has some thirty
MAX_RELEASE = 256 << 10  # characters of an envelope; ten packages take 4 kB


class WheelHere(msgspec.Struct, frozen=True, kw_only=True):
    """A file, and how many bytes of it are there."""

    digest: Hex
    nbytes: Size
    whole: bool


class WantWheels(Message, frozen=True, tag="want_wheels"):
    """Which of these files do you have? With `fetch`: get those that you lack, if you can."""

    digests: Annotated[tuple[Hex, ...], Meta(max_length=MAX_ASKED)]
    fetch: bool = False


class WheelsHere(Told, frozen=True, tag="wheels_here"):
    """Those that are there, also in part. While it is `fetching`, it is asked again."""

    wheels: Annotated[tuple[WheelHere, ...], Meta(max_length=MAX_ASKED)] = ()
    fetching: bool = False
    message: Text = ""  # why it does not fetch them


class SendWheels(Message, frozen=True, tag="send_wheels"):
    """Send these files, each from an offset on. Followed by `chunk`s; ends when all were answered."""

    wheels: Annotated[tuple[NeedTensor, ...], Meta(max_length=MAX_ASKED)]


class TellRelease(Message, frozen=True, tag="tell_release"):
    """There is a newer Potluck, whose packages I give out. The receiver checks who has signed that."""

    envelope: Annotated[str, Meta(max_length=MAX_RELEASE)]


class ReleaseHeard(Told, frozen=True, kw_only=True, tag="release_heard"):
    """The version that the answering computer runs, and what it does about the newer one."""

    version: Name
    message: Text = ""
