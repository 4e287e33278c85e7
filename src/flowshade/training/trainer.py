"""The training loop: one for all stages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from flowshade.errors import CheckpointError, FlowshadeError
from flowshade.evaluation.perceptual import Trunk
from flowshade.files import plain
from flowshade.nn.graphs import Capture, CudaCapture, Graphs
from flowshade.renderer.prompt import CaptionBank
from flowshade.training import checkpoint
from flowshade.training.captions import LookBank
from flowshade.training.checkpoint import Checkpoint, ProcessState, Progress, load_checkpoint, save_checkpoint
from flowshade.training.pool import ClipPool, ClipSpec, Producers
from flowshade.training.processes import Processes
from flowshade.training.settings import differing
from flowshade.training.stages import Data, Outcome, Stage, StageConfig, Trainable
from flowshade.training.start import begin_from, load_start


class TrainableConfig(Protocol):
    """Describes what is trained; two of the same values compare equal."""

    format: ClassVar[str]
    """Of the files of weights that come out."""

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
    capture: bool = False
    """On a GPU, gradients come from CUDA graphs once shapes are known: for stages that draw few different ones."""
    compile: bool = False
    """torch.compile for the transformer's blocks and the decoder's pictures; costs about a minute at first."""
    tune: bool = True
    """cuDNN tries its algorithms once for every shape; costs more than it saves where picture sizes vary."""
    warmup: int = 100
    """Updates over which a stage's learning rate rises."""
    log_every: int = 50
    save_seconds: float = 120.0

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise FlowshadeError(
                f"a run of the stages {', '.join(names) or '(none)'} was asked for; expected one or more, each once. "
                "For a stage once more begin another run from this one's checkpoint."
            )


CAPTURED = 64
"""Graphs that are kept: sizes, windows, steps, and how much of a past there is."""

FREE = ("save_seconds", "log_every", "workers", "interval", "first_seconds", "capture", "compile", "tune")
"""What may be different when a run goes on: how fast it goes and what it writes, not what it computes."""


def settings_of(config: TrainConfig, looks: LookBank, captions: CaptionBank, processes: int) -> dict[str, Any]:
    """What of a run must stay as it is, as JSON knows it; stages by name."""
    values = {name: value for name, value in dataclasses.asdict(config).items() if name not in FREE}
    texts = json.dumps([plain(dataclasses.asdict(looks)), captions.texts])
    settings = values | {
        "stages": {stage["name"]: stage for stage in values["stages"]},
        "order": " ".join(stage.name for stage in config.stages),
        "device": torch.device(config.device).type,
        "captions": hashlib.sha256(texts.encode()).hexdigest()[:12],
        "processes": processes,
    }
    return json.loads(json.dumps(plain(settings)))


class Trained:
    """The parameters that a stage trains, with their gradients, their optimiser and their averages.

    Args:
        models: all of them; what the stage does not train gets no gradients.
        modules: those that it trains.
        average: averaged weights by name, changed in place.
        learning_rate: at first.
        processes: who share the gradients.
    """

    def __init__(
        self,
        models: nn.Module,
        modules: Sequence[nn.Module],
        average: Mapping[str, Tensor],
        learning_rate: float,
        processes: Processes,
    ) -> None:
        names = names_of(models, modules)
        self.parameters = {name: value for name, value in models.named_parameters() if name in names}
        models.requires_grad_(False)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
            parameter.grad = torch.zeros_like(parameter)
        fused = processes.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(), learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=fused
        )
        self._processes = processes
        self._averages = [average[name] for name in self.parameters]
        self._weights = [parameter.detach() for parameter in self.parameters.values()]

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss, always in the same tensors; what it does not depend on gets zeros."""
        self.optimiser.zero_grad(set_to_none=False)
        loss.backward()

    def update(self, rate: float, decay: float) -> None:
        """One step with the gradients' mean over processes, and the averages'."""
        parameters = list(self.parameters.values())
        self._processes.average([parameter.grad for parameter in parameters if parameter.grad is not None])
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        get_ema_multi_avg_fn(decay)(self._averages, self._weights, 0)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The optimiser's, by name."""
        states = self.optimiser.state_dict()["state"]
        return {name: states[index] for index, name in enumerate(self.parameters) if index in states}

    def restore(self, state: Mapping[str, dict[str, Tensor]]) -> None:
        """Takes what `state` gave."""
        states = {index: state[name] for index, name in enumerate(self.parameters) if name in state}
        self.optimiser.load_state_dict({"state": states, "param_groups": self.optimiser.state_dict()["param_groups"]})


def names_of(models: nn.Module, modules: Sequence[nn.Module]) -> set[str]:
    """The names that the parameters of some modules have in all of them."""
    wanted = {id(parameter) for module in modules for parameter in module.parameters()}
    return {name for name, parameter in models.named_parameters() if id(parameter) in wanted}


class Trainer:
    """Runs the stages of a configuration one after another, in a folder that it can be stopped and resumed from.

    The folder holds `log.jsonl` (a line every `log_every` updates), `checkpoint.safetensors` (the whole state),
    and after each stage `NN-stage.safetensors` (the averaged weights).

    A run that was stopped in any way goes on from its checkpoint and computes what it would have computed: to the last
    bit on a CPU without workers, where no stage has a time limit. With several processes each draws batches from
    clips of its own, gradients are averaged, and the first one writes.
    """

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        looks: LookBank,
        captions: CaptionBank,
        start: Path | None = None,
        trunk: Trunk | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Makes the models; continues `out` if it holds a checkpoint, else begins from `start`.

        Args:
            config: the run.
            out: its folder; several processes must all see it.
            looks: what producers may ask for.
            captions: of the looks.
            start: a file that a new run begins from (see `load_start`).
            trunk: for stages with LPIPS.
            processes: who work on it; None = this one alone, on the configuration's device.

        Raises:
            FlowshadeError: a stage asks for LPIPS and there is no trunk, or the start does not fit.
            CheckpointError: the folder's checkpoint is damaged, or of a run with other settings, which are listed.
        """
        if trunk is None and any(stage.lpips for stage in config.stages):
            raise FlowshadeError("a stage trains with LPIPS and no trunk was given; expected Trunk.load('vgg').")
        torch.manual_seed(config.seed)
        torch.backends.cudnn.benchmark = config.tune
        self.config = config
        self.out = out
        self.processes = processes or Processes(device=torch.device(config.device))
        self.device = self.processes.device
        self.models = config.models.build().to(self.device)
        self.settings = settings_of(config, looks, captions, self.processes.count)
        self.data = self._make_data(looks, captions, trunk)
        self.producers = self._make_producers()
        self.progress = Progress(stage=config.stages[0].name)
        self._saved = self._load()
        if self._saved is not None:
            self.models.load_state_dict(self._saved.model, strict=True)
            self.progress = self._saved.progress
        elif start is not None:
            lacking = self.trainable.may_lack(config.stages)
            fresh = begin_from(self.models, load_start(start), what=str(start), lacking=lacking)
            self._print(f"begins from {start}" + (f"; new: {len(fresh)} tensors" if fresh else ""))
        self._reset_average()
        if self._saved is not None:
            self.average = {name: value.to(self.device) for name, value in self._saved.average.items()}
        out.mkdir(parents=True, exist_ok=True)
        if self.processes.rank:  # weights are those of the first process, noise is not
            torch.manual_seed(int(np.random.default_rng([config.seed, self.processes.rank]).integers(2**62)))
        if config.compile:
            self.trainable.compile()

    def _make_data(self, looks: LookBank, captions: CaptionBank, trunk: Trunk | None) -> Data:
        config, device = self.config, self.device
        pool = ClipPool(
            capacity=config.capacity, spec=config.clips, profile=self.trainable.profile, bank=looks, device=device
        )
        return Data(
            pool=pool,
            captions=captions.to(device),
            rng=np.random.default_rng([config.seed, 1 + self.processes.rank]),
            shared=np.random.default_rng([config.seed, 0]),
            processes=self.processes,
            trunk=None if trunk is None else trunk.to(device),
            dtype=torch.bfloat16 if config.autocast else torch.float32,
        )

    def _make_producers(self) -> Producers:
        config, processes = self.config, self.processes
        return Producers(
            pool=self.data.pool,
            workers=config.workers,
            first_seed=config.seed * 10_000 + processes.rank,
            stride=processes.count,
            trace_device=str(self.device) if processes.count > 1 else trace_device(self.device),
            interval=config.interval if self._shares_gpu else 0.0,
        )

    def _load(self) -> Checkpoint | None:
        """The folder's checkpoint, with everything in it looked at; None if there is none."""
        path = self._checkpoint_path
        if not path.exists():
            return None
        saved = load_checkpoint(path)
        changed = differing(saved.settings, self.settings)
        if changed:
            raise CheckpointError(
                f"the run in {self.out} was begun with other settings ({'; '.join(changed)[:600]}). Give the same ones "
                f"to go on, or another folder, with --start {path} to begin from its weights."
            )
        stages = {stage.name: stage for stage in self.config.stages}
        current = saved.progress.stage
        if (current is not None and current not in stages) or len(saved.processes) != self.processes.count:
            raise CheckpointError(
                f"{path} is a damaged training checkpoint (stage {current!r}, {len(saved.processes)} processes); "
                "restore it from a copy, or begin a new run."
            )
        modules = [] if current is None else self.trainable.stage(stages[current], self.data).modules()
        saved.check(self.models, names_of(self.models, modules), what=str(path))
        return saved

    @property
    def trainable(self) -> Trainable:
        """The models, as what they can do."""
        return cast(Trainable, self.models)

    @property
    def _shares_gpu(self) -> bool:
        """Whether clips are traced on the GPU that trains."""
        return self.device.type == "cuda" and (self.processes.count > 1 or torch.cuda.device_count() == 1)

    @property
    def _checkpoint_path(self) -> Path:
        return self.out / checkpoint.NAME

    @property
    def _log_path(self) -> Path:
        return self.out / "log.jsonl"

    def run(self) -> Path:
        """Trains whatever is left; returns the last stage's weights.

        Raises:
            FlowshadeError: another process failed, or sees another folder.
        """
        self._agree()
        self.processes.spread([*self.models.state_dict().values(), *self.average.values()])
        try:
            self._fill()
            names = [stage.name for stage in self.config.stages]
            done = len(names) if self.progress.stage is None else names.index(self.progress.stage)
            if self._saved is None:
                self._save({}, {})  # from the first update on there is a state to go on from
            else:
                self._saved.processes[self.processes.rank].restore(self.data.rng, self.data.shared, self.device)
            for stage in self.config.stages[done:]:
                self._run_stage(stage)
            self.processes.wait()
        finally:
            self.producers.stop()
        return self._weights_path(self.config.stages[-1])

    def _agree(self) -> None:
        """Whether all processes found the same checkpoint."""
        found = self.processes.gather(dataclasses.asdict(self.progress) | {"begun": self._saved is not None})
        if any(one != found[0] for one in found):
            lines = [f"process {rank}: {one}" for rank, one in enumerate(found)]
            raise FlowshadeError(
                f"processes found different states in {self.out} ({'; '.join(lines)[:600]}); expected the same. Give a "
                "folder that all of them see, such as one on a shared disk."
            )

    def _fill(self) -> None:
        """Clips to begin with, or those of the run that goes on."""
        started = time.perf_counter()
        if self._saved is not None and self.processes.first:
            cut_log(self._log_path, self._saved.progress.log_bytes)
        self.processes.jointly(self._trace_first)
        elapsed, pool = time.perf_counter() - started, self.data.pool
        pairs = sum(self.processes.gather(pool.pairs)) / elapsed
        self._log({"event": "pool", "clips": pool.received, "seconds": elapsed, "pairs_per_second": pairs})

    def _trace_first(self) -> None:
        if self._saved is not None:
            self.producers.go_on(self._saved.processes[self.processes.rank].begun)
        self.producers.start()
        self.producers.fill(self.config.first_clips, self.config.first_seconds if self._shares_gpu else 0.0)

    def _run_stage(self, config: StageConfig) -> None:
        if self.progress.stage != config.name:
            self.progress = Progress(stage=config.name)
        stage = self.trainable.stage(config, self.data)
        if self.progress.step == 0:
            self._reset_average()
        trained = Trained(self.models, stage.modules(), self.average, config.learning_rate, self.processes)
        gradients = self._gradients(stage, trained)
        sums: dict[str, Tensor] = {}
        """What is logged stays on the device until it is printed."""
        if self._saved is not None:
            trained.restore(self._saved.optimiser)
            sums = {name: value.to(self.device) for name, value in self._saved.sums.items()}
            self._saved = None
        started = last_save = last_log = time.perf_counter()
        offset, counted = self.progress.seconds, self.progress.step
        while (done := self._share_done(config)) < 1:
            # Loss and gradients.
            for name, value in self.processes.jointly(self._learn, stage, gradients).items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value.float()

            # Learning rate: linear warm-up, then a cosine to 2% over whichever of updates and time is further on.
            step = self.progress.step
            warm = min(1.0, (step + 1) / self.config.warmup)
            rate = config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            trained.update(rate, decay=min(config.ema, (step + 1) / (step + 10)))
            stage.updated(step)
            self.progress.step += 1

            # The first process's clock is everyone's.
            now = time.perf_counter()
            self.progress.seconds, since_save = self.processes.of_first(offset + now - started, now - last_save)
            if self.progress.step % self.config.log_every == 0:
                speed = (self.progress.step - counted) / (now - last_log)
                self._report(config, self._means(sums, self.progress.step - self.progress.logged), rate, speed)
                sums, counted, last_log = {}, self.progress.step, now
                self.progress.logged = self.progress.step
            if since_save > self.config.save_seconds and stage.resting:
                self._save(trained.state(), sums)
                last_save = now
        self._finish_stage(stage)

    def _gradients(self, stage: Stage, trained: Trained) -> Callable[[Any], Outcome]:
        """Makes a loss and its gradients of what a stage drew: the function itself, or graphs that were captured of it.

        The loss that it gives has no gradients any more.
        """
        capture = self._capture()

        def gradients(drawn: Any) -> Outcome:
            # A graph would outlive the cache of cast weights.
            with self._autocast(cache=capture is None):
                outcome = stage.loss(drawn)
            trained.backward(outcome.loss)
            return dataclasses.replace(outcome, loss=outcome.loss.detach())

        if capture is None:
            return gradients
        graphs = Graphs(
            capture,
            keep=self.trainable.kept_tensors,
            capacity=CAPTURED,
            advice="Train without (capture=False in the preset).",
        )
        return partial(graphs.call, stage.config.name, gradients)

    def _capture(self) -> Capture | None:
        """What records graphs, where gradients come from graphs."""
        return CudaCapture(self.device) if self.config.capture and self.device.type == "cuda" else None

    def _learn(self, stage: Stage, gradients: Callable[[Any], Outcome]) -> dict[str, Tensor]:
        """This process's part of an update: gradients, what is to be logged, and clips when they are due."""
        self.producers.check()
        step, refresh = self.progress.step, self.config.refresh
        if refresh and step and step % refresh == 0 and self.config.workers == 0:
            self.producers.fill(self.data.pool.received + 1)
        with self._autocast():
            drawn = stage.draw()
        outcome = gradients(drawn)
        stage.carry(outcome.carried)
        return outcome.values

    def _autocast(self, *, cache: bool = True) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.autocast, cache_enabled=cache)

    def _means(self, sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
        """Over updates and processes."""
        means = self.processes.mean(torch.stack(list(sums.values()))) / count
        return dict(zip(sums, means.tolist(), strict=True))

    def _weights_path(self, config: StageConfig) -> Path:
        return self.out / f"{self._numbered(config)}.safetensors"

    def _numbered(self, config: StageConfig) -> str:
        return f"{self.config.stages.index(config):02d}-{config.name}"

    def _share_done(self, config: StageConfig) -> float:
        """How much of a stage is over, [0, 1]."""
        by_time = self.progress.seconds / config.seconds if config.seconds else 0.0
        return max(self.progress.step / config.steps, by_time)

    def _reset_average(self) -> None:
        self.average = {name: value.detach().clone() for name, value in self.models.state_dict().items()}

    def _finish_stage(self, stage: Stage) -> None:
        """Goes on with the averaged weights and writes them down."""
        config, stages = stage.config, self.config.stages
        for name, buffer in self.models.named_buffers():
            if name in self.average:
                self.average[name] = buffer.detach().clone()
        self.models.load_state_dict(self.average, strict=True)
        with self._autocast():
            stage.finish()
            self._reset_average()
            if self.processes.first:
                self.trainable.write_samples(self.out / f"{self._numbered(config)}.png", self.data)
        following = stages[stages.index(config) + 1 :]
        self.progress = Progress(stage=following[0].name if following else None)
        if self.processes.first:
            self.trainable.save(self._weights_path(config), dtype=torch.float32)
        self._save({}, {})

    def _save(self, optimiser: dict[str, dict[str, Tensor]], sums: dict[str, Tensor]) -> None:
        """Writes the whole state; all processes call it together."""
        mine = ProcessState(
            own=plain(self.data.rng.bit_generator.state),
            shared=plain(self.data.shared.bit_generator.state),
            begun=self.producers.begun,
            random=ProcessState.random_of(self.device),
        )
        processes = self.processes.gather(mine)
        if sums:
            sums = dict(zip(sums, self.processes.mean(torch.stack(list(sums.values()))), strict=True))
        if not self.processes.first:
            return
        self.progress.log_bytes = self._log_path.stat().st_size
        state = Checkpoint(
            model=self.models.state_dict(),
            average=self.average,
            optimiser=optimiser,
            sums=sums,
            progress=self.progress,
            settings=self.settings,
            processes=processes,
        )
        save_checkpoint(self._checkpoint_path, state)

    def _report(self, config: StageConfig, means: dict[str, float], rate: float, speed: float) -> None:
        done = self._share_done(config)
        left = self.progress.seconds / done * (1 - done)
        values = " ".join(f"{name} {value:.4g}" for name, value in means.items())
        self._print(
            f"{config.name} {self.progress.step} ({100 * done:.0f}%) {values}  lr {rate:.1e}  {speed:.2f} updates/s  "
            f"{left / 60:.1f} min left  pool {self.data.pool.received}"
        )
        self._log(
            {"event": "train", "stage": config.name, "step": self.progress.step, "seconds": self.progress.seconds}
            | {"updates_per_second": speed, "rate": rate, "clips": self.data.pool.received}
            | means
        )
        if not all(math.isfinite(value) for value in means.values()):
            raise RuntimeError(f"stage {config.name} diverged at update {self.progress.step}: {means}")

    def _print(self, line: str) -> None:
        if self.processes.first:
            print(line, flush=True)

    def _log(self, line: dict) -> None:
        if self.processes.first:
            with self._log_path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def cut_log(path: Path, length: int) -> None:
    """Removes what stands behind a length in bytes: lines of updates that are made again, and torn ones."""
    if path.is_file() and path.stat().st_size > length:
        os.truncate(path, length)


def trace_device(training: torch.device) -> str:
    """Where clips are traced: a GPU of its own where there is a second one, since processes take turns on a GPU."""
    if training.type == "cuda" and torch.cuda.device_count() > 1:
        return f"cuda:{torch.cuda.device_count() - 1}"
    return str(training)
