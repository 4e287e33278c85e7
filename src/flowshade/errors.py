"""Errors a user can act on. Each message says what was received, what was expected and what to do next."""

from __future__ import annotations


class FlowshadeError(ValueError):
    """Base of the package's own errors; the command line prints them as one sentence and exits with 2."""


class MissingDependencyError(FlowshadeError):
    """A package that this function needs is not installed."""


class PromptError(FlowshadeError):
    """A prompt that cannot be encoded as asked."""


class StyleError(FlowshadeError):
    """An unknown style, or a styles file that cannot be read."""


class CheckpointError(FlowshadeError):
    """Weights that are missing, or are not what their name promises."""


def reason(error: BaseException) -> str:
    """What another library says, on one line and printable: damaged files get their bytes into messages."""
    text = " ".join(str(error).split())
    return "".join(letter if letter.isprintable() else "?" for letter in text) or type(error).__name__
