"""Prompt control: is the look recognised, does asking for more give more, and how soon does a change show?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from flowshade.color import srgb_to_linear
from flowshade.evaluation.content import dilate, gradient, luma
from flowshade.types import GBuffer

GRID = 4
"""Cells across and down whose colours the classifier looks at."""
LOOKED_AT = (48, 80)
"""Height and width to which pictures are averaged first, so that their size does not matter."""


def look_features(rgb: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T F"]:
    """What the classifier sees of a picture, averaged to 48 x 80: mean and standard deviation of red, green and blue in
    4 x 4 cells, and how often each of 8 levels of each channel occurs."""
    rgb = adaptive_avg_pool2d(rgb, LOOKED_AT)
    mean = adaptive_avg_pool2d(rgb, GRID)
    spread = (adaptive_avg_pool2d(rgb.square(), GRID) - mean.square()).clamp(min=0).sqrt()
    levels = (rgb.clamp(0, 1) * 8).long().clamp(max=7)
    shares = torch.stack([(levels == level).float().mean((2, 3)) for level in range(8)], 1)
    return torch.cat([x.flatten(1) for x in (mean, spread, shares)], 1)


class LookClassifier:
    """Multinomial logistic regression on `look_features`, trained on reference pictures only.

    Args:
        features: [N, F] of reference pictures.
        labels: [N] numbers of their looks, from 0.
        classes: how many looks there are.
        ridge: weight of the squared coefficients.
    """

    def __init__(
        self, features: Float[Tensor, "N F"], labels: Sequence[int], classes: int, *, ridge: float = 1e-3
    ) -> None:
        x = features.double()
        self._mean, self._scale = x.mean(0), x.std(0).clamp(min=1e-4)
        x, y = (x - self._mean) / self._scale, torch.tensor(labels)
        weight = torch.zeros(x.shape[1] + 1, classes, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            solver.zero_grad()
            value = torch.nn.functional.cross_entropy(x @ weight[:-1] + weight[-1], y) + ridge * weight.square().sum()
            value.backward()
            return value

        solver.step(loss)  # pyright: ignore[reportArgumentType]
        self._weight = weight.detach()

    def predict(self, features: Float[Tensor, "N F"]) -> list[int]:
        """The most likely look of each picture."""
        x = (features.double() - self._mean) / self._scale
        return (x @ self._weight[:-1] + self._weight[-1]).argmax(1).tolist()


@dataclass(frozen=True, kw_only=True)
class LookPictures:
    """Features of pictures that are supposed to show a look."""

    world: str
    """The scene; pictures of one scene are never used to recognise others of it."""
    look: str
    method: str
    """Who made them; "reference" trains."""
    features: Float[Tensor, "T F"]


def recognise(
    pictures: Sequence[LookPictures], looks: Sequence[str], training: Sequence[LookPictures] = ()
) -> dict[str, list[list[int]]]:
    """Confusion of looks by method: row = asked for, column = recognised, counts of frames.

    For each world a classifier is trained on the reference pictures of all other worlds; the method "reference" gives
    its own accuracy, which bounds what the others can be expected to reach.

    Args:
        pictures: what is to be recognised.
        looks: names of all looks.
        training: reference pictures of further worlds, which are only trained on.

    Raises:
        ValueError: pictures of a single world, and none to train on.
    """
    worlds = list(dict.fromkeys(item.world for item in pictures))
    if len(worlds) < 2 and not training:
        raise ValueError(
            f"recognise got {len(worlds)} world; expected two or more, to train on others than are tested. Give more, "
            "or pictures to train on."
        )
    methods = list(dict.fromkeys(item.method for item in pictures))
    confusion = {method: [[0] * len(looks) for _ in looks] for method in methods}
    for world in worlds:
        known = [item for item in pictures if item.world != world and item.method == "reference"]
        known += [item for item in training if item.world != world]
        labels = [looks.index(item.look) for item in known for _ in range(item.features.shape[0])]
        classifier = LookClassifier(torch.cat([item.features for item in known]), labels, len(looks))
        for item in pictures:
            if item.world == world:
                for found in classifier.predict(item.features):
                    confusion[item.method][looks.index(item.look)][found] += 1
    return confusion


def accuracy(confusion: Sequence[Sequence[int]]) -> float:
    """Share of a confusion matrix that lies on its diagonal."""
    total = sum(map(sum, confusion))
    return sum(row[index] for index, row in enumerate(confusion)) / total if total else math.nan


def fog_extinction(picture: Float[Tensor, "T 3 H W"], clip: GBuffer) -> float:
    """How fast contrast falls with depth, per metre: the extinction of the fog that a picture shows.

    Koschmieder 1924: seen through fog of extinction b, a step of radiance at distance z keeps exp(-b z) of itself.
    Steps of albedo away from steps of depth are compared with the picture's (in linear light) in ten bins of depth with
    as many steps each; -b is the slope of the log of their ratio. The tone curve and uneven light bias it: compare with
    the reference's own, measured in the same way. nan for a clip with too few such steps.
    """
    if clip.albedo is None or clip.depth is None:
        raise ValueError("fog_extinction got a clip without albedo or depth; it needs both.")
    shown, given = gradient(luma(srgb_to_linear(picture))), gradient(luma(clip.albedo))
    silhouette = dilate(gradient(clip.depth.clamp(1e-3, 1e4).log()) > 0.05)
    usable = (given > 0.02) & ~silhouette & torch.isfinite(clip.depth)
    if int(usable.sum()) < 200:
        return math.nan
    depth, order = clip.depth[usable].double().sort()
    steps = [x[usable].double()[order] for x in (shown, given)]
    bins = [torch.stack([part.sum() for part in x.tensor_split(10)]) for x in steps]
    z = torch.stack([part.mean() for part in depth.tensor_split(10)])
    ratio = (bins[0].clamp(min=1e-9) / bins[1]).log()
    return float(-((z - z.mean()) * (ratio - ratio.mean())).sum() / (z - z.mean()).square().sum().clamp(min=1e-12))


def mean_radiance(picture: Float[Tensor, "T 3 H W"]) -> float:
    """Mean luminance of pictures in linear light, [0, 1]."""
    return float(luma(srgb_to_linear(picture)).mean())


def is_monotone(values: Sequence[float]) -> bool:
    """Whether every value is larger than the one before it."""
    return all(after > before for before, after in zip(values, values[1:]))


def frames_until(
    changed: Float[Tensor, "T 3 H W"],
    before: Float[Tensor, "T 3 H W"],
    after: Float[Tensor, "T 3 H W"],
    at: int,
    share: float = 0.5,
) -> int | None:
    """Frames from a change of prompt at frame `at` until it shows; 0 = in the very frame, None = never.

    Args:
        changed: a stream whose prompt changed at `at`.
        before: the stream of the same seed that kept the first prompt.
        after: the one that had the second from its start.
        at: frame of the change.
        share: how far of the way from `before` to `after` counts; the way is measured in mean absolute difference.
    """
    from_before, to_after = ((changed - other).abs().flatten(1).mean(1) for other in (before, after))
    moved = from_before / (from_before + to_after).clamp(min=1e-12)  # [T]
    there = (moved[at:] >= share).nonzero()
    return int(there[0]) if there.numel() else None
