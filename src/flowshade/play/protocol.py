"""What browser and server say to each other: typed, versioned messages.

Text messages are JSON objects with a `type`; a binary message is a frame: four bytes, little endian, that give the
length of a JSON `FrameHeader`, the header, and the picture. `typescript()` writes the same types for the client.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from flowshade.play.errors import ProtocolError
from flowshade.types import CHANNELS

VERSION = 1
"""Raised with every change that an older client would not understand."""

LONGEST_PROMPT = 1000
"""Characters."""

LONGEST_LIST = 64

GENERATED, REFERENCE, SPLIT = "generated", "reference", "split"
VIEWS = (GENERATED, *CHANNELS, REFERENCE, SPLIT)


# From the browser -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message: asks for a session."""

    type: ClassVar[str] = "hello"
    version: int
    world: str | None = None
    """A kind of world; None takes the server's own."""
    seed: int | None = None
    prompt: str | None = None
    style: str | None = None


@dataclass(frozen=True, kw_only=True)
class Input:
    """What is held down now, and what was done since the last input. Axes are in [-1, 1], angles in radians."""

    type: ClassVar[str] = "input"
    id: int
    """Counts up; comes back with the first frame that shows it."""
    forward: float = 0.0
    right: float = 0.0
    up: float = 0.0
    fast: bool = False
    yaw: float = 0.0
    """Turn since the last input, positive to the left."""
    pitch: float = 0.0
    jump: bool = False
    throw: bool = False


@dataclass(frozen=True, kw_only=True)
class SetLook:
    """A new prompt and style, from the next window on."""

    type: ClassVar[str] = "set_look"
    prompt: str
    style: str


@dataclass(frozen=True, kw_only=True)
class SetView:
    """What is shown: a name in the welcome's `views`."""

    type: ClassVar[str] = "set_view"
    view: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """Something to be done once."""

    type: ClassVar[str] = "command"
    action: Literal[
        "pause", "resume", "step", "reset", "walk", "drive", "fly", "record", "stop_recording", "screenshot"
    ]


@dataclass(frozen=True, kw_only=True)
class Ack:
    """A frame has been shown; the server sends no more than a few that have not been."""

    type: ClassVar[str] = "ack"
    frame: int


# From the server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """A session has begun."""

    type: ClassVar[str] = "welcome"
    version: int
    session: str
    model: str
    world: str
    seed: int
    description: str
    worlds: list[str]
    """Kinds that `Hello.world` may name; empty when the world was given on the command line."""
    styles: list[str]
    views: list[str]
    prompt: str
    style: str
    height: int
    width: int
    fps: float
    interactive: bool
    """Whether inputs move anything: a clip only plays."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How the session fares; sent when something changes and about once a second."""

    type: ClassVar[str] = "status"
    mode: str
    view: str
    paused: bool
    recording: bool
    warming: bool
    """The model is not ready yet: buffers are shown."""
    fps: float
    """Frames shown a second."""
    window: int
    steps: int
    stride: int
    """World ticks a frame; above 1 the renderer has fallen behind."""
    dropped: int
    """World ticks that were never shown, in all."""
    work_ms: float
    """Making one window, milliseconds."""
    bound_ms: float
    """Within how long an input is in a picture on the server's side, as long as windows take what they take now."""
    note: str
    """What was changed to keep pace, in words; may be empty."""


@dataclass(frozen=True, kw_only=True)
class FrameHeader:
    """Goes before every picture."""

    type: ClassVar[str] = "frame"
    kind: Literal["frame", "screenshot"]
    id: int
    tick: int
    """World ticks since the session began."""
    input: int
    """The newest input that this frame shows; 0 = none yet."""
    look: int
    """How many look changes this frame shows."""
    view: str
    """What the picture is; buffers while the model warms up, whatever was asked for."""
    mime: str


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A recording has been written; both are addresses on this server."""

    type: ClassVar[str] = "recorded"
    video: str
    clip: str
    frames: int


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something was refused, or the session ended (`fatal`)."""

    type: ClassVar[str] = "problem"
    code: str
    text: str
    fatal: bool


ClientMessage = Hello | Input | SetLook | SetView | Command | Ack
ServerMessage = Welcome | Status | Recorded | Problem
Message = Any
"""An instance of one of the kinds that were asked for."""
Kinds = Mapping[str, type]
"""Kinds of messages by their `type`."""
CLIENT_KINDS: Kinds = {kind.type: kind for kind in get_args(ClientMessage)}
_HEADER = struct.Struct("<I")


def encode(message: Message) -> str:
    """A message as JSON."""
    return json.dumps({"type": message.type, **dataclasses.asdict(message)}, separators=(",", ":"))


def decode(text: str, kinds: Kinds = CLIENT_KINDS) -> Message:
    """Reads what a browser (or an engine, with other `kinds`) sent; every field is checked.

    Raises:
        ProtocolError: it is no JSON object, of no known type, or has fields that are missing, unknown or out of range.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("got a message that is not JSON; expected an object with a type.") from error
    if not isinstance(values, dict) or not isinstance(values.get("type"), str) or values["type"] not in kinds:
        raise ProtocolError(f"got no known message; expected an object whose type is one of {', '.join(kinds)}.")
    kind = kinds[values.pop("type")]
    hints = _fields(kind)
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    unknown, missing = set(values) - set(hints), required - set(values)
    if unknown or missing:
        raise ProtocolError(
            f"message {kind.type!r} has unknown fields {sorted(unknown)} and lacks {sorted(missing)}; "
            f"expected {', '.join(hints)}."
        )
    checked = {name: _check(kind.type, name, hints[name], value) for name, value in values.items()}
    return kind(**checked)


def pack(header: Mapping[str, Any], data: bytes) -> bytes:
    """Length of the header (4 bytes, little endian), the header as JSON, and data."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return _HEADER.pack(len(head)) + head + data


def unpack(message: bytes) -> tuple[dict[str, Any], memoryview]:
    """The inverse of `pack`.

    Raises:
        ProtocolError: there is no header.
    """
    try:
        (length,) = _HEADER.unpack_from(message)
        header = json.loads(message[_HEADER.size : _HEADER.size + length])
    except (struct.error, ValueError, RecursionError) as error:
        raise ProtocolError("got binary data without a header; expected its length, JSON, data.") from error
    if not isinstance(header, dict):
        raise ProtocolError(f"got the header {str(header)[:80]}; expected an object.")
    return header, memoryview(message)[_HEADER.size + length :]


def pack_frame(header: FrameHeader, picture: bytes) -> bytes:
    """A frame as one binary message."""
    return pack({"type": header.type, **dataclasses.asdict(header)}, picture)


def unpack_frame(message: bytes) -> tuple[FrameHeader, bytes]:
    """The inverse of `pack_frame`, for clients in Python."""
    values, picture = unpack(message)
    values.pop("type")
    return FrameHeader(**values), bytes(picture)


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Names and types of a message's fields; not to be changed."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _check(kind: str, name: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is list and isinstance(value, list) and len(value) <= LONGEST_LIST:
        return [_check(kind, name, get_args(hint)[0], each) for each in value]
    return _check_one(kind, name, hint, value)


def _check_one(kind: str, name: str, hint: Any, value: Any) -> Any:
    if isinstance(hint, UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ProtocolError(f"{kind}.{name} is not one of {', '.join(get_args(hint))}.")
    if hint is float and type(value) in (int, float) and abs(value) <= 1e3:  # NaN is not
        return float(value)
    if hint is int and type(value) is int and 0 <= value < 2**53:
        return value
    if hint is bool and type(value) is bool:
        return value
    if hint is str and type(value) is str and len(value) <= LONGEST_PROMPT:
        return value
    limits = {
        "float": "a number within 1000",
        "int": "a whole number from 0",
        "str": f"at most {LONGEST_PROMPT} letters",
    }
    wanted = limits.get(hint.__name__, hint.__name__)
    raise ProtocolError(f"{kind}.{name} cannot be {_short(value)}; expected {wanted}.")


def _short(value: object) -> str:
    return repr(value)[:80]


# For the client's compiler --------------------------------------------------------------------------------------------

_NAMES = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def typescript() -> str:
    """The protocol as TypeScript. Written to `client/src/protocol.ts`; a test holds the two in step."""
    groups = (("ClientMessage", get_args(ClientMessage)), ("ServerMessage", get_args(ServerMessage)))
    kinds = [*get_args(ClientMessage), *get_args(ServerMessage), FrameHeader]
    lines = [
        "// Written by `python -m flowshade.play.protocol`; edit protocol.py instead.",
        f"export const VERSION = {VERSION};",
        f"export const LONGEST_PROMPT = {LONGEST_PROMPT};",
    ]
    for kind in kinds:
        lines += ["", f"export interface {kind.__name__} {{", f'  type: "{kind.type}";']
        optional = {f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
        for name, hint in _fields(kind).items():
            lines.append(f"  {name}{'?' if name in optional else ''}: {_ts(hint)};")
        lines.append("}")
    for name, members in groups:
        lines += ["", f"export type {name} = {' | '.join(kind.__name__ for kind in members)};"]
    return "\n".join(lines) + "\n"


def _ts(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " | ".join(_ts(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return " | ".join(json.dumps(value) for value in get_args(hint))
    if get_origin(hint) is list:
        return f"{_ts(get_args(hint)[0])}[]"
    return _NAMES[hint]


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).with_name("client").joinpath("src", "protocol.ts").write_text(typescript(), encoding="utf-8")
