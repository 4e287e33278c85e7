"""What all sockets share: limits, what ends a connection, and messages that are read with care."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import WebSocket, WebSocketDisconnect

from flowshade.play import protocol
from flowshade.play.errors import ProtocolError
from flowshade.play.protocol import Kinds, Message, Problem

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What players and engines may ask of a server."""

    sessions: int = 8
    message_bytes: int = 16_384
    """Of a text message."""
    messages_a_second: float = 200.0
    burst: float = 2000.0
    """Messages at once: what an honest player sends while a busy machine does not listen."""
    idle_seconds: float = 900.0
    """A session without any input for this long ends."""
    hello_seconds: float = 10.0
    unshown_frames: int = 12
    """Frames on their way to a browser that it has not confirmed; further ones give way to newer ones."""
    unshown_seconds: float = 0.25
    """The same when two frames or more have been on their way for so long."""
    push_bytes: int = 0
    """Of a window that an engine pushes; 0 = pushing is off."""
    push_streams: int = 16
    """Streams a connection."""

    @property
    def largest_message(self) -> int:
        """Bytes; the socket itself refuses more."""
        return max(4 * self.message_bytes, self.push_bytes)


class Refused(Exception):
    """The connection must end; carries what the other side is told."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(code=code, text=text, fatal=True)


class Rate:
    """A token bucket."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits, self._now = limits, now
        self._left, self._at = limits.burst, now()

    def take(self) -> bool:
        """Whether one more message is within the limits."""
        now = self._now()
        self._left = min(self._limits.burst, self._left + (now - self._at) * self._limits.messages_a_second)
        self._at = now
        self._left -= 1
        return self._left >= 0


class Link:
    """One socket: reads messages within limits and says why it ends. `now` is the limits' clock, seconds."""

    def __init__(self, socket: WebSocket, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self.socket, self.limits, self.now = socket, limits, now
        self._rate = Rate(limits, now)

    async def receive(self, kinds: Kinds) -> Message | bytes:
        """The next message of one of these kinds, or binary data as it came.

        Raises:
            WebSocketDisconnect: the other side has gone.
            Refused: too large, too fast, or not what the protocol says.
        """
        received = await self.socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1005))
        if not self._rate.take():
            raise Refused("too_fast", f"more than {self.limits.messages_a_second:.0f} messages a second came.")
        text = received.get("text")
        if text is None:
            return received["bytes"]
        if len(text) > self.limits.message_bytes:
            raise Refused("too_large", f"got {len(text)} letters; at most {self.limits.message_bytes} are taken.")
        try:
            return protocol.decode(text, kinds)
        except ProtocolError as error:
            raise Refused("malformed", str(error)) from error

    async def end(self, problem: Problem) -> None:
        """Tells the other side why, if it is still there, and closes."""
        try:
            await self.socket.send_text(protocol.encode(problem))
            await self.socket.close(1008, problem.code)
        except (RuntimeError, WebSocketDisconnect):
            log.debug("the other side had gone before it could be told: %s", problem.text)
