"""Keeping pace: what is given up when a machine cannot do it all, so that answers never get slower and slower.

World time follows the clock. When making a window takes longer than showing it, this gives way, in this order:

1. denoising steps, down to one, and
2. the window's length, halved down to one latent frame (inputs wait less), if it is the painting that takes so long;
3. frames: a window covers more world ticks and shows every `stride`-th; the others count as dropped;
4. the clock: once a window covers `LONGEST_SPAN` seconds, the world runs in slow motion.

When there is room again, the same way back: frames and steps as far as the measured times say that they fit, at once,
and the window's length by doubling; what does not hold is tried again later and later. Windows that took long since
they were the first of their kind are not counted, and which kinds there can be is known before (`Pace.kinds`), so that
they can be prepared. Nothing queues: one window is traced while one is painted, an input
waits for the next to begin and is answered within `Pace.bound` seconds, whatever the load. Frames that a player cannot
take are replaced by newer ones (`FrameQueue`), and jumps and throws that waited longer than `STALE_SECONDS` are
forgotten.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from flowshade.play.protocol import FrameHeader
from flowshade.types import FRAMES_PER_LATENT

LONGEST_SPAN = 0.6
"""Seconds of world time that a window may cover: more would make inputs wait, and ticks cost time too."""
STALE_SECONDS = 1.0
"""A jump or throw that could not be answered for so long is forgotten."""

_TOO_SLOW, _ROOMY, _TWICE = 0.95, 0.8, 0.6
"""Share of a window's time that making it may take; that it may be expected to take after a change; and below which a
window may be twice as long, since it then takes less than twice the time."""
_REMEMBERED = 5
"""Windows that the expected time is the median of: one hiccup changes nothing."""
_PATIENCE, _LONGEST_PATIENCE = 1.0, 60.0
"""Seconds of room before anything is given back; doubles each time it did not hold, halves when it did."""
_HELD = 20.0
"""Seconds after which what was given back has held: what comes then is another hiccup."""
_ONCE = 8
"""Windows in a row that may be the first of their kind. A machine that has always something new to prepare is slow."""
_SCREENSHOTS = 4
"""That may wait for a player who reads nothing."""


@dataclass
class Pace:
    """Chooses steps, window and stride from how long windows take. Knows no clock: it is told."""

    fps: float
    """World ticks a second."""
    best_window: int
    """Frames rendered together when there is time."""
    best_steps: int
    steps: int = 0
    window: int = 0
    stride: int = 1
    note: str = ""
    """What was given up, in words; empty when nothing was."""
    _times: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """Seconds of tracing, of painting and of sending."""
    _before: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """What they were before the last change: a guess until there is something better."""
    _roomy: float = 0.0
    """Seconds for which there has been room."""
    _patience: float = _PATIENCE
    _raised: bool = False
    _since: float = 0.0
    """Seconds since the last change."""
    _once: int = 0

    def __post_init__(self) -> None:
        self.steps, self.window = self.best_steps, self.best_window

    @property
    def kinds(self) -> list[tuple[int, int]]:
        """Every (window, steps) that may be chosen, the best first: fewer steps, then shorter windows of one step."""
        steps = [(self.best_window, each) for each in _halvings(self.best_steps, 1)]
        return [*steps, *((each, 1) for each in _halvings(self.best_window, FRAMES_PER_LATENT)[1:])]

    @property
    def tracing(self) -> float:
        """Seconds that physics and tracing of a window take: the median of the last few; 0 before the first."""
        return self._usual(0)

    @property
    def painting(self) -> float:
        """Seconds that rendering a window takes, the wait for its turn included."""
        return self._usual(1)

    @property
    def sending(self) -> float:
        """Seconds until a window's pictures, once painted, are on their way: compression above all."""
        return self._usual(2)

    def _usual(self, part: int) -> float:
        return statistics.median_high(each[part] for each in self._times) if self._times else self._before[part]

    @property
    def work(self) -> float:
        """Seconds from the first tick of a window until its pictures are on their way."""
        return self.tracing + self.painting + self.sending

    @property
    def load(self) -> float:
        """Seconds a window, at best: one thread paints, the other traces the next one and sends the last."""
        return max(self.tracing + self.sending, self.painting)

    @property
    def span(self) -> float:
        """Seconds of world time in a window."""
        return self.window * self.stride / self.fps

    @property
    def period(self) -> float:
        """Seconds from one window to the next."""
        return max(self.span, self.load)

    @property
    def bound(self) -> float:
        """Seconds within which an input is in a picture, as long as windows take what they take now."""
        return self.period + self.work

    def took(self, tracing: float, painting: float, sending: float = 0.0, *, once: bool = False) -> bool:
        """Takes note of how long a window took, seconds. Returns whether anything changed.

        Args:
            once: it was the first of its kind, and others will not take so long.
        """
        self._once = self._once + 1 if once else 0
        if 0 < self._once <= _ONCE:
            return False
        self._times.append((tracing, painting, sending))
        self._since += self.period
        if self.load > _TOO_SLOW * self.span:
            self._roomy = 0.0
            enough = len(self._times) >= 3 or self.load > 2 * self.span
            return self._less() if enough else self._say()
        self._roomy = self._roomy + self.period if self._has_room() else 0.0
        return self._more() if self._roomy >= self._patience else self._say()

    def _less(self) -> bool:
        if self._raised:
            factor = 0.5 if self._since >= _HELD else 2.0
            self._patience = max(_PATIENCE, min(factor * self._patience, _LONGEST_PATIENCE))
        painting = self.painting > _TOO_SLOW * self.span  # else tracing is, and only fewer frames help
        if painting and self.steps > 1:
            fitting = self.steps * self.span / self.painting
            lower = [each for each in _halvings(self.best_steps, 1) if each < self.steps]
            self.steps = next((each for each in lower if each <= fitting), 1)
        elif painting and self.window > FRAMES_PER_LATENT:
            self.window = max(each for each in self._windows() if each < self.window)
        else:
            needed = math.ceil(self.load * self.fps / (self.window * _TOO_SLOW))
            wanted = min(needed, int(LONGEST_SPAN * self.fps / self.window))
            if wanted <= self.stride:
                return self._say()
            self.stride = wanted
        self._raised = False
        return self._changed()

    def _has_room(self) -> bool:
        if self.stride > 1:
            return self._fitting_stride() < self.stride
        if self.window < self.best_window:
            return self.load < _TWICE * self.span
        return self._fitting_steps() > self.steps

    def _more(self) -> bool:
        if self.stride > 1:
            self.stride = self._fitting_stride()
        elif self.window < self.best_window:
            self.window = min(each for each in self._windows() if each > self.window)
        else:
            self.steps = self._fitting_steps()
        self._raised = True
        return self._changed()

    def _windows(self) -> list[int]:
        return _halvings(self.best_window, FRAMES_PER_LATENT)

    def _fitting_stride(self) -> int:
        """The smallest stride that the last windows would have kept."""
        return max(1, math.ceil(self.load * self.fps / (self.window * _ROOMY)))

    def _fitting_steps(self) -> int:
        """The most steps whose windows would keep pace if painting took as many times as long."""
        for more in _halvings(self.best_steps, 1):
            if more <= self.steps or max(self.load, self.painting * more / self.steps) < _ROOMY * self.span:
                return max(more, self.steps)
        return self.steps

    def _changed(self) -> bool:
        self._before = self.tracing, self.painting, self.sending
        self._times.clear()
        self._roomy = self._since = 0.0
        self._say()
        return True

    def _say(self) -> bool:
        """Writes the note. Returns whether it is another one."""
        parts = []
        if self.steps < self.best_steps:
            parts.append(f"{self.steps} of {self.best_steps} steps")
        if self.window < self.best_window:
            parts.append(f"windows of {self.window}")
        if self.stride > 1:
            parts.append(f"{self.fps / self.stride:.0f} frames a second")
        if self.load > self.span:
            parts.append("slow motion: choose a smaller size")
        before, self.note = self.note, "keeping pace: " + ", ".join(parts) if parts else ""
        return self.note != before


def _halvings(best: int, unit: int) -> list[int]:
    """`best` and its halves in whole units, down to one."""
    found = [best]
    while found[-1] > unit:
        found.append(max(unit, found[-1] // (2 * unit) * unit))
    return found


@dataclass(frozen=True, kw_only=True)
class TimedFrame:
    """A picture and when to show it."""

    due: float
    """Seconds, on the session's clock (`time.monotonic`)."""
    header: FrameHeader
    data: bytes


class FrameQueue:
    """Frames on their way to one player; the newest wins. Holds no more than two windows, whatever the player does.

    A frame leaves when it is due. It is dropped when a newer one is due too, or when the player has not shown what it
    was sent: `most` frames, or two of which the older was sent more than `seconds` ago. Screenshots always
    go; of those that wait for a player who reads nothing, the newest few.
    """

    def __init__(self, *, most: int = 12, seconds: float = 0.25) -> None:
        self._most, self._seconds = most, seconds
        self._frames: list[TimedFrame] = []
        self._always: list[TimedFrame] = []
        self._sent: dict[int, float] = {}
        self.dropped = 0
        """Frames that were never sent."""

    def __len__(self) -> int:
        """Frames that wait to be sent."""
        return len(self._frames) + len(self._always)

    def put(self, frames: list[TimedFrame], now: float) -> None:
        """Takes a window's frames. What is overdue makes room for them."""
        self._always = [*self._always, *(frame for frame in frames if frame.header.kind != "frame")][-_SCREENSHOTS:]
        new = [frame for frame in frames if frame.header.kind == "frame"]
        if new:
            self._drop_until(sum(frame.due <= now for frame in self._frames))
            kept = [frame for frame in self._frames if frame.due < new[0].due]
            self.dropped += len(self._frames) - len(kept)
            self._frames = kept + new
            self._drop_until(len(self._frames) - 2 * len(new))

    def take(self, now: float) -> TimedFrame | None:
        """The frame to send now, if there is one."""
        if self._always:
            return self._always.pop(0)
        self._drop_until(sum(frame.due <= now for frame in self._frames) - 1)
        if not self._frames or self._frames[0].due > now or self._is_full(now):
            return None
        frame = self._frames.pop(0)
        self._sent[frame.header.id] = now
        return frame

    def wait(self, now: float) -> float | None:
        """Seconds until `take` may give something; None until something is put or shown."""
        if self._always:
            return 0.0
        later = [frame.due - now for frame in self._frames if frame.due > now]
        if not self._is_full(now):
            return max(0.0, self._frames[0].due - now) if self._frames else None
        return min(later, default=None)

    def shown(self, frame: int) -> None:
        """The player has shown this frame, or a newer one than those before it."""
        self._sent = {number: at for number, at in self._sent.items() if number > frame}

    def _is_full(self, now: float) -> bool:
        if len(self._sent) >= self._most:
            return True
        return len(self._sent) >= 2 and now - min(self._sent.values()) > self._seconds

    def _drop_until(self, count: int) -> None:
        count = max(count, 0)
        self.dropped += count
        del self._frames[:count]
