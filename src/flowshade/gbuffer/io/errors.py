"""The one error that readers and writers of clips raise."""

from __future__ import annotations

from flowshade.errors import FlowshadeError


class ClipError(FlowshadeError):
    """A clip that cannot be read or written as asked."""


def reason(error: BaseException) -> str:
    """What another library says, on one line and printable: damaged files get their bytes into messages."""
    text = " ".join(str(error).split())
    return "".join(letter if letter.isprintable() else "?" for letter in text) or type(error).__name__
