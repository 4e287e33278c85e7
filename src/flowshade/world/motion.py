"""Scripted motion: things that follow closed routes, and kicks that keep loose things rolling.

Both are functions of time alone, so a world runs for ever, costs the same in every frame and repeats exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def smooth_loop(values: Floats, width: int) -> Floats:
    """Circular moving average of a closed loop [N, ...], applied twice (a tent of `width` samples)."""
    if width < 2:
        return values
    kernel = np.zeros(len(values))
    kernel[np.arange(width) - width // 2] = 1 / width
    spectrum = np.fft.rfft(kernel).reshape(-1, *[1] * (values.ndim - 1))
    return np.fft.irfft(np.fft.rfft(values, axis=0) * spectrum**2, n=len(values), axis=0)


def resample_loop(points: Floats, count: int) -> Floats:
    """`count` points at equal distance along a closed polyline [N, D]."""
    closed = np.concatenate([points, points[:1]])
    length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    wanted = np.linspace(0, length[-1], count, endpoint=False)
    return np.stack([np.interp(wanted, length, column) for column in closed.T], -1)


def quaternion(yaw: float, pitch: float = 0.0) -> Floats:
    """[4] w, x, y, z: nose up by `pitch`, then turned by `yaw`, radians."""
    cy, sy, cp, sp = np.cos(yaw / 2), np.sin(yaw / 2), np.cos(pitch / 2), np.sin(pitch / 2)
    # Positive rotation about +Y lowers +X, hence the sign of the pitch.
    return np.array([cy * cp, sy * sp, -cy * sp, sy * cp])


@dataclass(frozen=True)
class Route:
    """A closed curve, sampled at equal distances."""

    points: Floats
    """[N, 3] metres."""

    @cached_property
    def spacing(self) -> float:
        return float(np.linalg.norm(np.roll(self.points, -1, 0) - self.points, axis=1).mean())

    @property
    def length(self) -> float:
        return self.spacing * len(self.points)

    @staticmethod
    def through(points: Floats, spacing: float = 0.5, rounding: float = 3.0) -> Route:
        """A loop through a polyline [N, 3] with its corners rounded over about `rounding` metres."""
        closed = np.concatenate([points, points[:1]])
        length = np.linalg.norm(np.diff(closed, axis=0), axis=1).sum()
        count = max(16, int(length / spacing))
        rounded = smooth_loop(resample_loop(points, count), int(rounding / spacing))
        return Route(resample_loop(rounded, count))

    def positions(self, distances: Floats) -> Floats:
        """[N, 3] at distances [N] along the loop, metres; any distance wraps."""
        count = len(self.points)
        place = (distances / self.spacing) % count
        i, t = place.astype(int), (place % 1)[:, None]
        return self.points[i % count] * (1 - t) + self.points[(i + 1) % count] * t

    def at(self, distance: float) -> tuple[Floats, float, float]:
        """Position [3], yaw and pitch of the tangent at a distance along the loop, metres; any distance wraps."""
        count = len(self.points)
        place = (distance / self.spacing) % count
        i, t = int(place), place % 1
        a, b, c, d = (self.points[(i + k) % count] for k in (-1, 0, 1, 2))
        tangent = (c - a) * (1 - t) + (d - b) * t
        pitch = np.arctan2(tangent[2], np.hypot(tangent[0], tangent[1]))
        return b * (1 - t) + c * t, float(np.arctan2(tangent[1], tangent[0])), float(pitch)


@dataclass(frozen=True)
class Mover:
    """A mocap body that follows a route at constant speed."""

    body: str
    route: Route
    speed: float
    """Metres a second."""
    phase: float
    """Metres along the route at time 0."""
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of the body from the route's point, in its own heading."""
    swing: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Pitching to and fro (legs): amplitude in radians, cycles a metre, phase in cycles."""
    bob: float = 0.0
    """Rise and fall in metres, twice a swing cycle."""
    radius: float = 0.5
    """Metres kept free around it by cameras."""
    height: float = 2.0
    """Metres; above this a camera may pass over it."""
    depth: float = np.inf
    """Metres below its route; lower than this a camera may pass under it."""
    heading: float | None = None
    """Yaw that is held whatever way the route goes, radians; None = along the route."""

    def pose(self, time: float) -> tuple[Floats, Floats]:
        """Position [3] and quaternion [4] at a time in seconds."""
        distance = self.phase + self.speed * time
        position, yaw, pitch = self.route.at(distance)
        if self.heading is not None:
            yaw = self.heading
        amplitude, frequency, phase = self.swing
        cycle = 2 * np.pi * (distance * frequency + phase)
        c, s = np.cos(yaw), np.sin(yaw)
        x, y, z = self.offset
        lift = z + self.bob * np.cos(2 * cycle)
        return (
            position + np.array([c * x - s * y, s * x + c * y, lift]),
            quaternion(yaw, pitch + amplitude * np.sin(cycle)),
        )


@dataclass(frozen=True)
class Kick:
    """Sets a free body's velocity now and then, towards a home it therefore never strays far from."""

    joint: str
    home: tuple[float, float]
    period: float
    """Seconds."""
    phase: float
    """Seconds, in [0, period)."""
    speed: float
    """Horizontal, metres a second."""
    lift: float
    """Upward, metres a second."""

    def velocity(self, time: float, step: float, position: Sequence[float]) -> Floats | None:
        """New linear velocity [3] if a kick falls in [time, time + step), for a body at `position`; else None."""
        before = np.floor((time - self.phase) / self.period + 1e-9)
        count = np.floor((time + step - self.phase) / self.period + 1e-9)
        if count == before or count < 0:
            return None
        angle = 2.399963 * count  # the golden angle: every kick goes another way
        target = np.array(self.home) + 0.8 * np.array([np.cos(angle), np.sin(angle)])
        away = target - np.asarray(position[:2])
        away = away / max(float(np.linalg.norm(away)), 1e-6)
        return np.array([*(self.speed * away), self.lift])
