"""Training of the inverse: pictures from the pool, spoilt as cameras and codecs spoil them, back to their buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.checkpoints.store import INVERSE_FORMAT, save_inverse
from flowshade.codec.encoding import EncodingProfile
from flowshade.gbuffer.view import DEPTH_SCALE_METRES
from flowshade.inverse.network import STRIDE, Estimate, InverseConfig, InverseState
from flowshade.inverse.stream import Inverse
from flowshade.nn.precision import full_precision
from flowshade.nn.warp import inside, warp
from flowshade.training.degrade import Degradation, degrade, mirror
from flowshade.training.losses import change_loss
from flowshade.training.pool import Batch
from flowshade.training.samples import write_sheet
from flowshade.training.stages import Data, Outcome, Stage, StageConfig, StageDefaults
from flowshade.types import CORE_CHANNELS, FRAMES_PER_LATENT, Camera

FARTHEST = 5000.0
"""Metres; what is farther counts as sky."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """True buffers in the units of `Estimate`."""

    albedo: Float[Tensor, "B T 3 H W"]
    normal: Float[Tensor, "B T 3 H W"]
    depth: Float[Tensor, "B T 1 H W"]
    roughness: Float[Tensor, "B T 1 H W"]
    metallic: Float[Tensor, "B T 1 H W"]
    surface: Bool[Tensor, "B T 1 H W"]
    """False = sky."""


def targets_of(values: Float[Tensor, "B T C H W"], profile: EncodingProfile) -> Targets:
    """Planes to targets; depth is 0 where there is sky."""
    planes = {name: values[:, :, profile.slices[name]] for name in CORE_CHANNELS}
    inverse = (planes["depth"] + 1) / 2  # s / (z + s)
    surface = inverse > profile.depth_scale / (FARTHEST + profile.depth_scale)
    depth = profile.depth_scale / inverse.clamp(min=1e-4) - profile.depth_scale
    return Targets(
        albedo=(planes["albedo"] + 1) / 2,
        normal=planes["normal"],
        depth=torch.where(surface, depth.clamp(min=1e-2).log(), 0.0),
        roughness=(planes["roughness"] + 1) / 2,
        metallic=(planes["metallic"] + 1) / 2,
        surface=surface,
    )


def focal_of(values: Float[Tensor, "B T C H W"], profile: EncodingProfile) -> Float[Tensor, " B"]:
    """Horizontal focal length over the picture's width, from the view rays at both ends of the middle row."""
    rays = values[:, 0, profile.slices["rays"], values.shape[-2] // 2]  # [B, 3, W]
    angle = torch.acos((rays[..., 0] * rays[..., -1]).sum(1).clamp(-1, 1))  # between the outermost pixels' centres
    return (1 - 1 / values.shape[-1]) / (2 * torch.tan(angle / 2))


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """What each part of `inverse_loss` counts beside the errors themselves."""

    slopes: float = 1.0
    edges: float = 0.5
    change: float = 0.25
    along: float = 1.0
    drift: float = 0.2
    sky: float = 0.5
    outline: float = 0.1
    sure: float = 0.05


def inverse_loss(
    estimate: Estimate,
    targets: Targets,
    last: tuple[Estimate, Targets] | None,
    motion: Motion | None = None,
    weights: LossWeights = LossWeights(),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Absolute errors of all channels on surfaces and at edges, of slopes, of what changes, and of how sure it is.

    Of depth's error a clip's mean counts a tenth: a scale cannot be seen, but a familiar size of things can. The
    expected errors learn from the true ones as the scale of a Laplace distribution (Kendall and Gal 2017, eq. 8),
    without pulling at the channels themselves.

    Args:
        estimate: of a run of pictures.
        targets: of the same.
        last: those of the picture before the run, without gradients; None at the start of a clip.
        motion: where the run's pixels were; None leaves `along` out.
        weights: of the parts.

    Returns:
        The loss, and its parts without gradients: the errors by channel and those of `LossWeights`.
    """
    surface = targets.surface.float()
    share = surface.mean().clamp(min=1e-3)
    raw = _errors(estimate, targets)
    weight = surface.sum((1, 2, 3, 4), keepdim=True).clamp(min=1)
    offset = (raw["depth"] * surface).sum((1, 2, 3, 4), keepdim=True) / weight
    errors = raw | {"depth": raw["depth"] - 0.9 * offset}
    absolute = torch.cat([errors[name].abs().mean(2, keepdim=True) for name in CORE_CHANNELS], 2)  # [B, T, 5, H, W]
    means = (absolute * surface).mean((0, 1, 3, 4)) / share  # [5]
    scales = estimate.error.clamp(-6, 3)
    facing = 1 - (estimate.normal * targets.normal).sum(2, keepdim=True)
    angle = (facing * surface).mean() / share
    before = None if last is None else (_errors(*last), last[1])
    parts = {
        "slopes": sum((_slopes(errors[name] * surface) for name in CORE_CHANNELS), surface.new_zeros(())),
        "edges": _at_edges(absolute, targets),
        "change": _change(estimate, targets, last),
        "along": surface.new_zeros(()) if motion is None else _along(raw, targets, before, motion),
        "drift": _drift(raw, targets, before),
        "sky": F.binary_cross_entropy_with_logits(estimate.sky, 1 - surface),
        "outline": _outline(estimate.sky, targets.surface),
        "sure": ((absolute.detach() / scales.exp() + scales) * surface).mean() / share,
    }
    total = means.sum() + angle + torch.stack([getattr(weights, name) * part for name, part in parts.items()]).sum()
    values = dict(zip(CORE_CHANNELS, means, strict=True)) | parts
    return total, {name: value.detach() for name, value in values.items()}


Errors = dict[str, Tensor]
"""Estimates less targets by channel, [B, T, C, H, W]."""


def _errors(estimate: Estimate, targets: Targets) -> Errors:
    return {name: getattr(estimate, name) - getattr(targets, name) for name in CORE_CHANNELS}


STRIDES = (1, 2, 4, 8)
"""Pixels between those whose difference is a slope: edges at the finest, shapes and grids of enlarging at others."""


def _slopes(error: Tensor) -> Tensor:
    """Mean absolute difference along rows and columns, mean of `STRIDES`: edges where they belong, and nowhere else.

    The multi-scale gradient matching of MegaDepth (Li and Snavely 2018, arXiv 1804.00607, eq. 4), for every channel.
    """
    parts = []
    for stride in STRIDES:
        parts.append((error[..., stride:] - error[..., :-stride]).abs().mean())
        parts.append((error[..., stride:, :] - error[..., :-stride, :]).abs().mean())
    return 2 * torch.stack(parts).mean()


EDGE_STEPS = {"normal": 0.35, "depth": 0.08, "roughness": 0.1}
"""Smallest difference between neighbours that is an edge: length of normals', share of depth, roughness itself."""
EDGE_REACH = 2
"""Pixels around an edge that count as it."""


def _at_edges(absolute: Float[Tensor, "B T 5 H W"], targets: Targets) -> Tensor:
    """Mean error of all channels together near the true edges, which are few and so weigh little elsewhere."""
    near = true_edges(targets) & targets.surface
    return (absolute * near).sum() / (absolute.shape[2] * near.sum()).clamp(min=1) * len(CORE_CHANNELS)


def true_edges(targets: Targets) -> Bool[Tensor, "B T 1 H W"]:
    """Pixels within `EDGE_REACH` of a step of the true normals, depth or roughness, or of the sky's outline."""
    edges = torch.zeros_like(targets.surface)
    surface = targets.surface.float()
    steps = {name: (getattr(targets, name), step) for name, step in EDGE_STEPS.items()}
    for values, step in (*steps.values(), (surface, 0.5)):
        across = (values[..., 1:] - values[..., :-1]).square().sum(2, keepdim=True).sqrt() > step
        down = (values[..., 1:, :] - values[..., :-1, :]).square().sum(2, keepdim=True).sqrt() > step
        edges[..., 1:] |= across
        edges[..., 1:, :] |= down
    flat = edges.flatten(0, 1).float()
    return (F.max_pool2d(flat, 2 * EDGE_REACH + 1, 1, EDGE_REACH) > 0).unflatten(0, edges.shape[:2])


def _change(estimate: Estimate, targets: Targets, last: tuple[Estimate, Targets] | None) -> Tensor:
    """`change_loss` of all channels together; where a surface came or went nothing is counted."""
    predicted, true = _stacked(estimate, targets), _stacked(targets, targets)
    before = None if last is None else (_stacked(last[0], last[1]), _stacked(last[1], last[1]))
    return change_loss(predicted, true, before)


def _along(errors: Errors, targets: Targets, last: tuple[Errors, Targets] | None, motion: Motion) -> Float[Tensor, ""]:
    """Mean absolute change of the errors along the motion of what is seen, all channels together: flicker.

    Errors and not values are followed: what truly changes, such as normals when the camera turns, then cancels, and a
    depth that is wrong by a factor stays so.
    """
    error = _stacked_errors(errors, targets)  # [B, T, 9, H, W]
    vectors, seen = motion.vectors, motion.seen
    if last is None:
        before, error, vectors, seen = error[:, :-1], error[:, 1:], vectors[:, 1:], seen[:, 1:]
    else:
        before = torch.cat([_stacked_errors(*last), error[:, :-1]], 1)
    if error.shape[1] == 0:
        return error.new_zeros(())
    flat = vectors.flatten(0, 1)
    fetched = warp(before.flatten(0, 1), flat).unflatten(0, error.shape[:2])
    valid = (seen & inside(flat).unflatten(0, error.shape[:2])).float()
    difference = (error - fetched).abs().sum(2, keepdim=True)
    return (difference * valid).sum() / valid.sum().clamp(min=1)


def _stacked_errors(errors: Errors, targets: Targets) -> Tensor:
    """Errors on surfaces; of channels with three planes a third each, so that all weigh alike."""
    return torch.cat([errors[name] * targets.surface / errors[name].shape[2] for name in CORE_CHANNELS], 2)


def _drift(errors: Errors, targets: Targets, last: tuple[Errors, Targets] | None) -> Float[Tensor, ""]:
    """Mean absolute change from picture to picture of the logarithm of depth's scale."""
    error, surface = errors["depth"], targets.surface
    if last is not None:
        error, surface = torch.cat([last[0]["depth"], error], 1), torch.cat([last[1].surface, surface], 1)
    count = surface.sum((2, 3, 4))  # [B, T]
    scale = (error * surface).sum((2, 3, 4)) / count.clamp(min=1)
    both = (count[:, 1:] > 0) & (count[:, :-1] > 0)
    return (scale.diff(dim=1).abs() * both).sum() / both.sum().clamp(min=1)


def _outline(logit: Float[Tensor, "B T 1 H W"], surface: Bool[Tensor, "B T 1 H W"]) -> Float[Tensor, ""]:
    """One minus the soft Dice overlap of the sky (Milletari et al. 2016, arXiv 1606.04797), mean of clips.

    Half a percent of a clip is added to both sides: a few pixels of sky, or of none, weigh little.
    """
    probability, sky = torch.sigmoid(logit).flatten(1), (~surface).flatten(1).float()
    few = 0.005 * sky.shape[1]
    overlap = (probability * sky).sum(1) + few
    return (1 - 2 * overlap / (probability.sum(1) + sky.sum(1) + 2 * few)).mean()


def _stacked(values: Estimate | Targets, targets: Targets) -> Tensor:
    return torch.cat([getattr(values, name) * targets.surface for name in CORE_CHANNELS], 2)


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Where pixels were in the picture before."""

    vectors: Float[Tensor, "B T 2 H W"]
    """As `GBuffer.motion`."""
    seen: Bool[Tensor, "B T 1 H W"]
    """Whether the same surface was seen there; false in a clip's first picture."""


SAME_DEPTH, SAME_MATERIAL = 0.02, 0.1
"""Difference up to which a pixel and its source show one surface: share of depth; albedo, roughness and metallic."""


def still_motion(targets: Targets, camera: Camera, clips: int) -> Motion:
    """The motion of all that stands still, from depth and cameras; what moves by itself is found by its buffers.

    Args:
        targets: true buffers of whole pictures.
        camera: of [B T] pictures, at the same size.
        clips: B.
    """
    with full_precision(targets.depth.device):  # pixels in bfloat16 would be off by whole ones
        return _still_motion(targets, camera, clips)


def _still_motion(targets: Targets, camera: Camera, clips: int) -> Motion:
    height, width = targets.depth.shape[-2:]
    depth = targets.depth.exp().flatten(0, 1)[:, 0]  # [B T, H, W]
    fx, fy, cx, cy = (value.unflatten(0, (clips, -1)) for value in camera.intrinsics[:, :, None, None].unbind(1))
    pose = camera.pose.unflatten(0, (clips, -1))  # [B, T, 4, 4]
    z = depth.unflatten(0, (clips, -1))[:, 1:]
    column = torch.arange(width, device=z.device) + 0.5
    row = torch.arange(height, device=z.device)[:, None] + 0.5
    points = torch.stack([(column - cx[:, 1:]) / fx[:, 1:] * z, -(row - cy[:, 1:]) / fy[:, 1:] * z, -z, z / z], -1)
    to_before = torch.linalg.inv(pose[:, :-1]) @ pose[:, 1:]  # [B, T - 1, 4, 4]
    x, y, away, _ = torch.einsum("btij,bthwj->ibthw", to_before, points)
    ahead = (-away).clamp(min=1e-3)
    vectors = torch.stack([fx[:, :-1] * x / ahead + cx[:, :-1] - column, cy[:, :-1] - fy[:, :-1] * y / ahead - row], 2)
    flat = vectors.flatten(0, 1)  # [B (T - 1), 2, H, W]

    def fetched(values: Tensor) -> Tensor:
        return warp(values[:, :-1].flatten(0, 1).float(), flat).unflatten(0, vectors.shape[:2])

    seen = targets.surface[:, 1:] & inside(flat).unflatten(0, vectors.shape[:2]) & (fetched(targets.surface) > 0.999)
    seen &= ((fetched(targets.depth)[:, :, 0] - ahead.log()).abs() < SAME_DEPTH)[:, :, None]
    for name in ("albedo", "roughness", "metallic"):
        difference = (fetched(getattr(targets, name)) - getattr(targets, name)[:, 1:]).abs().amax(2, keepdim=True)
        seen &= difference < SAME_MATERIAL
    return Motion(vectors=_with_first(vectors), seen=_with_first(seen))


def _with_first(values: Tensor) -> Tensor:
    """A clip's first picture in front, which has none before it."""
    return torch.cat([torch.zeros_like(values[:, :1]), values], 1)


@dataclass(frozen=True, kw_only=True)
class InverseModelsConfig:
    """What the inverse's stage trains, and on what."""

    format: ClassVar[str] = INVERSE_FORMAT
    inverse: InverseConfig
    profile: EncodingProfile = EncodingProfile()
    degradation: Degradation = Degradation()
    weights: LossWeights = LossWeights()

    def build(self) -> InverseModels:
        return InverseModels(self)


class InverseModels(nn.Module):
    """The inverse as the trainer sees it."""

    def __init__(self, config: InverseModelsConfig) -> None:
        super().__init__()
        self.inverse = Inverse(config.inverse)
        self.profile = config.profile
        self.degradation = config.degradation
        self.weights = config.weights

    def stage(self, config: StageConfig, data: Data) -> Stage:
        return InverseStage(config, self, data)

    def may_lack(self, stages: Sequence[StageConfig]) -> str | None:
        return None

    def save(self, path: Path, *, dtype: torch.dtype) -> None:
        save_inverse(self.inverse, path, dtype=dtype)

    def compile(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compiles the layers of attention, in place."""
        for block in self.inverse.network.blocks:
            block.compile(dynamic=False)

    def kept_tensors(self) -> Iterable[Tensor]:
        return ()

    @torch.no_grad()
    def write_samples(self, path: Path, data: Data, *, clips: int = 4) -> None:
        """A sheet. Rows: clips; columns: spoilt picture, then each channel as estimated and as it is."""
        latents = min(4, data.pool.spec.frames // FRAMES_PER_LATENT)
        run = self.spoil(data.pool.draw(clips, latents, data.rng), data.rng)
        estimate, _ = self.inverse.network(run.rgb, run.focal)
        columns = [run.rgb[:, -1]]
        for name in CORE_CHANNELS:
            columns += [_viewed(name, values)[:, -1] for values in (estimate, run.targets)]
        write_sheet(path, rearrange(torch.stack(columns, 1), "b k c h w -> (b h) (k w) c"))

    def spoil(self, batch: Batch, rng: np.random.Generator) -> Run:
        """Degrades, mirrors and crops a batch."""
        values, rgb = batch.planes.values, batch.rgb
        focal = focal_of(values, self.profile)
        camera = Camera(intrinsics=batch.intrinsics.flatten(0, 1), pose=batch.pose.flatten(0, 1))
        motion = still_motion(targets_of(values, self.profile), camera, len(rgb))
        flips = torch.from_numpy(rng.random(rgb.shape[0]) < 0.5).to(rgb.device)
        rgb, values = mirror(degrade(rgb, self.degradation), values, flips, self.profile)
        motion = _mirrored(motion, flips)
        rows, columns = (_crop(length, rng) for length in rgb.shape[-2:])
        focal = focal * rgb.shape[-1] / (columns.stop - columns.start)
        known = torch.from_numpy(rng.random(rgb.shape[0]) < 0.5).to(rgb.device)
        return Run(
            rgb=rgb[..., rows, columns],
            targets=targets_of(values[..., rows, columns], self.profile),
            motion=Motion(vectors=motion.vectors[..., rows, columns], seen=motion.seen[..., rows, columns]),
            focal=torch.where(known, focal, 0.0),
        )


def _mirrored(motion: Motion, flips: Bool[Tensor, " B"]) -> Motion:
    """The motion of clips of which some are mirrored, left and right."""
    chosen = flips[:, None, None, None, None]
    turned = motion.vectors.flip(-1) * motion.vectors.new_tensor([-1.0, 1.0])[:, None, None]
    return Motion(
        vectors=torch.where(chosen, turned, motion.vectors), seen=torch.where(chosen, motion.seen.flip(-1), motion.seen)
    )


@dataclass(kw_only=True)
class Run:
    """Spoilt pictures, their true buffers and motion, and focal lengths as `InverseNetwork` takes them."""

    rgb: Float[Tensor, "B T 3 H W"]
    targets: Targets
    motion: Motion
    focal: Float[Tensor, " B"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some pictures of a run, and what the network remembers of those before."""

    rgb: Float[Tensor, "B T 3 H W"]
    targets: Targets
    motion: Motion
    focal: Float[Tensor, " B"]
    state: InverseState | None
    last: tuple[Estimate, Targets] | None
    """What was estimated and what was true in the picture before."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a part leaves to the next one; as in `Part`."""

    state: InverseState
    last: tuple[Estimate, Targets]


@dataclass(kw_only=True)
class _Streams:
    """A batch of streams half-way through their clips."""

    run: Run
    frames: int
    """Pictures a call."""
    start: int = 0
    state: InverseState | None = None
    last: tuple[Estimate, Targets] | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        return self.start >= self.run.rgb.shape[1]

    def next_part(self) -> Part:
        """What comes next. Side effect: time moves on."""
        run, frames = self.run, slice(self.start, self.start + self.frames)
        self.start = frames.stop
        return Part(
            rgb=run.rgb[:, frames],
            targets=Targets(**{name: value[:, frames] for name, value in vars(run.targets).items()}),
            motion=Motion(vectors=run.motion.vectors[:, frames], seen=run.motion.seen[:, frames]),
            focal=run.focal,
            state=self.state,
            last=self.last,
        )


class InverseStage(StageDefaults):
    """Streams that keep their state from run to run; gradients do not cross runs."""

    def __init__(self, config: StageConfig, models: InverseModels, data: Data) -> None:
        self.config = config
        self.models = models
        self.data = data
        self._streams: _Streams | None = None

    def modules(self) -> list[nn.Module]:
        return [self.models.inverse]

    @property
    def resting(self) -> bool:
        return self._streams is None or self._streams.done

    def draw(self) -> Part:
        if self._streams is None or self._streams.done:
            self._streams = self._begin()
        return self._streams.next_part()

    def loss(self, drawn: Part) -> Outcome:
        estimate, state = self.models.inverse.network(drawn.rgb, drawn.focal, drawn.state)
        loss, values = inverse_loss(estimate, drawn.targets, drawn.last, drawn.motion, self.models.weights)
        past = Past(state=state.detached(), last=(_newest(estimate), _newest(drawn.targets)))
        return Outcome(loss=loss, values=values, carried=past)

    def carry(self, carried: Past) -> None:
        assert self._streams is not None, "what is carried was drawn from them"
        self._streams.state, self._streams.last = carried.state, carried.last

    def _begin(self) -> _Streams:
        config, data = self.config, self.data
        batch = data.pool.draw(config.batch, config.latents, data.rng)
        run = self.models.spoil(batch, data.rng)
        return _Streams(run=run, frames=FRAMES_PER_LATENT * int(data.shared.choice(config.windows)))


def _newest(values):
    """The last picture's values, without gradients."""
    return type(values)(**{name: value[:, -1:].detach() for name, value in vars(values).items()})


def _crop(length: int, rng: np.random.Generator) -> slice:
    """Half of the time all of it, else a random run of at least half, in multiples of `STRIDE`."""
    units = length // STRIDE
    if units < 2 or rng.random() < 0.5:
        return slice(0, units * STRIDE)
    kept = int(rng.integers((units + 1) // 2, units + 1))
    start = int(rng.integers(units - kept + 1))
    return slice(start * STRIDE, (start + kept) * STRIDE)


def _viewed(name: str, values: Estimate | Targets) -> Float[Tensor, "B T 3 H W"]:
    value = getattr(values, name)
    match name:
        case "normal":
            return (value + 1) / 2
        case "depth":
            return (DEPTH_SCALE_METRES / (value.exp() + DEPTH_SCALE_METRES)).expand(-1, -1, 3, -1, -1)
        case _:
            return value.expand(-1, -1, 3, -1, -1)
