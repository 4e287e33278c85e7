"""How configurations grow without making old files unreadable."""

from __future__ import annotations

ADDED_LATER = {"added_later": True}
"""Metadata of a field that files of older versions lack; it then takes its default."""
