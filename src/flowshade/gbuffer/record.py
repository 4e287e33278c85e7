"""Runs a world and traces it: a stream of G-buffers, with reference pictures when a look is asked for.

    for gbuffer, rgb in record(make_world("street", 0), frames=240, fps=24, size=(240, 416), look=LOOKS["sunny"]):
        ...

The world never notices: the same seed gives the same motion whether it is recorded or not, and in any look.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowshade.files import write_json
from flowshade.gbuffer.environment import look_named
from flowshade.gbuffer.io import ClipError, ClipWriter
from flowshade.gbuffer.io.folder import partial_folder
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.particles import ParticleKind, particle_layer, particles_of
from flowshade.gbuffer.rollout import TracedFrame, blurred_rollout, rollout, save_state
from flowshade.gbuffer.trace import Reference, Tracer
from flowshade.progress import Progress
from flowshade.types import GBuffer
from flowshade.world import CameraPath, World

CHECKPOINT_FRAMES = 30
"""A recording that can be resumed loses at most this many frames of work."""


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
    reference: Reference = "direct",
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
        reference: how the pictures are made, as in `Tracer`.

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
    tracer = Tracer(world.model, size=size, device=device, samples=samples, seed=seed, reference=reference)
    looks = () if look is None else (look,)
    traced = rollout(world, tracer, frames=frames, looks=looks, path=path, seed=seed)
    return ((frame.gbuffer, frame.pictures[0] if frame.pictures else None) for frame in traced)


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
    reference: Reference = "direct",
    blur: int = 0,
    particles: ParticleKind | Literal["auto"] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Records a clip folder; its manifest says which world, seed and look, and what is to be seen.

    Args:
        world: what to record; it is run at `fps`, whatever its own rate.
        out_dir: the folder to make.
        seconds: length, rounded to whole frames; or give `frames`.
        frames: length in frames; 10 seconds when neither is given.
        fps: frames a second of world time.
        size: height and width in pixels.
        look: a name in `LOOKS`, the path of an HDRI or `hdri:NAME` (see `flowshade.gbuffer.environment`), or a `Look`
            of your own; None writes no reference pictures.
        device: where to trace.
        seed: of the sampling patterns; another seed gives other noise, never another world.
        path: which of the world's camera paths, 0 being its own; or one of yours.
        samples: material samples a pixel.
        reference: how the pictures are made, as in `Tracer`.
        blur: sub-frames of a second, motion-blurred version of each picture, kept in `blur/` beside the sharp one; 0 =
            none. Needs a look. Such clips hold no motion vectors.
        particles: rain, snow, fireflies or bubbles, kept in `particles/` as a layer of its own with a mask; "auto"
            takes what belongs to the look, if anything does. Needs a look. Pictures stay without them.
        resume: keep what is recorded when the recording stops early, killed or not, and go on from there when it is
            called again with the same settings. The finished clip is the same to the last bit as one made in one go.
        overwrite: replace an existing clip folder.
        progress: called with (frames done, frames in all) after each frame.

    Returns:
        The folder.

    Raises:
        ValueError: an unknown look or particle, both `seconds` and `frames`, a path that the world lacks, or as in
            `record`.
        ClipError: the folder exists and `overwrite` is false.
    """
    total = _frame_count(seconds, frames, fps)
    name, chosen = _look(look)
    if blur < 0 or (blur and chosen is None):
        raise ValueError(f"record_clip got blur={blur} and look={name}; expected a look, and 0 or more sub-frames.")
    falling = _particles(particles, chosen)
    route = _path(world, path)
    meta = {
        "world": world.name, "seed": world.seed, "path": path if isinstance(path, int) else "custom",
        "look": name, "look_caption": chosen.caption() if chosen else None,
        "samples": samples, "sampling_seed": seed, "reference": reference if chosen else None,
    }  # fmt: skip
    if chosen is not None:
        meta["look_parameters"] = dataclasses.asdict(chosen)
    if blur:
        meta["blur_subframes"] = blur
    if falling is not None:
        meta["particles"] = falling
    started = _Checkpoint(Path(out_dir), {**meta, "frames": total, "fps": fps, "size": list(size)}) if resume else None
    first = started.frames if started else 0
    world = world.with_fps(fps * 2 * blur if blur else fps)
    tracer = Tracer(world.model, size=size, device=device, samples=samples, seed=seed, reference=reference)
    looks = () if chosen is None else (chosen,)
    states: dict[int, NDArray[np.float64]] = {}

    def visit(index: int, data: mujoco.MjData) -> None:
        states.clear()
        states[index] = save_state(world, data)

    options: dict[str, Any] = {
        "frames": total, "looks": looks, "path": route, "seed": seed, "first": first,
        "state": started.state if started else None, "visit": visit if resume else None,
    }  # fmt: skip
    with ClipWriter(
        out_dir, size=size, fps=fps, caption=world.description, meta=meta, overwrite=overwrite,
        resume_at=first if resume else None,
    ) as writer:  # fmt: skip
        frames_of: Any = blurred_rollout if blur else _plain_rollout
        for frame, blurred in frames_of(world, tracer, subframes=blur, **options):
            layer = None
            if falling is not None and chosen is not None:
                layer = particle_layer(falling, frame.gbuffer, chosen, time=frame.index / fps, seed=seed).rgba()
            picture = frame.pictures[0] if looks else None
            writer.append(frame.gbuffer, picture, blurred[0] if blurred else None, layer)
            if started is not None and writer.frames % CHECKPOINT_FRAMES == 0 and writer.frames < total:
                # With blur the shutter is closed for the last sub-frames of a frame: those are simulated again.
                started.save(writer.frames, None if blur else states[frame.index])
            if progress is not None:
                progress(writer.frames, total)
        if started is not None:
            started.remove()
    return Path(out_dir)


def _plain_rollout(
    world: World, tracer: Tracer, *, subframes: int, **options: Any
) -> Iterator[tuple[TracedFrame, None]]:
    """`rollout` in the form of `blurred_rollout`."""
    return ((frame, None) for frame in rollout(world, tracer, **options))


class _Checkpoint:
    """How far a recording that can be resumed has come, in a small file of its partial folder."""

    def __init__(self, clip: Path, settings: dict[str, Any]) -> None:
        self._path = partial_folder(clip) / "checkpoint.json"
        self._settings = json.loads(json.dumps(settings))
        self.frames = 0
        self.state: NDArray[np.float64] | None = None
        if not self._path.exists():
            return
        found = json.loads(self._path.read_text())
        if found["settings"] != self._settings:
            differ = [key for key in self._settings if found["settings"].get(key) != self._settings[key]]
            raise ClipError(
                f"{self._path.parent} holds a recording with other settings ({', '.join(differ)} differ); expected the "
                "same. Repeat them, or remove that folder to begin anew."
            )
        self.frames = found["frames"]
        self.state = None if found["state"] is None else np.array(found["state"])

    def save(self, frames: int, state: NDArray[np.float64] | None) -> None:
        """Notes that `frames` frames are on disk, and the physics of the last of them. Atomic."""
        content = {"settings": self._settings, "frames": frames, "state": None if state is None else state.tolist()}
        write_json(self._path, content, indent=None)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


SLOWEST, FASTEST = 0.1, 1000.0
"""Frames a second that a world is run at."""


def _frame_count(seconds: float | None, frames: int | None, fps: float) -> int:
    if not SLOWEST <= fps <= FASTEST:
        raise ValueError(f"fps is {fps}; expected {SLOWEST:g} to {FASTEST:g} frames per second.")
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
    return world.nth_path(path)


def _particles(given: ParticleKind | Literal["auto"] | None, look: Look | None) -> ParticleKind | None:
    if given is None:
        return None
    kinds = ("auto", *get_args(ParticleKind))
    if given not in kinds or look is None:
        raise ValueError(
            f"record_clip got particles={given!r} and {'no look' if look is None else 'a look'}; expected one of "
            f"{', '.join(kinds)}, or None, and a look, which lights them."
        )
    return particles_of(look) if given == "auto" else given


def _look(look: str | Look | None) -> tuple[str | None, Look | None]:
    if look is None:
        return None, None
    if isinstance(look, Look):
        return next((name for name, known in LOOKS.items() if known == look), "custom"), look
    return look, look_named(look)
