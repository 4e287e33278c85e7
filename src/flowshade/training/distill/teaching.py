"""What the teacher makes of clips, kept on disk: the ends of its many-step paths, from noise that a seed gives again.

Each sample is a pair (noise, latents) that one path of the teacher's ODE connects, guidance included: what rectified
flow calls a coupling (Liu et al. 2022, arXiv 2209.03003) and CausVid regresses a student on (Yin et al. 2024, arXiv
2412.07772, section 4.3). The teacher has no true picture, but from given noise it has one answer, so a regression to it
has one too and does not blur.

Time: Wan's first latent is one picture and every later one four. A stream's latents are four pictures each, always. So
the teacher is given a run of frames with the first one repeated in front of them: its first latent is that picture, and
the ones after it are a stream's.

One safetensors file a sample, named by clip, place and prompt; whole or not at all, so sampling goes on where it
stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from flowshade.checkpoints.store import load_state, save_state
from flowshade.codec.tiny import GroupedEncoder
from flowshade.codec.wan_vae import ConvState
from flowshade.errors import CheckpointError, FlowshadeError, PromptError
from flowshade.files import free_space
from flowshade.renderer.teacher import STYLES, ForwardTeacher, plan_windows, style_prompt, window_noise
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.upstream import BUFFERS
from flowshade.training.distill.clips import Clip
from flowshade.types import FRAMES_PER_LATENT

FORMAT = "flowshade-teacher-sample-1"
KEPT = torch.float16
"""Latents have about unit spread: its 10 bits serve them better than bfloat16's 7."""
FEW_STEPS = (4, 2, 1)
"""Steps at which the student is measured; of held-out clips the teacher is kept at these too, to compare with."""
HEADROOM = 2**28
"""Bytes that are left free on the disk."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of a clip under one prompt."""

    clip: Clip
    start: int
    """First frame."""
    frames: int
    prompt: str

    @property
    def run(self) -> str:
        """The run's name, the same on every machine."""
        return f"{hashlib.sha256(self.clip.name.encode()).hexdigest()[:12]}-{self.start:06d}-{self.frames}"

    @property
    def key(self) -> str:
        """The sample's name: its run's and its prompt's."""
        return f"{self.run}-{hashlib.sha256(self.prompt.encode()).hexdigest()[:12]}"

    def seed(self, base: int) -> int:
        """Of its noise."""
        return int(hashlib.sha256(f"{base}:{self.key}".encode()).hexdigest()[:12], 16)

    def led_planes(self, start: int, stop: int, size: tuple[int, int]) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
        """Buffers of frames `start` to `stop` of the run with its first frame repeated in front."""
        planes = self.clip.planes(self.start + max(start - 1, 0), self.start + stop - 1, size)
        if start == 0:
            planes = torch.cat([planes[:1], planes])
        return {name: planes[:, index] for index, name in enumerate(BUFFERS)}


def list_samples(
    clips: Sequence[Clip], frames: int, styles: Sequence[str], prompt: str = "", variants: int = 1
) -> list[Sample]:
    """The samples of clips: runs one after another, each under `variants` of the styles in turn.

    Args:
        clips: where from; clips shorter than a run give none.
        frames: of a run, whole latents.
        styles: upstream's names (`renderer.teacher.STYLES`); "original" is the clip's caption as it is.
        prompt: the caption of clips that have none.
        variants: samples of each run.

    Raises:
        PromptError: a clip without a caption, and none given.
        FlowshadeError: an unknown style, or no clip that is long enough.
    """
    unknown = [name for name in styles if name not in STYLES]
    if unknown or not styles:
        raise FlowshadeError(f"unknown style {', '.join(unknown) or '(none)'}; expected some of {', '.join(STYLES)}.")
    samples: list[Sample] = []
    for clip in clips:
        caption = clip.caption or prompt
        if not caption:
            raise PromptError(
                f"{clip.path} has no caption; give one for such clips with --prompt TEXT, or write "
                "metadata_with_captions.csv with columns video and prompt."
            )
        for start in range(0, clip.frames - frames + 1, frames):
            first = int(hashlib.sha256(f"{clip.name}:{start}".encode()).hexdigest()[:8], 16)
            for variant in range(min(variants, len(styles))):
                style = styles[(first + variant) % len(styles)]
                text = style_prompt(caption, STYLES[style])
                samples.append(Sample(clip=clip, start=start, frames=frames, prompt=text))
    for what, held in (("to learn from", False), ("that is held out", True)):
        if not any(sample.clip.held_out == held for sample in samples):
            longest = max((clip.frames for clip in clips if clip.held_out == held), default=0)
            raise FlowshadeError(
                f"no clip {what} has {frames} frames (the longest has {longest}); give longer clips, or fewer --frames."
            )
    return samples


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A sample that was made: both ends of the teacher's path."""

    latents: Float[Tensor, "1 C L h w"]
    """Of a stream: four frames each."""
    lead: Float[Tensor, "1 C 1 h w"]
    """The teacher's latent of the picture before them, which its own decoder wants."""
    noise: Float[Tensor, "1 C L h w"]
    few: dict[int, Float[Tensor, "1 C L h w"]]
    """Of held-out clips: what the teacher makes of the same noise in fewer steps."""


class LessonFolder:
    """Samples on disk.

    Args:
        folder: where.
        window, overlap: frames of the teacher's windows, which say what noise made which latent.
        seed: of the noise.
    """

    def __init__(self, folder: Path, window: int, overlap: int, seed: int) -> None:
        self.folder = folder
        self.window, self.overlap, self.base = window, overlap, seed

    def path(self, sample: Sample) -> Path:
        return self.folder / sample.key[:2] / f"{sample.key}.safetensors"

    def missing(self, samples: Sequence[Sample]) -> list[Sample]:
        return [sample for sample in samples if not self.path(sample).is_file()]

    def write(self, sample: Sample, latents: Tensor, few: dict[int, Tensor]) -> None:
        """Keeps latents [1, C, 1 + L, h, w], the lead first."""
        path = self.path(sample)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"latents": latents} | {f"steps{steps}": value for steps, value in few.items()}
        state = {name: value.to(KEPT).cpu().contiguous() for name, value in state.items()}
        save_state(
            state, path, {"format": FORMAT, "key": sample.key, "clip": sample.clip.name, "prompt": sample.prompt}
        )

    def read(self, sample: Sample) -> Lesson:
        """A sample, float32 on the CPU.

        Raises:
            CheckpointError: it is not there, is damaged or is another one.
        """
        state, metadata = load_state(self.path(sample))
        if metadata.get("format") != FORMAT or metadata.get("key") != sample.key:
            raise CheckpointError(f"{self.path(sample)} is not sample {sample.key}; remove it and run again.")
        latents = state["latents"].float()
        few = {int(name[5:]): value.float()[:, :, 1:] for name, value in state.items() if name.startswith("steps")}
        noise = path_noise(sample.seed(self.base), sample.frames, self.window, self.overlap, latents)
        return Lesson(latents=latents[:, :, 1:], lead=latents[:, :, :1], noise=noise[:, :, 1:], few=few)


def path_noise(seed: int, frames: int, window: int, overlap: int, like: Tensor) -> Float[Tensor, "1 C L h w"]:
    """The noise that each latent of a run began from, the lead's first; of overlaps that of the earlier window."""
    runs = []
    for index, (start, stop) in enumerate(plan_windows(frames + 1, window, overlap)):
        count = (stop - start - 1) // FRAMES_PER_LATENT + 1
        noise = window_noise(seed, index, like.shape[1], like[:, :, :1].expand(-1, -1, count, -1, -1))
        runs.append(noise if index == 0 else noise[:, :, 1 + overlap // FRAMES_PER_LATENT :])
    return torch.cat(runs, 2)


def teach(
    teacher: ForwardTeacher,
    read: Callable[[int, int], dict[str, Tensor]],
    frames: int,
    positive: TextContext,
    negative: TextContext | None,
    *,
    seed: int,
) -> Float[Tensor, "1 C L h w"]:
    """The latents of `ForwardTeacher.windows` one after another, of overlaps those of the earlier window.

    Args:
        teacher: how it is run is its configuration's.
        read: buffers of frames `start` to `stop`.
        frames: 4 n + 1.
        positive: the prompt.
        negative: see `ForwardTeacher.denoise`.
        seed: the noise's.
    """
    again = 1 + teacher.config.overlap // FRAMES_PER_LATENT
    windows = teacher.windows(read, frames, positive, negative, seed=seed)
    return torch.cat([latents[:, :, again if start else 0 :] for start, _, latents in windows], 2)


def make_lesson(
    teacher: ForwardTeacher,
    folder: LessonFolder,
    sample: Sample,
    size: tuple[int, int],
    positive: TextContext,
    negative: TextContext | None,
) -> None:
    """Runs the teacher over a sample and keeps it; held-out ones in few steps too."""

    def made(steps: int | None) -> Tensor:
        config = teacher.config if steps is None else dataclasses.replace(teacher.config, steps=steps)
        return teach(
            ForwardTeacher(teacher.transformer, teacher.vae, config),
            lambda start, stop: sample.led_planes(start, stop, size),
            sample.frames + 1,
            positive,
            negative,
            seed=sample.seed(folder.base),
        )

    few = {steps: made(steps) for steps in FEW_STEPS} if sample.clip.held_out else {}
    folder.write(sample, made(None), few)


def sample_bytes(channels: int, frames: int, size: tuple[int, int], stride: int, held_out: bool) -> int:
    """Bytes of a sample on disk, its header not counted."""
    latents = 1 + frames // FRAMES_PER_LATENT
    count = 1 + len(FEW_STEPS) * held_out
    return count * channels * latents * (size[0] // stride) * (size[1] // stride) * KEPT.itemsize


def check_disk(bytes_needed: int, folder: Path) -> None:
    """Raises: FlowshadeError where that much does not fit on the folder's disk."""
    free = free_space(folder) - HEADROOM
    if bytes_needed > free:
        raise FlowshadeError(
            f"{folder} would take {bytes_needed / 2**30:.1f} GiB more and its disk has {max(free, 0) / 2**30:.1f} GiB "
            "to give; give fewer --variants or --clips, a smaller --size, or a folder on another disk."
        )


class FeatureFolder:
    """The small encoder's view of runs, kept so that no video is decoded while the student learns.

    Args:
        folder: where; one for each encoder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, sample: Sample) -> Path:
        return self.folder / sample.run[:2] / f"{sample.run}.safetensors"

    def missing(self, samples: Sequence[Sample]) -> list[Sample]:
        """A sample of every run that is not there yet; prompts make no difference to buffers."""
        runs = {sample.run: sample for sample in samples}
        return [sample for sample in runs.values() if not self.path(sample).is_file()]

    @torch.no_grad()
    def make(self, encoder: GroupedEncoder, sample: Sample, size: tuple[int, int], device: torch.device) -> None:
        """Encodes a run as a stream does and keeps it, one latent in memory at a time."""
        state: ConvState = {}
        features = []
        for start in range(sample.start, sample.start + sample.frames, FRAMES_PER_LATENT):
            planes = sample.clip.planes(start, start + FRAMES_PER_LATENT, size).to(device)
            features.append(encoder(stacked(planes, encoder.dtype), state))
        path = self.path(sample)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = torch.cat(features, 2).to(KEPT).cpu().contiguous()
        save_state({"features": kept}, path, {"format": FORMAT, "run": sample.run, "clip": sample.clip.name})

    def read(self, sample: Sample) -> Float[Tensor, "1 D L h w"]:
        """A run's features, float32 on the CPU. Raises: CheckpointError as `LessonFolder.read` does."""
        state, metadata = load_state(self.path(sample))
        if metadata.get("format") != FORMAT or metadata.get("run") != sample.run:
            raise CheckpointError(f"{self.path(sample)} is not run {sample.run}; remove it and run again.")
        return state["features"].float()


def stacked(planes: UInt8[Tensor, "T D 3 H W"], dtype: torch.dtype) -> Float[Tensor, "1 T E H W"]:
    """8-bit planes to what the small encoder takes, [-1, 1]: `FlashRenderer.stack` of whole latents."""
    return rearrange(planes.float() * (2 / 255) - 1, "t d c h w -> 1 t (d c) h w").to(dtype)
