"""The four stages a renderer is trained in.

1. `CodecStage`: picture encoder and guided decoder, on pictures and their buffers.
2. `FlowStage` at full noise ("regression"): one step from noise to the latents. The baseline that the rest has to
   beat, and the fallback to ship.
3. `FlowStage` at every noise level: flow matching (Lipman et al. 2023, arXiv 2210.02747) with corrupted history.
4. `RolloutStage`: run as at inference, on its own past, at 4, 2 or 1 steps. Every rollout in our own worlds has a true
   picture, so the student is simply supervised.

A stage says which modules it trains and turns a batch into a loss; `flowshade.training.trainer` does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.checkpoints.store import save_renderer
from flowshade.codec.decoder import DecoderState
from flowshade.codec.encoder import PictureEncoder, PictureEncoderConfig
from flowshade.codec.encoding import EncodingProfile
from flowshade.evaluation.perceptual import Trunk
from flowshade.renderer.memory import HistoryMemory
from flowshade.renderer.prompt import CaptionBank
from flowshade.renderer.renderer import Renderer, RendererConfig
from flowshade.renderer.transformer import TextContext
from flowshade.training.losses import change_loss, perceptual_loss, picture_loss
from flowshade.training.pool import Batch, ClipPool
from flowshade.training.processes import Processes
from flowshade.types import FRAMES_PER_LATENT, Planes

StageName = Literal["codec", "regression", "flow", "rollout", "inverse"]


GROWTH_WEIGHT = 0.1
"""Of `latent_growth`, where nothing else ties latents to their scale."""


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """How long and how hard a stage trains."""

    name: StageName
    steps: int
    """Updates at most."""
    seconds: float | None = None
    """Wall-clock limit; the learning rate follows whichever of the two is further on."""
    batch: int
    latents: int = 12
    """Latent frames drawn a clip."""
    windows: tuple[int, ...] = (1, 2, 4)
    """Latent frames in a window; one of these is drawn for each batch."""
    rollout_steps: tuple[int, ...] = (1, 2, 2, 4)
    """Denoising steps; one of these is drawn for each batch of rollouts."""
    learning_rate: float = 5e-4
    ema: float = 0.999
    latent: float = 0.1
    """Weight of the error of latents in rollouts. 0 needs no picture encoder, so that a run may begin from a file that
    holds a renderer alone; the latents are then only kept from growing."""
    lpips: float = 0.0
    """Weight of LPIPS in rollouts, in the features of VGG16; needs the trunk's file (`flowshade train captions`)."""
    latent_noise: float = 0.1
    """Noise on the latents that the codec learns to decode, as a share of their spread."""
    drop: float = 0.4
    """Share of clips that lose some of their buffers."""
    drop_sun: float = 0.4
    """Share of clips that are not told where the sun is."""
    large: float = 0.0
    """Share of batches of large clips, of as many pixels as the others; see `ClipSpec.large_share`."""
    switch: float = 0.2
    """Share of clips that change their look half-way."""

    @property
    def needs_targets(self) -> bool:
        """Whether the stage needs a trained picture encoder (the codec stage trains one)."""
        return self.name in ("regression", "flow") or (self.name == "rollout" and self.latent > 0)


class Trainable(Protocol):
    """What the trainer needs of the models that it trains; they are one `nn.Module`."""

    profile: EncodingProfile

    def stage(self, config: StageConfig, data: Data) -> Stage:
        """One of their stages."""
        ...

    def may_lack(self, stages: Sequence[StageConfig]) -> str | None:
        """A module that what a run of these stages begins from may lack, by name."""
        ...

    def save(self, path: Path, *, dtype: torch.dtype) -> None:
        """Writes down what is used after training."""
        ...

    def write_samples(self, path: Path, data: Data) -> None:
        """Writes a contact sheet of clips from the pool."""
        ...

    def compile(self) -> None:
        """Compiles the parts that take the time, in place; parameter names stay as they are."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """What the renderer's stages train."""

    renderer: RendererConfig
    picture_encoder: PictureEncoderConfig

    def build(self) -> Models:
        renderer = Renderer(self.renderer)
        return Models(renderer, PictureEncoder(self.picture_encoder, renderer.profile))


class Models(nn.Module):
    """The renderer and the picture encoder that makes its targets."""

    def __init__(self, renderer: Renderer, picture_encoder: PictureEncoder) -> None:
        super().__init__()
        self.renderer = renderer
        self.picture_encoder = picture_encoder
        self.profile = renderer.profile

    def stage(self, config: StageConfig, data: Data) -> Stage:
        kinds = {"codec": CodecStage, "regression": FlowStage, "flow": FlowStage, "rollout": RolloutStage}
        return kinds[config.name](config, self._context(data))

    def may_lack(self, stages: Sequence[StageConfig]) -> str | None:
        """The picture encoder, which files of weights lack, where a stage trains it first or none needs it."""
        spared = stages[0].name == "codec" or not any(stage.needs_targets for stage in stages)
        return "picture_encoder" if spared else None

    def save(self, path: Path, *, dtype: torch.dtype) -> None:
        save_renderer(self.renderer, path, dtype=dtype)

    def write_samples(self, path: Path, data: Data) -> None:
        from flowshade.training.samples import write_samples

        write_samples(path, self._context(data))

    def compile(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for block in self.renderer.transformer.blocks:
            block.compile(dynamic=False)
        decoder = self.renderer.decoder
        decoder._picture = torch.compile(decoder._picture, dynamic=False)  # pyright: ignore

    def _context(self, data: Data) -> Context:
        return Context(models=self, **vars(data))

    @torch.no_grad()
    def latents(self, rgb: Float[Tensor, "B T 3 H W"], planes: Planes) -> Float[Tensor, "B C L h w"]:
        """The true latents of pictures."""
        return self.renderer.decoder.normalise(self.picture_encoder(rgb, planes).float())


class Stage(Protocol):
    """What the trainer needs of a stage."""

    config: StageConfig

    def modules(self) -> list[nn.Module]:
        """The modules that are trained."""
        ...

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Draws a batch; its loss and what to log. Processes do not wait for each other here."""
        ...

    def updated(self, step: int) -> None:
        """Called by all processes together after an update, with the number of those before it."""
        ...

    @property
    def resting(self) -> bool:
        """Whether nothing that was drawn is still to be used, so that the models and the random states are all."""
        ...

    def finish(self) -> None:
        """Called once by all processes after the stage's last update, with the averaged weights in place."""
        ...


class StageDefaults:
    """A stage whose calls stand alone and that has nothing to do between or after them."""

    @property
    def resting(self) -> bool:
        return True

    def updated(self, step: int) -> None:
        """Nothing is to be done."""

    def finish(self) -> None:
        """Nothing is left to do."""


@dataclass(kw_only=True)
class Data:
    """What every stage draws from."""

    pool: ClipPool
    captions: CaptionBank
    rng: np.random.Generator
    """This process's own."""
    shared: np.random.Generator
    """Draws the same in every process: how long calls take, so that none waits for the others."""
    processes: Processes
    trunk: Trunk | None = None
    """For stages with LPIPS."""


@dataclass(kw_only=True)
class Context(Data):
    """What the renderer's stages work with."""

    models: Models

    def text(self, rows: Tensor) -> TextContext:
        return self.captions.context(rows)

    def draw(self, config: StageConfig) -> Batch:
        """A batch with some of its buffers and suns taken away."""
        batch = self.pool.draw(config.batch, config.latents, self.rng, switch=config.switch, large=config.large)
        drop_buffers(batch.planes, config.drop, self.pool.profile, self.rng)
        known = self.rng.random(batch.rgb.shape[0]) >= config.drop_sun
        batch.sun = batch.sun * torch.from_numpy(known).to(batch.sun)[:, None, None]
        return batch


DROP_SHARES = {
    "albedo": 0.15,
    "normal": 0.1,
    "depth": 0.05,
    "roughness": 0.4,
    "metallic": 0.4,
    "emission": 0.6,
    "rays": 0.4,
}
"""How often each buffer is missing from a clip that misses some."""

BARE_SHARE = 0.2
"""Of the clips that miss some buffers, those that keep depth and normals alone."""


def drop_buffers(planes: Planes, share: float, profile: EncodingProfile, rng: np.random.Generator) -> None:
    """Takes random buffers from a share of the clips, in place. Depth and normal never go together."""
    names, slices = profile.names, profile.slices
    bare = set(names) - {"depth", "normal"}
    for row in np.flatnonzero(rng.random(planes.present.shape[0]) < share):
        missing = {name for name in names if rng.random() < DROP_SHARES[name]}
        missing = bare if rng.random() < BARE_SHARE else missing
        if {"depth", "normal"} <= missing:
            missing.remove("normal")
        for name in missing:
            planes.present[row, names.index(name)] = False
            planes.values[row, :, slices[name]] = 0


class CodecStage(StageDefaults):
    """Picture encoder and guided decoder: pictures to latents and back, with noise on the latents."""

    def __init__(self, config: StageConfig, context: Context) -> None:
        self.config = config
        self.context = context
        self._moments: Tensor | None = None
        """Of the last call's latents: mean and mean square, [2, C]."""

    def modules(self) -> list[nn.Module]:
        models = self.context.models
        return [models.picture_encoder, models.renderer.decoder]

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        models, batch = self.context.models, self.context.draw(self.config)
        decoder = models.renderer.decoder
        raw = models.picture_encoder(batch.rgb, batch.planes).float()
        self._moments = _moments(raw.detach())
        latents = decoder.normalise(raw)
        rgb = decoder(latents + self.config.latent_noise * torch.randn_like(latents), batch.planes)
        loss = picture_loss(rgb, batch.rgb)
        return loss + 1e-4 * raw.square().mean(), {"picture": loss.detach(), "psnr": _psnr(rgb, batch.rgb)}

    @torch.no_grad()
    def finish(self) -> None:
        """Measures the latents' mean and spread. What the decoder makes of a picture's latents does not change."""
        models = self.context.models
        batches = [self.context.draw(self.config) for _ in range(16)]
        moments = [_moments(models.picture_encoder(batch.rgb, batch.planes).float()) for batch in batches]
        models.renderer.decoder.set_statistics(*self._statistics(torch.stack(moments).mean(0)))

    @torch.no_grad()
    def updated(self, step: int) -> None:
        """Running mean and spread of the latents, a cumulative average first, then an exponential one."""
        assert self._moments is not None
        decoder = self.context.models.renderer.decoder
        weight = max(1 / (step + 1), 0.01)
        mean, std = self._statistics(self._moments)
        decoder.set_statistics(decoder.latent_mean.lerp(mean, weight), decoder.latent_std.lerp(std, weight))

    def _statistics(self, moments: Float[Tensor, "2 C"]) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """Mean and spread of the latents of all processes."""
        mean, square = self.context.processes.mean(moments)
        return mean.float(), (square - mean.square()).clamp(min=1e-6).sqrt().float()


def _moments(raw: Float[Tensor, "B C L h w"]) -> Float[Tensor, "2 C"]:
    """Mean and mean square by channel, float64: their difference is small where a mean is far from 0."""
    mean, variance = raw.mean((0, 2, 3, 4)).double(), raw.var((0, 2, 3, 4), correction=0).double()
    return torch.stack([mean, variance + mean.square()])


class FlowStage(StageDefaults):
    """Windows with their true, corrupted past: predict the velocity from noise to latents.

    As "regression" the noise is always full and the loss is on the pictures too.
    """

    def __init__(self, config: StageConfig, context: Context) -> None:
        self.config = config
        self.context = context

    def modules(self) -> list[nn.Module]:
        renderer = self.context.models.renderer
        return [renderer.encoder, renderer.transformer]

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        models, batch = self.context.models, self.context.draw(self.config)
        renderer = models.renderer
        window = int(self.context.shared.choice(self.config.windows))
        features = renderer.encoder(batch.planes)
        target = models.latents(batch.rgb, batch.planes)
        windows = forced_windows(target, features, window, renderer.transformer.history_frames)
        sigmas = self._sigmas(windows.target)
        noise = torch.randn_like(windows.target)
        noisy = renderer.schedule.add_noise(windows.target, noise, sigmas)
        velocity = renderer.transformer(
            noisy,
            renderer.schedule.timesteps(sigmas),
            self.context.text(batch.caption[:, ::window].flatten()),
            windows.features,
            batch.sun[:, ::window].flatten(0, 1),
            renderer.transformer.encode_history(windows.memory().view()),
        )
        flow = F.mse_loss(velocity.float(), renderer.schedule.target(windows.target, noise).float())
        if self.config.name == "flow":
            return flow, {"flow": flow.detach()}
        latents = renderer.schedule.denoised(noisy, velocity, sigmas)
        latents = rearrange(latents, "(b n) c l h w -> b c (n l) h w", b=batch.rgb.shape[0])
        rgb = renderer.decoder(latents, batch.planes)
        picture = picture_loss(rgb, batch.rgb)
        return flow + picture, {"flow": flow.detach(), "picture": picture.detach(), "psnr": _psnr(rgb, batch.rgb)}

    def _sigmas(self, target: Tensor) -> Float[Tensor, " B"]:
        if self.config.name == "regression":
            return target.new_ones(target.shape[0])
        sigmas = self.context.models.renderer.schedule.sample_sigmas(target.shape[0], device=target.device)
        # Streams start from full noise, which a logit-normal draw all but never reaches.
        return torch.where(torch.rand_like(sigmas) < 0.2, torch.ones_like(sigmas), sigmas)


@dataclass(kw_only=True)
class ForcedWindows:
    """Windows of a batch of clips, each with its true past: B clips of N windows are B N rows."""

    target: Float[Tensor, "BN C W h w"]
    features: Float[Tensor, "BN D W h w"]
    past: Float[Tensor, "BN C P h w"]
    past_features: Float[Tensor, "BN D P h w"]
    valid: Bool[Tensor, "BN P"]

    def memory(self) -> HistoryMemory:
        """The past as a stream might have it: off by some noise, cut short, or not there."""
        rows, frames = self.valid.shape
        level = 0.5 * torch.rand(rows, 1, 1, 1, 1, device=self.past.device).square()
        past = self.past + level * (torch.randn_like(self.past) - self.past)
        kept = torch.randint(0, 2 * frames, (rows, 1), device=self.past.device)  # half of the rows keep all
        recent = torch.arange(frames, 0, -1, device=self.past.device) <= kept
        return HistoryMemory.from_latents(past, self.past_features, self.valid & recent, capacity=frames)


def forced_windows(
    latents: Float[Tensor, "B C L h w"], features: Float[Tensor, "B D L h w"], window: int, capacity: int
) -> ForcedWindows:
    """Cuts clips into windows of `window` latent frames, each with the `capacity` frames before it."""
    starts = range(0, latents.shape[2], window)
    padded = F.pad(latents, (0, 0, 0, 0, capacity, 0))
    padded_features = F.pad(features.detach(), (0, 0, 0, 0, capacity, 0))
    exists = torch.arange(padded.shape[2], device=latents.device) >= capacity

    def runs(volume: Tensor, length: int) -> Tensor:
        stacked = torch.stack([volume[:, :, start : start + length] for start in starts], 1)
        return stacked.flatten(0, 1)

    valid = torch.stack([exists[start : start + capacity] for start in starts])  # [N, P]
    return ForcedWindows(
        target=runs(latents, window),
        features=runs(features, window),
        past=runs(padded, capacity),
        past_features=runs(padded_features, capacity),
        valid=valid.repeat(latents.shape[0], 1),
    )


class RolloutStage(StageDefaults):
    """Streams run as at inference, on their own past; each window is compared with the true pictures.

    One window a call: gradients do not cross windows. The decoder learns along, since what it is given is no longer
    what the picture encoder made.
    """

    def __init__(self, config: StageConfig, context: Context) -> None:
        self.config = config
        self.context = context
        self._streams: _Streams | None = None

    def modules(self) -> list[nn.Module]:
        renderer = self.context.models.renderer
        return [renderer.encoder, renderer.transformer, renderer.decoder]

    @property
    def resting(self) -> bool:
        return self._streams is None or self._streams.done

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        renderer, shared = self.context.models.renderer, self.context.shared
        if self._streams is None or self._streams.done:
            batch = self.context.draw(self.config)
            target = self.context.models.latents(batch.rgb, batch.planes) if self.config.latent else None
            memory = HistoryMemory(renderer.transformer.history_frames)
            self._streams = _Streams(batch=batch, target=target, memory=memory)
            self._streams.window = int(shared.choice(self.config.windows))
            self._streams.steps = int(shared.choice(self.config.rollout_steps))
        streams = self._streams
        planes, rgb, target, caption, sun = streams.next_window()
        features = renderer.encoder(planes)
        channels = renderer.config.transformer.latent_channels
        latents = renderer.denoise(
            torch.randn(features.shape[0], channels, *features.shape[2:], device=features.device),
            features,
            self.context.text(caption),
            sun,
            renderer.transformer.encode_history(streams.memory.view()),
            steps=streams.steps,
        )
        prediction, state = renderer.decoder.step(latents, planes, streams.state)
        streams.memory.append(latents.detach(), features.detach())
        streams.state = DecoderState(previous=state.previous.detach())
        picture = picture_loss(prediction, rgb)
        change = change_loss(prediction, rgb, streams.last)
        streams.last = (prediction[:, -1:].detach(), rgb[:, -1:])
        values = {"picture": picture, "change": change}
        total = picture + change
        if target is None:
            values["growth"] = latent_growth(latents.float())
            total = total + GROWTH_WEIGHT * values["growth"]
        else:
            values["latent"] = F.mse_loss(latents.float(), target.float())
            total = total + self.config.latent * values["latent"]
        if self.config.lpips:
            assert self.context.trunk is not None, "the trainer checks that there is one"
            values["lpips"] = perceptual_loss(prediction, rgb, self.context.trunk)
            total = total + self.config.lpips * values["lpips"]
        values["psnr"] = _psnr(prediction, rgb)
        return total, {name: value.detach() for name, value in values.items()}


def latent_growth(latents: Float[Tensor, "B C L h w"]) -> Float[Tensor, ""]:
    """How far channels' mean square lies above 1, what normalised latents have: squared, mean over channels."""
    return (latents.square().mean((0, 2, 3, 4)) - 1).clamp(min=0).square().mean()


@dataclass(kw_only=True)
class _Streams:
    """A batch of streams half-way through their clips."""

    batch: Batch
    target: Tensor | None
    memory: HistoryMemory
    window: int = 1
    steps: int = 1
    state: DecoderState | None = None
    last: tuple[Tensor, Tensor] | None = None
    """Prediction and reference of the frame before the next window."""
    latent: int = 0

    @property
    def done(self) -> bool:
        return self.latent >= self.batch.caption.shape[1]

    def next_window(self) -> tuple[Planes, Tensor, Tensor | None, Tensor, Tensor]:
        """Planes, pictures, true latents, captions and suns of the next window. Side effect: time moves on."""
        start, stop = self.latent, self.latent + self.window
        frames = slice(start * FRAMES_PER_LATENT, stop * FRAMES_PER_LATENT)
        self.latent = stop
        planes = Planes(values=self.batch.planes.values[:, frames], present=self.batch.planes.present)
        rgb, target = self.batch.rgb[:, frames], None if self.target is None else self.target[:, :, start:stop]
        return planes, rgb, target, self.batch.caption[:, start], self.batch.sun[:, start]


def _psnr(prediction: Tensor, reference: Tensor) -> Tensor:
    """Mean over clips, dB."""
    error = (prediction.detach().float().clamp(0, 1) - reference).square().flatten(1).mean(1)
    return (-10 * torch.log10(error)).mean()
