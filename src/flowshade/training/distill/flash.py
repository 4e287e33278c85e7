"""A few-step student with a memory from the many-step teacher: Flash's architecture, the teacher's weights, its ways.

Both stages regress to the ends of the teacher's paths from the same noise (see `teaching`), so guidance, many steps and
the view of a whole clip go into a network that has none of them:

1. `FlowTask`, "flow": rectified flow on the teacher's pairs (Liu et al. 2022, arXiv 2209.03003, eq. 1: the velocity
   from data to noise, at any point of the straight line between the two ends of one path). Windows have the teacher's
   own past, spoilt a little. Straight paths need few steps; guidance is distilled along (Meng et al. 2023, arXiv
   2210.03142).
2. `RolloutTask`, "rollout": streams as at inference, on the student's own past, at 4, 2 or 1 steps (the roll-out of
   Self Forcing, Huang et al. 2025, arXiv 2506.08009), each window compared with where the teacher's path from the same
   noise ends. What the student gets wrong is in its past and has to be put right.

A critic or a score of the student's own samples (distribution matching, Yin et al. 2024, arXiv 2311.18828) is not used:
nothing here has measured that it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flowshade.codec.tiny import TinyDecoder
from flowshade.color import from_bytes
from flowshade.errors import CheckpointError
from flowshade.renderer.memory import History, HistoryMemory
from flowshade.renderer.schedule import FlowMatching
from flowshade.renderer.stream import rollout_window
from flowshade.renderer.transformer import TextContext, WorldTransformer
from flowshade.training.distill.codec import VAETeacher
from flowshade.training.distill.loop import Draw
from flowshade.training.distill.scores import picture_scores, write_rows
from flowshade.training.distill.teaching import FEW_STEPS, FeatureFolder, Lesson, LessonFolder, Sample
from flowshade.training.distill.texts import TextFolder

FULL_NOISE = 0.2
"""How often the flow stage is asked at full noise, where streams start and random draws all but never reach."""
SPOILT = 0.5
"""Largest share of noise in the past that the flow stage sees."""
ROLLOUT_STEPS = (1, 2, 4, 4)
"""Steps; one of these is drawn for each update."""


def begin_from_teacher(student: WorldTransformer, teacher: WorldTransformer) -> None:
    """Copies the teacher's weights; the patches of the past begin as its patches over averages of the past.

    A patch of the past that covers f times as many latent pixels as the teacher's gets the teacher's kernel repeated
    and divided by f, so its token is that of the averaged past (FramePack, Zhang and Agrawala 2025, arXiv 2504.12626,
    begins its projections from the pretrained one too).

    Raises:
        CheckpointError: networks of different sizes.
    """
    own, given = student.state_dict(), teacher.state_dict()
    patches = [f"patch_{band}" for band in ("short", "mid", "long")]
    new = {name for name in own if name.split(".")[0] in patches or name.endswith(".history_key_scale")}
    wrong = [name for name in own.keys() - new if name not in given or given[name].shape != own[name].shape]
    if wrong or student.config.history_width is not None or student.config.memory == "none":
        raise CheckpointError(
            f"a student of {student.config.layers} layers, {student.config.width} wide, cannot begin from a teacher of "
            f"{teacher.config.layers} layers, {teacher.config.width} wide ({len(wrong)} tensors differ, such as "
            f"{sorted(wrong)[:3]}); give a student of the teacher's size with --student."
        )
    with torch.no_grad():
        for name in own.keys() - new:
            own[name].copy_(given[name])
        kernel = given["patch_embedding.weight"]
        for name in patches:
            weight = own[f"{name}.weight"]
            weight.copy_(widened(kernel[:, : weight.shape[1]], (weight.shape[2], weight.shape[3], weight.shape[4])))
            own[f"{name}.bias"].copy_(given["patch_embedding.bias"])


def widened(kernel: Float[Tensor, "D C t h w"], size: tuple[int, int, int]) -> Float[Tensor, "D C T H W"]:
    """A kernel over averages: what it gives for an averaged volume, this gives for the volume itself."""
    factors = [large // small for large, small in zip(size, kernel.shape[2:])]
    for axis, factor in enumerate(factors):
        kernel = kernel.repeat_interleave(factor, dim=2 + axis)
    return kernel / math.prod(factors)


class StudentWindow(nn.Module):
    """One window through the student: all that training and scoring call, so that it may be spread over processes.

    Args:
        transformer: the student; its blocks forget what is inside them and compute it again for gradients.
        schedule: noise levels.
    """

    def __init__(self, transformer: WorldTransformer, schedule: FlowMatching) -> None:
        super().__init__()
        self.transformer = transformer
        self.schedule = schedule
        self.config = transformer.config
        for block in transformer.blocks:
            for name in ("forward", "joint", "remember"):
                setattr(block, name, _recomputed(getattr(block, name)))

    def forward(
        self,
        x: Float[Tensor, "B C L h w"],
        features: Float[Tensor, "B D L h w"],
        text: TextContext,
        history: History | None,
        *,
        sigmas: Float[Tensor, "B"] | None = None,
        steps: int = 1,
    ) -> Float[Tensor, "B C L h w"]:
        """The velocity at noise levels `sigmas`, or without them where `steps` steps from noise lead."""
        past = self.transformer.encode_history(history)
        if sigmas is not None:
            return self.transformer(x, self.schedule.timesteps(sigmas), text, features, None, past)
        return rollout_window(self.transformer, self.schedule, x, features, text, None, past, steps=steps)

    def new_memory(self, latents: Tensor, features: Tensor) -> HistoryMemory:
        """The past at a stream's start, as `FlashRenderer` has it: zeros that are looked at."""
        memory = HistoryMemory(self.config.history_frames, keep_first=self.config.keep_first)
        memory.start_with_zeros(latents, features if self.config.history_buffers else None)
        return memory

    def remember(self, memory: HistoryMemory, latents: Tensor, features: Tensor) -> None:
        memory.append(latents, features if self.config.history_buffers else None)


def _recomputed(function: Any) -> Any:
    """Keeps inputs instead of what is computed from them, where gradients are wanted (Chen et al. 2016)."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    return run


@dataclass(frozen=True, kw_only=True)
class Study:
    """A sample as the student sees it: the teacher's path, the buffers' features and the prompt."""

    lesson: Lesson
    features: Float[Tensor, "1 D L h w"]
    text: TextContext

    def to(self, device: torch.device) -> Study:
        lesson = self.lesson
        moved = Lesson(
            latents=lesson.latents.to(device),
            lead=lesson.lead.to(device),
            noise=lesson.noise.to(device),
            few={steps: value.to(device) for steps, value in lesson.few.items()},
        )
        return Study(
            lesson=moved, features=self.features.to(device), text=TextContext(tokens=self.text.tokens.to(device))
        )


@dataclass(frozen=True, kw_only=True)
class Studies:
    """Where samples are read from."""

    lessons: LessonFolder
    features: FeatureFolder
    texts: TextFolder

    def read(self, sample: Sample) -> Study:
        return Study(
            lesson=self.lessons.read(sample), features=self.features.read(sample), text=self.texts.read(sample.prompt)
        )


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Scores a student on held-out samples against the teacher.

    Args:
        samples: held out.
        studies: where they are read from.
        decoder: the student's.
        teacher: the teacher's own decoder.
        size: height and width of pictures.
        window: latent frames of a window.
        device: where.
    """

    samples: Sequence[Sample]
    studies: Studies
    decoder: TinyDecoder
    teacher: VAETeacher
    size: tuple[int, int]
    window: int
    device: torch.device

    @torch.no_grad()
    def judge(self, student: StudentWindow, sheet: Path | None) -> dict[str, float]:
        """Latent error over the teacher's spread, PSNR in dB and LPIPS at each of `FEW_STEPS`, student and teacher.

        The student streams on its own past, from the teacher's noise, through its small decoder; the teacher's pictures
        are those of its own decoder at all its steps. "teacher" scores are the teacher's own at so few steps.
        """
        sums: dict[str, float] = {}
        rows: list[Tensor] = []
        for sample in self.samples:
            study = self.studies.read(sample).to(self.device)
            truth = self._teachers(study, study.lesson.latents)
            for steps in FEW_STEPS:
                latents = stream(student, study, self.window, steps)
                pictures = self.decoder(latents)[0].float()
                found = self._scores("student", study, latents, pictures, truth)
                if steps in study.lesson.few:
                    few = study.lesson.few[steps]
                    found |= self._scores("teacher", study, few, self._teachers(study, few), truth)
                for name, value in found.items():
                    sums[f"{steps} {name}"] = sums.get(f"{steps} {name}", 0.0) + value / len(self.samples)
                if sheet is not None and steps == FEW_STEPS[0]:
                    rows.append(self._row(sample, truth, pictures))
        if sheet is not None:
            write_rows(sheet, rows)
        return sums

    def _teachers(self, study: Study, latents: Tensor) -> Tensor:
        return self.teacher.decode(torch.cat([study.lesson.lead, latents], 2))[0]

    def _scores(self, who: str, study: Study, latents: Tensor, pictures: Tensor, truth: Tensor) -> dict[str, float]:
        target = study.lesson.latents
        error = float((latents.float() - target).square().mean().sqrt() / target.std())
        return {f"{who} {n}": v for n, v in ({"latent error": error} | picture_scores(pictures, truth)).items()}

    def _row(self, sample: Sample, truth: Tensor, pictures: Tensor) -> Tensor:
        """The last frame: teacher, student, buffers."""
        last = sample.start + sample.frames - 1
        buffers = from_bytes(sample.clip.planes(last, last + 1, self.size)[0])  # [D, 3, H, W]
        return torch.cat([truth[-1:].cpu(), pictures[-1:].clamp(0, 1).cpu(), buffers])


def stream(student: StudentWindow, study: Study, window: int, steps: int) -> Float[Tensor, "1 C L h w"]:
    """A sample's latents as the student streams them, on its own past, from the teacher's noise."""
    noise, features = study.lesson.noise, study.features
    memory = student.new_memory(noise, features)
    made: list[Tensor] = []
    for part, view in zip(noise.split(window, 2), features.split(window, 2)):
        made.append(student(part, view, study.text, memory.view(), steps=steps))
        student.remember(memory, made[-1], view)
    return torch.cat(made, 2)


class _StudentTask:
    """What both stages share: samples read in any order, scores."""

    name = ""

    def __init__(self, student: StudentWindow, samples: Sequence[Sample], studies: Studies, judge: Judge) -> None:
        self.network = student
        self.samples, self.studies, self._judge = samples, studies, judge

    def load(self, draw: Draw) -> Study:
        return self.studies.read(self.samples[int(draw.rng().integers(len(self.samples)))])

    def evaluate(self, sheet: Path | None) -> dict[str, float]:
        return self._judge.judge(self.network, sheet)


class FlowTask(_StudentTask):
    """Windows with the teacher's past: the velocity of the straight line between the ends of the teacher's path."""

    name = "flow"

    def losses(self, sample: Study, draw: Draw) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        student, window = self.network, self._judge.window
        study, rng, generator = sample.to(self._judge.device), draw.rng(), draw.generator()
        latents, noise, features = study.lesson.latents, study.lesson.noise, study.features
        start = window * int(rng.integers(latents.shape[2] // window))
        part = slice(start, start + window)
        level = SPOILT * float(rng.random()) ** 2
        stray = torch.randn(latents[:, :, :start].shape, generator=generator).to(latents.device)
        memory = student.new_memory(latents, features)
        student.remember(memory, torch.lerp(latents[:, :, :start], stray, level), features[:, :, :start])
        sigmas = student.schedule.sample_sigmas(1, generator=generator).to(latents.device)
        if rng.random() < FULL_NOISE:
            sigmas = torch.ones_like(sigmas)
        noisy = student.schedule.add_noise(latents[:, :, part], noise[:, :, part], sigmas)
        velocity = student(noisy, features[:, :, part], study.text, memory.view(), sigmas=sigmas)
        target = student.schedule.target(latents[:, :, part], noise[:, :, part])
        yield F.mse_loss(velocity.float(), target), {}


class RolloutTask(_StudentTask):
    """Streams on the student's own past; squared error to the ends of the teacher's paths.

    Gradients do not cross windows.
    """

    name = "rollout"

    def losses(self, sample: Study, draw: Draw) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        student, window = self.network, self._judge.window
        study = sample.to(self._judge.device)
        steps = int(draw.shared.choice(ROLLOUT_STEPS))
        memory = student.new_memory(study.lesson.noise, study.features)
        runs = [v.split(window, 2) for v in (study.lesson.noise, study.features, study.lesson.latents)]
        for noise, features, target in zip(*runs):
            latents = student(noise, features, study.text, memory.view(), steps=steps)
            yield F.mse_loss(latents.float(), target) / len(runs[0]), {}
            student.remember(memory, latents.detach(), features)
