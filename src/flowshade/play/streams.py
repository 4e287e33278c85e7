"""Pictures for people with an engine of their own: G-buffer windows of several cameras or environments, as one batch.

`LocalStreams` renders in this process, `RemoteStreams` asks a server (`flowshade play --push`); both are used alike:

    streams = LocalStreams(load_renderer(), 2)           # or RemoteStreams("ws://127.0.0.1:8765/push", ...)
    streams.set_look("a city street", "snowy_winter")
    pictures = streams.paint([left_window, right_window])  # uint8 [2, T, H, W, 3]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from flowshade.api import StyledRenderer
from flowshade.errors import MissingDependencyError
from flowshade.play.errors import PlayError
from flowshade.play.protocol import VERSION, encode
from flowshade.play.push import Layout, Number, PushHello, PushLook, PushRestart, unpack_pictures
from flowshade.renderer.flash import FlashRenderer
from flowshade.renderer.stream import Stream
from flowshade.types import GBuffer


class Streams(Protocol):
    """A fixed number of streams, each with a past and a caption of its own."""

    @property
    def count(self) -> int: ...

    def set_look(self, prompt: str, style: str | None = None, *, stream: int | None = None) -> None:
        """Prompt and style from the next window on, of one stream or all."""
        ...

    def restart(self, stream: int | None = None) -> None:
        """Forgets the pictures of one stream or all; looks stay. Call it when an episode begins anew."""
        ...

    def paint(self, windows: Sequence[GBuffer]) -> np.ndarray:
        """The next pictures, uint8 [streams, T, H, W, 3], display sRGB.

        Args:
            windows: one a stream, all of the same frames and size. Multiples of `FRAMES_PER_LATENT` frames cost least;
                a shorter window is completed by repeating its last frame.
        """
        ...


class LocalStreams:
    """`Streams` in this process.

    Args:
        renderer: what `flowshade.load_renderer` gives; its own stream is left alone.
        count: how many streams.
        seed: stream `k` takes seed + k.
    """

    def __init__(self, renderer: StyledRenderer, count: int, *, seed: int = 0) -> None:
        if count < 1:
            raise PlayError(f"got {count} streams; expected at least 1.")
        self._renderer, self._seed = renderer, seed
        self._captions = [""] * count
        self._streams: list[Stream | FlashRenderer] = []
        for index in range(count):
            self._streams.append(self._open(index))

    @property
    def count(self) -> int:
        return len(self._captions)

    def set_look(self, prompt: str, style: str | None = None, *, stream: int | None = None) -> None:
        """Prompt and style from the next window on, of one stream or all.

        Raises:
            StyleError: no such style.
            PromptError: a prompt longer than the encoder takes.
        """
        caption = self._renderer.compose(prompt, style)
        text = self._renderer.encoder.encode([caption])
        for index in _indices(stream, self.count):
            self._captions[index] = caption
            self._streams[index].set_text(text)

    def restart(self, stream: int | None = None) -> None:
        """Forgets the pictures of one stream or all; looks stay."""
        for index in _indices(stream, self.count):
            self._streams[index] = self._open(index)

    def paint(self, windows: Sequence[GBuffer]) -> np.ndarray:
        """The next pictures, uint8 [streams, T, H, W, 3]; see `Streams.paint`.

        Raises:
            ValueError: not one window a stream, or windows that differ in frames or size.
        """
        frames = self._renderer.push_streams(self._streams, windows)
        return np.stack([part.to_uint8().cpu().numpy() for part in frames])

    def _open(self, index: int) -> Stream | FlashRenderer:
        stream = self._renderer.open_stream(self._seed + index)
        stream.set_text(self._renderer.encoder.encode([self._captions[index]]))
        return stream


class RemoteStreams:
    """`Streams` of a server, over the push protocol (docs/play.md). Use it as a context manager, or `close` it.

    Args:
        address: such as ws://127.0.0.1:8765/push; add ?token=TEXT where the server has one.
        count: how many streams.
        size: height and width of all windows.
        channels: what the windows hold; the others are not sent.
        camera: whether windows have cameras, which help the renderer.
        number: how channels travel; depth is always float32.
        steps: denoising steps; None takes the server's.
        seed: stream `k` takes seed + k.
        timeout: seconds to wait for an answer.

    Raises:
        MissingDependencyError: the package websockets is not installed.
        PlayError: nobody listens there, or the server refused.
    """

    def __init__(
        self,
        address: str,
        count: int,
        *,
        size: tuple[int, int],
        channels: Sequence[str] = ("albedo", "normal", "depth", "roughness", "metallic", "emission"),
        camera: bool = True,
        number: Number = "float16",
        steps: int | None = None,
        seed: int = 0,
        timeout: float = 60.0,
    ) -> None:
        hello = PushHello(
            version=VERSION, streams=count, height=size[0], width=size[1], channels=list(channels), number=number,
            camera=camera, steps=steps, seed=seed,
        )  # fmt: skip
        self._layout, self._timeout, self._number = Layout(hello), timeout, 0
        self._open = ExitStack()
        self._socket = self._open.enter_context(_connect(address, timeout))
        try:
            self._say(hello)
            self.welcome: dict[str, Any] = self._hear_text()
            """The server's `PushWelcome`: model, steps, styles."""
        except PlayError:
            self.close()
            raise

    @property
    def count(self) -> int:
        return self._layout.hello.streams

    def set_look(self, prompt: str, style: str | None = None, *, stream: int | None = None) -> None:
        """Prompt and style from the next window on, of one stream or all. What is refused, the next `paint` says."""
        self._say(PushLook(prompt=prompt, style=style, stream=stream))

    def restart(self, stream: int | None = None) -> None:
        """Forgets the pictures of one stream or all; looks stay."""
        self._say(PushRestart(stream=stream))

    def paint(self, windows: Sequence[GBuffer]) -> np.ndarray:
        """The next pictures, uint8 [streams, T, H, W, 3]; see `Streams.paint`.

        Raises:
            PlayError: the server refused something or has gone.
        """
        self._number += 1
        self._send(self._layout.pack(self._number, windows))
        number, pictures = unpack_pictures(self._hear())
        if number != self._number:
            raise PlayError(f"got pictures of window {number}; expected {self._number}. Open the streams anew.")
        return pictures

    def close(self) -> None:
        """Ends the connection and its streams."""
        self._open.close()

    def __enter__(self) -> RemoteStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _say(self, message: PushHello | PushLook | PushRestart) -> None:
        self._send(encode(message))

    def _send(self, data: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(data)
        except ConnectionClosed:
            self._hear()  # says why
            raise

    def _hear_text(self) -> dict[str, Any]:
        received = self._receive()
        if isinstance(received, bytes):
            raise PlayError("got binary data; expected push_welcome. Is this a push address?")
        return received

    def _hear(self) -> bytes:
        received = self._receive()
        if isinstance(received, bytes):
            return received
        raise PlayError(f"got {str(received)[:200]}; expected pictures.")

    def _receive(self) -> dict[str, Any] | bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            received = self._socket.recv(timeout=self._timeout)
        except TimeoutError as error:
            raise PlayError(f"no answer for {self._timeout:.0f} s; give a longer timeout.") from error
        except ConnectionClosed as error:
            raise PlayError(f"the server closed the connection ({error}).") from error
        if isinstance(received, bytes):
            return received
        message = json.loads(received)
        if message["type"] == "problem":
            raise PlayError(f"the server refused: {message['text']}")
        return message


@contextmanager
def _connect(address: str, timeout: float) -> Iterator[Any]:
    try:
        from websockets.exceptions import InvalidHandshake, InvalidURI
        from websockets.sync.client import connect
    except ImportError as error:
        raise MissingDependencyError("RemoteStreams needs websockets; run: pip install 'flowshade[play]'") from error
    with ExitStack() as stack:
        try:
            socket = stack.enter_context(connect(address, open_timeout=timeout, max_size=None, compression=None))
        except (OSError, InvalidHandshake, InvalidURI) as error:
            raise PlayError(
                f"cannot connect to {address} ({error}); start a server with: flowshade play --push, and check the "
                "token."
            ) from error
        yield socket


def _indices(stream: int | None, count: int) -> range:
    if stream is None:
        return range(count)
    if not 0 <= stream < count:
        raise PlayError(f"there is no stream {stream}; expected 0 to {count - 1}.")
    return range(stream, stream + 1)
