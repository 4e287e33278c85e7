"""The server: a page, a WebSocket a player, and limits that keep one player's trouble from the others."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from flowshade.api import StyledRenderer
from flowshade.errors import FlowshadeError
from flowshade.play import protocol
from flowshade.play.link import Limits, Link, Refused
from flowshade.play.memory import keep_one_heap, return_memory
from flowshade.play.pace import FrameQueue, TimedFrame
from flowshade.play.painting import Models
from flowshade.play.protocol import CLIENT_KINDS, Ack, Hello, Problem, SetLook, Welcome
from flowshade.play.push import PushConnection
from flowshade.play.session import Session
from flowshade.play.sources import Source
from flowshade.renderer.styles import NEUTRAL, load_styles
from flowshade.types import FRAMES_PER_LATENT

log = logging.getLogger(__name__)

STATIC = Path(__file__).with_name("static")
_IDLE_CHECK = 1.0
"""Seconds between two looks at whether a player is still there."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """What is played and how it is served."""

    open_source: Callable[[str | None, int | None], Source]
    """Makes a session's own world from a kind and seed; None takes the default. Called on a thread."""
    model_name: str = "compact"
    worlds: tuple[str, ...] = ()
    """Kinds that players may choose."""
    prompt: str = ""
    style: str = NEUTRAL
    window: int = FRAMES_PER_LATENT
    recordings: Path = Path("flowshade-recordings")
    token: str | None = None
    origins: tuple[str, ...] = ()
    """Further origins whose pages may connect, such as https://example.org."""
    limits: Limits = field(default_factory=Limits)


class _Outbox:
    """Between a session's thread and its socket: messages, and the frames that are still worth sending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self._loop = loop
        self._messages: list[protocol.ServerMessage] = []
        self._frames = FrameQueue(most=limits.unshown_frames, seconds=limits.unshown_seconds)
        self._changed = asyncio.Event()

    def put(self, item: protocol.ServerMessage | list[TimedFrame]) -> None:
        """From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, item)

    def _put(self, item: protocol.ServerMessage | list[TimedFrame]) -> None:
        if isinstance(item, list):
            self._frames.put(item, time.monotonic())
        else:
            self._messages = [*self._messages[-63:], item]
        self._changed.set()

    def shown(self, frame: int) -> None:
        self._frames.shown(frame)
        self._changed.set()

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages and frames that wait to be sent."""
        return len(self._messages), len(self._frames)

    def lost(self) -> int:
        """Frames that were dropped since the last call."""
        lost, self._frames.dropped = self._frames.dropped, 0
        return lost

    async def next(self) -> protocol.ServerMessage | TimedFrame:
        """The next message, or the next frame once it is due."""
        while True:
            if self._messages:
                return self._messages.pop(0)
            frame = self._frames.take(time.monotonic())
            if frame is not None:
                return frame
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._frames.wait(time.monotonic())):
                    await self._changed.wait()


class _Connection:
    """One socket: its session, and what has been sent and confirmed."""

    def __init__(self, link: Link, server: PlayServer) -> None:
        self._link, self._socket, self._server = link, link.socket, server
        self._limits = server.config.limits
        self.outbox = _Outbox(asyncio.get_running_loop(), self._limits)
        self._heard = link.now()

    async def serve(self, name: str) -> None:
        session: Session | None = None
        try:
            session = await self._begin(name)
            self._server.sessions[name] = session
            await self._exchange(session)
        except Refused as refused:
            await self._link.end(refused.problem)
        except WebSocketDisconnect:
            pass
        except FlowshadeError as error:
            await self._link.end(Problem(code="refused", text=str(error), fatal=True))
        finally:
            if session is not None:
                session.close()
                await asyncio.to_thread(session.join, 30)

    async def _begin(self, name: str) -> Session:
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                hello = await self._receive()
        except TimeoutError as error:
            raise Refused("no_hello", "no hello came; send it first.") from error
        if not isinstance(hello, Hello):
            raise Refused("no_hello", f"got {hello.type!r} first; expected hello.")
        if hello.version != protocol.VERSION:
            raise Refused(
                "version", f"the page speaks version {hello.version}, the server {protocol.VERSION}; load it anew."
            )
        config = self._server.config
        if hello.world is not None and hello.world not in config.worlds:
            raise Refused("world", f"unknown world {hello.world!r}; expected one of {', '.join(config.worlds)}.")
        source = await self._open(hello)
        try:
            session = Session(
                name, source, self._server.models, self.outbox.put, recordings=config.recordings, window=config.window,
                prompt=config.prompt if hello.prompt is None else hello.prompt,
                style=hello.style if hello.style in self._server.styles else config.style,
            )  # fmt: skip
            await asyncio.to_thread(session.check)  # a large text encoder takes its time
            self.outbox.put(self._welcome(session))
            session.start()
        except BaseException:
            source.close()
            raise
        return session

    def _welcome(self, session: Session) -> Welcome:
        config, source = self._server.config, session.source
        height, width = source.size
        return Welcome(
            version=protocol.VERSION, session=session.name, model=config.model_name, world=source.name,
            seed=source.seed, description=source.description, worlds=list(config.worlds),
            styles=list(self._server.styles), views=list(protocol.VIEWS), prompt=session.prompt, style=session.style,
            height=height, width=width, fps=source.fps, interactive=source.interactive,
        )  # fmt: skip

    async def _open(self, hello: Hello) -> Source:
        opening = asyncio.create_task(asyncio.to_thread(self._server.config.open_source, hello.world, hello.seed))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread goes on, and nobody would close what it opens
            (await opening).close()
            raise

    async def _exchange(self, session: Session) -> None:
        """Until one of the three ends the others, by what it raises."""
        tasks = [asyncio.create_task(work) for work in (self._send(session), self._listen(session), self._idle())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        try:
            for task in done:
                task.result()
        finally:  # what a task raised holds this frame: if this held the tasks, the world would not be freed soon
            del tasks, done, task

    async def _send(self, session: Session) -> None:
        while True:
            item = await self.outbox.next()
            if isinstance(item, Problem) and item.fatal:
                raise Refused(item.code, item.text)
            if not isinstance(item, TimedFrame):
                await self._socket.send_text(protocol.encode(item))
                continue
            session.lost(self.outbox.lost())
            await self._socket.send_bytes(protocol.pack_frame(item.header, item.data))

    async def _listen(self, session: Session) -> None:
        while True:
            message = await self._receive()
            if isinstance(message, Ack):
                self.outbox.shown(message.frame)
                continue
            self._heard = self._link.now()
            if isinstance(message, Hello):
                raise Refused("second_hello", "got a second hello; open another connection for another session.")
            try:
                if isinstance(message, SetLook):
                    await asyncio.to_thread(session.take, message)  # a large text encoder takes its time
                else:
                    session.take(message)
            except FlowshadeError as error:
                self.outbox.put(Problem(code="refused", text=str(error), fatal=False))

    async def _receive(self) -> protocol.ClientMessage:
        message = await self._link.receive(CLIENT_KINDS)
        if isinstance(message, bytes):
            raise Refused("malformed", "got a binary message; expected text.")
        return message

    async def _idle(self) -> None:
        while True:
            left = self._heard + self._limits.idle_seconds - self._link.now()
            if left <= 0:
                raise Refused("idle", f"nothing was pressed for {self._limits.idle_seconds:.0f} s; load the page anew.")
            await asyncio.sleep(min(left, _IDLE_CHECK))


class PlayServer:
    """Sessions by name, the model they share, and the application that serves them.

    Args:
        config: what is played.
        models: the shared renderer.
        now: the clock of the limits, seconds.
    """

    def __init__(self, config: PlayConfig, models: Models, *, now: Callable[[], float] = time.monotonic) -> None:
        self.config, self.models, self._now = config, models, now
        self.styles = [*load_styles()]
        self.sessions: dict[str, Session] = {}
        self._connections: set[_Connection] = set()
        self._names = itertools.count(1)
        self._open = 0
        self.app = FastAPI(title="Flowshade play", docs_url=None, redoc_url=None, openapi_url=None)
        self.app.websocket("/ws")(self._play)
        self.app.websocket("/push")(self._push)
        self.app.get("/health")(self._health)
        self.app.get("/recordings/{name}")(self._recording)
        self.app.mount("/", StaticFiles(directory=STATIC, html=True, check_dir=False))

    def _allowed(self, origin: str | None, host: str | None) -> bool:
        """Browsers say which page connects; only the server's own and named ones may. Programs say nothing."""
        return origin is None or origin in self.config.origins or urlsplit(origin).netloc == host

    def _knows(self, token: str | None) -> bool:
        return self.config.token is None or hmac.compare_digest((token or "").encode(), self.config.token.encode())

    async def _play(self, socket: WebSocket) -> None:
        async def serve(link: Link) -> None:
            name, connection = str(next(self._names)), _Connection(link, self)
            self._connections.add(connection)
            try:
                await connection.serve(name)
            finally:
                self._connections.discard(connection)
                self.sessions.pop(name, None)
                del connection  # and with it the world
                await asyncio.to_thread(return_memory)

        await self._admit(socket, serve)

    async def _push(self, socket: WebSocket) -> None:
        await self._admit(socket, lambda link: PushConnection(link, self.models, self.config.model_name).serve())

    async def _admit(self, socket: WebSocket, serve: Callable[[Link], Awaitable[None]]) -> None:
        """Lets in who may come, as long as there are places."""
        allowed = self._allowed(socket.headers.get("origin"), socket.headers.get("host"))
        if not allowed or not self._knows(socket.query_params.get("token")):
            await socket.close(1008)  # before it is accepted: answers 403
            return
        await socket.accept()
        link = Link(socket, self.config.limits, self._now)
        if self._open >= self.config.limits.sessions:
            text = f"all {self.config.limits.sessions} places are taken; try again later."
            await link.end(Problem(code="full", text=text, fatal=True))
            return
        self._open += 1
        try:
            await serve(link)
        finally:
            self._open -= 1

    async def _health(self) -> JSONResponse:
        """Who is there and what waits: windows to be painted, messages and frames to be sent."""
        waiting = [connection.outbox.waiting for connection in self._connections]
        return JSONResponse(
            {
                "version": protocol.VERSION,
                "sessions": self._open,
                "windows": self.models.waiting,
                "messages": sum(messages for messages, _ in waiting),
                "frames": sum(frames for _, frames in waiting),
            }
        )

    async def _recording(self, name: str, token: str | None = None) -> Response:
        path = self.config.recordings / name
        if not self._knows(token) or Path(name).name != name or path.suffix != ".mp4" or not path.is_file():
            return Response(status_code=404)
        return FileResponse(path)


def serve(config: PlayConfig, load: Callable[[], StyledRenderer], *, host: str = "127.0.0.1", port: int = 8765) -> None:
    """Serves until it is interrupted; the process is the server's, which makes all its threads share one heap.

    Args:
        load: makes the shared renderer; called on a thread of its own, which ends with the server.
    """
    import uvicorn

    keep_one_heap()
    models = Models(load)
    app = PlayServer(config, models).app
    try:
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            ws_max_size=config.limits.largest_message,
            ws_ping_timeout=60.0,  # a busy machine answers late, and is still there
        )
    finally:
        models.close()
