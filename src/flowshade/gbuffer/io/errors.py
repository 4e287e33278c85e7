"""The one error that readers and writers of clips raise."""

from __future__ import annotations

from flowshade.errors import FlowshadeError


class ClipError(FlowshadeError):
    """A clip that cannot be read or written as asked."""
