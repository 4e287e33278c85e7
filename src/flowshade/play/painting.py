"""One model for all: windows of any number of sessions, rendered by one thread, together where they fit."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from flowshade.api import StyledRenderer
from flowshade.play.errors import PlayError
from flowshade.renderer.flash import FlashRenderer
from flowshade.renderer.stream import Stream
from flowshade.types import GBuffer

log = logging.getLogger(__name__)

LARGEST_BATCH = 16
"""Windows in one call."""
_REPEATS = 3
"""Windows after which nothing is new about a stream whose past is full: one timed, one recorded, one to see."""


class Canvas:
    """One stream of pictures: its caption, and its past once it has been painted on."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.caption = ""
        self.prepared = False
        """Whether the last window took longer than others will, since it was among the first of its kind."""
        self._stream: Stream | FlashRenderer | None = None
        self._written: str | None = None

    def restart(self) -> None:
        """Forgets all pictures; the caption stays."""
        self._stream, self._written = None, None

    def stream(self, renderer: StyledRenderer) -> Stream | FlashRenderer:
        """The stream, told of the caption. For the painting thread."""
        if self._stream is None:
            self._stream = renderer.open_stream(self.seed)
        if self._written != self.caption:
            self._stream.set_text(renderer.encoder.encode([self.caption]))
            self._written = self.caption
        return self._stream


Kind = tuple[int, ...]
"""Whether it is a rehearsal, steps, frames, height and width."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    canvas: Canvas
    window: GBuffer
    steps: int
    rehearsal: bool = False
    done: Future[Any] = field(default_factory=Future)

    @property
    def kind(self) -> Kind:
        """Jobs of one kind fit into one call."""
        return (self.rehearsal, self.steps, self.window.frames, *self.window.size)


class Models:
    """The renderer that all sessions share, and the thread that loads it and paints.

    Whatever waits when the thread is free is rendered in one call, as far as sizes, frames and steps agree. A call that
    fails is made again window by window, so that only its cause fails.

    Args:
        load: makes the renderer; called on the thread.
        threads: for torch on a CPU; None leaves a core to physics and rays. All cores at once are slower whenever
            anything else runs: at each operation the threads wait for the one that was put aside.
    """

    def __init__(self, load: Callable[[], StyledRenderer], *, threads: int | None = None) -> None:
        self.error: Exception | None = None
        self.batches: deque[int] = deque(maxlen=1000)
        """How many windows went into each of the last calls."""
        self._renderer: StyledRenderer | None = None
        self._threads = threads or max(1, (os.cpu_count() or 2) - 1)
        self._jobs: deque[_Job] = deque()
        self._rehearsed: dict[Kind, Future[Any]] = {}
        self._painted: set[tuple[Kind, int]] = set()
        """Kinds of calls that were made: how many windows of what kind."""
        self._waiting = threading.Condition()
        self._loaded = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, args=(load,), daemon=True, name="flowshade-model")
        self._thread.start()

    @property
    def renderer(self) -> StyledRenderer | None:
        """None while it loads.

        Raises:
            PlayError: it could not be loaded.
        """
        if self.error is not None:
            raise PlayError(f"the model cannot be loaded: {self.error}")
        return self._renderer

    @property
    def waiting(self) -> int:
        """Windows that wait for their turn."""
        return len(self._jobs)

    def wait(self) -> StyledRenderer:
        """Waits until the model is there."""
        self._loaded.wait()
        renderer = self.renderer
        assert renderer is not None
        return renderer

    def submit(self, canvases: Sequence[Canvas], windows: Sequence[GBuffer], steps: int) -> list[Future[np.ndarray]]:
        """Asks for the pictures of a window a canvas, uint8 [T, H, W, 3] each. A canvas waits for one at a time.

        Raises:
            PlayError: the model is not there or has been closed.
        """
        jobs = [_Job(canvas=canvas, window=window, steps=steps) for canvas, window in zip(canvases, windows)]
        with self._waiting:
            if self._closing or self.renderer is None:
                raise PlayError("the model is not there; wait() for it before submit().")
            self._jobs.extend(jobs)
            self._waiting.notify_all()
        return [job.done for job in jobs]

    def rehearse(self, window: GBuffer, steps: int) -> Future[Any]:
        """Renders such windows, on streams that nobody sees, until they take no longer than they will in a game.

        On the fast path of a GPU the first windows of a size and length are slow: kernels are timed and recorded.
        Without it nothing is done. Whoever asks for the same again gets the same answer. Other windows wait meanwhile.

        Returns:
            Done when it is over; holds what was raised, if anything was.

        Raises:
            PlayError: the model is not there or has been closed.
        """
        job = _Job(canvas=Canvas(), window=window, steps=steps, rehearsal=True)
        with self._waiting:
            renderer = self.renderer
            if self._closing or renderer is None:
                raise PlayError("the model is not there; wait() for it before rehearse().")
            if job.kind not in self._rehearsed:
                self._rehearsed[job.kind] = job.done
                if renderer.preparations is None:
                    job.done.set_result(None)
                else:
                    self._jobs.append(job)
                    self._waiting.notify_all()
            return self._rehearsed[job.kind]

    def paint(self, canvases: Sequence[Canvas], windows: Sequence[GBuffer], steps: int) -> list[np.ndarray]:
        """`submit`, and waits for the pictures."""
        return [done.result() for done in self.submit(canvases, windows, steps)]

    def close(self) -> None:
        """Ends the thread after the call it is making; windows that wait fail. Loading is not waited for."""
        with self._waiting:
            self._closing = True
            self._waiting.notify_all()
        if self._loaded.is_set():
            self._thread.join()

    # The painting thread ----------------------------------------------------------------------------------------------

    def _run(self, load: Callable[[], StyledRenderer]) -> None:
        try:
            torch.set_num_threads(self._threads)
            self._renderer = load()
        except Exception as error:  # noqa: BLE001 - told to every session
            self.error = error
            return
        finally:
            self._loaded.set()
        while self._turn():
            pass

    def _turn(self) -> bool:
        """One call, or False when it is time to end. Between calls the thread holds no windows of the last one."""
        batch = self._next()
        if batch and batch[0].rehearsal:
            self._rehearse(batch[0])
        else:
            self._serve(batch)
        return bool(batch)

    def _next(self) -> list[_Job]:
        """The oldest window that waits and all that fit beside it; nothing when it is time to end."""
        with self._waiting:
            while not self._jobs and not self._closing:
                self._waiting.wait()
            if self._closing:
                for job in self._jobs:
                    job.done.set_exception(PlayError("the model was closed."))
                return []
            kind, batch, rest = self._jobs[0].kind, [], deque()
            for job in self._jobs:
                fits = job.kind == kind and len(batch) < LARGEST_BATCH
                (batch if fits else rest).append(job)
            self._jobs = rest
            return batch

    def _serve(self, batch: list[_Job]) -> None:
        if not batch:
            return
        try:
            pictures = self._paint(batch)
        except Exception as error:  # noqa: BLE001 - goes to those who wait
            if len(batch) == 1:
                batch[0].done.set_exception(error)
                return
            log.warning("a call with %d windows failed (%s); they are rendered one by one", len(batch), error)
            for job in batch:
                self._serve([job])
            return
        self.batches.append(len(batch))
        for job, picture in zip(batch, pictures):
            job.done.set_result(picture)

    def _paint(self, batch: list[_Job]) -> list[np.ndarray]:
        renderer = self._renderer
        assert renderer is not None
        before, call = renderer.preparations, (batch[0].kind, len(batch))
        streams = [job.canvas.stream(renderer) for job in batch]
        frames = renderer.push_streams(streams, [job.window for job in batch], steps=batch[0].steps)
        pictures = [part.to_uint8().cpu().numpy() for part in frames]
        for job in batch:
            job.canvas.prepared = call not in self._painted or renderer.preparations != before
        self._painted.add(call)
        return pictures

    def _rehearse(self, job: _Job) -> None:
        """A stream from its start until its past is full, twice: on a GPU a stage is recorded at its second call."""
        renderer = self._renderer
        assert renderer is not None
        full = -(-renderer.past_frames // job.window.frames)  # windows
        try:
            for canvas in (Canvas(), Canvas()):
                for _ in range(full + _REPEATS):
                    self._paint([replace(job, canvas=canvas, rehearsal=False)])
        except Exception as error:  # noqa: BLE001 - goes to those who wait
            job.done.set_exception(error)
        else:
            job.done.set_result(None)
