"""A whole run at the smallest size, on clips that need no tracer; as a program it is one process of such a run.

    python -m tests.training.small_run FOLDER [UPDATE]

stops before the update of that number, counted over all stages: alone it dies as by `kill -9`; among others the second
process fails there.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from flowshade.codec.encoding import EncodingProfile
from flowshade.gbuffer.look import LOOKS
from flowshade.presets import debug_training
from flowshade.renderer.prompt import CaptionBank
from flowshade.training import pool as pool_module
from flowshade.training.captions import LookBank
from flowshade.training.pool import ClipSpec, PackedClip, _first_draws, pack_clip
from flowshade.training.processes import joined
from flowshade.training.trainer import TrainConfig, Trained, Trainer
from tests.conftest import make_gbuffer

SPEC = ClipSpec(size=(16, 32), frames=16, looks=2, large_share=0.4, large_size=(32, 32), large_looks=1)


def small_config(steps: int = 4, **changes: Any) -> TrainConfig:
    """Every stage for some updates, with refreshed clips of two sizes."""
    config = debug_training()
    stages = tuple(dataclasses.replace(stage, steps=steps, large=0.3) for stage in config.stages)
    small = {"stages": stages, "clips": SPEC, "capacity": 2, "refresh": 2, "log_every": 3, "save_seconds": 0.0}
    return dataclasses.replace(config, **{**small, **changes})


def small_banks() -> tuple[LookBank, CaptionBank]:
    """Two looks of two captions each, of random tokens."""
    tokens = torch.randn(14, 384, generator=torch.Generator().manual_seed(0)).half()
    captions = CaptionBank(texts=("a", "b", "c", "d"), tokens=tokens, offsets=torch.tensor([0, 3, 5, 10, 14]))
    looks = LookBank(looks=tuple(LOOKS.values())[:2], captions=((0, 1), (2, 3)), kinds=(None, None))
    return looks, captions


def small_clip(
    kind: str, seed: int, bank: LookBank, spec: ClipSpec, profile: EncodingProfile, device: str
) -> PackedClip:
    """In the place of `trace_clip`: noise, the same for the same seed."""
    large = _first_draws(seed, spec)[2]
    size, looks = (spec.large_size, spec.large_looks) if large else (spec.size, spec.looks)
    generator = torch.Generator().manual_seed(seed)
    rgb = torch.rand(looks, spec.frames, 3, *size, generator=generator)
    sun = torch.nn.functional.normalize(torch.rand(looks, 3, generator=generator), dim=1)
    return pack_clip(make_gbuffer(spec.frames, *size, seed=seed), rgb, torch.arange(looks), sun, profile)


def before_update(at: int, what: Callable[[], None]) -> Callable[..., None]:
    """`Trained.update` that does something else at the update of a number, counted over all stages."""
    count, update = 0, Trained.update

    def replaced(self: Trained, *given: Any, **named: Any) -> None:
        nonlocal count
        if count == at:
            what()
        count += 1
        update(self, *given, **named)

    return replaced


def several_config() -> TrainConfig:
    """What several processes run: the codec's stage last, whose statistics they share."""
    config = small_config(steps=3, refresh=0)
    codec, regression, _, rollout = config.stages
    return dataclasses.replace(config, stages=(regression, rollout, codec))


class Fails:
    """`Trainer._learn` that fails in the second process at an update."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.learn = Trainer._learn

    def __call__(self, trainer: Trainer, *given: Any) -> dict[str, torch.Tensor]:
        self.left -= 1
        if self.left < 0 and trainer.processes.rank == 1:
            raise RuntimeError("no more luck")
        return self.learn(trainer, *given)


def run(folder: Path, at: int | None) -> None:
    with joined("cpu") as processes:
        config = small_config() if processes.count == 1 else several_config()
        trainer = Trainer(config, folder, *small_banks(), processes=processes)
        if at is not None and processes.count == 1:
            Trained.update = before_update(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        elif at is not None:
            fails = Fails(at)
            Trainer._learn = lambda self, *given: fails(self, *given)
        trainer.run()
        save_file(trainer.models.state_dict(), folder / f"rank-{processes.rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    pool_module.trace_clip = small_clip
    run(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
