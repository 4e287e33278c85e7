"""Training of the inverse: pictures from the pool, spoilt as cameras and codecs spoil them, back to their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.checkpoints.store import load_strictly, save_inverse
from flowshade.codec.encoding import EncodingProfile
from flowshade.errors import CheckpointError
from flowshade.gbuffer.view import DEPTH_SCALE_METRES
from flowshade.inverse.network import STRIDE, Estimate, InverseConfig, InverseState
from flowshade.inverse.stream import Inverse
from flowshade.training.degrade import Degradation, degrade, mirror
from flowshade.training.losses import change_loss
from flowshade.training.pool import Batch
from flowshade.training.samples import write_sheet
from flowshade.training.stages import Data, Stage, StageConfig, WithoutFinish
from flowshade.types import CORE_CHANNELS, FRAMES_PER_LATENT

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


def inverse_loss(
    estimate: Estimate, targets: Targets, last: tuple[Estimate, Targets] | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Absolute errors of all channels on surfaces, of their change from picture to picture, and of how sure it is.

    Of depth's error a clip's mean counts a tenth: a scale cannot be seen, but a familiar size of things can. The
    expected errors learn from the true ones as the scale of a Laplace distribution (Kendall and Gal 2017, eq. 8),
    without pulling at the channels themselves.
    """
    surface = targets.surface.float()
    share = surface.mean().clamp(min=1e-3)
    errors = {name: getattr(estimate, name) - getattr(targets, name) for name in CORE_CHANNELS}
    weight = surface.sum((1, 2, 3, 4), keepdim=True).clamp(min=1)
    offset = (errors["depth"] * surface).sum((1, 2, 3, 4), keepdim=True) / weight
    errors["depth"] = errors["depth"] - 0.9 * offset
    absolute = torch.cat([errors[name].abs().mean(2, keepdim=True) for name in CORE_CHANNELS], 2)  # [B, T, 5, H, W]
    means = (absolute * surface).mean((0, 1, 3, 4)) / share  # [5]
    scales = estimate.error.clamp(-6, 3)
    likelihood = ((absolute.detach() / scales.exp() + scales) * surface).mean() / share
    slopes = sum(_slopes(errors[name] * surface) for name in ("depth", "normal", "albedo"))
    facing = 1 - (estimate.normal * targets.normal).sum(2, keepdim=True)
    angle = (facing * surface).mean() / share
    sky = F.binary_cross_entropy_with_logits(estimate.sky, 1 - surface)
    change = _change(estimate, targets, last)
    total = means.sum() + angle + slopes + 0.5 * change + 0.2 * sky + 0.05 * likelihood
    values = dict(zip(CORE_CHANNELS, means, strict=True)) | {"change": change, "sky": sky, "sure": likelihood}
    return total, {name: value.detach() for name, value in values.items()}


def _slopes(error: Tensor) -> Tensor:
    """Mean absolute difference along rows and columns: edges where they belong."""
    return error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()


def _change(estimate: Estimate, targets: Targets, last: tuple[Estimate, Targets] | None) -> Tensor:
    """`change_loss` of all channels together; where a surface came or went nothing is counted."""
    predicted, true = _stacked(estimate, targets), _stacked(targets, targets)
    before = None if last is None else (_stacked(last[0], last[1]), _stacked(last[1], last[1]))
    return change_loss(predicted, true, before)


def _stacked(values: Estimate | Targets, targets: Targets) -> Tensor:
    return torch.cat([getattr(values, name) * targets.surface for name in CORE_CHANNELS], 2)


@dataclass(frozen=True, kw_only=True)
class InverseModelsConfig:
    """What the inverse's stage trains, and on what."""

    inverse: InverseConfig
    profile: EncodingProfile = EncodingProfile()
    degradation: Degradation = Degradation()

    def build(self) -> InverseModels:
        return InverseModels(self.inverse, self.profile, self.degradation)


class InverseModels(nn.Module):
    """The inverse as the trainer sees it."""

    def __init__(self, config: InverseConfig, profile: EncodingProfile, degradation: Degradation) -> None:
        super().__init__()
        self.inverse = Inverse(config)
        self.profile = profile
        self.degradation = degradation

    def stage(self, config: StageConfig, data: Data) -> Stage:
        return InverseStage(config, self, data)

    def begin_from(self, start: nn.Module, stages: Sequence[StageConfig]) -> None:
        if not isinstance(start, Inverse) or start.config != self.inverse.config:
            raise CheckpointError(
                f"the run trains inverse {self.inverse.config.name!r} and its start holds another model; expected one "
                "of the same configuration."
            )
        load_strictly(self.inverse, start.state_dict(), what="the start")

    def save(self, path: Path, *, dtype: torch.dtype) -> None:
        save_inverse(self.inverse, path, dtype=dtype)

    def compile(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compiles the layers of attention, in place."""
        for block in self.inverse.network.blocks:
            block.compile(dynamic=False)

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
        flips = torch.from_numpy(rng.random(rgb.shape[0]) < 0.5).to(rgb.device)
        rgb, values = mirror(degrade(rgb, self.degradation), values, flips, self.profile)
        rows, columns = (_crop(length, rng) for length in rgb.shape[-2:])
        focal = focal * rgb.shape[-1] / (columns.stop - columns.start)
        known = torch.from_numpy(rng.random(rgb.shape[0]) < 0.5).to(rgb.device)
        return Run(
            rgb=rgb[..., rows, columns],
            targets=targets_of(values[..., rows, columns], self.profile),
            focal=torch.where(known, focal, 0.0),
        )


@dataclass(kw_only=True)
class Run:
    """Spoilt pictures, their true buffers, and focal lengths as `InverseNetwork` takes them."""

    rgb: Float[Tensor, "B T 3 H W"]
    targets: Targets
    focal: Float[Tensor, " B"]

    def part(self, frames: slice) -> tuple[Tensor, Targets]:
        cut = {name: value[:, frames] for name, value in vars(self.targets).items()}
        return self.rgb[:, frames], Targets(**cut)


@dataclass(kw_only=True)
class _Streams:
    """A batch of streams half-way through their clips."""

    run: Run
    frames: int
    """Pictures a call."""
    start: int = 0
    state: InverseState | None = None
    last: tuple[Estimate, Targets] | None = field(default=None, repr=False)


class InverseStage(WithoutFinish):
    """Streams that keep their state from run to run; gradients do not cross runs."""

    def __init__(self, config: StageConfig, models: InverseModels, data: Data) -> None:
        self.config = config
        self.models = models
        self.data = data
        self._streams: _Streams | None = None

    def modules(self) -> list[nn.Module]:
        return [self.models.inverse]

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        streams = self._streams
        if streams is None or streams.start >= streams.run.rgb.shape[1]:
            streams = self._streams = self._begin()
        frames = slice(streams.start, streams.start + streams.frames)
        rgb, targets = streams.run.part(frames)
        estimate, state = self.models.inverse.network(rgb, streams.run.focal, streams.state)
        loss, values = inverse_loss(estimate, targets, streams.last)
        streams.start = frames.stop
        streams.state = state.detached()
        streams.last = (_newest(estimate), _newest(targets))
        return loss, values

    def _begin(self) -> _Streams:
        config, data = self.config, self.data
        batch = data.pool.draw(config.batch, config.latents, data.rng)
        run = self.models.spoil(batch, data.rng)
        return _Streams(run=run, frames=FRAMES_PER_LATENT * int(data.rng.choice(config.windows)))


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
