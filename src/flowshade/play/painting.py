"""One model for all: windows of any number of sessions, rendered by one thread, together where they fit."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

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
"""Steps, frames, height and width."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    canvas: Canvas
    window: GBuffer
    steps: int
    group: int
    """Which call of `submit` it came with."""
    prepared: int
    """Preparations that were made before it came."""
    done: Future[np.ndarray] = field(default_factory=Future)

    @property
    def kind(self) -> Kind:
        """Jobs of one kind fit into one call."""
        return (self.steps, self.window.frames, *self.window.size)


class Rehearsal:
    """Windows that are rendered for nobody, so that none of their kinds is new when somebody plays.

    Args:
        windows: canvas, window and steps of each.
        count: how many these are.
    """

    def __init__(self, windows: Iterator[tuple[Canvas, GBuffer, int]], count: int) -> None:
        self._windows, self._count, self._rendered = windows, count, 0
        self._over: Future[None] = Future()
        if not count:
            self._over.set_result(None)

    @property
    def progress(self) -> float:
        """Share that is rendered, 0 to 1."""
        return self._rendered / self._count if self._count else 1.0

    def done(self) -> bool:
        return self._over.done()

    @property
    def failed(self) -> bool:
        """Whether it is over and something was raised."""
        return self.done() and self._over.exception() is not None

    def result(self, timeout: float | None = None) -> None:
        """Waits until it is over.

        Args:
            timeout: seconds; None = for ever.

        Raises:
            TimeoutError: it was not over in time.
            Exception: what was raised while it was rendered.
        """
        self._over.result(timeout)

    def advance(self, paint: Callable[[Canvas, GBuffer, int], None]) -> None:
        """Has one window painted. For the painting thread."""
        try:
            paint(*next(self._windows))
        except Exception as error:  # noqa: BLE001 - goes to those who wait
            self.fail(error)
            return
        self._rendered += 1
        if self._rendered == self._count:
            self._end()
            self._over.set_result(None)

    def fail(self, error: Exception) -> None:
        self._end()
        self._over.set_exception(error)

    def _end(self) -> None:
        self._windows = iter(())  # lets go of the buffers


def _rehearsed(
    window: GBuffer, kinds: Sequence[tuple[int, int]], caption: str, past: int
) -> Iterator[tuple[Canvas, GBuffer, int]]:
    """Of each kind a stream from its start until its past is full, twice: a graph is recorded at the second call."""
    for frames, steps in kinds:
        part = GBuffer.cat([window] * -(-frames // window.frames))[:frames]
        for _ in range(2):
            canvas = Canvas()
            canvas.caption = caption
            for _ in range(_until_full(frames, past)):
                yield canvas, part, steps


def _until_full(frames: int, past: int) -> int:
    """Windows of so many frames after which nothing is new about a stream."""
    return -(-past // frames) + _REPEATS


class Models:
    """The renderer that all sessions share, and the thread that loads it and paints.

    Whatever waits when the thread is free is rendered in one call, as far as sizes, frames and steps agree. With CUDA
    graphs only windows that were submitted together are: each number of windows would be another graph, recorded for
    seconds in the middle of a game whenever players happen to meet, and launches, which a batch saves, cost nothing
    there. A call that fails is made again window by window, so that only its cause fails.

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
        self._groups = itertools.count()
        self._rehearsals: dict[tuple[object, ...], Rehearsal] = {}
        self._prepared = 0
        """Calls so far that took longer than others like them will."""
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
        with self._waiting:
            if self._closing or self.renderer is None:
                raise PlayError("the model is not there; wait() for it before submit().")
            group = next(self._groups)
            jobs = [
                _Job(canvas=canvas, window=window, steps=steps, group=group, prepared=self._prepared)
                for canvas, window in zip(canvases, windows)
            ]
            self._jobs.extend(jobs)
            self._waiting.notify_all()
        return [job.done for job in jobs]

    def rehearse(self, window: GBuffer, kinds: Sequence[tuple[int, int]], caption: str = "") -> Rehearsal:
        """Renders windows of all kinds, on streams that nobody sees, until they take no longer than in a game.

        On the fast path of a GPU the first windows of a size, a length and a number of steps are slow: kernels are
        timed and recorded. Without it nothing is done. Whoever asks for the same again gets the same answer, unless
        it failed. Windows of others are rendered in between.

        Args:
            window: what is rendered, cut or repeated to the length that is wanted.
            kinds: (frames, steps) of each kind; frames are multiples of `FRAMES_PER_LATENT`.
            caption: a usual one; lengths of captions differ too.

        Raises:
            PlayError: the model is not there or has been closed.
        """
        with self._waiting:
            renderer = self.renderer
            if self._closing or renderer is None:
                raise PlayError("the model is not there; wait() for it before rehearse().")
            key = (window.size, tuple(kinds))
            known = self._rehearsals.get(key)
            if known is None or known.failed:
                known = self._rehearsals[key] = _rehearsal(renderer, window, kinds, caption)
                self._waiting.notify_all()
            return known

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
        """A call and a window of a rehearsal, as far as there are any; False when it is time to end.

        Between turns the thread holds no windows of the last one.
        """
        batch, rehearsal = self._next()
        self._serve(batch)
        if rehearsal is not None:
            rehearsal.advance(self._rehearse)
        return bool(batch) or rehearsal is not None

    def _next(self) -> tuple[list[_Job], Rehearsal | None]:
        """The oldest window that waits, all that fit beside it, and the oldest rehearsal; nothing at the end."""
        with self._waiting:
            while not (self._jobs or self._rehearsal() or self._closing):
                self._waiting.wait()
            if self._closing:
                self._refuse()
                return [], None
            return self._batch(), self._rehearsal()

    def _rehearsal(self) -> Rehearsal | None:
        return next((each for each in self._rehearsals.values() if not each.done()), None)

    def _refuse(self) -> None:
        for job in self._jobs:
            job.done.set_exception(PlayError("the model was closed."))
        while (rehearsal := self._rehearsal()) is not None:
            rehearsal.fail(PlayError("the model was closed."))

    def _batch(self) -> list[_Job]:
        if not self._jobs:
            return []
        renderer = self._renderer
        assert renderer is not None
        first, batch, rest = self._jobs[0], [], deque()
        for job in self._jobs:
            together = renderer.preparations is None or job.group == first.group
            fits = together and job.kind == first.kind and len(batch) < LARGEST_BATCH
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
        """The pictures of one call. A window has waited for whatever was prepared since it came."""
        renderer = self._renderer
        assert renderer is not None
        before, call = renderer.preparations, (batch[0].kind, len(batch))
        streams = [job.canvas.stream(renderer) for job in batch]
        frames = renderer.push_streams(streams, [job.window for job in batch], steps=batch[0].steps)
        pictures = [part.to_uint8().cpu().numpy() for part in frames]
        self._prepared += call not in self._painted or renderer.preparations != before
        self._painted.add(call)
        for job in batch:
            job.canvas.prepared = job.prepared != self._prepared
        return pictures

    def _rehearse(self, canvas: Canvas, window: GBuffer, steps: int) -> None:
        self._paint([_Job(canvas=canvas, window=window, steps=steps, group=-1, prepared=self._prepared)])
        self._prepared += 1


def _rehearsal(renderer: StyledRenderer, window: GBuffer, kinds: Sequence[tuple[int, int]], caption: str) -> Rehearsal:
    if renderer.preparations is None:
        return Rehearsal(iter(()), 0)
    past = renderer.past_frames
    count = sum(2 * _until_full(frames, past) for frames, _ in kinds)
    return Rehearsal(_rehearsed(window, kinds, caption, past), count)
