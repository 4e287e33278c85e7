"""What can go wrong between a player and the server."""

from __future__ import annotations

from flowshade.errors import FlowshadeError


class PlayError(FlowshadeError):
    """Play cannot go on as asked."""


class ProtocolError(PlayError):
    """A message that is not what the protocol says."""
