"""What a player moves: a walker, a car, a free camera, and balls to throw. MuJoCo answers for all but the camera.

The bodies are added to a world before it is compiled (`add_bodies`). Whatever is not in play is parked high above the
world, out of sight, and held there; so the number of bodies never changes and nothing is compiled while playing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import mujoco
import numpy as np
import torch

from flowshade.types import Camera
from flowshade.world import World
from flowshade.world.motion import Floats, quaternion

Mode = Literal["walk", "drive", "fly"]
MODES: tuple[Mode, ...] = ("walk", "drive", "fly")

BALLS = 12
BALL_RADIUS = 0.16
PARK = 3000.0
"""Metres above the world where bodies wait that are not in play."""

_GEOM = mujoco.mjtGeom
_HIDDEN = 3
_EYE = 0.75
"""Metres from the middle of the walker to its eyes."""
_WALKER = (0.3, 0.55)
"""Radius and half length of the walker's capsule, metres."""
_SEEN = np.array([1, 1, 1, 1, 0, 0], np.uint8)
_LOST = 60.0
"""Metres below where the player began at which it is set back."""
_BALL_COLOURS = ((0.85, 0.16, 0.1), (0.95, 0.7, 0.1), (0.1, 0.45, 0.8), (0.92, 0.92, 0.9))


@dataclass(frozen=True, kw_only=True)
class Controls:
    """What a player holds down during one tick; axes are in [-1, 1]."""

    forward: float = 0.0
    right: float = 0.0
    up: float = 0.0
    """Free camera only."""
    fast: bool = False
    yaw: float = 0.0
    """Turn of the view in this tick, radians, positive to the left."""
    pitch: float = 0.0
    """Radians, positive upwards."""
    jump: bool = False
    throw: bool = False


def add_bodies(spec: mujoco.MjSpec) -> None:
    """Adds the walker, the car and the balls, parked, to a world that is being built. Keyframes grow with them."""
    degrees = spec.compiler.degree
    _add_walker(spec)
    _add_car(spec, degrees)
    for index in range(BALLS):
        _add_ball(spec, index)
    parked = np.concatenate([[0.0, 0.0, 0.0], *([0, 0, PARK + 10 * (k + 1), 1, 0, 0, 0] for k in range(BALLS + 1))])
    for key in spec.keys:
        if len(key.qpos):
            key.qpos = np.concatenate([key.qpos, parked])
        if len(key.qvel):
            key.qvel = np.concatenate([key.qvel, np.zeros(3 + 6 * (BALLS + 1))])


def _add_walker(spec: mujoco.MjSpec) -> None:
    body = spec.worldbody.add_body(name="play-walker", pos=[0, 0, PARK])
    for name, axis in zip("xyz", np.eye(3), strict=True):
        body.add_joint(name=f"play-walker-{name}", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis.tolist())
    body.add_geom(
        type=_GEOM.mjGEOM_CAPSULE, size=[*_WALKER, 0], group=_HIDDEN, contype=1, conaffinity=1, mass=75.0,
        condim=1, priority=2,
    )  # fmt: skip


def _add_car(spec: mujoco.MjSpec, degrees: bool) -> None:
    turn = 90.0 if degrees else np.pi / 2
    for name, colour, roughness, metallic in (
        ("paint", (0.72, 0.09, 0.06), 0.25, 0.0),
        ("glass", (0.05, 0.06, 0.08), 0.08, 0.0),
        ("rubber", (0.03, 0.03, 0.03), 0.9, 0.0),
        ("chrome", (0.75, 0.75, 0.77), 0.2, 1.0),
    ):
        spec.add_material(name=f"play-{name}", rgba=[*colour, 1], roughness=roughness, metallic=metallic)
    body = spec.worldbody.add_body(name="play-car", pos=[0, 0, PARK + 10])
    body.add_freejoint(name="play-car-joint")

    def part(shape: mujoco.mjtGeom, size: list[float], at: list[float], material: str, **options: object) -> None:
        seen = {"contype": 0, "conaffinity": 0, "mass": 0.0, **options}
        body.add_geom(type=shape, size=size, pos=at, material=f"play-{material}", **seen)

    box, tube = _GEOM.mjGEOM_BOX, _GEOM.mjGEOM_CYLINDER
    solid = {"contype": 1, "conaffinity": 1, "condim": 3, "friction": [0.1, 0.005, 0.0001]}
    part(box, [1.9, 0.82, 0.2], [0, 0, 0.0], "paint", mass=900.0, **solid)
    part(box, [0.95, 0.7, 0.24], [-0.25, 0, 0.42], "glass", mass=40.0, **solid)
    part(box, [0.8, 0.66, 0.03], [-0.25, 0, 0.68], "paint")
    for side in (-1, 1):
        part(box, [0.04, 0.75, 0.06], [1.9 * side, 0, -0.1], "chrome")
        for along in (-1.2, 1.2):
            part(
                tube, [0.33, 0.11, 0], [along, 0.76 * side, -0.22], "rubber", euler=[turn, 0, 0]
            )  # a wheel to look at; what rolls is the ball inside
            part(
                _GEOM.mjGEOM_SPHERE, [0.33, 0, 0], [along, 0.7 * side, -0.22], "rubber", group=_HIDDEN,
                contype=1, conaffinity=1, condim=1, priority=2, mass=60.0,
            )  # fmt: skip


def _add_ball(spec: mujoco.MjSpec, index: int) -> None:
    colour = _BALL_COLOURS[index % len(_BALL_COLOURS)]
    material = f"play-ball-{index % len(_BALL_COLOURS)}"
    if index < len(_BALL_COLOURS):
        spec.add_material(name=material, rgba=[*colour, 1], roughness=0.35, metallic=0.0)
    body = spec.worldbody.add_body(name=f"play-ball-{index}", pos=[0, 0, PARK + 10 * (index + 2)])
    body.add_freejoint(name=f"play-ball-{index}-joint")
    body.add_geom(
        type=_GEOM.mjGEOM_SPHERE, size=[BALL_RADIUS, 0, 0], material=material, mass=3.0, condim=6,
        contype=1, conaffinity=1, friction=[0.8, 0.005, 0.002], solref=[-20000, -80],
    )  # fmt: skip


@dataclass
class _Joint:
    """Where a body's joints lie in the state, and where it waits."""

    qpos: int
    dofs: int
    free: bool
    parked: Floats
    in_play: bool = False

    def place(self, data: mujoco.MjData, position: Floats, velocity: Floats, quat: Floats | None = None) -> None:
        """Sets position and linear velocity, metres and metres a second; turning stops."""
        if self.free:
            data.qpos[self.qpos :][:7] = [*position, *((1, 0, 0, 0) if quat is None else quat)]
            data.qvel[self.dofs :][:6] = [*velocity, 0, 0, 0]
        else:
            data.qpos[self.qpos :][:3] = position - np.array([0, 0, PARK])
            data.qvel[self.dofs :][:3] = velocity
        self.in_play = True

    def park(self, data: mujoco.MjData) -> None:
        self.place(data, self.parked, np.zeros(3))
        self.in_play = False

    def position(self, data: mujoco.MjData) -> Floats:
        """[3] metres."""
        offset = np.zeros(3) if self.free else np.array([0, 0, PARK])
        return data.qpos[self.qpos :][:3] + offset

    def velocity(self, data: mujoco.MjData) -> Floats:
        """[3] metres a second, a view."""
        return data.qvel[self.dofs :][:3]

    def turning(self, data: mujoco.MjData) -> Floats:
        """[3] radians a second about the body's own axes, a view; free bodies only."""
        return data.qvel[self.dofs + 3 :][:3]


@dataclass
class Player:
    """One player in one world: where it is, where it looks, what it has thrown. The state is in the `MjData`.

    Args:
        world: made with `extend=add_bodies`.
        mode: how to begin; None walks where there is ground below the world's own camera and flies elsewhere.
    """

    world: World
    mode: Mode | None = None
    yaw: float = 0.0
    pitch: float = 0.0
    eye: Floats = field(default_factory=lambda: np.zeros(3))
    """Position of the free camera, metres."""
    _thrown: int = 0
    _steer: float = 0.0
    _aside: float = 0.0
    """Radians between the car's nose and the view."""

    def __post_init__(self) -> None:
        model = self.world.model
        self._walker = _Joint(
            model.joint("play-walker-x").qposadr[0], model.joint("play-walker-x").dofadr[0], False,
            np.array([0.0, 0.0, PARK]),
        )  # fmt: skip
        self._car = self._free("play-car", 1)
        self._balls = [self._free(f"play-ball-{index}", index + 2) for index in range(BALLS)]
        self._bodies = {"walk": model.body("play-walker").id, "drive": model.body("play-car").id, "fly": -1}
        self._wanted: Mode | None = self.mode

    def _free(self, name: str, slot: int) -> _Joint:
        joint = self.world.model.joint(f"{name}-joint")
        return _Joint(joint.qposadr[0], joint.dofadr[0], True, np.array([0.0, 0.0, PARK + 10 * slot]))

    @property
    def current(self) -> Mode:
        return self.mode or "fly"

    def reset(self, data: mujoco.MjData) -> None:
        """Back to where the world's own camera begins; all balls are gone."""
        x, y, z, self.yaw, pitch = self.world.camera_path.states([0.0])[0]
        self.pitch = float(pitch)
        self.eye = np.array([x, y, z])
        self._thrown, self._steer, self._aside = 0, 0.0, 0.0
        for joint in (self._walker, self._car, *self._balls):
            joint.park(data)
        mujoco.mj_kinematics(self.world.model, data)
        below = self._ray(data, self.eye, np.array([0.0, 0.0, -1.0]))
        self._start = self.eye.copy()
        self.set_mode(data, self._wanted or _first_mode(below))

    def set_mode(self, data: mujoco.MjData, mode: Mode) -> None:
        """Changes how the player moves, on the spot."""
        spot = self._spot(data) if self.mode is not None and (self._walker.in_play or self._car.in_play) else self.eye
        for joint in (self._walker, self._car):
            joint.park(data)
        mujoco.mj_kinematics(self.world.model, data)
        self.mode = mode
        if mode == "fly":
            self.eye = spot.copy()
            return
        below = self._ray(data, spot, np.array([0.0, 0.0, -1.0]))
        ground = spot[2] - (below if below is not None and below < 60 else 2.0)
        self.pitch = float(np.clip(self.pitch, -0.4, 0.3))
        if mode == "walk":
            at = np.array([spot[0], spot[1], ground + sum(_WALKER) + 0.02])
            self._walker.place(data, at, np.zeros(3))
        else:
            at = np.array([spot[0], spot[1], ground + 0.75])
            self._car.place(data, at, np.zeros(3), quaternion(self.yaw))

    def before_step(self, data: mujoco.MjData, controls: Controls) -> None:
        """Turns what the player holds into velocities for the tick that follows."""
        self.pitch = float(np.clip(self.pitch + controls.pitch, -1.45, 1.45))
        if self.current == "walk":
            self.yaw += controls.yaw
            self._walk(data, controls)
        elif self.current == "drive":
            self._drive(data, controls)
        else:
            self.yaw += controls.yaw
            self._fly(controls)
        if controls.throw:
            self._throw(data)
        for joint in (self._walker, self._car, *self._balls):
            if not joint.in_play:
                joint.park(data)

    def after_step(self, data: mujoco.MjData) -> None:
        """Sets a player back that has fallen out of the world, and follows the car with the view."""
        joint = self._joint
        if joint is not None and joint.position(data)[2] < self._start[2] - _LOST:
            mode = self.current
            self.mode, self.eye = None, self._start.copy()
            for other in (self._walker, self._car):
                other.park(data)
            self.set_mode(data, mode)
            mujoco.mj_kinematics(self.world.model, data)

    @property
    def _joint(self) -> _Joint | None:
        return {"walk": self._walker, "drive": self._car, "fly": None}[self.current]

    def _spot(self, data: mujoco.MjData) -> Floats:
        joint = self._joint
        return self.eye if joint is None else joint.position(data) + np.array([0, 0, _EYE])

    def _heading(self) -> tuple[Floats, Floats]:
        """Level unit vectors ahead and to the right."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        return np.array([cos, sin, 0.0]), np.array([sin, -cos, 0.0])

    def _walk(self, data: mujoco.MjData, controls: Controls) -> None:
        ahead, right = self._heading()
        wanted = controls.forward * ahead + controls.right * right
        wanted *= (6.0 if controls.fast else 3.2) / max(1.0, float(np.linalg.norm(wanted)))
        velocity = self._walker.velocity(data)
        dt = 1 / self.world.fps
        velocity[:2] += np.clip(wanted[:2] - velocity[:2], -30 * dt, 30 * dt)
        if controls.jump and self.on_ground(data):
            velocity[2] = 4.6

    def _drive(self, data: mujoco.MjData, controls: Controls) -> None:
        dt = 1 / self.world.fps
        rotation = self._rotation(data)
        ahead, left, up = rotation.T
        velocity = self._car.velocity(data)
        along = float(velocity @ ahead)
        self.yaw = float(np.arctan2(ahead[1], ahead[0])) + self._look_aside(controls)
        if not self.on_ground(data):
            return
        top = 22.0 if controls.fast else 13.0
        goal = controls.forward * (top if controls.forward > 0 else 5.0)
        rate = 14.0 if goal * along < 0 else 6.0 if controls.forward else 2.5
        change = float(np.clip(goal - along, -rate * dt, rate * dt))
        slip = float(velocity @ left)
        velocity += change * ahead - min(1.0, 9.0 * dt) * slip * left
        self._steer += float(np.clip(-controls.right - self._steer, -5 * dt, 5 * dt))
        turn = along * np.tan(0.5 * self._steer / (1 + 0.04 * abs(along))) / 2.4
        spin = self._car.turning(data)
        spin[2] += (turn - spin[2]) * min(1.0, 12 * dt)
        if controls.jump:
            velocity += 4.5 * up

    def _look_aside(self, controls: Controls) -> float:
        """The mouse turns the view away from the car's nose; it comes back by itself."""
        self._aside = (self._aside + controls.yaw) * math.exp(-0.8 / self.world.fps)
        return self._aside

    def _fly(self, controls: Controls) -> None:
        _, right = self._heading()
        ahead = self._forward()
        wanted = controls.forward * ahead + controls.right * right + controls.up * np.array([0, 0, 1.0])
        self.eye = self.eye + wanted * (18.0 if controls.fast else 6.0) / self.world.fps

    def _throw(self, data: mujoco.MjData) -> None:
        forward = self._forward()
        joint = self._joint
        own = np.zeros(3) if joint is None else joint.velocity(data).copy()
        start = self._spot(data)
        reach = 0.7 if self.current != "drive" else 3.0
        blocked = self._ray(data, start, forward)
        reach = reach if blocked is None else max(0.0, min(reach, blocked - 2 * BALL_RADIUS))
        ball = self._balls[self._thrown % BALLS]
        ball.place(data, start + reach * forward, own + 15 * forward + np.array([0, 0, 1.5]))
        self._thrown += 1

    def on_ground(self, data: mujoco.MjData) -> bool:
        """Whether something carries the player."""
        joint = self._joint
        if joint is None:
            return False
        height = sum(_WALKER) if self.current == "walk" else 0.55
        below = self._ray(data, joint.position(data), np.array([0.0, 0.0, -1.0]))
        return below is not None and below < height + 0.18

    def _ray(self, data: mujoco.MjData, start: Floats, direction: Floats) -> float | None:
        """Metres to the first thing in a direction that is not the player's own; None when there is none."""
        found = np.zeros(1, np.int32)
        own = self._bodies[self.current]
        distance = mujoco.mj_ray(self.world.model, data, start, direction, _SEEN, True, own, found)
        return None if distance < 0 else float(distance)

    def _rotation(self, data: mujoco.MjData) -> Floats:
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, data.qpos[self._car.qpos + 3 :][:4])
        return matrix.reshape(3, 3)

    def _forward(self) -> Floats:
        cos = np.cos(self.pitch)
        return np.array([np.cos(self.yaw) * cos, np.sin(self.yaw) * cos, np.sin(self.pitch)])

    def position(self, data: mujoco.MjData) -> Floats:
        """[3] where the player is, metres."""
        return self._spot(data)

    def camera(self, data: mujoco.MjData, size: tuple[int, int]) -> Camera:
        """What the player sees with: from its eyes, or from behind the car; one frame."""
        eye = self._spot(data)
        forward = self._forward()
        if self.current == "drive":
            eye = self._behind(data, eye, forward)
        _, right = self._heading()
        pose = np.eye(4)
        pose[:3, 0], pose[:3, 1], pose[:3, 2], pose[:3, 3] = right, np.cross(right, forward), -forward, eye
        height, width = size
        focal = 0.5 * height / np.tan(np.radians(self.world.camera_path.fov_y) / 2)
        return Camera(
            intrinsics=torch.tensor([[focal, focal, width / 2, height / 2]], dtype=torch.float32),
            pose=torch.from_numpy(pose[None]).to(torch.float32),
        )

    def _behind(self, data: mujoco.MjData, target: Floats, forward: Floats) -> Floats:
        away = np.array([0.0, 0.0, 0.3]) - forward
        away /= np.linalg.norm(away)
        free = self._ray(data, target, away)
        return target + away * (6.0 if free is None else max(1.0, min(6.0, free - 0.3)))


def _first_mode(below: float | None) -> Mode:
    """Walks where there is ground within 60 m."""
    return "walk" if below is not None and below < 60 else "fly"
