"""The protocol, and the client's copy of it."""

from __future__ import annotations

from pathlib import Path

import flowshade.play
from flowshade.play.protocol import Command, FrameHeader, Input, decode, encode, pack_frame, typescript, unpack_frame


def test_the_clients_types_are_these() -> None:
    path = Path(flowshade.play.__file__).parent / "client" / "src" / "protocol.ts"
    assert path.read_text(encoding="utf-8") == typescript(), "run: python -m flowshade.play.protocol"


def test_messages_come_back_as_they_were() -> None:
    for message in (Input(id=3, forward=-0.5, throw=True), Command(action="record")):
        assert decode(encode(message)) == message


def test_frames_come_back_as_they_were() -> None:
    header = FrameHeader(kind="frame", id=1, tick=2, input=3, look=4, view="albedo", mime="image/jpeg")
    assert unpack_frame(pack_frame(header, b"\xff\xd8")) == (header, b"\xff\xd8")
