"""A clock that tests move, and a world and a model that cost what a test says."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowshade.gbuffer.look import Look
from flowshade.play.actors import Controls, Mode
from flowshade.play.painting import Canvas
from flowshade.types import GBuffer


class Clock:
    """Time that passes only when something is done; what was planned happens on the way."""

    def __init__(self) -> None:
        self.time = 0.0
        self._plans: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time

    def plan(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._plans, (at, next(self._order), action))

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.plan(self.time + seconds, again)

        self.plan(self.time + seconds, again)

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while self._plans and self._plans[0][0] <= end:
            at, _, action = heapq.heappop(self._plans)
            self.time = max(self.time, at)
            action()
        self.time = end


class FakeSource:
    """Counts ticks; every frame costs `seconds` to trace."""

    name, seed, description, interactive = "fake", 0, "", True

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        fps: float = 30.0,
        seconds: float = 0.0,
        size: tuple[int, int] = (8, 8),
    ) -> None:
        self.fps, self.mode, self.size = fps, "walk", size
        self._clock, self._seconds = clock, seconds
        self.controls: list[Controls] = []
        self.closed = 0

    def reset(self) -> None:
        self.controls.clear()

    def tick(self, controls: Controls) -> None:
        self.controls.append(controls)

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode

    def gbuffer(self) -> GBuffer:
        if self._clock is not None:
            self._clock.advance(self._seconds)
        return GBuffer(albedo=torch.zeros(1, 3, *self.size))

    def reference(self, look: Look) -> Tensor | None:
        return None

    def close(self) -> None:
        self.closed += 1


class Painted:
    """A future that is done when the clock says so."""

    def __init__(self, clock: Clock, at: float, pictures: np.ndarray) -> None:
        self._clock, self._at, self._pictures = clock, at, pictures

    def done(self) -> bool:
        return self._clock.time >= self._at

    def result(self) -> np.ndarray:
        self._clock.advance(max(0.0, self._at - self._clock.time))
        return self._pictures

    def add_done_callback(self, function: Callable[[Any], None]) -> None:
        self._clock.plan(self._at, lambda: function(self))


class Rehearsed:
    """A rehearsal whose windows are painted as the clock goes on."""

    def __init__(self, clock: Clock, painted: Sequence[Painted]) -> None:
        self._clock, self._painted = clock, painted

    @property
    def progress(self) -> float:
        return sum(each.done() for each in self._painted) / len(self._painted)

    def done(self) -> bool:
        return self.progress == 1.0

    def result(self) -> None:
        pass


class FakeModels:
    """Paints grey; `cost(steps, frames)` seconds a window pass on the clock.

    Args:
        first: seconds more of the first two windows of a kind, as with graphs that are recorded.
    """

    def __init__(self, clock: Clock, cost: Callable[[int, int], float], steps: int = 4, *, first: float = 0.0) -> None:
        self._clock, self._cost, self._free, self._first = clock, cost, 0.0, first
        self._seen = Counter[tuple[int, int]]()
        self.renderer: Any = SimpleNamespace(
            steps=steps,
            styles={},
            compose=lambda prompt, style: prompt,
            encoder=SimpleNamespace(check=lambda text: None),
        )

    def rehearse(self, window: GBuffer, kinds: Sequence[tuple[int, int]], caption: str) -> Rehearsed:
        if not self._first:
            return Rehearsed(self._clock, [Painted(self._clock, self._clock.time, np.zeros(0))])
        painted = []
        for frames, steps in kinds:
            part = GBuffer.cat([window] * frames)[:frames]
            painted += [self.submit([Canvas()], [part], steps)[0] for _ in range(3)]
        return Rehearsed(self._clock, painted)

    def submit(self, canvases: Sequence[Canvas], windows: Sequence[GBuffer], steps: int) -> list[Painted]:
        """One after another, like the one thread of the real one."""
        jobs = []
        for canvas, window in zip(canvases, windows, strict=True):
            kind = steps, window.frames
            self._seen[kind] += 1
            canvas.prepared = self._first > 0 and self._seen[kind] <= 2
            cost = self._cost(steps, window.frames) + (self._first if canvas.prepared else 0.0)
            self._free = max(self._free, self._clock.time) + cost
            jobs.append(Painted(self._clock, self._free, np.zeros((window.frames, *window.size, 3), np.uint8)))
        return jobs
