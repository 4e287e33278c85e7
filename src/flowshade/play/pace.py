"""Keeping pace: how much is rendered when a machine cannot do it all, and a count of what was left out.

World time follows the clock. When windows take longer to make than to show, quality gives way in this order: denoising
steps, then frames: a window then covers more world ticks, shows every `stride`-th of them, and counts the others as
dropped. When there is room again, the same way back. Latency is one window and the time to make it, whatever happens.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_STRIDE = 8
_TOO_SLOW, _ROOMY = 0.95, 0.55
"""Share of a window's time that making it may take; and below which there is room for more."""
_PATIENCE = 3
"""Windows in a row before anything changes."""


@dataclass
class Pace:
    """Chooses steps and stride from how long windows take."""

    fps: float
    """World ticks a second."""
    window: int
    """Frames rendered together."""
    best_steps: int
    steps: int = 0
    stride: int = 1
    work: float = 0.0
    """Seconds that making a window takes, smoothed."""
    dropped: int = 0
    note: str = ""
    _streak: int = 0

    def __post_init__(self) -> None:
        self.steps = self.best_steps

    @property
    def span(self) -> float:
        """Seconds of world time in a window."""
        return self.window * self.stride / self.fps

    def took(self, seconds: float) -> bool:
        """Takes note of a window's making. Returns whether steps or stride changed."""
        self.work = seconds if not self.work else 0.7 * self.work + 0.3 * seconds
        self.dropped += self.window * (self.stride - 1)
        load = self.work / self.span
        direction = 1 if load > _TOO_SLOW else -1 if self._has_room() else 0
        self._streak = self._streak + direction if self._streak * direction >= 0 and direction else direction
        if abs(self._streak) < (_PATIENCE if direction > 0 else 4 * _PATIENCE):
            return False
        self._streak = 0
        return self._less() if direction > 0 else self._more()

    def _has_room(self) -> bool:
        if self.stride > 1:
            return self.work < _ROOMY * self.window * (self.stride - 1) / self.fps
        return self.steps < self.best_steps and self.work * (self.steps + 1) / self.steps < _ROOMY * self.span

    def _less(self) -> bool:
        if self.steps > 1:
            self.steps -= 1
        elif self.stride < LONGEST_STRIDE:
            self.stride += 1
        else:
            self.note = "this machine is too slow for this size: the world runs in slow motion"
            return False
        return self._changed()

    def _more(self) -> bool:
        if self.stride > 1:
            self.stride -= 1
        elif self.steps < self.best_steps:
            self.steps += 1
        else:
            return False
        return self._changed()

    def _changed(self) -> bool:
        self.work = 0.0
        parts = []
        if self.steps < self.best_steps:
            parts.append(f"{self.steps} of {self.best_steps} steps")
        if self.stride > 1:
            parts.append(f"{self.fps / self.stride:.0f} frames a second")
        self.note = "keeping pace: " + ", ".join(parts) if parts else ""
        return True
