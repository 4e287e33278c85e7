"""Who makes the pictures: the renderer, streamed and timed, and the plain baselines."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowshade.api import StyledRenderer
from flowshade.color import linear_to_srgb
from flowshade.evaluation.baselines import AlbedoAffine
from flowshade.evaluation.suites import Case
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.shade import shade_without_rays
from flowshade.types import CORE_CHANNELS, GBuffer, stream_frame


@dataclass
class Stopwatch:
    """Seconds of every window but each stream's first, and the most memory seen."""

    seconds: list[float] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    peak_mib: float = 0.0

    def push(self, renderer: StyledRenderer, window: GBuffer, *, count: bool) -> Tensor:
        """Renders a window, timed from buffers in memory to pictures in memory; [T, 3, H, W]."""
        cuda = renderer.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(renderer.device)
            torch.cuda.synchronize(renderer.device)
        began = time.perf_counter()
        rgb = renderer.push(window).rgb
        if cuda:
            torch.cuda.synchronize(renderer.device)
        if count:
            self.seconds.append(time.perf_counter() - began)
            self.frames.append(window.frames)
        self.peak_mib = max(self.peak_mib, _memory_mib(renderer.device))
        return rgb

    def add(self, other: Stopwatch) -> None:
        self.seconds += other.seconds
        self.frames += other.frames
        self.peak_mib = max(self.peak_mib, other.peak_mib)

    def summary(self) -> dict[str, Any]:
        """Frames a second, median and 99th percentile of windows in milliseconds, peak memory in MiB."""
        if not self.seconds:
            return {"windows": 0, "peak_mib": round(self.peak_mib)}
        milliseconds = 1000 * np.array(self.seconds)
        return {
            "windows": len(self.seconds),
            "fps": round(sum(self.frames) / sum(self.seconds), 2),
            "median_ms": round(float(np.median(milliseconds)), 1),
            "p99_ms": round(float(np.percentile(milliseconds, 99)), 1),
            "peak_mib": round(self.peak_mib),
        }


def _memory_mib(device: torch.device) -> float:
    """Allocated on the GPU at most, or the process's largest resident set (tracing and metrics included)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def render_stream(
    renderer: StyledRenderer,
    clip: GBuffer,
    captions: dict[int, str],
    *,
    window: int,
    seed: int,
    sun: Tensor | None = None,
    watch: Stopwatch | None = None,
) -> Tensor:
    """A clip streamed as at run time, [T, 3, H, W] on the CPU.

    Args:
        captions: by the frame from which each holds; 0 and starts of windows.
        sun: [3], unit vector towards the sun in the stream frame; None = unknown.
        watch: is told how long windows take.
    """
    watch = watch or Stopwatch()
    renderer.reset(seed)
    pictures = []
    for start in range(0, clip.frames, window):
        if start in captions:
            renderer.set_prompt(captions[start], sun=sun)
        part = watch.push(renderer, clip[start : start + window], count=start > 0)
        pictures.append(part.cpu())
    return torch.cat(pictures)


def albedo_affine(case: Case) -> Tensor | None:
    """The best affine map of albedo, fitted to this very clip in this look; None without albedo or reference."""
    if case.gbuffer.albedo is None or case.reference is None:
        return None
    albedo = linear_to_srgb(case.gbuffer.albedo)
    affine = AlbedoAffine()
    affine.add(albedo, case.reference)
    return affine.predict(albedo)


def no_rays(case: Case, looks: Sequence[str]) -> Tensor | None:
    """Shading without rays in the case's look, or the closest of `looks`; None if the clip lacks what it needs."""
    camera = case.gbuffer.camera
    if camera is None or any(name not in case.gbuffer.channels() for name in CORE_CHANNELS):
        return None
    stream = stream_frame(camera.pose[0])

    def shade(name: str, clip: GBuffer) -> Tensor:
        return shade_without_rays(clip, LOOKS[name], stream=stream)

    name = case.look if case.look in LOOKS else closest_look(case, looks, lambda look, clip: shade(look, clip), 1)
    return shade(name, case.gbuffer)


def closest_look(case: Case, looks: Sequence[str], render: Callable[[str, GBuffer], Tensor], frames: int) -> str:
    """The look in which a method's first frames come closest to the reference, in mean squared error."""
    reference = case.reference
    assert reference is not None, "only asked for clips with reference pictures"
    start = case.gbuffer[:frames]
    errors = {name: float((render(name, start) - reference[: start.frames]).square().mean()) for name in looks}
    return min(errors, key=errors.__getitem__)
