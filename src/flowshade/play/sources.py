"""Where G-buffers come from: a world that answers a player, or a clip that plays round and round."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from flowshade.gbuffer.io import ClipReader, open_clip, resize
from flowshade.gbuffer.look import Look
from flowshade.gbuffer.trace import Tracer
from flowshade.play.actors import Controls, Mode, Player, add_bodies
from flowshade.types import GBuffer, stream_frame
from flowshade.world import World, load_mjcf, load_urdf, make_world, step


class Source(Protocol):
    """Advances by fixed ticks and shows where it is."""

    name: str
    seed: int
    description: str
    size: tuple[int, int]
    fps: float
    interactive: bool

    @property
    def mode(self) -> str: ...
    def reset(self) -> None: ...
    def tick(self, controls: Controls) -> None: ...
    def set_mode(self, mode: Mode) -> None: ...
    def gbuffer(self) -> GBuffer:
        """One frame, all channels there are."""
        ...

    def reference(self, look: Look) -> Tensor | None:
        """The reference picture [1, 3, H, W] of the last `gbuffer`, display sRGB in [0, 1]; None when there is none."""
        ...

    def close(self) -> None:
        """Releases the files it reads; it gives no more frames."""
        ...


class WorldSource:
    """A world with a player in it, traced from the player's eyes.

    Args:
        world: made with `extend=add_bodies`; `open_world` does so.
        size: height and width in pixels.
        device: where to trace.
        threads: for tracing on the CPU.
    """

    interactive = True

    def __init__(
        self, world: World, *, size: tuple[int, int], device: torch.device | str = "cpu", threads: int | None = None
    ) -> None:
        self.world = world
        self.name, self.seed, self.description = world.name, world.seed, world.description
        self.size, self.fps = size, world.fps
        self._tracer = Tracer(world.model, size=size, device=device, threads=threads)
        self._player = Player(world)
        self.reset()

    @property
    def mode(self) -> str:
        return self._player.current

    def reset(self) -> None:
        """Back to the beginning of the world."""
        self.data = self.world.reset()
        self._player.reset(self.data)
        self._tracer.reset()
        self._previous = None
        self._stream = stream_frame(self._player.camera(self.data, self.size).pose[0])

    def tick(self, controls: Controls) -> None:
        """Advances physics by `1 / fps` seconds."""
        self._player.before_step(self.data, controls)
        step(self.world, self.data)
        self._player.after_step(self.data)

    def set_mode(self, mode: Mode) -> None:
        self._player.set_mode(self.data, mode)
        self._previous = None

    def gbuffer(self) -> GBuffer:
        camera = self._player.camera(self.data, self.size)
        self._tracer.update(self.data)
        gbuffer = self._tracer.gbuffer(camera, self._previous)
        self._previous = camera
        return gbuffer

    def reference(self, look: Look) -> Tensor | None:
        return self._tracer.shade(look, stream=self._stream)

    def close(self) -> None:
        """Nothing to do: a world holds no file open."""


class ClipSource:
    """A clip, round and round. Its files stay open until `close`.

    Raises:
        ClipError: no clip there, or one that cannot be read.
    """

    interactive = False
    mode = "clip"
    seed = 0

    def __init__(self, path: str | Path, *, size: tuple[int, int] | None = None, device: torch.device | str = "cpu"):
        self._clip: ClipReader = open_clip(path)
        self._device, self._frame = device, 0
        self._resize = size
        self.name = Path(path).name
        self.fps = float(self._clip.info.fps or 24.0)
        self.description = ""
        try:
            self.size = self.gbuffer().size
        except BaseException:
            self.close()
            raise

    def reset(self) -> None:
        self._frame = 0

    def tick(self, controls: Controls) -> None:
        self._frame = (self._frame + 1) % len(self._clip)

    def set_mode(self, mode: Mode) -> None:
        pass

    def gbuffer(self) -> GBuffer:
        frame = self._clip.read(self._frame, self._frame + 1)
        return (frame if self._resize is None else resize(frame, self._resize)).to(self._device)

    def reference(self, look: Look) -> Tensor | None:
        return None

    def close(self) -> None:
        self._clip.close()


def open_world(kind: str | Path, seed: int, fps: float) -> World:
    """A world with a player's bodies in it: a kind of procedural world, or an MJCF or URDF file.

    Raises:
        WorldError: an unknown kind, or a file that cannot be loaded.
    """
    suffix = Path(kind).suffix
    if suffix == ".urdf":
        return load_urdf(kind, fps=fps, extend=add_bodies)
    if suffix == ".xml":
        return load_mjcf(kind, fps=fps, extend=add_bodies)
    return make_world(str(kind), seed, fps=fps, extend=add_bodies)
