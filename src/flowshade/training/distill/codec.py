"""Small codecs learned from Wan's VAE: the grouped buffer encoder and the decoder shaped like TAEW2.1.

Both are plain regressions to what the VAE gives for the same input, on crops of runs of a clip (TAESD and TAEHV are
made so: github.com/madebyollin/taehv). A run begins a stream: its first frame is repeated in front of it for the VAE,
whose latents after the first are then four frames each, as the small codecs' always are (see `teaching`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from flowshade.codec.tiny import GroupedEncoder, TinyDecoder
from flowshade.codec.wan_vae import WanVAE
from flowshade.color import from_bytes
from flowshade.errors import FlowshadeError
from flowshade.renderer.upstream import BUFFERS
from flowshade.training.distill.clips import Clip
from flowshade.training.distill.loop import Draw
from flowshade.training.distill.scores import picture_scores, write_rows
from flowshade.training.distill.teaching import stacked
from flowshade.training.losses import change_loss, picture_loss
from flowshade.types import FRAMES_PER_LATENT

HELD_OUT_CLIPS = 4
"""Of the held-out clips, how many are looked at."""


@dataclass(frozen=True, kw_only=True)
class Crops:
    """What is cut from clips."""

    size: tuple[int, int]
    """Height and width that clips are resized to."""
    crop: tuple[int, int]
    """Height and width of what is learned from at a time."""
    latents: int
    """Latent frames of a run."""

    def __post_init__(self) -> None:
        wrong = [length for length in (*self.size, *self.crop) if length < 16 or length % 16]
        if wrong or any(crop > size for crop, size in zip(self.crop, self.size)) or self.latents < 1:
            raise FlowshadeError(
                f"crops of {self.crop[0]}x{self.crop[1]} from clips of {self.size[0]}x{self.size[1]} were asked for; "
                "expected multiples of 16, the crop no larger than the clip. Change --crop or --size."
            )

    @property
    def frames(self) -> int:
        return self.latents * FRAMES_PER_LATENT

    def usable(self, clips: Sequence[Clip], *, held_out: bool) -> list[Clip]:
        """The clips of one side that are long enough. Raises: FlowshadeError if there are none."""
        found = [clip for clip in clips if clip.held_out == held_out and clip.frames >= self.frames]
        if not found:
            what = "is held out and" if held_out else "to learn from"
            raise FlowshadeError(f"no clip {what} has {self.frames} frames; give longer clips, or fewer --frames.")
        return found

    def draw(self, clips: Sequence[Clip], draw: Draw) -> tuple[Clip, int, int, int]:
        """A clip, a first frame, and the crop's row and column."""
        rng = draw.rng()
        clip = clips[int(rng.integers(len(clips)))]
        start = int(rng.integers(clip.frames - self.frames + 1))
        row, column = (int(rng.integers((size - crop) // 8 + 1)) * 8 for size, crop in zip(self.size, self.crop))
        return clip, start, row, column


class VAETeacher:
    """Wan's VAE as the small codecs' teacher; its latents and pictures are those of a stream.

    Args:
        vae: frozen, in its own type on its own device.
    """

    def __init__(self, vae: WanVAE) -> None:
        self.vae = vae
        self.device = vae.quant_conv.weight.device

    @torch.no_grad()
    def encode(self, rgb: UInt8[Tensor, "B T 3 H W"]) -> Float[Tensor, "B C N h w"]:
        """Runs of pictures to latents, that of the repeated first picture in front: 1 + T / 4."""
        led = torch.cat([rgb[:, :1], rgb], 1).to(self.device)
        with torch.autocast(self.device.type, enabled=False):
            signed = rearrange(led.to(self.vae.dtype) * (2 / 255) - 1, "b t c h w -> b c t h w")
            return torch.cat([self.vae.encode(one) for one in signed.split(1)]).float()

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "B C N h w"]) -> Float[Tensor, "B T 3 H W"]:
        """Latents, the lead's first, to display sRGB in [0, 1] of the frames after it."""
        with torch.autocast(self.device.type, enabled=False):
            rgb = torch.cat([self.vae.decode(one.to(self.device)) for one in latents.split(1)])
        return rearrange((rgb[:, :, 1:].float() + 1) / 2, "b c t h w -> b t c h w")


class _CropTask:
    """What both tasks share: a network, its teacher, and crops of the clips that are learned from."""

    def __init__(
        self, network: GroupedEncoder | TinyDecoder, teacher: VAETeacher, clips: Sequence[Clip], crops: Crops
    ) -> None:
        self.network = network
        self.teacher, self.crops = teacher, crops
        self.clips = crops.usable(clips, held_out=False)
        self.held_out = crops.usable(clips, held_out=True)[:HELD_OUT_CLIPS]

    def _crop(self, draw: Draw, read: Callable[[Clip, int, int, tuple[int, int]], Tensor]) -> Tensor:
        """A crop of what is read of a drawn run, [..., h, w]."""
        clip, start, row, column = self.crops.draw(self.clips, draw)
        values = read(clip, start, start + self.crops.frames, self.crops.size)
        height, width = self.crops.crop
        return values[..., row : row + height, column : column + width].contiguous()


class EncoderTask(_CropTask):
    """Each buffer's planes to the latents that Wan's VAE makes of them; squared error of normalised latents."""

    name = "encoder"

    def load(self, draw: Draw) -> UInt8[Tensor, "T D 3 h w"]:
        return self._crop(draw, Clip.planes)

    def losses(self, sample: UInt8[Tensor, "T D 3 h w"], draw: Draw) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        target, latents = self._both(sample)
        error = (latents - target).square().mean((1, 2, 3, 4))  # [D]
        yield error.mean(), dict(zip(BUFFERS, error))

    def _both(self, planes: UInt8[Tensor, "T D 3 h w"]) -> tuple[Tensor, Tensor]:
        """The VAE's latents and ours, each [D, C, L, h, w]."""
        target = self.teacher.encode(planes.transpose(0, 1))[:, :, 1:]
        given = stacked(planes.to(self.teacher.device), torch.float32)
        latents = self.network(given).float()
        return target, rearrange(latents, "1 (d c) l h w -> d c l h w", d=planes.shape[1])

    @torch.no_grad()
    def evaluate(self, sheet: Path | None) -> dict[str, float]:
        """Latent error of each buffer over the VAE's spread (1 = no better than the mean), and PSNR of both pictures
        that the VAE makes of the latents, dB."""
        errors, psnrs, rows = [], [], []
        for clip in self.held_out:
            planes = clip.planes(0, self.crops.frames, self.crops.size)
            target, latents = self._both(planes)
            lead = self.teacher.encode(planes.transpose(0, 1)[:, :FRAMES_PER_LATENT])[:, :, :1]
            spread = target.std((1, 2, 3, 4)).clamp(min=1e-6)
            errors.append((latents - target).square().mean((1, 2, 3, 4)).sqrt() / spread)  # [D]
            theirs, ours = (self.teacher.decode(torch.cat([lead, value], 2)) for value in (target, latents))
            psnrs.append(picture_scores(ours.flatten(0, 1), theirs.flatten(0, 1))["psnr"])
            given = from_bytes(planes[-1])  # [D, 3, H, W]
            rows += [torch.stack([a, b[-1].cpu(), c[-1].cpu()]) for a, b, c in zip(given, theirs, ours)]
        if sheet is not None:
            write_rows(sheet, rows)
        found = torch.stack(errors).mean(0).tolist()
        means = dict(zip(BUFFERS, found))
        return {"latent error": sum(found) / len(found), "psnr": sum(psnrs) / len(psnrs), **means}


class DecoderTask(_CropTask):
    """Wan's latents to the pictures that its VAE makes of them; absolute, edge, logarithmic and change errors.

    Learns from the pictures that come with clips, and from albedo where there are none.
    """

    name = "decoder"

    def load(self, draw: Draw) -> UInt8[Tensor, "T 3 h w"]:
        return self._crop(draw, Clip.pictures)

    def losses(self, sample: UInt8[Tensor, "T 3 h w"], draw: Draw) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        latents = self.teacher.encode(sample[None])
        target = self.teacher.decode(latents)
        made = self.network(latents[:, :, 1:]).float()
        picture, change = picture_loss(made, target), change_loss(made, target)
        yield picture + change, {"picture": picture, "change": change}

    @torch.no_grad()
    def evaluate(self, sheet: Path | None) -> dict[str, float]:
        """PSNR in dB, and LPIPS where its trunk is installed, against the VAE's pictures."""
        scores, rows = [], []
        for clip in self.held_out:
            pictures = clip.pictures(0, self.crops.frames, self.crops.size)
            latents = self.teacher.encode(pictures[None])
            theirs, ours = self.teacher.decode(latents)[0], self.network(latents[:, :, 1:])[0].float()
            scores.append(picture_scores(ours, theirs))
            rows.append(torch.stack([from_bytes(pictures[-1]), theirs[-1].cpu(), ours[-1].cpu()]))
        if sheet is not None:
            write_rows(sheet, rows)
        return {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}
