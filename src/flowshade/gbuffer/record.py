"""Runs a world and traces it: a stream of G-buffers, with reference pictures when a look is asked for.

    for gbuffer, rgb in record(make_world("street", 0), frames=240, fps=24, size=(240, 416), look=LOOKS["sunny"]):
        ...

The world never notices: the same seed gives the same motion whether it is recorded or not, and in any look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from flowshade.gbuffer.io import ClipWriter
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.trace import Tracer
from flowshade.types import GBuffer, stream_frame
from flowshade.world import CameraPath, World, camera_at, step


def record(
    world: World,
    *,
    frames: int,
    fps: float,
    size: tuple[int, int],
    look: Look | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    path: CameraPath | None = None,
    samples: int = 4,
) -> Iterator[tuple[GBuffer, Tensor | None]]:
    """Yields the world frame by frame from time 0, in constant memory.

    Args:
        world: what to record; it is run at `fps`, whatever its own rate.
        frames: how many.
        fps: frames a second of world time.
        size: height and width in pixels.
        look: light and weather for reference pictures; None records buffers only.
        device: where to trace.
        seed: of the sampling patterns; another seed gives other noise, never another world.
        path: a camera path instead of the world's own.
        samples: material samples a pixel.

    Yields:
        The G-buffer of one frame (all channels and the camera, on `device`), and the picture `[1, 3, H, W]`,
        display sRGB in [0, 1], or None.

    Raises:
        ValueError: `frames` is below 1, or the size or frame rate is not positive.
    """
    if frames < 1:
        raise ValueError(f"record got frames={frames}; expected at least 1.")
    # Checks come before the first frame is asked for: a generator function would delay them.
    world = world.with_fps(fps)
    tracer = Tracer(world.model, size=size, device=device, samples=samples, seed=seed)
    return _frames(world, tracer, path or world.camera_path, frames, look, seed)


def _frames(
    world: World, tracer: Tracer, path: CameraPath, frames: int, look: Look | None, seed: int
) -> Iterator[tuple[GBuffer, Tensor | None]]:
    data = world.reset()
    stream = stream_frame(camera_at(path, [0.0], *tracer.size).pose[0])
    previous = None
    for frame in range(frames):
        if frame:
            step(world, data)
        camera = camera_at(path, [frame / world.fps], *tracer.size)
        tracer.update(data)
        gbuffer = tracer.gbuffer(camera, previous)
        picture = None if look is None else tracer.shade(look, camera, stream=stream, seed=seed)
        yield gbuffer, picture
        previous = camera


def record_clip(
    world: World,
    out_dir: str | Path,
    *,
    seconds: float | None = None,
    frames: int | None = None,
    fps: float = 24.0,
    size: tuple[int, int] = (240, 416),
    look: str | Look | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    path: CameraPath | int = 0,
    samples: int = 4,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Records a clip folder; its manifest says which world, seed and look, and what is to be seen.

    Args:
        world: what to record; it is run at `fps`, whatever its own rate.
        out_dir: the folder to make.
        seconds: length, rounded to whole frames; or give `frames`.
        frames: length in frames; 10 seconds when neither is given.
        fps: frames a second of world time.
        size: height and width in pixels.
        look: a name in `LOOKS`, or a `Look` of your own; None writes no reference pictures.
        device: where to trace.
        seed: of the sampling patterns; another seed gives other noise, never another world.
        path: which of the world's camera paths, 0 being its own; or one of yours.
        samples: material samples a pixel.
        overwrite: replace an existing clip folder.
        progress: called with (frames done, frames in all) after each frame.

    Returns:
        The folder.

    Raises:
        ValueError: an unknown look, both or less than one of `seconds` and `frames`, a path that the world lacks, or
            as in `record`.
        ClipError: the folder exists and `overwrite` is false.
    """
    total = _frame_count(seconds, frames, fps)
    name, chosen = _look(look)
    stream = record(
        world, frames=total, fps=fps, size=size, look=chosen, device=device, seed=seed, path=_path(world, path),
        samples=samples,
    )  # fmt: skip
    meta = {
        "world": world.name, "seed": world.seed, "path": path if isinstance(path, int) else "custom",
        "look": name, "look_caption": chosen.caption() if chosen else None,
        "samples": samples, "sampling_seed": seed,
    }  # fmt: skip
    with ClipWriter(out_dir, size=size, fps=fps, caption=world.description, meta=meta, overwrite=overwrite) as writer:
        for done, (gbuffer, picture) in enumerate(stream, 1):
            writer.append(gbuffer, picture)
            if progress is not None:
                progress(done, total)
    return Path(out_dir)


def _frame_count(seconds: float | None, frames: int | None, fps: float) -> int:
    if not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps}; expected a positive number of frames per second.")
    if seconds is not None and frames is not None:
        raise ValueError(f"both seconds={seconds} and frames={frames} were given; choose one of them.")
    if frames is None:
        seconds = 10.0 if seconds is None else seconds
        frames = round(seconds * fps) if math.isfinite(seconds) else 0
    if frames < 1:
        length = f"{frames} frames" if seconds is None else f"{seconds} seconds at {fps} frames a second"
        raise ValueError(f"the clip would last {length}; expected at least one frame.")
    return frames


def _path(world: World, path: CameraPath | int) -> CameraPath:
    if isinstance(path, CameraPath):
        return path
    if path < 0:
        raise ValueError(f"camera path is {path}; expected 0 or more.")
    if path and not world.rails:
        raise ValueError(f"camera path {path} was asked for, but {world.name} has a single one; expected 0.")
    return world.paths(path + 1)[path]


def _look(look: str | Look | None) -> tuple[str | None, Look | None]:
    if look is None:
        return None, None
    if isinstance(look, Look):
        return next((name for name, known in LOOKS.items() if known == look), "custom"), look
    if look not in LOOKS:
        raise ValueError(f"unknown look {look!r}; expected one of {', '.join(LOOKS)}, or a Look.")
    return look, LOOKS[look]
