"""One player's world: ticked, traced, painted window by window, on a thread of its own.

A window is made just before the last one has been shown: inputs wait one window at most, and nothing piles up. The
world's ticks depend on the inputs alone, never on how or whether they are painted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import torch

from flowshade.api import StyledRenderer
from flowshade.gbuffer.io import ClipWriter, VideoWriter
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.view import channel_picture, to_uint8
from flowshade.play import protocol
from flowshade.play.actors import MODES, Controls, Mode
from flowshade.play.errors import PlayError
from flowshade.play.pace import Pace
from flowshade.play.protocol import GENERATED, REFERENCE, SPLIT, Command, FrameHeader, Input, SetLook, SetView
from flowshade.play.sources import Source
from flowshade.renderer.styles import NEUTRAL
from flowshade.types import FRAMES_PER_LATENT, GBuffer

log = logging.getLogger(__name__)

JPEG_QUALITY = 88
_PLAIN = "albedo"
"""What is shown while the model warms up."""


@dataclass(frozen=True, kw_only=True)
class TimedFrame:
    """A picture and when to show it."""

    due: float
    """On the clock of `time.monotonic`, seconds."""
    header: FrameHeader
    data: bytes


class Models:
    """The renderer that all sessions share, loaded in the background. One window is rendered at a time."""

    def __init__(self, load: Callable[[], StyledRenderer]) -> None:
        self.lock = threading.Lock()
        self.error: Exception | None = None
        self._renderer: StyledRenderer | None = None
        self._thread = threading.Thread(target=self._load, args=(load,), daemon=True, name="flowshade-model")
        self._thread.start()

    def _load(self, load: Callable[[], StyledRenderer]) -> None:
        try:
            self._renderer = load()
        except Exception as error:  # noqa: BLE001 - told to every session
            self.error = error

    @property
    def renderer(self) -> StyledRenderer | None:
        """None while it loads.

        Raises:
            PlayError: it could not be loaded.
        """
        if self.error is not None:
            raise PlayError(f"the model cannot be loaded: {self.error}")
        return self._renderer

    def wait(self) -> StyledRenderer:
        """Waits until the model is there."""
        self._thread.join()
        renderer = self.renderer
        assert renderer is not None
        return renderer


class Painter:
    """A stream of one session through the shared model."""

    def __init__(self, models: Models, renderer: StyledRenderer, seed: int = 0) -> None:
        self._models, self._renderer, self._seed = models, renderer, seed
        self._caption: str | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets all pictures; the caption stays."""
        self._stream = self._renderer.model.open_stream(self._seed)
        caption, self._caption = self._caption, None
        if caption is not None:
            self.set_caption(caption)

    def set_caption(self, caption: str) -> None:
        """From the next window on."""
        if caption == self._caption:
            return
        with self._models.lock:
            self._stream.set_text(self._renderer.encoder.encode([caption]))
        self._caption = caption

    def paint(self, window: GBuffer, steps: int) -> np.ndarray:
        """The pictures of a window, uint8 [T, H, W, 3]."""
        with self._models.lock:
            return self._stream.push(window, steps=steps).to_uint8().cpu().numpy()


class Recorder:
    """Writes what is played: a video of the pictures and a clip of the buffers."""

    def __init__(self, folder: Path, name: str, size: tuple[int, int], fps: float, caption: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._video = VideoWriter(folder / f"{name}.mp4", fps=fps, size=size)
        self._clip = ClipWriter(folder / name, size=size, fps=fps, caption=caption)
        self.frames = 0

    def append(self, window: GBuffer, pictures: np.ndarray) -> None:
        self._video.append(pictures)
        self._clip.append(window)
        self.frames += len(pictures)

    def close(self) -> None:
        self._video.close()
        self._clip.close()


class Session:
    """A world, its player's wishes and the thread that serves them.

    Args:
        name: what the session is called; no two at a time share it.
        source: the world or clip; the session's alone.
        models: the shared renderer.
        emit: called from the session's thread with messages and with lists of `TimedFrame`.
        recordings: folder that recordings go into.
        window: frames rendered together.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        models: Models,
        emit: Callable[[protocol.ServerMessage | list[TimedFrame]], None],
        *,
        recordings: Path,
        window: int = FRAMES_PER_LATENT,
        prompt: str = "",
        style: str = NEUTRAL,
    ) -> None:
        self.name, self.source = name, source
        self.prompt, self.style = prompt, style
        self.window = window
        self._models, self._emit, self._recordings = models, emit, recordings
        self._wake = threading.Condition()
        self._held, self._yaw, self._pitch = Input(id=0), 0.0, 0.0
        self._jump = self._throw = False
        self._commands: list[str] = []
        self._look = 0
        self._view, self._fallback = GENERATED, True
        self._paused = self._closing = False
        self._tick = self._frame = 0
        self._lost = 0
        self._next_due = 0.0
        self._recorder: Recorder | None = None
        self._painter: Painter | None = None
        self._pace = Pace(fps=source.fps, window=window, best_steps=1)
        self._last_status = 0.0
        self._last_picture: np.ndarray | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"flowshade-session-{name}")

    # From the outside -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the session after the window it is making; recordings are finished."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()

    def join(self, timeout: float | None = None) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def lost(self, frames: int) -> None:
        """The connection could not take frames: they count as dropped."""
        self._lost += frames

    def take(self, message: Input | SetLook | SetView | Command) -> None:
        """Takes a player's wish; it shows in the next window.

        Raises:
            PlayError: an unknown view or style, or a prompt that is too long; nothing has changed then.
        """
        if isinstance(message, (SetLook, SetView)):
            self._check(message)
        with self._wake:
            if isinstance(message, Input):
                self._take_input(message)
            elif isinstance(message, SetLook):
                self.prompt, self.style = message.prompt, message.style
                self._look += 1
            elif isinstance(message, SetView):
                self._view = message.view
            else:
                self._commands = [*self._commands[-31:], message.action]
            self._wake.notify_all()

    def _check(self, message: SetLook | SetView) -> None:
        if isinstance(message, SetView):
            if message.view not in protocol.VIEWS:
                raise PlayError(f"unknown view {message.view!r}; expected one of {', '.join(protocol.VIEWS)}.")
            return
        renderer = self._models.renderer
        if renderer is not None:
            caption = renderer.compose(message.prompt, message.style)
            with self._models.lock:
                renderer.encoder.encode([caption])  # a prompt that is too long fails here

    def _take_input(self, message: Input) -> None:
        self._held = message
        self._yaw += message.yaw
        self._pitch += message.pitch
        self._jump |= message.jump
        self._throw |= message.throw

    # The session's thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._obey()
                if not self._paused:
                    self._advance()
                self._wait()
        except Exception as error:
            log.exception("session %s ended", self.name)
            text = str(error) if isinstance(error, PlayError) else f"the session ended: {type(error).__name__}"
            self._emit(protocol.Problem(code="session_failed", text=text, fatal=True))
        finally:
            self._stop_recording()

    def _obey(self) -> None:
        with self._wake:
            commands, self._commands = self._commands, []
        for action in commands:
            if action in MODES:
                self.source.set_mode(cast(Mode, action))
            elif action in ("pause", "resume"):
                self._paused, self._next_due = action == "pause", 0.0
            elif action == "step":
                self._paused = True
                self._advance()
            elif action == "reset":
                self.source.reset()
                if self._painter is not None:
                    self._painter.restart()
            elif action == "record":
                self._start_recording()
            elif action == "stop_recording":
                self._stop_recording()
            elif action == "screenshot":
                self._screenshot()
        if commands:
            self._status(force=True)

    def _advance(self) -> None:
        began = time.monotonic()
        with self._wake:
            controls, shown, look, view = self._controls(), self._held.id, self._look, self._view
            prompt, style = self.prompt, self.style
        self._prepare(prompt, style)
        stride = self._pace.stride
        window, references = self._trace(controls, stride, view, style)
        pictures, view = self._paint(window, references, view)
        if self._recorder is not None:
            self._recorder.append(window, pictures)
        self._last_picture = pictures[-1]
        encoded = [encode_jpeg(picture) for picture in pictures]
        now = time.monotonic()
        first, interval = max(now, self._next_due), stride / self.source.fps
        self._next_due = first + interval * len(encoded)
        frames = []
        for k, data in enumerate(encoded):
            header = self._header(
                "frame", "image/jpeg", shown, look, view, self._tick - (len(encoded) - 1 - k) * stride
            )
            frames.append(TimedFrame(due=first + k * interval, header=header, data=data))
        self._emit(frames)
        self._status(force=self._pace.took(now - began))

    def _header(self, kind: str, mime: str, shown: int, look: int, view: str, tick: int) -> FrameHeader:
        self._frame += 1
        kind_ = "screenshot" if kind == "screenshot" else "frame"
        return FrameHeader(kind=kind_, id=self._frame, tick=tick, input=shown, look=look, view=view, mime=mime)

    def _controls(self) -> list[Controls]:
        """One tick's controls each: what is held, with turns spread over the window and jumps on its first tick."""
        ticks = self.window * self._pace.stride
        held = Controls(
            forward=max(-1.0, min(1.0, self._held.forward)),
            right=max(-1.0, min(1.0, self._held.right)),
            up=max(-1.0, min(1.0, self._held.up)),
            fast=self._held.fast,
            yaw=self._yaw / ticks,
            pitch=self._pitch / ticks,
        )
        first = replace(held, jump=self._jump, throw=self._throw)
        self._yaw = self._pitch = 0.0
        self._jump = self._throw = False
        return [first, *[held] * (ticks - 1)]

    def _prepare(self, prompt: str, style: str) -> None:
        renderer = self._models.renderer
        if renderer is None:
            return
        if self._painter is None:
            self._painter = Painter(self._models, renderer)
            self._pace = Pace(fps=self.source.fps, window=self.window, best_steps=renderer.steps)
        self._painter.set_caption(renderer.compose(prompt, style))

    def _trace(
        self, controls: list[Controls], stride: int, view: str, style: str
    ) -> tuple[GBuffer, list[torch.Tensor]]:
        buffers, references = [], []
        for index, each in enumerate(controls):
            self.source.tick(each)
            self._tick += 1
            if (index + 1) % stride:
                continue
            buffers.append(self.source.gbuffer())
            if view in (REFERENCE, SPLIT):
                picture = self.source.reference(self._reference_look(style))
                references += [] if picture is None else [picture]
        return GBuffer.cat(buffers), references

    def _reference_look(self, style: str) -> Look:
        renderer = self._models.renderer
        found = None if renderer is None else renderer.styles.get(style)
        return LOOKS[found.look if found is not None and found.look in LOOKS else "sunny"]

    def _paint(self, window: GBuffer, references: list[torch.Tensor], view: str) -> tuple[np.ndarray, str]:
        """The pictures, and the view that they are: buffers stand in for what cannot be shown yet."""
        if view == REFERENCE and references:
            return to_uint8(torch.cat(references)).cpu().numpy(), view
        if view in (GENERATED, SPLIT) and self._painter is not None:
            if self._fallback:  # its past is of another time
                self._painter.restart()
            self._fallback = False
            pictures = self._painter.paint(window, self._pace.steps)
        else:
            self._fallback = True
            channel = view if view in window.channels() else _PLAIN
            return channel_picture(window, channel).cpu().numpy(), channel
        if view == SPLIT:
            other = to_uint8(torch.cat(references)) if references else channel_picture(window, _PLAIN)
            pictures = pictures.copy()
            half = pictures.shape[2] // 2
            pictures[:, :, half:] = other.cpu().numpy()[:, :, half:]
            pictures[:, :, half - 1 : half + 1] = 255
        return pictures, view

    def _wait(self) -> None:
        """Until it is time to make the next window, or, when paused, until something is asked for."""
        with self._wake:
            while not self._closing and not self._commands:
                start = self._next_due - 1.1 * self._pace.work - 0.004
                left = 0.5 if self._paused else start - time.monotonic()
                if left <= 0:
                    return
                self._wake.wait(left)

    def _status(self, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._last_status < 1.0:
            return
        self._last_status = now
        pace = self._pace
        shown = 0.0 if self._paused or not pace.work else min(1 / pace.span, 1 / pace.work) * self.window
        self._emit(
            protocol.Status(
                mode=self.source.mode, view=self._view, paused=self._paused, recording=self._recorder is not None,
                warming=self._painter is None, fps=round(shown, 1), window=self.window, steps=pace.steps,
                stride=pace.stride, dropped=pace.dropped + self._lost, work_ms=round(1000 * pace.work, 1),
                note=pace.note,
            )
        )  # fmt: skip

    def _start_recording(self) -> None:
        if self._recorder is None:
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{self.name}"
            fps = self.source.fps / self._pace.stride
            self._recorder = Recorder(self._recordings, name, self.source.size, fps, self.source.description)

    def _stop_recording(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.close()
        self._emit(
            protocol.Recorded(
                video=f"/recordings/{recorder.name}.mp4", clip=str(self._recordings / recorder.name),
                frames=recorder.frames,
            )
        )  # fmt: skip

    def _screenshot(self) -> None:
        if self._last_picture is None:
            return
        header = self._header("screenshot", "image/png", self._held.id, self._look, self._view, self._tick)
        data = cv2.imencode(".png", self._last_picture[:, :, ::-1])[1].tobytes()
        self._emit([TimedFrame(due=0.0, header=header, data=data)])


def encode_jpeg(picture: np.ndarray) -> bytes:
    """A picture uint8 [H, W, 3] as JPEG."""
    done, data = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    if not done:
        raise PlayError(f"a picture of shape {picture.shape} cannot be written as JPEG.")
    return data.tobytes()
