"""The four stages a renderer is trained in.

1. `CodecStage`: picture encoder and guided decoder, on pictures and their buffers.
2. `FlowStage` at full noise ("regression"): one step from noise to the latents. The baseline that the rest has to
   beat, and the fallback to ship.
3. `FlowStage` at every noise level: flow matching (Lipman et al. 2023, arXiv 2210.02747) with corrupted history.
4. `RolloutStage`: run as at inference, on its own past, at 4, 2 or 1 steps. Every rollout in our own worlds has a true
   picture, so the student is simply supervised.

A stage says which modules it trains, draws what an update is made from and turns that into a loss: a function of what
was drawn alone, so that it can be captured as a CUDA graph. `flowshade.training.trainer` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.checkpoints.store import FORMAT, save_renderer
from flowshade.codec.decoder import DecoderState
from flowshade.codec.encoder import PictureEncoder, PictureEncoderConfig
from flowshade.codec.encoding import EncodingProfile
from flowshade.evaluation.perceptual import Trunk
from flowshade.renderer.memory import History, HistoryMemory
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
    border: float = 1.0
    """Weight of the change of pictures into a latent frame, beside the changes inside, in rollouts."""
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

    def kept_tensors(self) -> Iterable[Tensor]:
        """What losses read besides weights and what was drawn, such as tables made on the way."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """What the renderer's stages train."""

    format: ClassVar[str] = FORMAT
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

    def kept_tensors(self) -> Iterable[Tensor]:
        return self.renderer.transformer.rotations.tensors()

    def _context(self, data: Data) -> Context:
        return Context(models=self, **vars(data))

    @torch.no_grad()
    def latents(self, rgb: Float[Tensor, "B T 3 H W"], planes: Planes) -> Float[Tensor, "B C L h w"]:
        """The true latents of pictures."""
        return self.renderer.decoder.normalise(self.picture_encoder(rgb, planes).float())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a stage makes of what it drew."""

    loss: Tensor
    values: dict[str, Tensor]
    """What is logged, without gradients."""
    carried: Any = None
    """What later updates need, without gradients: tensors in any nesting that `flowshade.nn.graphs` knows."""


class Stage(Protocol):
    """What the trainer needs of a stage. An update is `carry(loss(draw()).carried)`, with the gradients on the way."""

    config: StageConfig

    def modules(self) -> list[nn.Module]:
        """The modules that are trained."""
        ...

    def draw(self) -> Any:
        """What the next update is made from. Processes do not wait for each other here."""
        ...

    def loss(self, drawn: Any) -> Outcome:
        """A function of what was drawn, of weights and of random numbers; it keeps nothing and changes nothing."""
        ...

    def carry(self, carried: Any) -> None:
        """Takes what `loss` gave for later updates."""
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
    """A stage whose updates stand alone and that has nothing to do between or after them."""

    def carry(self, carried: Any) -> None:
        """Nothing is needed."""

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
    dtype: torch.dtype = torch.float32
    """Of the renderer's planes: in what its products run in anyway they take half of the memory and of the copies."""


@dataclass(kw_only=True)
class Context(Data):
    """What the renderer's stages work with."""

    models: Models

    def text(self, rows: Tensor) -> TextContext:
        """Captions of one length, so that updates differ in values alone."""
        return self.captions.context(rows, length=self.captions.longest)

    def draw(self, config: StageConfig) -> Batch:
        """A batch with some of its buffers and suns taken away."""
        batch = self.pool.draw(config.batch, config.latents, self.rng, switch=config.switch, large=config.large)
        batch.planes = Planes(values=batch.planes.values.to(self.dtype), present=batch.planes.present)
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
        """Of the last update's latents: mean and mean square, [2, C]."""

    def modules(self) -> list[nn.Module]:
        models = self.context.models
        return [models.picture_encoder, models.renderer.decoder]

    def draw(self) -> Batch:
        return self.context.draw(self.config)

    def loss(self, drawn: Batch) -> Outcome:
        models = self.context.models
        decoder = models.renderer.decoder
        raw = models.picture_encoder(drawn.rgb, drawn.planes).float()
        latents = decoder.normalise(raw)
        rgb = decoder(latents + self.config.latent_noise * torch.randn_like(latents), drawn.planes)
        picture = picture_loss(rgb, drawn.rgb)
        return Outcome(
            loss=picture + 1e-4 * raw.square().mean(),
            values={"picture": picture.detach(), "psnr": _psnr(rgb, drawn.rgb)},
            carried=_moments(raw.detach()),
        )

    def carry(self, carried: Float[Tensor, "2 C"]) -> None:
        self._moments = carried

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

    def draw(self) -> tuple[Batch, TextContext, int]:
        """A batch, the captions of its windows, and a window's latent frames."""
        batch = self.context.draw(self.config)
        window = int(self.context.shared.choice(self.config.windows))
        return batch, self.context.text(batch.caption[:, ::window].flatten()), window

    def loss(self, drawn: tuple[Batch, TextContext, int]) -> Outcome:
        batch, text, window = drawn
        models = self.context.models
        renderer = models.renderer
        features = renderer.encoder(batch.planes)
        target = models.latents(batch.rgb, batch.planes)
        windows = forced_windows(target, features, window, renderer.transformer.history_frames)
        sigmas = self._sigmas(windows.target)
        noise = torch.randn_like(windows.target)
        noisy = renderer.schedule.add_noise(windows.target, noise, sigmas)
        velocity = renderer.transformer(
            noisy,
            renderer.schedule.timesteps(sigmas),
            text,
            windows.features,
            batch.sun[:, ::window].flatten(0, 1),
            renderer.transformer.encode_history(windows.memory().view()),
        )
        flow = F.mse_loss(velocity.float(), renderer.schedule.target(windows.target, noise).float())
        if self.config.name == "flow":
            return Outcome(loss=flow, values={"flow": flow.detach()})
        latents = renderer.schedule.denoised(noisy, velocity, sigmas)
        latents = rearrange(latents, "(b n) c l h w -> b c (n l) h w", b=batch.rgb.shape[0])
        rgb = renderer.decoder(latents, batch.planes)
        picture = picture_loss(rgb, batch.rgb)
        values = {"flow": flow.detach(), "picture": picture.detach(), "psnr": _psnr(rgb, batch.rgb)}
        return Outcome(loss=flow + picture, values=values)

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

    One window an update: gradients do not cross windows. The decoder learns along, since what it is given is no longer
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

    def draw(self) -> Window:
        if self._streams is None or self._streams.done:
            self._streams = self._begin()
        return self._streams.next_window(self.context)

    def _begin(self) -> _Streams:
        context, shared = self.context, self.context.shared
        batch = context.draw(self.config)
        return _Streams(
            batch=batch,
            target=context.models.latents(batch.rgb, batch.planes) if self.config.latent else None,
            memory=HistoryMemory(context.models.renderer.transformer.history_frames),
            window=int(shared.choice(self.config.windows)),
            steps=int(shared.choice(self.config.rollout_steps)),
        )

    def loss(self, drawn: Window) -> Outcome:
        renderer = self.context.models.renderer
        features = renderer.encoder(drawn.planes)
        channels = renderer.config.transformer.latent_channels
        latents = renderer.denoise(
            torch.randn(features.shape[0], channels, *features.shape[2:], device=features.device),
            features,
            drawn.text,
            drawn.sun,
            renderer.transformer.encode_history(drawn.history),
            steps=drawn.steps,
        )
        prediction, state = renderer.decoder.step(latents, drawn.planes, drawn.state)
        total, values = self._total(prediction, latents, drawn)
        past = Past(
            latents=latents.detach(),
            features=features.detach(),
            state=DecoderState(previous=state.previous.detach()),
            last=(prediction[:, -1:].detach(), drawn.rgb[:, -1:]),
        )
        return Outcome(loss=total, values={name: value.detach() for name, value in values.items()}, carried=past)

    def _total(self, prediction: Tensor, latents: Tensor, drawn: Window) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what it is made of."""
        values = {
            "picture": picture_loss(prediction, drawn.rgb),
            "change": change_loss(prediction, drawn.rgb, drawn.last, border=self.config.border),
        }
        total = values["picture"] + values["change"]
        if drawn.target is None:
            values["growth"] = latent_growth(latents.float())
            total = total + GROWTH_WEIGHT * values["growth"]
        else:
            values["latent"] = F.mse_loss(latents.float(), drawn.target.float())
            total = total + self.config.latent * values["latent"]
        if self.config.lpips:
            assert self.context.trunk is not None, "the trainer checks that there is one"
            values["lpips"] = perceptual_loss(prediction, drawn.rgb, self.context.trunk)
            total = total + self.config.lpips * values["lpips"]
        return total, values | {"psnr": _psnr(prediction, drawn.rgb)}

    def carry(self, carried: Past) -> None:
        assert self._streams is not None, "what is carried was drawn from them"
        self._streams.carry(carried)


def latent_growth(latents: Float[Tensor, "B C L h w"]) -> Float[Tensor, ""]:
    """How far channels' mean square lies above 1, what normalised latents have: squared, mean over channels."""
    return (latents.square().mean((0, 2, 3, 4)) - 1).clamp(min=0).square().mean()


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of a batch of streams, and their past as they made it themselves."""

    planes: Planes
    rgb: Float[Tensor, "B T 3 H W"]
    target: Float[Tensor, "B C L h w"] | None
    """True latents; None where the stage compares none."""
    text: TextContext
    sun: Float[Tensor, "B 3"]
    steps: int
    """Denoising steps."""
    history: History | None
    state: DecoderState | None
    last: tuple[Tensor, Tensor] | None
    """Prediction and reference of the frame before, [B, 1, 3, H, W] each."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a window leaves to the next one."""

    latents: Float[Tensor, "B C L h w"]
    features: Float[Tensor, "B D L h w"]
    state: DecoderState
    last: tuple[Tensor, Tensor]
    """As in `Window`."""


@dataclass(kw_only=True)
class _Streams:
    """A batch of streams half-way through their clips."""

    batch: Batch
    target: Tensor | None
    memory: HistoryMemory
    window: int
    """Latent frames."""
    steps: int
    state: DecoderState | None = None
    last: tuple[Tensor, Tensor] | None = None
    latent: int = 0

    @property
    def done(self) -> bool:
        return self.latent >= self.batch.caption.shape[1]

    def next_window(self, context: Context) -> Window:
        """What comes next. Side effect: time moves on."""
        start, stop = self.latent, self.latent + self.window
        frames = slice(start * FRAMES_PER_LATENT, stop * FRAMES_PER_LATENT)
        self.latent = stop
        return Window(
            planes=Planes(values=self.batch.planes.values[:, frames], present=self.batch.planes.present),
            rgb=self.batch.rgb[:, frames],
            target=None if self.target is None else self.target[:, :, start:stop],
            text=context.text(self.batch.caption[:, start]),
            sun=self.batch.sun[:, start],
            steps=self.steps,
            history=self.memory.view(),
            state=self.state,
            last=self.last,
        )

    def carry(self, past: Past) -> None:
        self.memory.append(past.latents, past.features)
        self.state, self.last = past.state, past.last


def _psnr(prediction: Tensor, reference: Tensor) -> Tensor:
    """Mean over clips, dB."""
    error = (prediction.detach().float().clamp(0, 1) - reference).square().flatten(1).mean(1)
    return (-10 * torch.log10(error)).mean()
