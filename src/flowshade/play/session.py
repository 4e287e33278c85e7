"""One player's world: ticked, traced, painted window by window, on a thread of its own.

A window is begun just in time to follow the last one; while one is painted the next may be traced, and nothing piles up
(see `flowshade.play.pace`). The world's ticks depend on the inputs alone, never on how or whether they are painted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import cv2
import numpy as np
import torch

from flowshade.api import StyledRenderer
from flowshade.errors import FlowshadeError
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.view import channel_picture, to_uint8
from flowshade.play import protocol
from flowshade.play.actors import MODES, Controls, Mode
from flowshade.play.errors import PlayError
from flowshade.play.pace import STALE_SECONDS, Pace, TimedFrame
from flowshade.play.painting import Canvas, Models, Rehearsal
from flowshade.play.protocol import GENERATED, REFERENCE, SPLIT, Command, FrameHeader, Input, SetLook, SetView
from flowshade.play.recording import Recorder
from flowshade.play.sources import Source
from flowshade.renderer.styles import NEUTRAL, find_style, load_styles
from flowshade.types import FRAMES_PER_LATENT, GBuffer

log = logging.getLogger(__name__)

JPEG_QUALITY = 88
_IDLE = 0.5
"""Seconds between two looks at a paused session."""
_PLAIN = "albedo"
"""What is shown while the model warms up."""


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Ticked and traced; its pictures are on their way."""

    gbuffer: GBuffer
    references: list[torch.Tensor]
    view: str
    """What the pictures are."""
    split: bool
    shown: int
    """The newest input in it."""
    look: int
    tick: int
    """Of its last frame."""
    stride: int
    tracing: float
    """Seconds."""
    submitted: float
    pictures: Future[np.ndarray]


@dataclass(frozen=True, kw_only=True)
class _Painted:
    """A window whose pictures are there."""

    window: _Window
    pictures: np.ndarray
    painting: float
    """Seconds."""
    once: bool
    """Others will not take so long."""


class Session:
    """A world, its player's wishes and the thread that serves them.

    Args:
        name: what the session is called; no two at a time share it.
        source: the world or clip; the session's alone, which closes it at its end.
        models: the shared renderer.
        emit: called from the session's thread with messages and with lists of `TimedFrame`.
        recordings: folder that recordings go into.
        window: frames rendered together when there is time, a multiple of `FRAMES_PER_LATENT`.
        now: the clock, seconds.
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
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.source = name, source
        self.prompt, self.style = prompt, style
        self._now = now
        self._models, self._emit, self._recordings = models, emit, recordings
        self._wake = threading.Condition()
        self._held, self._yaw, self._pitch = Input(id=0), 0.0, 0.0
        self._jumped, self._threw = -math.inf, -math.inf  # when; so that stale ones can be told
        self._commands: list[str] = []
        self._look = 0
        self._view, self._fallback = GENERATED, True
        self._paused = self._closing = False
        self._tick = self._frame = 0
        self._dropped = self._lost = 0
        self._next_due = self._painted_at = 0.0
        self._sending = 0.0
        """Seconds so far that went into sending windows."""
        self._recorder: Recorder | None = None
        self._recordings_begun = 0
        self._canvas = Canvas()
        self._painting: _Window | None = None
        self._warm = False
        self._rehearsal: Rehearsal | None = None
        self._pace = Pace(fps=source.fps, best_window=window, best_steps=1)
        self._last_status = 0.0
        self._last_picture: np.ndarray | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"flowshade-session-{name}")

    # From the outside -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Whether the model takes the prompt and style, as far as it is there already.

        Raises:
            PlayError: the model could not be loaded.
            PromptError, StyleError: it does not.
        """
        self._check(self.prompt, self.style)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the session after the window it is making; recordings are finished and the source is closed."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.ident is None:  # never started
            self._end()

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
        if isinstance(message, SetView) and message.view not in protocol.VIEWS:
            raise PlayError(f"unknown view {message.view!r}; expected one of {', '.join(protocol.VIEWS)}.")
        if isinstance(message, SetLook):
            self._check(message.prompt, message.style)
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

    def _check(self, prompt: str, style: str) -> None:
        renderer = self._models.renderer
        if renderer is None:  # what its encoder takes is not known yet: `_warm_up` checks
            find_style(style, load_styles())
        else:
            renderer.encoder.check(renderer.compose(prompt, style))

    def _take_input(self, message: Input) -> None:
        self._held = message
        self._yaw += message.yaw
        self._pitch += message.pitch
        if message.jump:
            self._jumped = self._now()
        if message.throw:
            self._threw = self._now()

    # The session's thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._rest(self.turn())
        except Exception as error:
            log.exception("session %s ended", self.name)
            text = str(error) if isinstance(error, FlowshadeError) else f"the session ended: {type(error).__name__}"
            self._emit(protocol.Problem(code="session_failed", text=text, fatal=True))
        finally:
            self._end()

    def _end(self) -> None:
        self._painting = None  # its callback refers to the session: neither would be freed soon
        try:
            self._stop_recording()
        finally:
            self.source.close()

    def turn(self) -> float:
        """Obeys, shows what is painted, makes a window if it is time; returns the seconds until there is more to do.

        The thread calls it; a test with a clock of its own may do so instead of `start`. `ready` cuts the wait short.
        """
        self._obey()
        self._collect()
        if not self._paused and self._until_window() <= 0:
            self._advance()
        return _IDLE if self._paused else max(0.0, self._until_window())

    @property
    def ready(self) -> bool:
        """Whether something waits to be done."""
        painted = self._painting is not None and self._painting.pictures.done()
        return self._closing or bool(self._commands) or painted

    def _until_window(self) -> float:
        """Seconds until the next window must be begun so that it is ready when the last one has been shown."""
        pace, due, begin = self._pace, self._next_due, -math.inf
        if self._painting is not None:
            painted = self._painting.submitted + pace.painting
            due = max(due, painted + pace.sending) + pace.span
            begin = painted - pace.tracing  # earlier, it would only wait for the painter
        lead = min(1.1 * pace.work, pace.period + pace.work) + 0.004
        return max(due - lead, begin) - self._now()

    def _rest(self, seconds: float) -> None:
        with self._wake:
            if not self.ready and seconds > 0:
                self._wake.wait(seconds)

    def _note_painted(self, _: object) -> None:
        """From the painting thread."""
        with self._wake:
            self._painted_at = self._now()
            self._wake.notify_all()

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
                self._collect(wait=True)
                self.source.reset()
                self._canvas.restart()
            elif action == "record":
                self._start_recording()
            elif action == "stop_recording":
                self._stop_recording()
            elif action == "screenshot":
                self._screenshot()
        if commands:
            self._status(force=True)

    def _advance(self) -> None:
        """Ticks and traces a window and hands it to the painter."""
        began, sending, stride = self._now(), self._sending, self._pace.stride
        with self._wake:
            controls, shown, look, view = self._controls(), self._held.id, self._look, self._view
            prompt, style = self.prompt, self.style
        gbuffer, references = self._trace(controls, stride, view, style)
        tracing = self._now() - began - (self._sending - sending)
        before = self._take_painted(wait=True)
        self._prepare(prompt, style, gbuffer)
        seen, pictures = self._paint(gbuffer, references, view)
        self._painting = _Window(
            gbuffer=gbuffer, references=references, view=seen, split=seen == SPLIT, shown=shown, look=look,
            tick=self._tick, stride=stride, tracing=tracing, submitted=self._now(), pictures=pictures,
        )  # fmt: skip
        pictures.add_done_callback(self._note_painted)
        if before is not None:  # only now: the painter need not wait for it
            self._finish(before)
        self._collect()

    def _collect(self, *, wait: bool = False) -> None:
        """Sends the window that is painted, if it is."""
        painted = self._take_painted(wait=wait)
        if painted is not None:
            self._finish(painted)

    def _take_painted(self, *, wait: bool) -> _Painted | None:
        window = self._painting
        if window is None or not (wait or window.pictures.done()):
            return None
        self._painting = None
        pictures = window.pictures.result()
        # Whoever waits for a result may have it before the callback has noted when it came.
        at = self._painted_at if self._painted_at >= window.submitted else self._now()
        once = window.view in (GENERATED, SPLIT) and self._canvas.prepared
        return _Painted(window=window, pictures=pictures, painting=at - window.submitted, once=once)

    def _finish(self, painted: _Painted) -> None:
        began, window, pictures = self._now(), painted.window, painted.pictures
        self._dropped += len(pictures) * (window.stride - 1)
        if window.split:
            pictures = self._beside_reference(pictures, window)
        with self._recording() as recorder:
            if recorder is not None:
                recorder.append(window.gbuffer, pictures, window.stride)
        self._last_picture = pictures[-1]
        self._send(window, [encode_jpeg(picture) for picture in pictures])
        sending = self._now() - began
        self._sending += sending
        self._status(force=self._pace.took(window.tracing, painted.painting, sending, once=painted.once))

    def _send(self, window: _Window, encoded: list[bytes]) -> None:
        now, interval = self._now(), window.stride / self.source.fps
        late = now - self._next_due
        first = now if late > interval else self._next_due  # a little late now and then must not add up
        self._next_due = first + interval * len(encoded)
        frames = []
        for k, data in enumerate(encoded):
            tick = window.tick - (len(encoded) - 1 - k) * window.stride
            header = self._header("frame", "image/jpeg", window.shown, window.look, window.view, tick)
            frames.append(TimedFrame(due=first + k * interval, header=header, data=data))
        self._emit(frames)

    def _header(
        self, kind: Literal["frame", "screenshot"], mime: str, shown: int, look: int, view: str, tick: int
    ) -> FrameHeader:
        self._frame += 1
        return FrameHeader(kind=kind, id=self._frame, tick=tick, input=shown, look=look, view=view, mime=mime)

    def _controls(self) -> list[Controls]:
        """One tick's controls each: what is held, with turns spread over the window and jumps on its first tick."""
        ticks, oldest = self._pace.window * self._pace.stride, self._now() - STALE_SECONDS
        held = Controls(
            forward=max(-1.0, min(1.0, self._held.forward)),
            right=max(-1.0, min(1.0, self._held.right)),
            up=max(-1.0, min(1.0, self._held.up)),
            fast=self._held.fast,
            yaw=self._yaw / ticks,
            pitch=self._pitch / ticks,
        )
        first = replace(held, jump=self._jumped > oldest, throw=self._threw > oldest)
        self._yaw = self._pitch = 0.0
        self._jumped = self._threw = -math.inf
        return [first, *[held] * (ticks - 1)]

    def _prepare(self, prompt: str, style: str, traced: GBuffer) -> None:
        """Tells the canvas what to paint, once the model is there and ready for windows such as the traced one."""
        renderer = self._models.renderer
        if renderer is None:
            return
        if self._rehearsal is None:
            prompt = self._warm_up(prompt, style)
            kinds = self._best_pace(renderer).kinds
            self._rehearsal = self._models.rehearse(traced, kinds, renderer.compose(prompt, style))
        if not self._warm:
            if not self._rehearsal.done():
                return
            self._rehearsal.result()  # raises what went wrong
            self._warm, self._pace = True, self._best_pace(renderer)
        self._canvas.caption = renderer.compose(prompt, style)

    def _best_pace(self, renderer: StyledRenderer) -> Pace:
        return Pace(fps=self.source.fps, best_window=self._pace.best_window, best_steps=renderer.steps)

    def _warm_up(self, prompt: str, style: str) -> str:
        """The prompt, or none where it was given before the model was there and is one that it does not take."""
        try:
            self._check(prompt, style)
        except FlowshadeError as error:
            self._emit(protocol.Problem(code="refused", text=str(error), fatal=False))
            with self._wake:
                prompt, self.prompt = "", "" if self.prompt == prompt else self.prompt
        return prompt

    def _trace(
        self, controls: list[Controls], stride: int, view: str, style: str
    ) -> tuple[GBuffer, list[torch.Tensor]]:
        buffers, references = [], []
        for index, each in enumerate(controls):
            self.source.tick(each)
            self._tick += 1
            self._collect()
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

    def _paint(self, window: GBuffer, references: list[torch.Tensor], view: str) -> tuple[str, Future[np.ndarray]]:
        """What the pictures are, and they themselves: buffers stand in for what cannot be shown yet."""
        if view in (GENERATED, SPLIT) and self._warm:
            if self._fallback:  # its past is of another time
                self._canvas.restart()
            self._fallback = False
            return view, self._models.submit([self._canvas], [window], self._pace.steps)[0]
        done: Future[np.ndarray] = Future()
        if view == REFERENCE and references:
            done.set_result(to_uint8(torch.cat(references)).cpu().numpy())
            return view, done
        self._fallback = True
        channel = view if view in window.channels() else _PLAIN
        done.set_result(channel_picture(window, channel).cpu().numpy())
        return channel, done

    def _beside_reference(self, pictures: np.ndarray, window: _Window) -> np.ndarray:
        """The left half generated, the right half the reference, or the albedo where there is none."""
        found = window.references
        other = to_uint8(torch.cat(found)) if found else channel_picture(window.gbuffer, _PLAIN)
        joined, half = pictures.copy(), pictures.shape[2] // 2
        joined[:, :, half:] = other.cpu().numpy()[:, :, half:]
        joined[:, :, half - 1 : half + 1] = 255
        return joined

    def _status(self, force: bool = False) -> None:
        now = self._now()
        if not force and now - self._last_status < 1.0:
            return
        self._last_status = now
        pace = self._pace
        self._emit(
            protocol.Status(
                mode=self.source.mode, view=self._view, paused=self._paused, recording=self._recorder is not None,
                warming=not self._warm, fps=round(0.0 if self._paused else pace.window / pace.period, 1),
                window=pace.window, steps=pace.steps, stride=pace.stride, dropped=self._dropped + self._lost,
                work_ms=round(1000 * pace.work, 1), bound_ms=round(1000 * pace.bound, 1), note=self._note(),
            )
        )  # fmt: skip

    def _note(self) -> str:
        """What was given up, or how far the model is before the game begins."""
        if self._warm:
            return self._pace.note
        return "" if self._rehearsal is None else f"preparing the model: {100 * self._rehearsal.progress:.0f} %"

    @contextmanager
    def _recording(self) -> Iterator[Recorder | None]:
        """The recorder, if there is one. A recording that fails is given up and said; play goes on."""
        recorder = self._recorder
        try:
            yield recorder
        except FlowshadeError as error:
            self._recorder = None
            if recorder is not None:
                recorder.discard()
            self._emit(protocol.Problem(code="recording_failed", text=str(error), fatal=False))

    def _start_recording(self) -> None:
        with self._recording() as recorder:
            if recorder is None:
                self._recordings_begun += 1
                name = f"{time.strftime('%Y%m%d-%H%M%S')}-{self.name}-{self._recordings_begun}"
                source = self.source
                self._recorder = Recorder(self._recordings, name, source.size, source.fps, source.description)

    def _stop_recording(self) -> None:
        """Finishes the files; a window that is being painted is not in them."""
        with self._recording() as recorder:
            if recorder is None:
                return
            recorder.close()
            self._recorder = None
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
    done, data = cv2.imencode(
        ".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    )
    if not done:
        raise PlayError(f"a picture of shape {picture.shape} cannot be written as JPEG.")
    return data.tobytes()
