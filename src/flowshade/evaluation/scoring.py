"""The metrics of one clip in one look, by method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowshade.evaluation.content import buffer_edges, edge_auc, edge_precision, reestimated_normal_error
from flowshade.evaluation.control import look_features
from flowshade.evaluation.metrics import psnr, quantise, ssim
from flowshade.evaluation.perceptual import Trunk, TrunkName, lpips_of_features, pooled
from flowshade.evaluation.suites import Case
from flowshade.evaluation.temporal import border_ratio, motion_of, warping_errors, window_step_ratio
from flowshade.inverse.stream import Inverse

REFERENCE = "reference"
AFFINE = "albedo affine"
NO_RAYS = "no rays"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a number is shown and read."""

    title: str
    digits: int
    better: int
    """1 = more is better, -1 = less is better, 0 = nearer to 1 is better."""


METRICS: dict[str, Metric] = {
    "psnr": Metric(title="PSNR, dB", digits=2, better=1),
    "psnr_surfaces": Metric(title="PSNR of surfaces, dB", digits=2, better=1),
    "ssim": Metric(title="SSIM", digits=3, better=1),
    "lpips_alex": Metric(title="LPIPS Alex", digits=3, better=-1),
    "lpips_vgg": Metric(title="LPIPS VGG", digits=3, better=-1),
    "frechet": Metric(title="Fréchet, AlexNet conv5", digits=2, better=-1),
    "edge_precision": Metric(title="edge precision", digits=3, better=1),
    "edge_auc": Metric(title="edge AUC", digits=3, better=1),
    "normal_reestimated": Metric(title="content/re-estimated normal error, degrees", digits=1, better=-1),
    "normal_lost": Metric(title="content/re-estimated normal error over the reference's", digits=1, better=-1),
    "warping_error": Metric(title="warping error, 8-bit steps", digits=2, better=-1),
    "window_ratio": Metric(title="window step ratio", digits=2, better=0),
}
"""Every metric of a clip, in the order of tables."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One method on one case."""

    row: dict[str, Any]
    """clip, look, method and the metrics that apply; None where a number does not exist."""
    looks: Tensor
    """[T, F] `look_features`."""
    pooled: Tensor | None
    """[N, C] features for the Fréchet distance, of every `lpips_every`-th frame."""


class Scorer:
    """Scores methods on a case; what does not depend on the method is computed once.

    Args:
        case: the clip, its buffers and its reference.
        window: frames that the renderer makes together.
        trunks: for LPIPS and the Fréchet distance; empty leaves them out.
        lpips_every: those two look at every so many frames.
        inverse: for re-estimated normals; None leaves them out. Its stream is taken over.
    """

    def __init__(
        self,
        case: Case,
        *,
        window: int,
        trunks: dict[TrunkName, Trunk],
        lpips_every: int,
        inverse: Inverse | None = None,
    ) -> None:
        self._case, self._window, self._trunks, self._every = case, window, trunks, lpips_every
        self._inverse = inverse
        self._reference_normals = None if case.reference is None else self._normals(quantise(case.reference))
        self._edges = buffer_edges(case.gbuffer)
        self._surfaces = None if case.gbuffer.depth is None else torch.isfinite(case.gbuffer.depth)
        self._reference_features = {} if case.reference is None else self._features(quantise(case.reference))
        self._motion = motion_of(case.gbuffer, case.reference) if case.gbuffer.frames > 1 else None

    @property
    def motion_source(self) -> str:
        return self._motion[2] if self._motion else "one frame"

    @torch.no_grad()
    def score(self, method: str, pictures: Tensor) -> Scored:
        """All metrics of [T, 3, H, W] display sRGB pictures; means over frames."""
        pictures = quantise(pictures)
        row: dict[str, Any] = {"clip": self._case.clip, "look": self._case.look, "method": method}
        features = self._reference_features if method == REFERENCE else self._features(pictures)
        if self._case.reference is not None and method != REFERENCE:
            row |= self._against(pictures, self._case.reference, features)
        row["edge_precision"] = mean(edge_precision(pictures, self._edges))
        row["edge_auc"] = mean(edge_auc(pictures, self._edges))
        row |= self._read_back(pictures, method)
        row |= self._in_time(pictures, method)
        row["frames"] = pictures.shape[0]
        vectors = pooled(features["alex"]).cpu() if "alex" in features else None
        return Scored(row=row, looks=look_features(pictures).cpu(), pooled=vectors)

    def _normals(self, pictures: Tensor) -> float | None:
        if self._inverse is None:
            return None
        error = reestimated_normal_error(pictures, self._case.gbuffer, self._inverse)
        return error if math.isfinite(error) else None

    def _read_back(self, pictures: Tensor, method: str) -> dict[str, float | None]:
        """What an inverse reads off the pictures, and how much more it errs than on the reference."""
        if method == REFERENCE:
            return {"normal_reestimated": self._reference_normals}
        error, best = self._normals(pictures), self._reference_normals
        return {"normal_reestimated": error, "normal_lost": None if error is None or best is None else error - best}

    def _features(self, pictures: Tensor) -> dict[TrunkName, list[Tensor]]:
        """Of every `lpips_every`-th frame, by trunk."""
        return {name: trunk.features(pictures[:: self._every]) for name, trunk in self._trunks.items()}

    def _against(
        self, pictures: Tensor, reference: Tensor, features: dict[TrunkName, list[Tensor]]
    ) -> dict[str, float | None]:
        scores = {"psnr": mean(psnr(pictures, reference)), "ssim": mean(ssim(pictures, reference))}
        if self._surfaces is not None:
            scores["psnr_surfaces"] = mean(psnr(pictures, reference, self._surfaces))
        for name, trunk in self._trunks.items():
            distance = lpips_of_features(features[name], self._reference_features[name], trunk)
            scores[f"lpips_{name}"] = mean(distance)
        return scores

    def _in_time(self, pictures: Tensor, method: str) -> dict[str, float | None]:
        if self._motion is None:
            return {}
        motion, seen, _ = self._motion
        errors = warping_errors(pictures, motion, seen)
        if self._case.reference is None:
            ratio = border_ratio(errors, self._window)
        elif method == REFERENCE:
            ratio = math.nan
        else:
            ratio = window_step_ratio(pictures, self._case.reference, self._window)
        return {"warping_error": mean(errors), "window_ratio": ratio if math.isfinite(ratio) else None}


def mean(values: Tensor) -> float | None:
    """Mean of the finite numbers among the values; None if there is none."""
    finite = values[torch.isfinite(values)]
    return float(finite.double().mean()) if finite.numel() else None


def mean_rows(rows: list[dict[str, Any]], by: Callable[[dict[str, Any]], Any]) -> dict[Any, dict[str, float | None]]:
    """Means of every metric over groups of rows; None where no row of a group has it."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return {key: {name: _mean_of(group, name) for name in METRICS} for key, group in groups.items()}


def _mean_of(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.mean(values)) if values else None
