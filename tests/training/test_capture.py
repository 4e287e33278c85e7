"""Gradients from graphs: a run with them equals one without, with a stand-in that replays on a CPU, and on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flowshade.nn.graphs import Capture, Replay
from flowshade.training import pool as pool_module
from flowshade.training.stages import Models
from flowshade.training.trainer import TrainConfig, Trainer
from tests.nn.replay import replaying
from tests.training.small_run import small_banks, small_clip, small_config


@pytest.fixture(autouse=True)
def small_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "trace_clip", small_clip)


def quiet(capture: Capture) -> Capture:
    """A capture that takes no random numbers, so that those of updates stay the same."""

    def captured(function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Replay]:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return capture(function)

    return captured


def longer(config: TrainConfig, **changes: object) -> TrainConfig:
    """So long that graphs are captured in every stage and replayed often."""
    stages = tuple(dataclasses.replace(stage, steps=24, latents=4) for stage in config.stages)
    return dataclasses.replace(config, stages=stages, **changes)  # pyright: ignore[reportArgumentType]


def test_a_run_from_graphs_equals_a_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = longer(small_config())
    plain = Trainer(config, tmp_path / "plain", *small_banks())
    plain.run()
    captures: list[int] = []
    monkeypatch.setattr(Trainer, "_capture", lambda trainer: quiet(replaying(captures)))
    graphed = Trainer(config, tmp_path / "graphed", *small_banks())
    graphed.run()
    assert len(captures) > len(config.stages), "rollouts differ in steps and in how much of a past there is"
    assert len(captures) < 12 * len(config.stages)
    for (name, value), expected in zip(graphed.models.state_dict().items(), plain.models.state_dict().values()):
        assert torch.equal(value, expected), name


def test_texts_are_of_one_length(tmp_path: Path) -> None:
    trainer = Trainer(small_config(), tmp_path, *small_banks())
    models = trainer.models
    assert isinstance(models, Models)
    context = models._context(trainer.data)
    lengths = {context.text(torch.tensor([row])).tokens.shape[1] for row in range(len(context.captions))}
    assert lengths == {context.captions.longest}
    transformer = models.renderer.transformer
    for row in range(len(context.captions)):
        own, padded = context.captions.context([row]), context.text(torch.tensor([row]))
        torch.testing.assert_close(
            transformer.encode_text(padded).pooled, transformer.encode_text(own).pooled, rtol=1e-5, atol=1e-6
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_real_graphs_train_as_plain_updates_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerance: a GPU's sums are in no certain order, and AdamW divides gradients by their own size."""
    config = longer(small_config(), device="cuda", autocast=True)
    plain = Trainer(config, tmp_path / "plain", *small_banks())
    plain.run()
    real = Trainer._capture
    monkeypatch.setattr(Trainer, "_capture", lambda trainer: quiet(real(trainer)))  # pyright: ignore[reportArgumentType]
    graphed = Trainer(dataclasses.replace(config, capture=True), tmp_path / "graphed", *small_banks())
    graphed.run()
    for (name, value), expected in zip(graphed.models.state_dict().items(), plain.models.state_dict().values()):
        torch.testing.assert_close(value, expected, rtol=0.05, atol=5e-3, msg=lambda text, name=name: f"{name}: {text}")
