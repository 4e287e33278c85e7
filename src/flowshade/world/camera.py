"""Camera paths: closed, smooth, clear of everything, and planned from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
import torch

from flowshade.types import Camera
from flowshade.world.errors import WorldError
from flowshade.world.motion import Floats, Mover, Route, smooth_loop


@dataclass(frozen=True)
class CameraPath:
    """A closed uniform cubic B-spline: position, yaw and pitch are C2 in time and repeat every `period`."""

    control: Floats
    """[N, 5] x, y, z (metres), yaw, pitch (radians); yaw is unwrapped."""
    period: float
    """Seconds for one loop."""
    fov_y: float
    """Vertical field of view, degrees."""
    turn: float = 0.0
    """Yaw gained over one loop, radians (a multiple of two pi)."""

    def states(self, times: Sequence[float] | Floats) -> Floats:
        """[T, 5] x, y, z, yaw, pitch at times in seconds."""
        count = len(self.control)
        place = np.asarray(times, float) / self.period * count
        first = np.floor(place)
        t = (place - first)[:, None]
        index = first[:, None].astype(np.int64) + np.arange(-1, 3)  # [T, 4]
        around = self.control[index % count]  # [T, 4, 5]
        around[..., 3] += self.turn * (index // count)
        basis = np.concatenate([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], 1) / 6
        return np.einsum("tk,tkc->tc", basis, around)

    def poses(self, times: Sequence[float] | Floats) -> Floats:
        """[T, 4, 4] camera-to-world matrices, OpenGL axes, metres."""
        states = self.states(times)
        yaw, pitch = states[:, 3], states[:, 4]
        zero = np.zeros_like(yaw)
        forward = np.stack([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)], -1)
        right = np.stack([np.sin(yaw), -np.cos(yaw), zero], -1)
        poses = np.tile(np.eye(4), (len(yaw), 1, 1))
        poses[:, :3, 0], poses[:, :3, 1], poses[:, :3, 2] = right, np.cross(right, forward), -forward
        poses[:, :3, 3] = states[:, :3]
        return poses

    def pose(self, time_s: float) -> Floats:
        """[4, 4] camera-to-world at a time in seconds."""
        return self.poses([time_s])[0]


def camera_at(path: CameraPath, times: Sequence[float] | Floats, height: int, width: int) -> Camera:
    """The pinhole cameras of a path at times in seconds, for pictures of `height` x `width` pixels."""
    times = np.asarray(times, float).reshape(-1)
    focal = 0.5 * height / np.tan(np.radians(path.fov_y) / 2)
    intrinsics = torch.tensor([focal, focal, width / 2, height / 2], dtype=torch.float32)
    return Camera(
        intrinsics=intrinsics.expand(len(times), 4).contiguous(),
        pose=torch.from_numpy(path.poses(times)).to(torch.float32),
    )


@dataclass(frozen=True)
class Rail:
    """Where cameras may go: a closed route at ground level, with the ranges a path is drawn from."""

    route: Route
    speed: tuple[float, float]
    """Metres a second."""
    height: tuple[float, float]
    """Metres above the route."""
    gaze: tuple[str, ...] = ("heading", "fixed", "swing")
    """How it may look: along its way (heading), at the middle of the route (inward), in one direction (fixed), or in
    one direction with wide slow pans (swing)."""
    axis: float = 0.0
    """Yaw of the most interesting direction, radians, for the gazes that do not follow the way."""
    spread: float = np.pi
    """How far a fixed gaze may turn from the axis, or from its opposite, radians."""
    one_sided: bool = False
    """A fixed gaze never goes to the axis' opposite."""
    traffic: tuple[float, float] | None = None
    """(speed, phase in metres) when the camera keeps a free place in a line of movers on the same route."""
    clearance: float = 0.45
    """Metres kept from everything that stands."""
    weight: float = 1.0


@dataclass(frozen=True)
class KeepOut:
    """An upright cylinder that loose or swinging things may reach."""

    centre: tuple[float, float]
    radius: float
    top: float = 4.0


TRIES = 40
CANDIDATES = 6
"""Paths drawn on a rail, among which the most interesting clear one is chosen."""
ROUNDS = 5
"""Rails that are tried at most for a path that is not dull."""
LONGEST_DULL = 5.0
"""Seconds that a path may have little to see at a time, if there is a choice."""
SHORTEST_LOOP = 10.0
"""Seconds after which a path may come back to where it began, if there is a choice."""


def plan_path(
    model: mujoco.MjModel, rails: Sequence[Rail], movers: Sequence[Mover], keep_out: Sequence[KeepOut], seed: int
) -> CameraPath:
    """Draws paths that are clear of everything and keeps the one that sees most; deterministic in the seed.

    If even that one is dull (little to see for longer than `LONGEST_DULL`, or the same again before `SHORTEST_LOOP`),
    paths on further rails are drawn, up to `ROUNDS` times; the first that is not dull is kept, or the least dull one.

    Raises:
        WorldError: no draw was clear, which means that the world's rails are blocked.
    """
    rng = np.random.default_rng([seed, 0xCA3E7A])
    obstacles = Obstacles(model, movers, keep_out)
    weights = np.array([rail.weight for rail in rails])
    found: list[tuple[bool, float, CameraPath]] = []
    for _ in range(TRIES):
        rail = rails[rng.choice(len(rails), p=weights / weights.sum())]
        drawn = [_draw(rail, rng) for _ in range(CANDIDATES)]
        ignore = rail.route if rail.traffic else None
        clear = [path for path in drawn if obstacles.is_clear(path, rail.clearance, ignore)]
        if clear:
            path = max(clear, key=obstacles.interest)
            short, dull = path.period < SHORTEST_LOOP, obstacles.longest_dull(path)
            found.append((short, dull, path))
            if (not short and dull <= LONGEST_DULL) or len(found) == ROUNDS:
                break
    if found:
        return min(found, key=lambda each: each[:2])[2]
    raise WorldError(
        f"no clear camera path in {TRIES} tries (seed {seed}) on {len(rails)} rails; expected at least one. "
        "Try another seed, or give the world a rail that is further from its objects."
    )


def _draw(rail: Rail, rng: np.random.Generator) -> CameraPath:
    speed, start = rail.traffic or (rng.uniform(*rail.speed), rng.uniform(0, rail.route.length))
    period = rail.route.length / speed
    count = int(np.clip(period / 0.3, 48, 640))
    direction = 1 if rail.traffic or rng.random() < 0.5 else -1
    position = rail.route.positions(start + direction * np.arange(count) / count * rail.route.length)
    height = rng.uniform(*rail.height)
    position[:, 2] += height
    position = smooth_loop(position, max(1, int((0.4 if rail.traffic else 1.2) / period * count)))
    yaw, turn = _gaze(rail, rng, position, period)
    tilt = rng.normal(np.radians(-3), np.radians(2)) - 0.03 * max(0.0, height - 3)
    wave = 2 * np.pi * (np.arange(count) / count * max(1, round(period / 24)) + rng.random())
    pitch = np.clip(tilt + np.radians(1.5) * np.sin(wave), -0.45, 0.1)
    control = np.column_stack([position, yaw, pitch])
    return CameraPath(control, period, float(rng.uniform(45, 72)), turn)


def _gaze(rail: Rail, rng: np.random.Generator, position: Floats, period: float) -> tuple[Floats, float]:
    """Yaw [N] and the yaw gained over the loop."""
    count = len(position)
    cycles = max(1, round(period / rng.uniform(16, 28)))
    pan = np.sin(2 * np.pi * (cycles * np.arange(count) / count + rng.random()))
    mode = rail.gaze[rng.integers(len(rail.gaze))]
    if mode in ("fixed", "swing"):
        opposite = rng.choice([0, np.pi]) * (not rail.one_sided)
        side = opposite + rng.uniform(-1, 1) * rail.spread
        return np.full(count, rail.axis + side) + pan * np.radians(rng.uniform(4, 12) if mode == "fixed" else 40), 0.0
    ahead = np.roll(position, -1, 0) - np.roll(position, 1, 0)
    way = ahead if mode == "heading" else position.mean(0) - position
    yaw = np.unwrap(np.arctan2(way[:, 1], way[:, 0]))
    closing = (yaw[0] - yaw[-1] + np.pi) % (2 * np.pi) - np.pi
    turn = float(2 * np.pi * np.round((yaw[-1] + closing - yaw[0]) / (2 * np.pi)))
    drift = turn * np.arange(count) / count
    return smooth_loop(yaw - drift, int(3.5 / period * count)) + drift + pan * np.radians(rng.uniform(0, 25)), turn


DETAIL_GROUP = 1
"""Geoms in this group lie on others that are obstacles already (window panes, markings): no obstacle themselves."""


_GROUND = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
_SEEN = np.array([1, 1, 1, 0, 0, 0], np.uint8)
_GLANCES = np.stack(np.meshgrid(np.linspace(-1.6, 1.6, 11), np.linspace(-0.9, 0.9, 7)), -1).reshape(-1, 2)
"""[G, 2] right and up, in units of half a picture's height: a coarse picture of 16:9."""
_VIEWS = 24
"""Places of a path that are looked out from."""
_DULL = 3.0
"""Variety below which there is little to see: a plain, the sky, and nothing large."""
_GLANCE_SECONDS = 2.0
"""Between two views of a path that is searched for dull stretches."""
FARTHEST_THING = 150.0
"""Metres; what is further off counts as sky."""


class Obstacles:
    """Everything a camera must not meet, as boxes, swept discs and cylinders."""

    def __init__(self, model: mujoco.MjModel, movers: Sequence[Mover], keep_out: Sequence[KeepOut]) -> None:
        self._model = model
        self._data = mujoco.MjData(model)
        for mover in movers:  # out of the way of rays: where movers may come is checked on its own
            self._data.mocap_pos[model.body_mocapid[model.body(mover.body).id]] = (0, 0, -1000)
        mujoco.mj_kinematics(model, self._data)
        self._movers = movers
        self._keep_out = keep_out
        half = np.einsum("gij,gj->gi", np.abs(self._data.geom_xmat.reshape(-1, 3, 3)), model.geom_aabb[:, 3:])
        flat = (half[:, 2] < 0.5) & (half[:, :2].min(1) > 3.0)  # roads, floors, markings
        self._floor = flat | np.isin(model.geom_type, _GROUND)  # [ngeom]
        fixed = model.body_weldid[model.geom_bodyid] == 0
        still = fixed & ~np.isin(model.geom_type, _GROUND) & (model.geom_group != DETAIL_GROUP)
        rotation = self._data.geom_xmat[still].reshape(-1, 3, 3)
        self._rotation = rotation  # [G, 3, 3]
        self._centre = self._data.geom_xpos[still] + np.einsum("gij,gj->gi", rotation, model.geom_aabb[still, :3])
        self._half = model.geom_aabb[still, 3:]
        self._reach = np.linalg.norm(self._half, axis=1)

    def distance(self, points: Floats) -> Floats:
        """Metres from points [T, 3] to the nearest standing thing's bounding box, at most 3; [T]."""
        nearest = np.full(len(points), 3.0)
        away = points[:, None] - self._centre  # [T, G, 3]
        t, g = np.nonzero((away**2).sum(-1) < (self._reach + 3.0) ** 2)
        local = np.einsum("kji,kj->ki", self._rotation[g], away[t, g])
        outside = np.maximum(np.abs(local) - self._half[g], 0)
        np.minimum.at(nearest, t, np.linalg.norm(outside, axis=-1))
        return nearest

    def is_clear(self, path: CameraPath, clearance: float, ignore: Route | None = None) -> bool:
        """Whether a whole loop keeps its distance from all that stands, moves or may roll, and from the ground."""
        points = path.states(np.linspace(0, path.period, len(path.control), endpoint=False))[:, :3]
        # Every eighth point first: most blocked paths are found out by those alone.
        if any(self.distance(points[k::8]).min() < clearance for k in range(8)):
            return False
        for area in self._keep_out:
            near = np.linalg.norm(points[:, :2] - area.centre, axis=1) < area.radius + clearance
            if (near & (points[:, 2] < area.top)).any():
                return False
        for mover in {id(mover.route): mover for mover in self._movers}.values():
            if mover.route is not ignore and not self._clear_of(mover, points, clearance):
                return False
        return bool(min(self.ground(point) for point in points[:: max(1, len(points) // 80)]) > 0.6)

    def _clear_of(self, mover: Mover, points: Floats, clearance: float) -> bool:
        way = mover.route.points[::2]
        near = np.linalg.norm(points[:, None, :2] - way[:, :2], axis=-1) < mover.radius + clearance  # [T, N]
        over = points[:, None, 2] - way[:, 2]
        return not (near & (over < mover.height + clearance) & (over > -mover.depth - clearance)).any()

    def ground(self, point: Floats) -> float:
        """Metres to whatever lies straight below a point; 0 when nothing does."""
        below, geom = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32)
        return max(0.0, mujoco.mj_ray(self._model, self._data, point, below, _SEEN, 1, -1, geom))

    def interest(self, path: CameraPath) -> float:
        """How much a path sees: the variety of its views on average, and that of its dullest once more."""
        variety = self.variety(path, np.linspace(0, path.period, _VIEWS, endpoint=False))
        return float(variety.mean() + variety.min())

    def longest_dull(self, path: CameraPath) -> float:
        """Seconds of the longest stretch of a path, which goes round and round, that has little to see."""
        count = max(2, round(path.period / _GLANCE_SECONDS))
        lively = np.flatnonzero(self.variety(path, np.arange(count) / count * path.period) >= _DULL)
        between = np.diff(lively, append=lively[:1] + count) - 1 if len(lively) else np.array([count])
        return float(between.max() * path.period / count)

    def variety(self, path: CameraPath, times: Floats) -> Floats:
        """Among how many things a view is shared, [T]; an empty plain under the sky has 2, a blank wall 1.

        That is the exponential of the entropy of the shares that bodies, ground and sky have in the picture. Movers
        are not seen.
        """
        poses, up = path.poses(times), np.tan(np.radians(path.fov_y) / 2)
        local = np.column_stack([_GLANCES * up, np.full(len(_GLANCES), -1.0)])
        local /= np.linalg.norm(local, axis=1, keepdims=True)
        return np.array([self._variety(pose[:3, 3].copy(), local @ pose[:3, :3].T) for pose in poses])

    def _variety(self, eye: Floats, directions: Floats) -> float:
        count = len(directions)
        geom, distance = np.full(count, -1, np.int32), np.zeros(count)
        mujoco.mj_multiRay(
            self._model, self._data, eye, directions.ravel(), _SEEN, 1, -1, geom, distance, None, count, FARTHEST_THING
        )
        seen = np.where(geom < 0, -1, np.where(self._floor[geom], -2, self._model.geom_bodyid[geom]))
        share = np.unique(seen, return_counts=True)[1] / count
        return float(np.exp(-(share * np.log(share)).sum()))
