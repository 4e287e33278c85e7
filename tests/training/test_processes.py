"""Several processes train what one would on all of their batches, end together, and go on together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flowshade.errors import CheckpointError
from flowshade.training import pool as pool_module
from flowshade.training.checkpoint import load_checkpoint
from flowshade.training.pool import ClipPool, Producers
from flowshade.training.processes import Processes, buckets
from flowshade.training.stages import CodecStage, Data, Models, Outcome, Stage, StageConfig, StageDefaults, _moments
from flowshade.training.trainer import TrainConfig, Trainer
from tests.training.small_run import several_config, small_banks, small_clip, small_config

COUNT = 2


def launch(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={COUNT}", "--no-python",
        sys.executable, "-m", "tests.training.small_run", str(folder), *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(autouse=True)
def small_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "trace_clip", small_clip)


class SecondProcess:
    """What the second of two processes draws from, in this one."""

    def __init__(self, config: TrainConfig, first: Data) -> None:
        pool = ClipPool(
            capacity=config.capacity, spec=config.clips, profile=first.pool.profile, bank=first.pool.bank,
            device=torch.device("cpu"),
        )  # fmt: skip
        Producers(pool=pool, workers=0, first_seed=1, stride=COUNT).fill(config.first_clips)
        self.data = Data(
            pool=pool,
            captions=first.captions,
            rng=np.random.default_rng([config.seed, 2]),
            shared=np.random.default_rng([config.seed, 0]),
            processes=first.processes,
        )
        seed = int(np.random.default_rng([config.seed, 1]).integers(2**62))
        self.random = torch.Generator().manual_seed(seed).get_state()

    def loss(self, stage: Stage, drawn: Any) -> Outcome:
        others = torch.get_rng_state()
        torch.set_rng_state(self.random)
        result = stage.loss(drawn)
        self.random = torch.get_rng_state()
        torch.set_rng_state(others)
        return result


class BothStages(StageDefaults):
    """The mean of the losses that two processes have."""

    def __init__(self, config: StageConfig, first: Stage, second: Stage, process: SecondProcess) -> None:
        self.config, self.first, self.second, self.process = config, first, second, process

    def modules(self) -> list[nn.Module]:
        return self.first.modules()

    def draw(self) -> tuple[Any, Any]:
        return self.first.draw(), self.second.draw()

    def loss(self, drawn: tuple[Any, Any]) -> Outcome:
        one, other = self.first.loss(drawn[0]), self.process.loss(self.second, drawn[1])
        values = {name: (value + other.values[name]) / 2 for name, value in one.values.items()}
        return Outcome(loss=(one.loss + other.loss) / 2, values=values, carried=(one.carried, other.carried))

    def carry(self, carried: tuple[Any, Any]) -> None:
        self.first.carry(carried[0])
        self.second.carry(carried[1])


def run_alone(out: Path, config: TrainConfig) -> Trainer:
    """One process that learns from the batches of two."""
    trainer = Trainer(config, out, *small_banks())
    trainer.producers.stride = COUNT
    process = SecondProcess(config, trainer.data)
    make = trainer.trainable.stage
    trainer.models.stage = lambda config, data: BothStages(  # pyright: ignore[reportAttributeAccessIssue]
        config, make(config, data), make(config, process.data), process
    )
    trainer.run()
    return trainer


def test_two_processes_learn_what_one_does_from_both_batches(tmp_path: Path) -> None:
    """One of them fails on the way, in the rollouts: both end, and go on when started again.

    Tolerance: gradients are summed in another order, and AdamW divides them by their own size.
    """
    out = tmp_path / "two"
    failed = launch(out, "5")
    assert failed.returncode != 0
    assert "no more luck" in failed.stderr and "process 1 of 2 failed, so this one stops too" in failed.stderr
    assert load_checkpoint(out / "checkpoint.safetensors").progress.stage == "rollout"
    with pytest.raises(CheckpointError, match="processes 2 -> 1"):
        Trainer(several_config(), out, *small_banks())
    done = launch(out)
    assert done.returncode == 0, done.stderr[-3000:]

    config = several_config()
    run_alone(tmp_path / "one", TrainConfig(**{**vars(config), "stages": config.stages[:2]}))
    for stage in ("00-regression", "01-rollout"):
        one, two = (load_file(tmp_path / name / f"{stage}.safetensors") for name in ("one", "two"))
        assert one.keys() == two.keys()
        for name, value in one.items():
            torch.testing.assert_close(
                two[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )
    ranks = [load_file(out / f"rank-{rank}.safetensors") for rank in range(COUNT)]
    for name, value in ranks[0].items():
        assert torch.equal(ranks[1][name], value), name
    assert (ranks[0]["renderer.decoder.latent_std"] != 1).all(), "the last stage measures the latents"


class Told(Processes):
    """One of two processes; the other gave what it is made with."""

    def mean(self, values: Tensor) -> Tensor:
        return (values + OTHER.pop()) / 2


OTHER: list[Tensor] = []


def test_statistics_are_those_of_all_latents(tmp_path: Path) -> None:
    trainer = Trainer(small_config(), tmp_path, *small_banks(), processes=Told(device=torch.device("cpu")))
    models = trainer.models
    assert isinstance(models, Models)
    stages = [models.stage(trainer.config.stages[0], trainer.data) for _ in range(2)]
    raw = [torch.randn(2, 8, 3, 4, 4) * 3 + 50, torch.randn(2, 8, 3, 4, 4) + 20]

    for stage, value in zip(stages, raw, strict=True):
        assert isinstance(stage, CodecStage)
        stage._moments = _moments(value)
    OTHER.append(stages[1]._moments)  # pyright: ignore[reportAttributeAccessIssue]
    stages[0].updated(0)
    joined = torch.cat(raw)
    torch.testing.assert_close(models.renderer.decoder.latent_mean, joined.mean((0, 2, 3, 4)))
    torch.testing.assert_close(models.renderer.decoder.latent_std, joined.std((0, 2, 3, 4), correction=0))


def test_buckets_hold_all_in_order_and_are_bounded() -> None:
    tensors = [torch.zeros(size) for size in (3, 4, 9, 1, 1, 5)]
    found = list(buckets(tensors, 7))
    assert [[len(tensor) for tensor in bucket] for bucket in found] == [[3, 4], [9], [1, 1, 5]]
    assert list(buckets([])) == []
