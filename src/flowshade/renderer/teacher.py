"""AlayaRenderer's forward teacher: buffers through Wan's VAE, many steps with guidance, and back to pictures.

The order of what is done, and in which precision, is upstream's (ShandaAI/AlayaRenderer,
`inference_gbuffer_caption.py`): timesteps rounded to bfloat16, text rows past the prompt zero and looked at, shifted
sigmas for Euler, tiled VAE, one clamp at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from flowshade.codec.wan_vae import Tiling, WanVAE
from flowshade.progress import Progress
from flowshade.renderer.schedule import FlowMatching
from flowshade.renderer.transformer import TextContext, TextMemory, WorldTransformer
from flowshade.renderer.upstream import BUFFERS
from flowshade.types import FRAMES_PER_LATENT

NEGATIVE_PROMPT = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画面，"
    "杂乱的背景，三条腿，背景人很多，倒着走"
)
"""Wan 2.1's own, which upstream uses."""

STYLES: dict[str, str | None] = {
    "original": None,
    "bright_sunny": "the scene is bathed in bright, warm golden sunlight under a clear blue sky, creating a serene and "
    "radiant atmosphere.",
    "snowy_winter": "the scene is set in a frozen, snow-covered environment under cold, pale winter light with falling "
    "snowflakes, creating a silent and ethereal winter wonderland atmosphere.",
    "sunset_dramatic": "the scene is bathed in dramatic sunset light under a deep orange and crimson sky, with long "
    "shadows and volumetric god rays, creating an epic and cinematic atmosphere.",
    "cyberpunk_neon": "the scene is illuminated by vibrant pink and blue neon lights with glowing holographic "
    "particles and electric haze, creating a futuristic cyberpunk atmosphere.",
    "underwater": "the scene is submerged deep underwater under soft, filtered aquamarine light, with shimmering "
    "caustics and drifting bubbles, creating a mysterious and tranquil deep-sea atmosphere.",
    "autumn_warm": "the scene is filled with vibrant autumn foliage and golden and crimson fallen leaves under warm "
    "amber afternoon light, creating a cozy and nostalgic autumn atmosphere.",
    "moonlit_night": "the scene is set under a brilliant full moon, bathed in cool silver moonlight with fireflies "
    "dancing in the darkness and stars visible overhead, creating a mystical and enchanting nighttime atmosphere.",
}
"""Upstream's styles in its own words (its styles.json, Apache-2.0), which its weights know; None keeps a caption."""


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """How the teacher is run; the defaults are upstream's."""

    steps: int = 50
    cfg_scale: float = 5.0
    """Guidance: negative + scale * (positive - negative); 1 leaves the negative prompt out."""
    schedule: FlowMatching = FlowMatching(shift=5.0)
    window: int = 81
    """Frames made together, 4 n + 1; what the network was trained on."""
    overlap: int = 17
    """Frames that windows of a longer clip share, 4 n + 1."""
    tiling: Tiling | None = Tiling()
    reference: bool = False
    """Keeps latents in the network's type between steps, as upstream does, instead of float32: its rounding, too."""

    def __post_init__(self) -> None:
        for name in ("window", "overlap"):
            if getattr(self, name) % FRAMES_PER_LATENT != 1:
                raise ValueError(f"{name} is {getattr(self, name)} frames; expected 4 n + 1, such as 81 or 17.")
        if not self.overlap < self.window:
            raise ValueError(f"windows of {self.window} frames overlap by {self.overlap}; expected less.")


class ForwardTeacher:
    """The five buffers and a prompt to pictures, a clip at a time.

    Args:
        transformer: the 96-channel network.
        vae: Wan's VAE, for buffers and pictures.
        config: how it is run.
    """

    def __init__(self, transformer: WorldTransformer, vae: WanVAE, config: TeacherConfig = TeacherConfig()) -> None:
        self.transformer = transformer
        self.vae = vae
        self.config = config

    @property
    def device(self) -> torch.device:
        return self.transformer.patch_embedding.weight.device

    @torch.no_grad()
    def encode(self, buffers: Mapping[str, UInt8[Tensor, "T 3 H W"]]) -> Float[Tensor, "1 D L h w"]:
        """Buffers to conditioning latents, in the order `BUFFERS`.

        Args:
            buffers: 8-bit planes as upstream stores them; 4 n + 1 frames, sizes in multiples of 16.
        """
        missing = [name for name in BUFFERS if name not in buffers]
        if missing:
            raise ValueError(f"the clip lacks {', '.join(missing)}; the teacher takes all of {', '.join(BUFFERS)}.")
        latents = [
            self.vae.encode(to_signed(buffers[name].to(self.device), self.vae.dtype), tiling=self.config.tiling)
            for name in BUFFERS
        ]
        return torch.cat(latents, 1).to(self.transformer.dtype)

    @torch.no_grad()
    def denoise(
        self,
        noise: Float[Tensor, "B C L h w"],
        buffers: Float[Tensor, "1 D L h w"],
        positive: TextContext,
        negative: TextContext | None,
        *,
        held: Float[Tensor, "B C K h w"] | None = None,
        progress: Progress | None = None,
    ) -> Float[Tensor, "B C L h w"]:
        """Noise to latents by Euler steps with guidance.

        Args:
            noise: unit normal; a batch makes as many pictures of the same buffers.
            buffers: what `encode` made.
            positive: prompts, one for each of the batch.
            negative: what to steer away from; may be None where `cfg_scale` is 1.
            held: latents that the frames after the first should keep to: the window before's last ones. They fade
                out over their own length.
            progress: called after every step with steps done and steps in all.
        """
        config = self.config
        texts = [self.transformer.encode_text(positive)]
        if config.cfg_scale != 1:
            if negative is None:
                raise ValueError(f"cfg_scale is {config.cfg_scale}; it needs a negative prompt. Give one, or scale 1.")
            texts.append(self.transformer.encode_text(_repeated(negative, len(noise))))
        share = self.transformer.embed_buffers(buffers).expand(len(noise), -1, -1)
        x = noise.to(self.transformer.dtype if config.reference else torch.float32)
        sigmas = config.schedule.sigmas(config.steps)
        for step, (sigma, next_sigma) in enumerate(zip(sigmas[:-1], sigmas[1:])):
            if held is not None:
                x = _keep_to(x, held, noise, sigma)
            velocity = self._velocity(x, sigma, texts, share)
            x = x + velocity.to(x.dtype) * (next_sigma - sigma)
            if progress is not None:
                progress(step + 1, config.steps)
        return x if held is None else _keep_to(x, held, noise, 0.0)

    def _velocity(self, x: Tensor, sigma: float, texts: Sequence[TextMemory], share: Tensor) -> Tensor:
        # Upstream rounds the timestep to bfloat16, in training too; the sigmas of the steps stay exact.
        timestep = torch.tensor([1000 * sigma], device=x.device).bfloat16().float().expand(len(x))
        given = x.to(self.transformer.dtype)
        outputs = [self.transformer(given, timestep, text, share) for text in texts]
        if len(outputs) == 1:
            return outputs[0]
        return outputs[1] + self.config.cfg_scale * (outputs[0] - outputs[1])

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "B C L h w"]) -> UInt8[Tensor, "B T H W 3"]:
        """Latents to 8-bit pictures, one of the batch at a time; fractions are cut off, as upstream does."""
        pictures = []
        for one in latents.split(1):
            rgb = self.vae.decode(one, tiling=self.config.tiling)
            rgb = rgb if self.config.reference else rgb.float()
            pictures.append(rearrange(((rgb + 1) * (255 / 2)).clamp(0, 255).to(torch.uint8), "b c t h w -> b t h w c"))
        return torch.cat(pictures)

    def render(
        self,
        read: Callable[[int, int], Mapping[str, UInt8[Tensor, "T 3 H W"]]],
        frames: int,
        positive: TextContext,
        negative: TextContext | None,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Iterator[UInt8[Tensor, "B T H W 3"]]:
        """Renders a clip of any length, one window in memory at a time.

        A clip of up to `window` frames is made in one piece, as upstream does. Longer ones are made in windows that
        overlap: each keeps to the latents of the one before where they share frames, and fades over in the pictures.

        Args:
            read: gives the buffers of frames `start` to `stop`, see `encode`.
            frames: how many there are; those past 4 n + 1 repeat the last one and are cut again.
            positive: prompts; one video is made for each.
            negative: see `denoise`.
            seed: the noise's. The same for every prompt, so that styles are the same but for their words.
            progress: called after every step with steps done and steps in all.

        Yields:
            Runs of pictures of all prompts, in order; `frames` in all.
        """
        before: Tensor | None = None  # pictures of the overlap
        for start, stop, latents in self.windows(read, frames, positive, negative, seed=seed, progress=progress):
            pictures = self.decode(latents).cpu()
            if before is not None:
                pictures = _cross_fade(before, pictures)
            shared = 0 if stop >= frames else self.config.overlap
            before = pictures[:, -shared:] if shared else None
            yield pictures[:, : min(stop, frames) - start - shared]

    def windows(
        self,
        read: Callable[[int, int], Mapping[str, UInt8[Tensor, "T 3 H W"]]],
        frames: int,
        positive: TextContext,
        negative: TextContext | None,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Iterator[tuple[int, int, Float[Tensor, "B C L h w"]]]:
        """First frame, last + 1 and latents of every window of `render`, which says what is given."""
        windows = plan_windows(frames, self.config.window, self.config.overlap)
        held: Tensor | None = None
        for index, (start, stop) in enumerate(windows):
            planes = _padded(read(start, min(stop, frames)), stop - start)
            buffers = self.encode(planes)
            noise = window_noise(seed, index, self.transformer.config.latent_channels, buffers).to(buffers.device)
            latents = self.denoise(
                noise.expand(len(positive.tokens), *noise.shape[1:]),
                buffers,
                positive,
                negative,
                held=held,
                progress=_part(progress, index, len(windows)),
            )
            held = latents[:, :, latents.shape[2] - self.config.overlap // FRAMES_PER_LATENT :]
            yield start, stop, latents


def to_signed(planes: UInt8[Tensor, "T 3 H W"], dtype: torch.dtype) -> Float[Tensor, "1 3 T H W"]:
    """8-bit planes to [-1, 1], computed in `dtype`: upstream's bfloat16 rounds here already (by 0.004 at most)."""
    return rearrange(planes.to(dtype) * (2 / 255) - 1, "t c h w -> 1 c t h w")


def fit(planes: UInt8[Tensor, "T 3 H W"], size: tuple[int, int]) -> UInt8[Tensor, "T 3 h w"]:
    """Resizes 8-bit planes straight to a size with Pillow's Lanczos filter, as upstream does; no crop."""
    from PIL import Image

    if tuple(planes.shape[2:]) == size:
        return planes
    height, width = size
    frames = [Image.fromarray(frame.numpy()) for frame in rearrange(planes, "t c h w -> t h w c")]
    resized = [np.asarray(frame.resize((width, height), Image.Resampling.LANCZOS)) for frame in frames]
    return rearrange(torch.from_numpy(np.stack(resized)), "t h w c -> t c h w")


def style_prompt(caption: str, style: str | None) -> str:
    """A caption with its lighting part replaced by a style's words, by upstream's rules; None keeps the caption.

    The content part ends before "; the scene is", ", the scene is" (or feels, appears), or else before ", creating a"
    and the lighting that leads up to it.
    """
    if style is None:
        return caption
    for mark in ";", ",":
        if match := re.search(rf"{mark}\s*the\s+scene\s+(is|feels|appears)\s+", caption):
            return f"{caption[: match.start()]}; {style}"
    if match := re.search(r"[,;]\s*creating\s+an?\s+\w+", caption):
        content = caption[: match.start()]
        light = re.search(r"[,;]\s*(?:under|with|lit by|illuminated by|in)\s+.*$", content, re.IGNORECASE)
        return f"{content[: light.start()] if light else content}; {style}"
    return f"{caption.rstrip('.')}; {style}"


def plan_windows(frames: int, window: int, overlap: int) -> list[tuple[int, int]]:
    """First and last + 1 frame of every window; each is 4 n + 1 long, so the last may reach past the end."""
    windows, start = [], 0
    while True:
        left = frames - start
        length = min(window, left + (1 - left) % FRAMES_PER_LATENT)
        windows.append((start, start + length))
        if start + length >= frames:
            return windows
        start += window - overlap


def window_noise(seed: int, index: int, channels: int, buffers: Tensor) -> Float[Tensor, "1 C L h w"]:
    """Unit normal noise; that of the first window is upstream's for this seed."""
    generator = torch.Generator("cpu").manual_seed(seed + index)
    return torch.randn(1, channels, *buffers.shape[2:], generator=generator)


def _keep_to(x: Tensor, held: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Pulls latents 1 to K towards those held, at their noise level: fully at the first, not at all past the last."""
    count = held.shape[2]
    part = slice(1, 1 + count)
    target = (1 - sigma) * held.float() + sigma * noise[:, :, part].float()
    weight = 1 - torch.arange(count, device=x.device)[:, None, None] / count  # [K, 1, 1]
    result = x.clone()
    result[:, :, part] = torch.lerp(x[:, :, part].float(), target, weight).to(x.dtype)
    return result


def _cross_fade(before: UInt8[Tensor, "B K H W 3"], after: UInt8[Tensor, "B T H W 3"]) -> UInt8[Tensor, "B T H W 3"]:
    count = before.shape[1]
    weight = ((torch.arange(count) + 1) / (count + 1))[:, None, None, None]
    mixed = torch.lerp(before.float(), after[:, :count].float(), weight).round().to(torch.uint8)
    return torch.cat([mixed, after[:, count:]], 1)


def _padded(planes: Mapping[str, Tensor], frames: int) -> dict[str, Tensor]:
    """Repeats the last frame until there are `frames`."""
    return {
        name: torch.cat([value, value[-1:].expand(frames - len(value), -1, -1, -1)]) if len(value) < frames else value
        for name, value in planes.items()
    }


def _repeated(text: TextContext, batch: int) -> TextContext:
    return TextContext(tokens=text.tokens.expand(batch, -1, -1), mask=text.mask)


def _part(progress: Progress | None, index: int, count: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(index * total + done, count * total)
