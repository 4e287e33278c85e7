"""The loop that runs a world past a tracer: one frame of world time, one G-buffer, its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowshade.color import linear_to_srgb, srgb_to_linear
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
    wanted: Callable[[int], bool] | None = None,
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
        wanted: says by index which frames are traced and yielded; all by default.
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
        traced = None
        if wanted is None or wanted(index):
            gbuffer = tracer.gbuffer(camera, previous)
            pictures = tuple(tracer.shade(look, camera, stream=stream, seed=seed) for look in looks)
            traced = TracedFrame(index=index, gbuffer=gbuffer, pictures=pictures)
        if visit is not None:
            visit(index, data)
        if traced is not None:
            yield traced
        previous = camera
        if index + 1 < frames:
            step(world, data)


def blurred_rollout(
    world: World, tracer: Tracer, *, frames: int, looks: Sequence[Look], subframes: int, first: int = 0, **options: Any
) -> Iterator[tuple[TracedFrame, tuple[Tensor, ...]]]:
    """Like `rollout`, with a second version of each picture that has motion blur.

    The shutter opens with a frame and closes half-way to the next one (180 degrees). `subframes` true frames of world
    time, camera and things moved in each, are averaged in linear light; the first of them is the sharp frame.

    Args:
        world: runs at `2 * subframes` times the clip's frame rate: give `world.with_fps(2 * subframes * fps)`. Its
            motion vectors are left out of the sharp frames, since they would span a sub-frame.
        subframes: at least 1.
        first: the frame to begin with.
        options: as in `rollout`; `state` and `visit` count sub-frames.
    """
    stride = 2 * subframes
    sums: list[Tensor] = []
    sharp = None
    parts = rollout(
        world, tracer, frames=frames * stride, looks=looks, first=first * stride,
        wanted=lambda index: index % stride < subframes, **options,
    )  # fmt: skip
    for part in parts:
        index, step_in = divmod(part.index, stride)
        if step_in == 0:
            gbuffer = part.gbuffer.replace(motion=None)
            sharp = TracedFrame(index=index, gbuffer=gbuffer, pictures=part.pictures)
            sums = [torch.zeros_like(picture) for picture in part.pictures]
        sums = [total + srgb_to_linear(picture) for total, picture in zip(sums, part.pictures)]
        if step_in == subframes - 1:
            assert sharp is not None
            yield sharp, tuple(linear_to_srgb(total / subframes) for total in sums)


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
