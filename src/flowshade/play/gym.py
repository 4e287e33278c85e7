"""Gymnasium environments that are painted: `render()` gives generated pictures, physics is left alone.

    env = PaintedRender(gymnasium.make("Ant-v5"), LocalStreams(load_renderer(), 1), prompt="a sandy beach")
    env.reset()
    picture = env.render()  # uint8 [H, W, 3]

The environment must hold a MuJoCo `model` and `data` (all of Gymnasium's do; others can name where: `state`). Several
cameras give a picture each. Environments side by side (`PaintedVectorRender`) are rendered as one batch.

With render_mode "rgb_array" every `render()` is one frame: it costs as much as a window of `FRAMES_PER_LATENT` frames.
With "rgb_array_list" frames are gathered at each step and rendered in whole windows: four times as many a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch

from flowshade.gbuffer.trace import Tracer
from flowshade.play.errors import PlayError
from flowshade.play.streams import Streams
from flowshade.types import FRAMES_PER_LATENT, Camera, GBuffer

State = Callable[[gymnasium.Env], tuple[mujoco.MjModel, mujoco.MjData]]
"""Where an environment keeps its MuJoCo model and data."""

FREE = -1
"""The camera of `mjv_defaultFreeCamera`: it looks at the whole of the model."""


def mujoco_state(env: gymnasium.Env) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """`model` and `data` of the innermost environment.

    Raises:
        PlayError: it has none.
    """
    inner = env.unwrapped
    model, data = getattr(inner, "model", None), getattr(inner, "data", None)
    if not isinstance(model, mujoco.MjModel) or not isinstance(data, mujoco.MjData):
        raise PlayError(
            f"{type(inner).__name__} has no MuJoCo model and data; give state=..., a function that returns them."
        )
    return model, data


class Eyes:
    """The cameras of one environment.

    Args:
        env: the environment.
        cameras: names or numbers of the model's cameras; `FREE` looks at the whole of the model.
        size: height and width in pixels.
        device: where to trace.
        state: where the environment keeps its model and data.
    """

    def __init__(
        self, env: gymnasium.Env, cameras: Sequence[str | int], size: tuple[int, int], device: str, state: State
    ) -> None:
        self._env, self._state, self._size, self._device = env, state, size, device
        self._cameras = cameras
        self._model: mujoco.MjModel | None = None

    def look(self) -> list[GBuffer]:
        """What each camera sees now, one frame each."""
        model, data = self._state(self._env)
        if model is not self._model:
            self._model = model
            self._numbers = [camera_number(model, camera) for camera in self._cameras]
            self._tracers = [Tracer(model, size=self._size, device=self._device) for _ in self._numbers]
            self._previous: list[Camera | None] = [None] * len(self._numbers)
        seen = []
        for index, (number, tracer) in enumerate(zip(self._numbers, self._tracers)):
            camera = camera_of(model, data, number, self._size)
            tracer.update(data)
            seen.append(tracer.gbuffer(camera, self._previous[index]))
            self._previous[index] = camera
        return seen

    def forget(self) -> None:
        """A new episode: nothing has moved."""
        if self._model is not None:
            self._previous = [None] * len(self._numbers)
            for tracer in self._tracers:
                tracer.reset()


class PaintedRender(gymnasium.Wrapper):
    """Renders an environment through a renderer.

    Args:
        env: an environment with a MuJoCo model.
        streams: as many as cameras, `LocalStreams` or `RemoteStreams`.
        cameras: names or numbers; with more than one, pictures are [cameras, H, W, 3].
        size: height and width in pixels.
        prompt: how it should look.
        style: a named style.
        render_mode: "rgb_array" or "rgb_array_list".
        device: where to trace.
        state: where the environment keeps its model and data.

    Raises:
        PlayError: another number of streams than cameras, an unknown camera, or an environment without MuJoCo.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        streams: Streams,
        *,
        cameras: Sequence[str | int] = (FREE,),
        size: tuple[int, int] = (240, 416),
        prompt: str = "",
        style: str | None = None,
        render_mode: str = "rgb_array",
        device: str = "cpu",
        state: State = mujoco_state,
    ) -> None:
        super().__init__(env)
        _check(streams, len(cameras), render_mode)
        self._streams, self._mode = streams, render_mode
        self._eyes = Eyes(env, cameras, size, device, state)
        self._waiting: list[list[GBuffer]] = []
        self._painted: list[np.ndarray] = []
        streams.set_look(prompt, style)

    @property
    def render_mode(self) -> str | None:
        return self._mode

    def set_look(self, prompt: str, style: str | None = None) -> None:
        """Changes prompt and style from the next picture on."""
        self._streams.set_look(prompt, style)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode; the pictures of the last one are forgotten."""
        result = self.env.reset(seed=seed, options=options)
        self._streams.restart()
        self._eyes.forget()
        self._waiting.clear()
        self._painted.clear()
        self._gather()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._gather()
        return result

    def render(self) -> Any:
        """The picture now, uint8 [H, W, 3] ([cameras, H, W, 3] with several cameras); a list of those since the last
        call in mode "rgb_array_list"."""
        if self._mode == "rgb_array":
            return self._shaped(self._streams.paint(self._eyes.look())[:, 0])
        self._paint_waiting()
        painted, self._painted = self._painted, []
        return [self._shaped(picture) for picture in painted]

    def _gather(self) -> None:
        if self._mode == "rgb_array_list":
            self._waiting.append(self._eyes.look())
            if len(self._waiting) == FRAMES_PER_LATENT:
                self._paint_waiting()

    def _paint_waiting(self) -> None:
        if not self._waiting:
            return
        windows = [GBuffer.cat(frames) for frames in zip(*self._waiting)]
        self._waiting = []
        pictures = self._streams.paint(windows)  # [cameras, T, H, W, 3]
        self._painted += list(pictures.swapaxes(0, 1))

    def _shaped(self, pictures: np.ndarray) -> np.ndarray:
        return pictures[0] if len(pictures) == 1 else pictures


class PaintedVectorRender(gymnasium.vector.VectorWrapper):
    """Renders environments side by side, all of their cameras as one batch.

    Args:
        env: a `SyncVectorEnv`, whose environments live in this process.
        streams: environments times cameras; environment `e` and camera `c` take stream e * cameras + c.
        cameras: names or numbers, the same for all; several give [cameras, H, W, 3] each.
        size: height and width in pixels.
        prompt: how it should look; a list gives one an environment.
        style: a named style, or a list of them.
        device: where to trace.
        state: where an environment keeps its model and data.

    Raises:
        PlayError: another number of streams, an unknown camera, or environments in other processes.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        streams: Streams,
        *,
        cameras: Sequence[str | int] = (FREE,),
        size: tuple[int, int] = (240, 416),
        prompt: str | Sequence[str] = "",
        style: str | None | Sequence[str | None] = None,
        device: str = "cpu",
        state: State = mujoco_state,
    ) -> None:
        super().__init__(env)
        inner = getattr(env.unwrapped, "envs", None)
        if not inner:
            raise PlayError(
                f"{type(env).__name__} keeps its environments out of reach; use gymnasium.vector.SyncVectorEnv."
            )
        _check(streams, len(inner) * len(cameras), "rgb_array")
        self._streams, self._cameras = streams, len(cameras)
        self._eyes = [Eyes(each, cameras, size, device, state) for each in inner]
        self._ended = np.zeros(len(inner), bool)
        prompts = [prompt] * len(inner) if isinstance(prompt, str) else list(prompt)
        styles = [style] * len(inner) if style is None or isinstance(style, str) else list(style)
        for index, (text, name) in enumerate(zip(prompts, styles, strict=True)):
            self.set_look(text, name, env=index)

    @property
    def render_mode(self) -> str | None:
        return "rgb_array"

    def set_look(self, prompt: str, style: str | None = None, *, env: int | None = None) -> None:
        """Changes prompt and style of one environment or all from the next picture on."""
        for index in range(len(self._eyes)) if env is None else [env]:
            for camera in range(self._cameras):
                self._streams.set_look(prompt, style, stream=index * self._cameras + camera)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """New episodes; the pictures of the last ones are forgotten."""
        result = self.env.reset(seed=seed, options=options)  # pyright: ignore[reportArgumentType]
        self._forget(np.ones(len(self._eyes), bool))
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps; an environment that begins a new episode forgets its pictures."""
        result = self.env.step(actions)
        self._forget(self._ended)  # Gymnasium resets an environment in the step after its last
        self._ended = np.logical_or(result[2], result[3])
        return result

    def render(self) -> tuple[np.ndarray, ...]:
        """A picture an environment, uint8 [H, W, 3] ([cameras, H, W, 3] with several cameras)."""
        seen = [gbuffer for eyes in self._eyes for gbuffer in eyes.look()]
        pictures = self._streams.paint(seen)[:, 0]
        grouped = pictures.reshape(len(self._eyes), self._cameras, *pictures.shape[1:])
        return tuple(each[0] if self._cameras == 1 else each for each in grouped)

    def _forget(self, which: np.ndarray) -> None:
        for index in np.flatnonzero(which):
            self._eyes[index].forget()
            for camera in range(self._cameras):
                self._streams.restart(int(index) * self._cameras + camera)


def _check(streams: Streams, wanted: int, render_mode: str) -> None:
    if streams.count != wanted:
        raise PlayError(f"got {streams.count} streams; expected {wanted}, one for each camera of each environment.")
    if render_mode not in ("rgb_array", "rgb_array_list"):
        raise PlayError(f"got render_mode {render_mode!r}; expected 'rgb_array' or 'rgb_array_list'.")


def camera_number(model: mujoco.MjModel, camera: str | int) -> int:
    """A camera's number in the model, or `FREE`.

    Raises:
        PlayError: the model has no such camera.
    """
    names = [model.camera(index).name for index in range(model.ncam)]
    if isinstance(camera, str) and camera in names:
        return names.index(camera)
    if isinstance(camera, int) and FREE <= camera < model.ncam:
        return camera
    raise PlayError(f"the model has no camera {camera!r}; expected one of {names}, 0 to {model.ncam - 1}, or {FREE}.")


def camera_of(model: mujoco.MjModel, data: mujoco.MjData, number: int, size: tuple[int, int]) -> Camera:
    """Where a camera of the model is and what it sees, one frame."""
    height, width = size
    if number == FREE:
        fovy, pose = float(model.vis.global_.fovy), _free_pose(model)
    else:
        fovy, pose = float(model.cam_fovy[number]), np.eye(4)
        pose[:3, :3] = data.cam_xmat[number].reshape(3, 3)
        pose[:3, 3] = data.cam_xpos[number]
    focal = height / 2 / np.tan(np.radians(fovy) / 2)
    return Camera(
        intrinsics=torch.tensor([[focal, focal, width / 2, height / 2]], dtype=torch.float32),
        pose=torch.from_numpy(pose).float()[None],
    )


def _free_pose(model: mujoco.MjModel) -> np.ndarray:
    """A camera-to-world matrix 4x4 that looks at the middle of the model, as MuJoCo's viewer begins."""
    view = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, view)
    azimuth, elevation = np.radians(view.azimuth), np.radians(view.elevation)
    forward = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([np.sin(azimuth), -np.cos(azimuth), 0.0])
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(right, forward), -forward], 1)
    pose[:3, 3] = view.lookat - view.distance * forward
    return pose
