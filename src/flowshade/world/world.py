"""A world: what is there and how it moves. Nothing here is learned and nothing here knows how it will look."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field

import mujoco
import numpy as np
from numpy.typing import NDArray

from flowshade.world.camera import CameraPath, KeepOut, Rail, plan_path
from flowshade.world.motion import Kick, Mover

LONGEST_SUBSTEP = 1 / 240
"""Seconds; physics never takes a longer step than this, whatever the frame rate and whatever a file says."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A compiled scene with its scripted movers and the camera that visits it. World axes: +Z up, metres."""

    name: str
    seed: int
    description: str
    """Content caption: what is there, not how it looks."""
    descriptions: tuple[str, ...] = ()
    """The same in other wordings, for training; begins with `description`."""
    model: mujoco.MjModel
    camera_path: CameraPath
    fps: float = 30.0
    """Frames a second of world time; `step` advances one."""
    longest_substep: float = LONGEST_SUBSTEP
    """Seconds; a loaded model's own time step, where that is shorter."""
    movers: tuple[Mover, ...] = ()
    kicks: tuple[Kick, ...] = ()
    rails: tuple[Rail, ...] = field(default=(), repr=False)
    keep_out: tuple[KeepOut, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise ValueError(f"World got fps={self.fps}; expected a positive number of frames a second.")
        self.model.opt.timestep = 1 / (self.fps * self.substeps)

    @property
    def substeps(self) -> int:
        """Physics steps in a frame."""
        return max(1, int(np.ceil(1 / (self.fps * self.longest_substep) - 1e-9)))

    def with_fps(self, fps: float) -> World:
        """The same world at another frame rate."""
        return dataclasses.replace(self, fps=float(fps), model=copy.copy(self.model))

    def reset(self) -> mujoco.MjData:
        """A new state at time 0."""
        data = mujoco.MjData(self.model)
        if self.model.nkey:
            mujoco.mj_resetDataKeyframe(self.model, data, 0)
        _place_movers(self, data)
        mujoco.mj_forward(self.model, data)
        return data

    def path(self, seed: int) -> CameraPath:
        """Another camera path through this world; deterministic in the seed."""
        return plan_path(self.model, self.rails, self.movers, self.keep_out, seed)

    def paths(self, count: int) -> list[CameraPath]:
        """`count` different paths, the world's own first."""
        return [self.nth_path(index) for index in range(count)]

    def nth_path(self, index: int) -> CameraPath:
        """The world's own path (0), or another one, which is the same whenever it is asked for."""
        return self.camera_path if index == 0 else self.path(1000 * self.seed + index)


def step(world: World, data: mujoco.MjData, controls: NDArray[np.floating] | None = None) -> None:
    """Advances `data` by exactly one frame, `1 / world.fps` seconds.

    Args:
        controls: actuator values [nu] held over the frame; None leaves them as they are.

    Side effect: `data` afterwards holds positions at the new time (what a tracer needs), not only the integrated
    joint coordinates.
    """
    if controls is not None:
        if np.shape(controls) != (world.model.nu,):
            raise ValueError(
                f"step got controls of shape {np.shape(controls)}; world {world.name!r} has {world.model.nu} "
                f"actuators, so expected ({world.model.nu},)."
            )
        data.ctrl[:] = controls
    frame = round(data.time * world.fps)
    _kick(world, data)
    mujoco.mj_step(world.model, data, nstep=world.substeps)
    data.time = (frame + 1) / world.fps  # the sum of substeps would drift by rounding
    _place_movers(world, data)
    mujoco.mj_kinematics(world.model, data)


def _place_movers(world: World, data: mujoco.MjData) -> None:
    for mover in world.movers:
        mocap = world.model.body_mocapid[world.model.body(mover.body).id]
        data.mocap_pos[mocap], data.mocap_quat[mocap] = mover.pose(data.time)


def _kick(world: World, data: mujoco.MjData) -> None:
    for kick in world.kicks:
        joint = world.model.joint(kick.joint)
        position = data.qpos[joint.qposadr[0] :][:3]
        velocity = kick.velocity(data.time, 1 / world.fps, position)
        if velocity is not None:
            data.qvel[joint.dofadr[0] :][:3] = velocity
