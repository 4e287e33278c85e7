"""What a distillation will take: disk, and GPU hours by stage, from step times that were measured or are computed.

Measured on one NVIDIA H200 in bfloat16 (docs/benchmarks.md, "Flash's architecture"): the student's network and encoder
for a window of 16 frames at 448x832. Everything else is computed: operations counted by running the real networks
without data (`flowshade.budget`), over the rates of a card. Each line says which of the two it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flowshade import budget
from flowshade.codec.tiny import GroupedEncoder, TinyDecoder
from flowshade.codec.wan_vae import WanVAE
from flowshade.renderer.flash import FlashConfig
from flowshade.renderer.upstream import BUFFERS
from flowshade.training.distill.codec import Crops
from flowshade.training.distill.flash import ROLLOUT_STEPS
from flowshade.training.distill.loop import LoopConfig

LEARNING = 3.0
"""Forward and backward pass over the forward pass: gradients of inputs and of weights cost one each."""
CHECKPOINTED = 4.0
"""The same where the forward pass is computed again for the backward one."""
MEASURED_CARD, MEASURED_SIZE, MEASURED_FRAMES = "h200", (448, 832), 16
MEASURED_STEP = 0.4887 / 4
"""Seconds of one evaluation of the student's network over a window, its past included."""
MEASURED_ENCODE = 0.0105
"""Seconds of the small encoder over a window."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One part of the work."""

    what: str
    seconds: float
    """On one GPU."""
    basis: str
    """"measured", "computed", or how the two were joined."""

    def text(self) -> str:
        return f"  {self.what:<58} {self.seconds / 3600:>9.2f} GPU hours  ({self.basis})"


def student_step(size: tuple[int, int], window: int, rates: budget.Rates) -> tuple[float, str]:
    """Seconds of one evaluation of the student's network, and what that is known from.

    On the card that was measured the computed time is scaled by what was measured over what is computed there.
    """

    def computed(size: tuple[int, int], window: int) -> float:
        plan = next(budget.flash_plans(size, window, rates.dtype, 1))
        return next(stage for stage in plan.stages if stage.name == "denoise").seconds(rates)

    own = computed(size, window)
    if rates.name != MEASURED_CARD:
        return own, "computed"
    if (size, window) == (MEASURED_SIZE, MEASURED_FRAMES):
        return MEASURED_STEP, "from the measured step"
    return own * MEASURED_STEP / computed(
        MEASURED_SIZE, MEASURED_FRAMES
    ), "from the measured step, scaled by operations"


def teacher_sample(size: tuple[int, int], frames: int, steps: int, cfg_scale: float, rates: budget.Rates) -> float:
    """Seconds of the teacher for one sample, without pictures: computed."""
    plan = next(budget.forward_plans(size, frames + 1, rates.dtype, steps))
    seconds = {stage.name: stage.seconds(rates) for stage in plan.stages}
    return seconds["encode buffers"] + seconds["denoise"] * (0.5 if cfg_scale == 1 else 1.0)


def flash_lines(
    *,
    samples: int,
    held_out: int,
    runs: int,
    frames: int,
    window: int,
    size: tuple[int, int],
    steps: int,
    few_steps: int,
    cfg_scale: float,
    loops: dict[str, LoopConfig],
    rates: budget.Rates,
) -> list[Line]:
    """What `flash-distill` takes.

    Args:
        samples: of the teacher that are still to be made, held-out ones included.
        held_out: of them, those that are made in few steps too.
        runs: whose features are still to be made.
        frames: of a sample.
        window: frames of a window.
        size: height and width.
        steps: the teacher's.
        few_steps: its steps in few-step samples, together.
        cfg_scale: the teacher's guidance.
        loops: stages that are still to be run.
        rates: the card's.
    """
    once = teacher_sample(size, frames, steps, cfg_scale, rates)
    few = teacher_sample(size, frames, few_steps, cfg_scale, rates)
    step, basis = student_step(size, window, rates)
    windows = frames // window
    lines = [
        Line(
            what=f"teacher: {samples} samples of {frames} frames, {steps} steps",
            seconds=samples * once + held_out * few,
            basis="computed",
        ),
        Line(
            what=f"features of {runs} runs",
            seconds=runs * frames / MEASURED_FRAMES * MEASURED_ENCODE * size[0] * size[1] / (448 * 832),
            basis="from the measured encoder, reading of videos not counted",
        ),
    ]
    evaluations = {"flow": 1.0, "rollout": windows * sum(ROLLOUT_STEPS) / len(ROLLOUT_STEPS)}
    for name, loop in loops.items():
        seconds = loop.updates * loop.batch * evaluations[name] * step * CHECKPOINTED
        what = f"{name}: {loop.updates} updates of {loop.batch}"
        lines.append(Line(what=what, seconds=seconds, basis=f"{basis}, times {CHECKPOINTED:g} for a training step"))
    return lines


def codec_lines(crops: Crops, loops: dict[str, LoopConfig], rates: budget.Rates) -> list[Line]:
    """What `codec-distill` takes: computed."""
    height, width = crops.crop
    with torch.device("meta"):
        vae = WanVAE().to(rates.dtype)
        encoder, decoder = GroupedEncoder().to(rates.dtype), TinyDecoder().to(rates.dtype)
        video = torch.empty(1, 3, crops.frames + 1, height, width, dtype=rates.dtype)
        latents = torch.empty(1, 16, crops.latents + 1, height // 8, width // 8, dtype=rates.dtype)
        planes = torch.empty(1, crops.frames, 3 * len(BUFFERS), height, width, dtype=rates.dtype)

    def seconds(cost: budget.Cost) -> float:
        return cost.linear / rates.linear + cost.conv / rates.conv + cost.attention / rates.attention

    encode, decode = (seconds(budget.count(f)) for f in (lambda: vae.encode(video), lambda: vae.decode(latents)))
    small_encode = seconds(budget.count(lambda: encoder(planes)))
    small_decode = seconds(budget.count(lambda: decoder(latents[:, :, 1:])))
    each = {
        "encoder": len(BUFFERS) * encode + LEARNING * small_encode,
        "decoder": encode + decode + LEARNING * small_decode,
    }
    return [
        Line(
            what=f"{name}: {loop.updates} updates of {loop.batch} crops of {crops.frames} frames, {height}x{width}",
            seconds=loop.updates * loop.batch * each[name],
            basis="computed",
        )
        for name, loop in loops.items()
    ]


def memory_of_student(config: FlashConfig) -> float:
    """Bytes that weights, gradients, Adam's moments and averages of the student take together, over all processes."""
    from flowshade.renderer.transformer import WorldTransformer

    with torch.device("meta"):
        values = sum(value.numel() for value in WorldTransformer(config.transformer).parameters())
    return 5.0 * 4 * values


def table(lines: list[Line], gpus: int, rates: budget.Rates) -> str:
    """The lines and their sum."""
    total = sum(line.seconds for line in lines) / 3600
    head = f"on {rates.name}, {str(rates.dtype).removeprefix('torch.')}; reading, writing and scores not counted:"
    foot = f"  {'together':<58} {total:>9.2f} GPU hours, {total / gpus:.2f} h on {gpus} GPU{'s' * (gpus != 1)}"
    return "\n".join([head, *(line.text() for line in lines), foot])
