"""What a run was begun with, and what is different now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT = "nothing"


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings as JSON knows them that are not the same: `path.of.it was -> is`, in the order of their names."""
    changed = []
    for name in sorted(before.keys() | now.keys()):
        was, is_ = before.get(name, ABSENT), now.get(name, ABSENT)
        if isinstance(was, Mapping) and isinstance(is_, Mapping):
            changed += [f"{name}.{line}" for line in differing(was, is_)]
        elif was != is_:
            changed.append(f"{name} {_short(was)} -> {_short(is_)}")
    return changed


def _short(value: Any) -> Any:
    return "something" if isinstance(value, Mapping) else value
