"""Errors of this package."""

from __future__ import annotations

from flowshade.errors import FlowshadeError


class WorldError(FlowshadeError):
    """A world that cannot be made or loaded."""
