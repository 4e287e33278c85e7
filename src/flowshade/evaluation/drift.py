"""Drift over a long stream, and whether a place that is visited again looks the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from flowshade.evaluation.content import gradient, luma

SHARE = 0.15
"""Of a stream: what counts as its beginning and as its end."""
STATISTICS = ("red", "green", "blue", "contrast", "sharpness")


def picture_statistics(rgb: Float[Tensor, "T 3 H W"]) -> list[dict[str, float]]:
    """Colour (mean of each channel), contrast (standard deviation of luma) and sharpness (mean gradient of luma), one
    dictionary a frame, in display sRGB [0, 1]."""
    y = luma(rgb)
    columns = [*rgb.mean((2, 3)).unbind(1), y.flatten(1).std(1), gradient(y).flatten(1).mean(1)]
    return [dict(zip(STATISTICS, (float(value) for value in row))) for row in zip(*columns)]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One frame of a stream that was looked at closely."""

    frame: int
    output: dict[str, float]
    """`picture_statistics` of what the renderer made, and further ones, such as `lpips` (to the reference)."""
    reference: dict[str, float]
    """The same of the reference; a statistic that is missing here counts as 0."""


def drift(samples: Sequence[Sample], frames: int) -> dict[str, float]:
    """Change of (output - reference), last 15 % against first 15 % of a stream.

    For each statistic the mean of (output - reference) in the last part minus that in the first part. What the scene
    itself does cancels. Colours and LPIPS are in their own units ([0, 1]), contrast and sharpness relative to the
    reference's mean.

    Raises:
        ValueError: a part in which no frame was sampled.
    """
    part = part_frames(frames)
    first = [sample for sample in samples if sample.frame < part]
    last = [sample for sample in samples if sample.frame >= frames - part]
    if not first or not last:
        raise ValueError(
            f"drift got {len(first)} samples in the first and {len(last)} in the last {SHARE:.0%} of {frames} frames; "
            "expected one or more in each. Sample more often."
        )
    changes = {}
    for name in samples[0].output:
        early, late = (
            np.mean([s.output[name] - s.reference.get(name, 0.0) for s in chosen]) for chosen in (first, last)
        )
        scale = 1.0
        if name in ("contrast", "sharpness"):
            scale = max(float(np.mean([s.reference[name] for s in (*first, *last)])), 1e-6)
        changes[name] = float(late - early) / scale
    return changes


def part_frames(frames: int) -> int:
    """Frames in the first part of a stream, and as many in the last."""
    return max(1, int(SHARE * frames))


def revisit_pairs(frames: int) -> list[tuple[int, int]]:
    """Frames of a there-and-back path that show the same place: first part against last part, outermost first."""
    return [(index, frames - 1 - index) for index in range(part_frames(frames))]
