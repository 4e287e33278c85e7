"""Errors a user can act on. Each message says what was received, what was expected and what to do next."""

from __future__ import annotations

from collections.abc import Iterable


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


def listed(names: Iterable[object], most: int = 5) -> str:
    """Names as messages give them: the first few, and how many more there are."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
