"""The loop that runs a world past a tracer: one frame of world time, one G-buffer, its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flowshade.gbuffer.look import Look
from flowshade.gbuffer.trace import Tracer
from flowshade.types import GBuffer, stream_frame
from flowshade.world import CameraPath, World, camera_at, step


@dataclass(frozen=True, kw_only=True)
class TracedFrame:
    """One frame of a world."""

    index: int
    gbuffer: GBuffer
    """[1, ...] the tracer's channels and the camera."""
    pictures: tuple[Tensor, ...]
    """One [1, 3, H, W] for each look asked for, display sRGB in [0, 1]."""


def rollout(
    world: World,
    tracer: Tracer,
    *,
    frames: int,
    looks: Sequence[Look] = (),
    path: CameraPath | None = None,
    seed: int = 0,
    first: int = 0,
    state: NDArray[np.float64] | None = None,
    visit: Callable[[int, mujoco.MjData], None] | None = None,
) -> Iterator[TracedFrame]:
    """Yields frames `first` to `frames` - 1 of a world from time 0, in constant memory.

    The stream frame of the looks is that of frame 0's camera, wherever the roll-out begins. The same frame is the same
    to the last bit whether the roll-out began at it or before it.

    Args:
        world: what to run, at its own frame rate.
        tracer: made for `world.model`; its motion starts anew.
        frames: the frame to stop before.
        looks: light and weather of the pictures.
        path: where the camera goes; the world's own path by default.
        seed: of the pictures' sampling pattern.
        first: the frame to begin with.
        state: the physics of frame `first` - 1, as `visit` was shown it (`save_state`); without it the frames before
            `first` are simulated first.
        visit: called with each frame's index and physics once it is traced.
    """
    path = path or world.camera_path
    stream = stream_frame(camera_at(path, [0.0], *tracer.size).pose[0])
    data = world.reset()
    tracer.reset()
    previous = None
    if first:
        if state is None:
            for _ in range(first - 1):
                step(world, data)
        else:
            restore_state(world, data, state)
        previous = camera_at(path, [(first - 1) / world.fps], *tracer.size)
        tracer.update(data)
        step(world, data)
    for index in range(first, frames):
        camera = camera_at(path, [index / world.fps], *tracer.size)
        tracer.update(data)
        gbuffer = tracer.gbuffer(camera, previous)
        pictures = tuple(tracer.shade(look, camera, stream=stream, seed=seed) for look in looks)
        if visit is not None:
            visit(index, data)
        yield TracedFrame(index=index, gbuffer=gbuffer, pictures=pictures)
        previous = camera
        if index + 1 < frames:
            step(world, data)


_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


def save_state(world: World, data: mujoco.MjData) -> NDArray[np.float64]:
    """[S] everything that the physics of the next frame follow from."""
    state = np.empty(mujoco.mj_stateSize(world.model, _STATE))
    mujoco.mj_getState(world.model, data, state, _STATE)
    return state


def restore_state(world: World, data: mujoco.MjData, state: NDArray[np.float64]) -> None:
    """Puts `data` where `save_state` found it, positions in the world included.

    Raises:
        ValueError: a state of another size, which belongs to another world.
    """
    size = mujoco.mj_stateSize(world.model, _STATE)
    if state.shape != (size,):
        raise ValueError(
            f"restore_state got {state.shape} values; {world.name} has ({size},). Give a state of its own."
        )
    mujoco.mj_setState(world.model, data, state, _STATE)
    mujoco.mj_kinematics(world.model, data)
