"""For people with an engine of their own: windows of G-buffers come in over a WebSocket, pictures go back.

A connection opens with `PushHello` and holds a fixed number of streams of one size; every window holds all of them and
is rendered as one batch. `flowshade.play.streams.RemoteStreams` is the Python side of it, docs/play.md the description.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from fastapi import WebSocketDisconnect

from flowshade.errors import FlowshadeError
from flowshade.play import protocol
from flowshade.play.errors import ProtocolError
from flowshade.play.link import Link, Refused
from flowshade.play.painting import Canvas, Models
from flowshade.play.protocol import Problem, pack, unpack
from flowshade.types import CHANNELS, FRAMES_PER_LATENT, Camera, GBuffer

LARGEST_SIDE = 4096
"""Pixels."""
MOST_FRAMES = 64
"""A window."""

Number = Literal["float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class PushHello:
    """The first message: what will be pushed."""

    type: ClassVar[str] = "push_hello"
    version: int
    streams: int
    """How many pictures are made side by side: cameras, environments."""
    height: int
    width: int
    channels: list[str]
    """In the order of the data: some of `flowshade.types.CHANNELS`."""
    number: Number = "float16"
    """Type of all channels but depth (float32) and instance (int32)."""
    camera: bool = False
    """Whether intrinsics and poses follow the channels."""
    steps: int | None = None
    """Denoising steps; None takes the model's own."""
    seed: int = 0
    """Stream `k` takes seed + k."""


@dataclass(frozen=True, kw_only=True)
class PushLook:
    """Prompt and style from the next window on."""

    type: ClassVar[str] = "push_look"
    prompt: str
    style: str | None = None
    stream: int | None = None
    """None = all."""


@dataclass(frozen=True, kw_only=True)
class PushRestart:
    """Forgets all pictures: an episode has begun anew."""

    type: ClassVar[str] = "push_restart"
    stream: int | None = None
    """None = all."""


@dataclass(frozen=True, kw_only=True)
class PushWelcome:
    """Windows may come."""

    type: ClassVar[str] = "push_welcome"
    version: int
    model: str
    steps: int
    styles: list[str]
    frames_per_latent: int
    """Windows of a multiple of so many frames cost least."""


PushMessage = PushHello | PushLook | PushRestart
PUSH_KINDS: protocol.Kinds = {kind.type: kind for kind in get_args(PushMessage)}


@dataclass(frozen=True)
class Layout:
    """Where what lies in a window's data; the same on both sides.

    A window is a JSON header with `id` and `frames` (packed as frames are, see `flowshade.play.protocol`), then every
    channel as [streams, frames, planes, height, width], then, if there is a camera, intrinsics [streams, frames, 4] and
    poses [streams, frames, 4, 4] as float32. Little endian, rows first, no gaps. Units are those of `GBuffer`.
    """

    hello: PushHello

    def __post_init__(self) -> None:
        hello = self.hello
        unknown = [name for name in hello.channels if name not in CHANNELS]
        if unknown or not hello.channels or len(set(hello.channels)) != len(hello.channels):
            raise ProtocolError(f"got channels {hello.channels}; expected some of {', '.join(CHANNELS)}, each once.")
        if not (1 <= hello.height <= LARGEST_SIDE and 1 <= hello.width <= LARGEST_SIDE and hello.streams >= 1):
            raise ProtocolError(
                f"got {hello.streams} streams of {hello.height}x{hello.width}; expected at least one stream and 1 to "
                f"{LARGEST_SIDE} pixels a side."
            )

    def _dtype(self, name: str) -> np.dtype:
        special = {"depth": "<f4", "instance": "<i4"}
        return np.dtype(special.get(name, "<f2" if self.hello.number == "float16" else "<f4"))

    def _parts(self, frames: int) -> list[tuple[str, tuple[int, ...], np.dtype]]:
        hello = self.hello
        lead = (hello.streams, frames)
        parts = [
            (name, (*lead, CHANNELS[name], hello.height, hello.width), self._dtype(name)) for name in hello.channels
        ]
        if hello.camera:
            parts += [("intrinsics", (*lead, 4), np.dtype("<f4")), ("pose", (*lead, 4, 4), np.dtype("<f4"))]
        return parts

    def size(self, frames: int) -> int:
        """Bytes of a window's data."""
        return sum(int(np.prod(shape)) * dtype.itemsize for _, shape, dtype in self._parts(frames))

    def pack(self, number: int, windows: Sequence[GBuffer]) -> bytes:
        """A window a stream as one message.

        Raises:
            ProtocolError: windows that are not as many, as large or as complete as the hello said.
        """
        hello = self.hello
        frames = windows[0].frames if windows else 0
        for window in windows:
            missing = [name for name in hello.channels if name not in window.channels()]
            if missing or window.size != (hello.height, hello.width) or window.frames != frames:
                raise ProtocolError(
                    f"got a window of {window.frames} frames of {window.size} that lacks {missing}; expected {frames} "
                    f"frames of {(hello.height, hello.width)} with {', '.join(hello.channels)}."
                )
        if len(windows) != hello.streams or (hello.camera and any(window.camera is None for window in windows)):
            raise ProtocolError(f"got {len(windows)} windows; expected {hello.streams}, all with a camera if one has.")
        pieces = []
        for name, shape, dtype in self._parts(frames):
            source = [_tensor(window, name) for window in windows]
            pieces.append(torch.stack(source).cpu().numpy().astype(dtype).reshape(shape).tobytes())
        return pack({"id": number, "frames": frames}, b"".join(pieces))

    def unpack(self, message: bytes) -> tuple[int, list[GBuffer]]:
        """The inverse of `pack`: the window's id, and a window a stream.

        Raises:
            ProtocolError: the header or the amount of data is not what was agreed, or a value is no finite number
                (depth may be infinite: sky).
        """
        header, data = unpack(message)
        number, frames = header.get("id"), header.get("frames")
        if type(number) is not int or type(frames) is not int or not 1 <= frames <= MOST_FRAMES:
            raise ProtocolError(f"got the header {str(header)[:80]}; expected id and 1 to {MOST_FRAMES} frames.")
        if len(data) != self.size(frames):
            raise ProtocolError(f"a window of {frames} frames has {len(data)} bytes; expected {self.size(frames)}.")
        arrays, offset = {}, 0
        for name, shape, dtype in self._parts(frames):
            count = int(np.prod(shape))
            array = np.frombuffer(data, dtype, count, offset).reshape(shape)
            _check_numbers(name, array)
            arrays[name] = torch.from_numpy(array.astype(np.int32 if name == "instance" else np.float32))
            offset += count * dtype.itemsize
        return number, [self._window(arrays, stream) for stream in range(self.hello.streams)]

    def _window(self, arrays: dict[str, torch.Tensor], stream: int) -> GBuffer:
        camera = None
        if self.hello.camera:
            camera = Camera(intrinsics=arrays["intrinsics"][stream], pose=arrays["pose"][stream])
        return GBuffer(**{name: arrays[name][stream] for name in self.hello.channels}, camera=camera)


def _check_numbers(name: str, array: np.ndarray) -> None:
    """An engine that sends them has a fault; rendered, they would stand for nothing, and nobody would be told."""
    if name == "instance":  # integers
        return
    bad = np.isnan(array) if name == "depth" else ~np.isfinite(array)
    if bad.any():
        where = tuple(int(index) for index in np.argwhere(bad)[0])
        raise ProtocolError(
            f"{name} holds {array[where]} at {list(where)} ([stream, frame, ...]) and {int(bad.sum()) - 1} more such "
            f"values; expected finite numbers{', or +inf for sky' if name == 'depth' else ''}."
        )


def _tensor(window: GBuffer, name: str) -> torch.Tensor:
    if name in CHANNELS:
        return window.channels()[name]
    assert window.camera is not None
    return window.camera.intrinsics if name == "intrinsics" else window.camera.pose


def pack_pictures(number: int, pictures: Sequence[np.ndarray]) -> bytes:
    """Pictures uint8 [T, H, W, 3], one run a stream, as the answer to window `number`."""
    joined = np.stack(pictures)
    return pack({"id": number, "shape": list(joined.shape)}, joined.tobytes())


def unpack_pictures(message: bytes) -> tuple[int, np.ndarray]:
    """The window's number and its pictures, uint8 [streams, T, H, W, 3]."""
    header, data = unpack(message)
    shape, number = header["shape"], header["id"]
    assert isinstance(shape, list) and isinstance(number, int)
    return number, np.frombuffer(data, np.uint8).reshape(shape)


class PushConnection:
    """The server's side: an engine's streams through the shared model."""

    def __init__(self, link: Link, models: Models, model_name: str) -> None:
        self._link, self._models, self._name = link, models, model_name

    async def serve(self) -> None:
        """From hello until the engine goes or does something that is not agreed."""
        try:
            layout = Layout(await self._hello())
            await self._exchange(layout)
        except Refused as refused:
            await self._link.end(refused.problem)
        except WebSocketDisconnect:
            pass
        except FlowshadeError as error:
            await self._link.end(Problem(code="refused", text=str(error), fatal=True))

    async def _hello(self) -> PushHello:
        limits = self._link.limits
        if not limits.push_bytes:
            raise Refused("push_off", "this server takes no windows; start it with: flowshade play --push")
        try:
            async with asyncio.timeout(limits.hello_seconds):
                hello = await self._link.receive(PUSH_KINDS)
        except TimeoutError as error:
            raise Refused("no_hello", "no push_hello came; send it first.") from error
        if not isinstance(hello, PushHello):
            raise Refused("no_hello", "got something else first; expected push_hello.")
        if hello.version != protocol.VERSION:
            raise Refused("version", f"got version {hello.version}; the server speaks {protocol.VERSION}.")
        if hello.streams > limits.push_streams:
            raise Refused("streams", f"got {hello.streams} streams; at most {limits.push_streams} a connection.")
        if hello.steps is not None and not 1 <= hello.steps <= 100:
            raise Refused("steps", f"got {hello.steps} steps; expected 1 to 100.")
        return hello

    async def _exchange(self, layout: Layout) -> None:
        renderer = await asyncio.to_thread(self._models.wait)
        hello = layout.hello
        steps = renderer.steps if hello.steps is None else hello.steps
        canvases = [Canvas(hello.seed + index) for index in range(hello.streams)]
        await self._link.socket.send_text(
            protocol.encode(
                PushWelcome(
                    version=protocol.VERSION, model=self._name, steps=steps, styles=list(renderer.styles),
                    frames_per_latent=FRAMES_PER_LATENT,
                )
            )
        )  # fmt: skip
        while True:
            try:
                async with asyncio.timeout(self._link.limits.idle_seconds):
                    message = await self._link.receive(PUSH_KINDS)
            except TimeoutError as error:
                raise Refused("idle", f"no window came for {self._link.limits.idle_seconds:.0f} s.") from error
            if isinstance(message, bytes):
                number, windows = await asyncio.to_thread(layout.unpack, message)
                painted = self._models.submit(canvases, windows, steps)
                pictures = await asyncio.gather(*(asyncio.wrap_future(each) for each in painted))
                await self._link.socket.send_bytes(pack_pictures(number, pictures))
            elif isinstance(message, PushLook):
                caption = renderer.compose(message.prompt, message.style)
                renderer.encoder.check(caption)
                for canvas in _chosen(canvases, message.stream):
                    canvas.caption = caption
            elif isinstance(message, PushRestart):
                for canvas in _chosen(canvases, message.stream):
                    canvas.restart()
            else:
                raise Refused("second_hello", "got a second push_hello; open another connection.")


def _chosen(canvases: list[Canvas], stream: int | None) -> list[Canvas]:
    if stream is None:
        return canvases
    if not 0 <= stream < len(canvases):
        raise ProtocolError(f"there is no stream {stream}; expected 0 to {len(canvases) - 1}.")
    return [canvases[stream]]
