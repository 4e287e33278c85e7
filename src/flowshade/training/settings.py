"""A run's settings: some replaced before it begins, and what is different when it goes on."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowshade.errors import FlowshadeError

if TYPE_CHECKING:
    from flowshade.training.trainer import TrainConfig

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


def changed(config: TrainConfig, assignments: Sequence[str]) -> TrainConfig:
    """A configuration with some of its values replaced.

    Args:
        config: what to begin with.
        assignments: `path.to.field=value`; a stage goes by its name, a value is JSON (a string may go without quotes).

    Raises:
        FlowshadeError: no such field, or a value of another type than the field's.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise FlowshadeError(f"a setting was given as {assignment!r}; expected NAME=VALUE, such as interval=2.5.")
        config = _replaced(config, path.split("."), _parsed(text), path)
    return config


def _replaced(holder: Any, names: Sequence[str], value: Any, path: str) -> Any:
    first, rest = names[0], names[1:]
    fields = {field.name for field in dataclasses.fields(holder)}
    stages = {stage.name: stage for stage in getattr(holder, "stages", ())}
    if first in stages and rest:
        stages[first] = _replaced(stages[first], rest, value, path)
        return dataclasses.replace(holder, stages=tuple(stages.values()))
    old = getattr(holder, first) if first in fields else None
    if first not in fields or dataclasses.is_dataclass(old) != bool(rest):
        known = sorted((fields | stages.keys()) - {"stages"})
        raise FlowshadeError(f"no setting {path!r}: {first!r} is not one value among {', '.join(known)}.")
    new = (
        _replaced(old, rest, value, path) if rest else _fitting(value, typing.get_type_hints(type(holder))[first], path)
    )
    return dataclasses.replace(holder, **{first: new})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _fitting(value: Any, hint: Any, path: str) -> Any:
    """The value as a field of this type holds it."""
    parts = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return None if value is None and type(None) in parts else _fitting(value, parts[0], path)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        each = parts[:1] * len(value) if parts[1:] == (...,) else parts
        if len(each) == len(value):
            return tuple(_fitting(one, own, path) for one, own in zip(value, each, strict=True))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint or (typing.get_origin(hint) is typing.Literal and value in parts):
        return value
    expected = getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)
    raise FlowshadeError(f"setting {path} got {json.dumps(value)}; expected {expected}.")
