"""The loop of every distillation: the same losses whatever the number of processes, and after any stop.

Nothing random outlives an update: what is drawn is a function of seed, stage, update and place in the batch. State is
written at lines of the log, so a run that was killed goes on from one and writes the same lines again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from flowshade.errors import FlowshadeError
from flowshade.files import write_text
from flowshade.training.distill import state
from flowshade.training.processes import Processes

BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
LOWEST = 0.02
"""Share of the learning rate that is left at a stage's end."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How long and how hard a stage learns."""

    updates: int
    batch: int
    """Samples an update, over all processes; each goes through on its own, so memory does not grow with it."""
    learning_rate: float
    warmup: int = 200
    ema: float = 0.999
    """Of the averaged weights, which are what is kept."""
    log_every: int = 20
    evaluate_every: int = 1000
    """Updates between looks at held-out clips; 0 = only at the stage's end."""
    save_seconds: float = 300.0


@dataclass(frozen=True)
class Draw:
    """Where randomness comes from: one sample of one update."""

    seed: int
    stage: str
    update: int
    index: int
    """Place in the batch; -1 = what all of the batch share."""

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self._entropy("numbers"))

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._entropy("noise"))

    @property
    def shared(self) -> np.random.Generator:
        """The same for every sample of the update."""
        return Draw(self.seed, self.stage, self.update, -1).rng()

    def _entropy(self, what: str) -> int:
        text = f"{self.seed}:{self.stage}:{self.update}:{self.index}:{what}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


class Task(Protocol):
    """One thing to be learned."""

    name: str

    @property
    def network(self) -> nn.Module:
        """What learns; used through its call alone, so that it may be spread over processes."""
        ...

    def load(self, draw: Draw) -> Any:
        """Reads a sample, on the CPU, in a thread of its own."""
        ...

    def losses(self, sample: Any, draw: Draw) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """The sample's loss in parts that add up to it, with what to log; gradients are taken part by part.

        All samples of an update have the same number of parts and calls of the network.
        """
        ...

    def evaluate(self, sheet: Path | None) -> dict[str, float]:
        """Scores on held-out clips, with the averaged weights in place; writes a contact sheet if a path is given."""
        ...


class Loop:
    """Runs one stage in a run's folder.

    Args:
        task: what is learned; its network lies on the processes' device and is spread over them here.
        config: how long and how hard.
        folder: the run's.
        stage: index of the stage.
        seed: of everything drawn.
        processes: who works on it.
        autocast: bfloat16 matrix products and convolutions.

    Raises:
        FlowshadeError: a batch that does not divide among the processes.
    """

    def __init__(
        self,
        task: Task,
        config: LoopConfig,
        folder: Path,
        *,
        stage: int,
        seed: int,
        processes: Processes,
        autocast: bool,
    ) -> None:
        if config.batch % processes.count or config.updates < 1:
            raise FlowshadeError(
                f"{config.updates} updates of {config.batch} samples were asked for on {processes.count} processes; "
                "expected 1 or more updates, and samples in a multiple of the processes. Change --batch or --updates."
            )
        self.task, self.config, self.folder, self.stage, self.seed = task, config, folder, stage, seed
        self.processes, self.autocast = processes, autocast
        self.update = 0
        task.network.train().requires_grad_(True)
        processes.shard(task.network)
        self.parameters = dict(task.network.named_parameters())
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            config.learning_rate,
            betas=BETAS,
            weight_decay=WEIGHT_DECAY,
            fused=processes.device.type == "cuda",
        )
        self.average = {name: state.local(value).detach().clone() for name, value in self.parameters.items()}

    def run(self, saved: state.SavedState | None) -> None:
        """Learns what is left and leaves the averaged weights in the network.

        Args:
            saved: the newest state of the folder; used if it is this stage's.
        """
        if saved is not None and saved.stage == self.stage:
            self._restore(saved)
        if self.processes.first:
            cut_log(self.folder / "log.jsonl", self.stage, self.update)
        self.processes.wait()
        with _Reader(self) as reader:
            self._learn(reader)
        with torch.no_grad():
            for name, value in self.parameters.items():
                state.local(value).copy_(self.average[name])

    def _learn(self, reader: _Reader) -> None:
        config = self.config
        sums: dict[str, Tensor] = {}
        began = logged = saved = time.perf_counter()
        first = self.update
        while self.update < config.updates:
            rate = learning_rate(config, self.update)
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self._step(reader, sums)
            self.update += 1
            last = self.update == config.updates
            if self.update % config.log_every and not last:
                continue
            now = time.perf_counter()
            count = (self.update - 1) % config.log_every + 1
            speed = count / (now - logged)
            left = (config.updates - self.update) * (now - began) / (self.update - first)
            self._report({name: value / count for name, value in sums.items()}, rate, speed, left)
            sums, logged = {}, now
            if last or (config.evaluate_every and self.update % config.evaluate_every == 0):
                self._evaluate()
            if now - saved >= config.save_seconds or last:
                self.save()
                saved = now

    def _step(self, reader: _Reader, sums: dict[str, Tensor]) -> None:
        """One update; what is to be logged is added to `sums`, on the device."""
        config, device = self.config, self.processes.device
        share = config.batch // self.processes.count
        for index in self._indices():
            draw = Draw(self.seed, self.task.name, self.update, index)
            parts = self.task.losses(reader.next(), draw)
            while True:
                with torch.autocast(device.type, torch.bfloat16, enabled=self.autocast):
                    part = next(parts, None)
                if part is None:
                    break
                loss, values = part
                (loss / share).backward()  # over processes gradients are averaged
                for name, value in ({"loss": loss} | values).items():
                    sums[name] = sums.get(name, torch.zeros((), device=device)) + value.detach().float() / share
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        sums["gradient"] = sums.get("gradient", torch.zeros((), device=device)) + _whole(norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        decay = min(config.ema, (self.update + 1) / (self.update + 10))
        with torch.no_grad():
            values = [state.local(value) for value in self.parameters.values()]
            get_ema_multi_avg_fn(decay)(list(self.average.values()), values, 0)

    def _indices(self) -> range:
        return range(self.processes.rank, self.config.batch, self.processes.count)

    def _report(self, sums: dict[str, Tensor], rate: float, speed: float, left: float) -> None:
        means = self.processes.mean(torch.stack(list(sums.values()))).tolist()
        values = dict(zip(sums, means))
        if not all(math.isfinite(value) for value in means):
            raise FlowshadeError(
                f"stage {self.task.name} diverged at update {self.update} ({values}); go on from the last state with a "
                "lower --learning-rate."
            )
        if not self.processes.first:
            return
        shown = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        share = self.update / self.config.updates
        print(
            f"{self.task.name} {self.update}/{self.config.updates} ({share:.0%}) {shown}  lr {rate:.1e}  "
            f"{speed:.2f} updates/s  {left / 60:.1f} min left",
            flush=True,
        )
        self._log({"event": "train", "rate": rate, "updates_per_second": speed} | values)

    def _evaluate(self) -> None:
        sheet = self.folder / f"{self.stage}-{self.task.name}-{self.update:08d}.png" if self.processes.first else None
        with self._averaged(), torch.autocast(self.processes.device.type, torch.bfloat16, enabled=self.autocast):
            scores = self.task.evaluate(sheet)
        if self.processes.first:
            print(f"{self.task.name} held out: " + " ".join(f"{n} {v:.4g}" for n, v in scores.items()), flush=True)
            self._log({"event": "held out"} | scores)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights in the network's place for a while."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, value in self.parameters.items():
            here, kept = state.local(value), self.average[name].clone()
            self.average[name].copy_(here)
            here.copy_(kept)

    def _log(self, line: dict[str, Any]) -> None:
        place = {"stage": self.stage, "name": self.task.name, "update": self.update}
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(place | line) + "\n")

    def save(self) -> None:
        """Writes the whole state."""
        tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in self.parameters.items()}
        tensors |= {f"average.{name}": value for name, value in self.average.items()}
        for name, value in self.parameters.items():
            tensors |= {f"optimiser.{name}.{field}": one for field, one in self.optimiser.state[value].items()}
        state.save(self.folder / "checkpoints", self.stage, self.update, tensors, self.processes)

    @torch.no_grad()
    def _restore(self, saved: state.SavedState) -> None:
        def part(name: str) -> Tensor:
            return saved.part(name, self.processes).to(self.processes.device)

        for name, value in self.parameters.items():
            state.local(value).copy_(part(f"model.{name}"))
            self.average[name].copy_(part(f"average.{name}"))
            moments = {field: torch.zeros_like(value) for field in ("exp_avg", "exp_avg_sq")}
            for field, moment in moments.items():
                state.local(moment).copy_(part(f"optimiser.{name}.{field}"))
            step = saved.part(f"optimiser.{name}.step", self.processes)
            if self.optimiser.defaults["fused"]:
                step = step.to(self.processes.device)
            self.optimiser.state[value] = {"step": step, **moments}
        self.update = saved.update


class _Reader:
    """Samples in order, the next one read while this one is learned from."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(1)
        self._places = (
            (update, index) for update in range(loop.update, loop.config.updates) for index in loop._indices()
        )
        self._ahead: Future[Any] | None = None

    def __enter__(self) -> _Reader:
        self._ahead = self._submit()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self) -> Future[Any] | None:
        place = next(self._places, None)
        if place is None:
            return None
        return self._pool.submit(self._loop.task.load, Draw(self._loop.seed, self._loop.task.name, *place))

    def next(self) -> Any:
        assert self._ahead is not None
        sample = self._ahead.result()
        self._ahead = self._submit()
        return sample


def learning_rate(config: LoopConfig, update: int) -> float:
    """Linear warm-up, then a cosine down to `LOWEST` of the rate."""
    warm = min(1.0, (update + 1) / config.warmup)
    fall = 0.5 * (1 + math.cos(math.pi * update / config.updates))
    return config.learning_rate * warm * (LOWEST + (1 - LOWEST) * fall)


def cut_log(path: Path, stage: int, update: int) -> None:
    """Removes lines of updates that are made again, so that each stands there once; torn ones too."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            place = json.loads(line)
        except ValueError:
            continue  # torn by a kill; its update is made again
        if (place["stage"], place["update"]) <= (stage, update):
            kept.append(line + "\n")
    write_text(path, "".join(kept))


def _whole(norm: Tensor) -> Tensor:
    """A gradient's norm, which FSDP2 gives as a distributed tensor."""
    full = getattr(norm, "full_tensor", None)
    return (norm if full is None else full()).detach().float()
