"""The 7B inverse at work: a video in chunks that overlap, each buffer by a few steps of diffusion.

Sampling is EDM's (Karras et al. 2022, arXiv 2206.00364) with Euler steps and no guidance, as upstream runs it
(nv-tlabs/cosmos1-diffusion-renderer). Upstream takes 57 pictures at a time and lets chunks disagree; here a chunk
shares pictures with the one before, keeps to its latents where they share some, and fades over in the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.color import srgb_to_linear
from flowshade.inverse.cosmos import (
    BUFFER_ROWS,
    FRAMES_PER_COSMOS_LATENT,
    PIXEL_MULTIPLE,
    CosmosDecoder,
    CosmosEncoder,
    CosmosNetwork,
    LatentStatistics,
)
from flowshade.inverse.stream import Inverted, check_focal, check_pictures
from flowshade.progress import Progress
from flowshade.types import CORE_CHANNELS, Frames, GBuffer

SHORTEST_NORMAL = 0.3
"""A decoded normal shorter than this says "no surface"; upstream blends between lengths of 0.2 and 0.4."""
DEPTH_MEANS = {
    "none": "none: the network's is relative, and neither its scale nor its direction is published; its code is kept "
    "beside the clip, or give --depth-code",
    "inverse": "relative: the network's code c taken as c = s / (s + z) with s = {s:g} m, as was asked; metres only if "
    "that is so",
    "linear": "relative: the network's code c taken as c = z / s with s = {s:g} m, as was asked; metres only if that "
    "is so",
}
"""What a clip says of its depth, by `DiffusionConfig.depth`."""
Codes = dict[str, Tensor]
"""For each buffer, what the network says: [T, 3, H, W], [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class EDM:
    """The noise levels and the preconditioning of EDM (its equations 5 and 7)."""

    sigma_max: float = 80.0
    sigma_min: float = 0.02
    sigma_data: float = 0.5
    rho: float = 7.0

    @property
    def start(self) -> float:
        """Standard deviation of the first noisy latents."""
        return math.hypot(self.sigma_max, 1.0)

    def sigmas(self, steps: int) -> list[float]:
        """Noise levels of every step's beginning, and 0."""
        high, low = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        return [(high + index / max(steps - 1, 1) * (low - high)) ** self.rho for index in range(steps)] + [0.0]

    def scaled(self, x: Tensor, sigma: float) -> Tensor:
        """Noisy latents at unit variance, as the network takes them."""
        return x / math.hypot(sigma, self.sigma_data)

    def time(self, sigma: float) -> float:
        """What the network is told of the noise level."""
        return 0.25 * math.log(sigma)

    def denoised(self, x: Tensor, output: Tensor, sigma: float) -> Tensor:
        """The latents that the network thinks lie under the noise."""
        total = sigma**2 + self.sigma_data**2
        return self.sigma_data**2 / total * x + sigma * self.sigma_data / math.sqrt(total) * output


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig:
    """How the 7B inverse is run; the defaults are upstream's where it has any."""

    name: str = "alaya-inverse"
    steps: int = 15
    schedule: EDM = EDM()
    chunk: int = 57
    """Pictures at a time, 8 n + 1. The network was trained on 57."""
    overlap: int = 17
    """Pictures that a chunk shares with the one before: 8 n + 1, or 0 for chunks that know nothing of each other."""
    hold: bool = True
    """Keep to the latents of the chunk before where they share pictures."""
    size: tuple[int, int] | None = (704, 1280)
    """Height and width that pictures are resized to, and values back from; None keeps theirs, padded."""
    buffers: tuple[str, ...] = CORE_CHANNELS
    """Which to make; each takes as long as any other."""
    depth: Literal["none", "inverse", "linear"] = "none"
    """How the network's depth is read, which upstream does not say. "none" leaves it out of the G-buffer (its code is
    given all the same); "inverse" takes a code c as s / (s + z), "linear" as z / s, with s = `depth_scale`."""
    depth_scale: float = 10.0
    """Metres."""
    seed: int = 0
    reference: bool = False
    """Keep latents in the network's type between steps, as the released script does: its rounding, too."""
    offload: bool = False
    """Networks lie in host memory and come to the device for their turn in each chunk."""

    def __post_init__(self) -> None:
        step = FRAMES_PER_COSMOS_LATENT
        if self.chunk < 1 or self.chunk % step != 1 or (self.overlap % step != 1 and self.overlap != 0):
            raise ValueError(
                f"got chunks of {self.chunk} pictures that share {self.overlap}; expected 8 n + 1 of both, such as 57 "
                "and 17, or 0 to share none."
            )
        if not 0 <= self.overlap < self.chunk or self.steps < 1 or self.seed < 0 or not self.depth_scale > 0:
            raise ValueError(
                f"got chunks of {self.chunk} pictures that share {self.overlap}, {self.steps} steps, seed {self.seed}, "
                f"depth scale {self.depth_scale}; expected fewer shared than in a chunk, and steps and a scale above 0."
            )
        if self.size is not None and any(length < 1 or length % PIXEL_MULTIPLE for length in self.size):
            raise ValueError(f"size is {self.size}; expected multiples of {PIXEL_MULTIPLE} pixels, or None.")
        unknown = [name for name in self.buffers if name not in BUFFER_ROWS]
        if unknown or not self.buffers:
            raise ValueError(f"got buffers {self.buffers}; expected one or more of {', '.join(BUFFER_ROWS)}.")

    @property
    def latents(self) -> int:
        """Latents of a chunk."""
        return (self.chunk - 1) // FRAMES_PER_COSMOS_LATENT + 1

    @property
    def shared_latents(self) -> int:
        """Latents of a chunk, from its second on, that stand for pictures of the chunk before."""
        return max(self.overlap - 1, 0) // FRAMES_PER_COSMOS_LATENT


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What a chunk leaves to the next."""

    codes: Codes
    """Values of the shared pictures, at the network's size."""
    latents: dict[str, Float[Tensor, "1 C K h w"]]
    """The last latents, not normalised."""


class DiffusionInverse:
    """The 7B inverse renderer as a stream: pictures in, G-buffers out, memory that does not grow.

    What comes out lies behind what went in: buffers are made a chunk at a time, and those of the shared pictures are
    given once the next chunk has had its say. Pictures given at once or in any runs make the same chunks, and so the
    same buffers.

    Args:
        network: the transformer.
        encoder: the tokenizer's first half.
        decoder: its second half.
        statistics: of its latents.
        config: how it is run.
        device: where it runs; the networks lie there already, or with `offload` in host memory.
        progress: called after every evaluation of the network with how many are done and how many the chunk takes.
    """

    def __init__(
        self,
        network: CosmosNetwork,
        encoder: CosmosEncoder,
        decoder: CosmosDecoder,
        statistics: LatentStatistics,
        config: DiffusionConfig = DiffusionConfig(),
        *,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
    ) -> None:
        self.network, self.encoder, self.decoder, self.statistics = network, encoder, decoder, statistics
        self.config = config
        self.device = torch.device(device)
        self.progress = progress
        self.fingerprint = ""
        self.statistics.rows(slice(0, config.latents))  # a chunk that is too long is refused here
        self.reset()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def channels(self) -> tuple[str, ...]:
        """Those of its G-buffers: depth only if its code is stated."""
        made = self.config.buffers if self.config.depth != "none" else set(self.config.buffers) - {"depth"}
        return tuple(name for name in CORE_CHANNELS if name in made)

    confident = False

    @property
    def codes(self) -> tuple[str, ...]:
        return self.config.buffers

    def about(self) -> dict[str, Any]:
        config = self.config
        return {
            "inverse": config.name,
            "fingerprint": self.fingerprint,
            "depth": DEPTH_MEANS[config.depth].format(s=config.depth_scale),
            "steps": config.steps,
            "seed": self._seed,
            "chunk": config.chunk,
            "overlap": config.overlap,
            "worked_at": None if config.size is None else list(config.size),
        }

    def reset(self, *, focal: float | None = None, seed: int | None = None) -> None:
        """Starts a stream.

        Args:
            focal: horizontal focal length over the picture's width, as the compact inverse takes it. This network has
                no place for it; it is only checked.
            seed: the noise's; None takes the configuration's.

        Raises:
            ValueError: a focal length that is not positive, or a negative seed.
        """
        check_focal(focal)
        if seed is not None and seed < 0:
            raise ValueError(f"the seed is {seed}; expected 0 or more.")
        self._seed = self.config.seed if seed is None else seed
        self._size: tuple[int, int] | None = None
        self._waiting: list[Float[Tensor, "3 h w"]] = []
        self._before: _Shared | None = None
        self._chunks = 0

    @torch.no_grad()
    def push(self, frames: Frames) -> Inverted | None:
        """Takes the next pictures of the stream.

        Returns:
            The buffers of the earliest pictures that are not given yet, in host memory; None while a chunk fills.

        Raises:
            ValueError: the pictures' size changed within the stream, or they are not finite.
        """
        check_pictures(frames.rgb, self._size)
        self._size = (frames.rgb.shape[-2], frames.rgb.shape[-1])
        done = []
        for picture in frames.rgb:
            self._waiting.append(fit(picture[None], self.config.size)[0].cpu())
            if len(self._waiting) == self.config.chunk:
                done.append(self._invert_waiting(last=False))
        return Inverted.cat(done) if done else None

    @torch.no_grad()
    def finish(self) -> Inverted | None:
        """Ends the stream: the buffers of all pictures that are not given yet; None if there are none.

        A chunk that is not full repeats its last picture, as upstream does with short videos.
        """
        done = None
        if self._before is not None and len(self._waiting) == self.config.overlap:
            done = self._decoded(self._before.codes)
        elif self._waiting:
            done = self._invert_waiting(last=True)
        self._waiting, self._before = [], None
        return done

    def invert(
        self, windows: Iterable[Frames], *, focal: float | None = None, seed: int | None = None
    ) -> Iterator[Inverted]:
        """A whole video, in runs of whatever length; gives its buffers in runs of other lengths, in order."""
        self.reset(focal=focal, seed=seed)
        for frames in windows:
            done = self.push(frames)
            if done is not None:
                yield done
        done = self.finish()
        if done is not None:
            yield done

    def _invert_waiting(self, *, last: bool) -> Inverted:
        """Makes a chunk; all but the shared pictures leave the stream, and of the last chunk those too."""
        count = len(self._waiting)
        pictures = torch.stack(self._waiting + self._waiting[-1:] * (self.config.chunk - count))
        codes, latents = self._make(pictures)
        if self._before is not None:
            codes = {name: cross_fade(self._before.codes[name], value) for name, value in codes.items()}
        given = count if last else count - self.config.overlap
        self._chunks += 1
        self._waiting = self._waiting[given:]
        self._before = None
        if self.config.overlap and not last:
            held = {name: value[:, :, value.shape[2] - self.config.shared_latents :] for name, value in latents.items()}
            self._before = _Shared(codes={name: value[given:] for name, value in codes.items()}, latents=held)
        return self._decoded({name: value[:given] for name, value in codes.items()})

    def _make(self, pictures: Float[Tensor, "T 3 h w"]) -> tuple[Codes, dict[str, Tensor]]:
        """Values and latents (not normalised) of all buffers of a chunk."""
        with self._here(self.encoder):
            video = self._encode(pictures)
        with self._here(self.network):
            latents = {name: self._sample(video, name, index) for index, name in enumerate(self.config.buffers)}
        with self._here(self.decoder):
            codes = {name: self._decode(value) for name, value in latents.items()}
        return codes, latents

    def _encode(self, pictures: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "1 C L h w"]:
        rgb = rearrange(pictures.to(self.device) * 2 - 1, "t c h w -> 1 c t h w").to(self.encoder.dtype)
        return self._normalised(self.encoder(rgb).float(), 0)

    def _sample(self, video: Float[Tensor, "1 C L h w"], name: str, turn: int) -> Float[Tensor, "1 C L h w"]:
        """Noise to a buffer's latents, not normalised."""
        held = None
        if self._before is not None and self.config.hold and self.config.shared_latents:
            held = self._normalised(self._before.latents[name], 1)
        noise = self._noise(name, video).to(self.device)
        return self._raw(self.denoise(noise, video, name, held=held, turn=turn))

    @torch.no_grad()
    def denoise(
        self,
        noise: Float[Tensor, "B C L h w"],
        video: Float[Tensor, "B C L h w"],
        buffer: str,
        *,
        held: Float[Tensor, "B C K h w"] | None = None,
        turn: int = 0,
    ) -> Float[Tensor, "B C L h w"]:
        """Noise to normalised latents of one buffer by Euler steps (EDM's algorithm 1, without its second order).

        Args:
            noise: unit normal.
            video: the video's latents, normalised.
            buffer: which to make.
            held: latents that those after the first should keep to, fully at the first of them and less towards the
                last.
            turn: how many buffers of the chunk are done, for `progress`.
        """
        schedule, dtype = self.config.schedule, self.network.dtype
        sigmas = schedule.sigmas(self.config.steps)
        x = (noise * schedule.start).to(dtype if self.config.reference else torch.float32)
        given = video.to(dtype)
        for step, (sigma, next_sigma) in enumerate(zip(sigmas[:-1], sigmas[1:])):
            if held is not None:
                x = _keep_to(x, held, noise, sigma)
            # Upstream rounds the network's time to bfloat16; the levels of the steps stay exact.
            time = torch.tensor([schedule.time(sigma)], device=x.device).bfloat16().float().expand(len(x))
            output = self.network(schedule.scaled(x.float(), sigma).to(dtype), given, time, buffer).float()
            denoised = schedule.denoised(x.float(), output, sigma)
            x = (x.float() + (next_sigma - sigma) * (x.float() - denoised) / sigma).to(x.dtype)
            if self.progress is not None:
                done, each = turn * self.config.steps + step + 1, self.config.steps
                self.progress(done, each * len(self.config.buffers))
        return x.float() if held is None else _keep_to(x, held, noise, 0.0).float()

    def _decode(self, latents: Float[Tensor, "1 C L h w"]) -> Float[Tensor, "T 3 H W"]:
        values = self.decoder(latents.to(self.decoder.dtype)).float()
        return rearrange((values.clamp(-1, 1) + 1) / 2, "1 c t h w -> t c h w").cpu()

    def _normalised(self, latents: Tensor, first: int) -> Tensor:
        """The tokenizer's latents as the network takes them; `first` is the first one's place in the chunk."""
        mean, std = self._rows(latents, first)
        return (latents - mean) / std * self.config.schedule.sigma_data

    def _raw(self, latents: Tensor) -> Tensor:
        mean, std = self._rows(latents, 0)
        return latents / self.config.schedule.sigma_data * std + mean

    def _rows(self, latents: Tensor, first: int) -> tuple[Tensor, Tensor]:
        mean, std = self.statistics.rows(slice(first, first + latents.shape[2]))
        return mean.to(latents.device), std.to(latents.device)

    def _noise(self, buffer: str, like: Float[Tensor, "1 C L h w"]) -> Float[Tensor, "1 C L h w"]:
        """Unit normal noise that depends on the seed, the buffer and a latent's place in the whole video alone."""
        _, channels, latents, height, width = like.shape
        first = self._chunks * (latents - 1 - self.config.shared_latents if self.config.overlap else latents)
        planes = []
        for place in range(first, first + latents):
            state = np.random.SeedSequence([self._seed, BUFFER_ROWS[buffer], place]).generate_state(1, np.uint64)
            generator = torch.Generator("cpu").manual_seed(int(state[0]))
            planes.append(torch.randn(channels, height, width, generator=generator))
        return torch.stack(planes, 1)[None]

    def _decoded(self, codes: Codes) -> Inverted:
        """Values at the network's size to a G-buffer at the pictures' own."""
        assert self._size is not None
        resized = {name: unfit(value, self._size, self.config.size) for name, value in codes.items()}
        return Inverted(gbuffer=to_gbuffer(resized, self.config), confidence={}, codes=resized)

    @contextmanager
    def _here(self, part: nn.Module) -> Iterator[None]:
        """With `offload`, a network is on the device only inside."""
        if not self.config.offload:
            yield
            return
        part.to(self.device)
        try:
            yield
        finally:
            part.to("cpu")


def fit(rgb: Float[Tensor, "T 3 H W"], size: tuple[int, int] | None) -> Float[Tensor, "T 3 h w"]:
    """Pictures as the network takes them: resized straight to a size, or padded to a multiple of 16; within [0, 1]."""
    height, width = rgb.shape[-2:]
    if size is None:
        padding = (0, -width % PIXEL_MULTIPLE, 0, -height % PIXEL_MULTIPLE)
        return F.pad(rgb.float(), padding, mode="replicate").clamp(0, 1)
    return _resized(rgb.float(), size).clamp(0, 1)


def unfit(values: Float[Tensor, "T 3 h w"], own: tuple[int, int], size: tuple[int, int] | None) -> Tensor:
    """Undoes `fit` for what was made of pictures of the size `own`."""
    return values[..., : own[0], : own[1]] if size is None else _resized(values, own).clamp(0, 1)


def to_gbuffer(codes: Mapping[str, Float[Tensor, "T 3 H W"]], config: DiffusionConfig) -> GBuffer:
    """The network's values to channels in the in-memory convention.

    Albedo is display sRGB, normals are (n + 1) / 2 in camera space, roughness and metallic the mean of three equal
    planes, depth as the configuration says.

    Raises:
        ValueError: there is nothing but depth, and its code is not stated.
    """
    channels: dict[str, Tensor] = {}
    for name, value in codes.items():
        if name == "albedo":
            channels[name] = srgb_to_linear(value)
        elif name == "normal":
            normal = value * 2 - 1
            surface = normal.norm(dim=1, keepdim=True) >= SHORTEST_NORMAL
            channels[name] = F.normalize(normal, dim=1) * surface
        elif name != "depth":
            channels[name] = value.mean(1, keepdim=True)
        elif config.depth != "none":
            channels[name] = _metres(value.mean(1, keepdim=True), config)
    if not channels:
        raise ValueError("only depth was made, whose code upstream does not say; state it with depth='inverse', or so.")
    return GBuffer(**channels)  # pyright: ignore[reportArgumentType]


def _metres(code: Float[Tensor, "T 1 H W"], config: DiffusionConfig) -> Float[Tensor, "T 1 H W"]:
    scale = config.depth_scale
    return scale / code - scale if config.depth == "inverse" else scale * code


def cross_fade(before: Float[Tensor, "K C H W"], after: Float[Tensor, "T C H W"]) -> Float[Tensor, "T C H W"]:
    """`after`, whose first frames come gradually out of `before`."""
    count = len(before)
    weight = ((torch.arange(count) + 1) / (count + 1))[:, None, None, None]
    return torch.cat([torch.lerp(before, after[:count], weight), after[count:]])


def _keep_to(x: Tensor, held: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Pulls latents 1 to K towards those held, at their noise level: fully at the first, not at all past the last."""
    count = held.shape[2]
    part = slice(1, 1 + count)
    weight = 1 - torch.arange(count, device=x.device)[:, None, None] / count  # [K, 1, 1]
    result = x.clone()
    target = held.float() + sigma * noise[:, :, part].float()
    result[:, :, part] = torch.lerp(x[:, :, part].float(), target, weight).to(x.dtype)
    return result


def _resized(values: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(values.shape[-2:]) == size:
        return values
    return F.interpolate(values, size=size, mode="bilinear", antialias=True, align_corners=False)


def parse_depth(text: str) -> tuple[Literal["none", "inverse", "linear"], float]:
    """`none`, `inverse:METRES` or `linear:METRES` as `DiffusionConfig.depth` and `depth_scale`.

    Raises:
        ValueError: something else.
    """
    kind, _, scale = text.partition(":")
    try:
        metres = float(scale) if scale else DiffusionConfig.depth_scale
    except ValueError:
        metres = math.nan
    if kind not in ("none", "inverse", "linear") or not 0 < metres < math.inf or (kind == "none" and scale):
        raise ValueError(f"depth code {text[:40]!r} cannot be read; expected none, inverse:METRES or linear:METRES.")
    return kind, metres
