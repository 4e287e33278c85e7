"""The training loop: one for all stages."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from flowshade.errors import FlowshadeError
from flowshade.evaluation.perceptual import Trunk
from flowshade.renderer.prompt import CaptionBank
from flowshade.training.captions import LookBank
from flowshade.training.checkpoint import Checkpoint, Progress, load_checkpoint, restore_optimiser, save_checkpoint
from flowshade.training.pool import ClipPool, ClipSpec, Producers
from flowshade.training.stages import Data, Stage, StageConfig, Trainable
from flowshade.training.start import begin_from, load_start


class TrainableConfig(Protocol):
    """Describes what is trained; two of the same values compare equal."""

    def build(self) -> nn.Module:
        """Models with fresh weights, which are `Trainable` too."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training run."""

    name: str
    models: TrainableConfig
    """What is trained."""
    stages: tuple[StageConfig, ...]
    clips: ClipSpec
    capacity: int
    """Clips held on the training device."""
    first_clips: int
    """Training begins when the pool holds this many."""
    first_seconds: float = 0.0
    """Workers on the GPU that trains have it for themselves for so long at first."""
    interval: float = 0.0
    """Workers on the GPU that trains deliver a clip every so many seconds from then on."""
    refresh: int = 0
    """Without workers: a new clip is traced every so many updates; 0 = never."""
    workers: int = 0
    """Processes that trace clips; 0 = the trainer does."""
    seed: int = 0
    device: str = "cpu"
    autocast: bool = False
    """bfloat16 matrix products and convolutions."""
    compile: bool = False
    """torch.compile for the transformer's blocks and the decoder's pictures; costs about a minute at first."""
    tune: bool = True
    """cuDNN tries its algorithms once for every shape; costs more than it saves where picture sizes vary."""
    warmup: int = 100
    """Updates over which a stage's learning rate rises."""
    log_every: int = 50
    save_seconds: float = 120.0


class Trainer:
    """Runs the stages of a configuration one after another, in a folder that it can be stopped and resumed from.

    The folder holds `log.jsonl` (a line every `log_every` updates), `checkpoint.safetensors` (the whole state),
    and after each stage `NN-stage.safetensors` (the averaged weights).
    """

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        looks: LookBank,
        captions: CaptionBank,
        start: Path | None = None,
        trunk: Trunk | None = None,
    ) -> None:
        """Makes the models; continues `out` if it holds a checkpoint, else begins from `start`.

        Args:
            config: the run.
            out: its folder.
            looks: what producers may ask for.
            captions: of the looks.
            start: a file that a new run begins from (see `load_start`).
            trunk: for stages with LPIPS.

        Raises:
            FlowshadeError: a stage asks for LPIPS and there is no trunk, or the start does not fit.
        """
        if trunk is None and any(stage.lpips for stage in config.stages):
            raise FlowshadeError("a stage trains with LPIPS and no trunk was given; expected Trunk.load('vgg').")
        torch.manual_seed(config.seed)
        torch.backends.cudnn.benchmark = config.tune
        self.config = config
        self.out = out
        self.device = torch.device(config.device)
        self.models = config.models.build().to(self.device)
        self.progress = Progress()
        self._resumed: Checkpoint | None = None
        if self._checkpoint_path.exists():
            self._resumed = load_checkpoint(self._checkpoint_path)
            self.models.load_state_dict(self._resumed.model, strict=True)
            self.progress = self._resumed.progress
        elif start is not None:
            lacking = self.trainable.may_lack(config.stages)
            fresh = begin_from(self.models, load_start(start), what=str(start), lacking=lacking)
            print(f"begins from {start}" + (f"; new: {len(fresh)} tensors" if fresh else ""), flush=True)
        out.mkdir(parents=True, exist_ok=True)
        self.average = {name: value.detach().clone() for name, value in self.models.state_dict().items()}
        if self._resumed is not None:
            self.average = {name: value.to(self.device) for name, value in self._resumed.average.items()}
        pool = ClipPool(
            capacity=config.capacity, spec=config.clips, profile=self.trainable.profile, bank=looks, device=self.device
        )
        self.producers = Producers(
            pool=pool,
            workers=config.workers,
            first_seed=config.seed * 10_000,
            trace_device=trace_device(self.device),
            interval=config.interval if self._shares_gpu else 0.0,
        )
        rng = np.random.default_rng([config.seed, self.progress.stage, self.progress.step])
        trunk = None if trunk is None else trunk.to(self.device)
        self.data = Data(pool=pool, captions=captions.to(self.device), rng=rng, trunk=trunk)
        if config.compile:
            self.trainable.compile()

    @property
    def trainable(self) -> Trainable:
        """The models, as what they can do."""
        return cast(Trainable, self.models)

    @property
    def _shares_gpu(self) -> bool:
        """Whether clips are traced on the GPU that trains."""
        return self.device.type == "cuda" and torch.cuda.device_count() == 1

    @property
    def _checkpoint_path(self) -> Path:
        return self.out / "checkpoint.safetensors"

    def run(self) -> Path:
        """Trains whatever is left; returns the last stage's weights."""
        self.producers.start()
        try:
            self._fill()
            for index in range(self.progress.stage, len(self.config.stages)):
                self._run_stage(index)
        finally:
            self.producers.stop()
        return self._weights_path(len(self.config.stages) - 1)

    def _fill(self) -> None:
        started = time.perf_counter()
        self.producers.fill(self.config.first_clips, self.config.first_seconds if self._shares_gpu else 0.0)
        pool, elapsed = self.producers.pool, time.perf_counter() - started
        frames = pool.received * self.config.clips.frames
        pairs = frames * self.config.clips.looks / elapsed
        self._log({"event": "pool", "clips": pool.received, "seconds": elapsed, "pairs_per_second": pairs})

    def _run_stage(self, index: int) -> None:
        config = self.config.stages[index]
        if self.progress.stage != index:
            self.progress = Progress(stage=index)
        stage = self.trainable.stage(config, self.data)
        parameters = [p for module in stage.modules() for p in module.parameters()]
        self.models.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)
        fused = self.device.type == "cuda"
        optimiser = torch.optim.AdamW(
            parameters, config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=fused
        )
        if self._resumed is not None and self._resumed.optimiser:
            restore_optimiser(optimiser, self._resumed.optimiser)
        self._resumed = None
        trained = _names_of(self.models, parameters)
        if self.progress.step == 0:
            self._reset_average()
        averages = [self.average[name] for name in trained]
        weights = [parameter.detach() for name, parameter in self.models.named_parameters() if name in trained]
        started = last_save = last_log = time.perf_counter()
        offset = self.progress.seconds
        sums: dict[str, Tensor] = {}
        logged_step = self.progress.step
        while (done := self._share_done(config)) < 1:
            # Learning rate: linear warm-up, then a cosine to 2% over whichever of updates and time is further on.
            warm = min(1.0, (self.progress.step + 1) / self.config.warmup)
            rate = config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            for group in optimiser.param_groups:
                group["lr"] = rate

            # Loss and gradients.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.autocast):
                loss, values = stage.loss()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()

            # Averaged weights.
            decay = min(config.ema, (self.progress.step + 1) / (self.progress.step + 10))
            get_ema_multi_avg_fn(decay)(averages, weights, 0)

            # What is logged stays on the device until it is printed.
            for name, value in values.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value
            self.progress.step += 1
            self.progress.seconds = offset + time.perf_counter() - started
            if self.progress.step % self.config.log_every == 0:
                now, count = time.perf_counter(), self.progress.step - logged_step
                means = {name: float(value) / count for name, value in sums.items()}
                self._report(config, means, rate, count / (now - last_log))
                sums, logged_step, last_log = {}, self.progress.step, now
                if not all(math.isfinite(value) for value in means.values()):
                    raise RuntimeError(f"stage {config.name} diverged at update {self.progress.step}: {means}")
                self.producers.check()
            if self.config.refresh and self.progress.step % self.config.refresh == 0 and self.config.workers == 0:
                self.producers.fill(self.producers.pool.received + 1)
            if time.perf_counter() - last_save > self.config.save_seconds:
                save_checkpoint(self._checkpoint_path, self.models, self.average, optimiser, self.progress)
                last_save = time.perf_counter()
        self._finish_stage(index, stage)

    def _weights_path(self, index: int) -> Path:
        return self.out / f"{index:02d}-{self.config.stages[index].name}.safetensors"

    def _share_done(self, config: StageConfig) -> float:
        """How much of a stage is over, [0, 1]."""
        by_time = self.progress.seconds / config.seconds if config.seconds else 0.0
        return max(self.progress.step / config.steps, by_time)

    def _reset_average(self) -> None:
        self.average = {name: value.detach().clone() for name, value in self.models.state_dict().items()}

    def _finish_stage(self, index: int, stage: Stage) -> None:
        """Goes on with the averaged weights and writes them down."""
        for name, buffer in self.models.named_buffers():
            if name in self.average:
                self.average[name] = buffer.detach().clone()
        self.models.load_state_dict(self.average, strict=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.autocast):
            stage.finish()
            self._reset_average()
            self.trainable.write_samples(self.out / f"{index:02d}-{stage.config.name}.png", self.data)
        self.progress = Progress(stage=index + 1)
        self.trainable.save(self._weights_path(index), dtype=torch.float32)
        save_checkpoint(self._checkpoint_path, self.models, self.average, None, self.progress)

    def _report(self, config: StageConfig, means: dict[str, float], rate: float, speed: float) -> None:
        done = self._share_done(config)
        left = self.progress.seconds / done * (1 - done)
        values = " ".join(f"{name} {value:.4g}" for name, value in means.items())
        print(
            f"{config.name} {self.progress.step} ({100 * done:.0f}%) {values}  lr {rate:.1e}  {speed:.2f} updates/s  "
            f"{left / 60:.1f} min left  pool {self.producers.pool.received}",
            flush=True,
        )
        self._log(
            {"event": "train", "stage": config.name, "step": self.progress.step, "seconds": self.progress.seconds}
            | {"updates_per_second": speed, "rate": rate, "clips": self.producers.pool.received}
            | means
        )

    def _log(self, line: dict) -> None:
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def trace_device(training: torch.device) -> str:
    """Where clips are traced: a GPU of its own where there is a second one, since processes take turns on a GPU."""
    if training.type == "cuda" and torch.cuda.device_count() > 1:
        return f"cuda:{torch.cuda.device_count() - 1}"
    return str(training)


def _names_of(models: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    wanted = {id(parameter) for parameter in parameters}
    return [name for name, parameter in models.named_parameters() if id(parameter) in wanted]
