"""Runs as the command line starts them: a preset's name, a folder, and captions made on the spot if need be.

Worlds and the prompt encoder are imported when captions are made: a run that is given them needs neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from flowshade.device import choose_device
from flowshade.errors import FlowshadeError, MissingDependencyError
from flowshade.evaluation.perceptual import Trunk
from flowshade.presets import TRAININGS
from flowshade.progress import progress_bar
from flowshade.training import checkpoint as checkpoints
from flowshade.training.captions import build_banks, has_banks, load_banks, save_banks, world_descriptions
from flowshade.training.processes import Processes, joined
from flowshade.training.settings import changed
from flowshade.training.stages import StageConfig, Trainable
from flowshade.training.start import begin_from, check_start
from flowshade.training.trainer import TrainConfig, Trainer

CAPTIONS = "captions"
"""Stands in a preset's place on the command line: only makes captions and looks."""
TRUNK = "trunk.safetensors"
"""VGG16's first layers beside the captions, for training with LPIPS."""
TRUNK_LAYERS = 4
"""Of five: the fifth holds half of the weights."""


def write_captions(folder: Path, *, seed: int = 0) -> None:
    """Draws looks and writes their captions and embeddings into `folder`; needs the prompt encoder's weights.

    Captions that `flowshade eval` tells a renderer are there too.
    """
    from flowshade.evaluation.suites import LADDERS
    from flowshade.renderer.prompt import PromptEncoder
    from flowshade.world import WORLDS

    if folder.exists() and not folder.is_dir():
        raise FlowshadeError(f"captions go into the folder {folder}, which is a file; give a folder.")
    told = [caption for ladder in LADDERS for caption in ladder.captions]
    worlds = world_descriptions(tuple(WORLDS))
    with progress_bar("embedding captions", "captions") as progress:
        banks = build_banks(worlds, PromptEncoder(), seed=seed, further=told, progress=progress)
    save_banks(folder, *banks)
    try:
        Trunk.load("vgg").save(folder / TRUNK, layers=TRUNK_LAYERS)
    except MissingDependencyError as error:
        print(f"note: no LPIPS trunk for training was written: {error}", flush=True)


def train(
    preset: str,
    folder: Path,
    *,
    captions: Path | None = None,
    start: Path | None = None,
    seed: int = 0,
    scale_time: float = 1.0,
    stages: Sequence[str] | None = None,
    device: str | None = None,
    capture: bool = False,
    settings: Sequence[str] = (),
) -> Path:
    """Trains a preset in `folder` (continued if it holds a run); returns the trained renderer's file.

    Args:
        preset: a name in `TRAININGS`.
        folder: where checkpoints and logs go.
        captions: a folder of `write_captions`; None makes them in `folder / "captions"`.
        start: what a new run begins from: a run's checkpoint (its averages), or weights such as the package's.
        seed: of weights, worlds and batches.
        scale_time: multiplies the time limit of every stage that has one.
        stages: only these stages, by name; None runs all.
        device: instead of the preset's.
        capture: gradients from CUDA graphs on a GPU, where the preset does not have it so already.
        settings: `path.to.field=value` (see `settings.changed`), put in place of the preset's before anything else.

    Raises:
        ValueError: an unknown preset, stage, device or setting, a factor that is not positive, or captions or a
            checkpoint that are not there.
    """
    config = _configure(preset, seed=seed, scale_time=scale_time, stages=stages, device=device, settings=settings)
    config = dataclasses.replace(config, capture=config.capture or capture)
    if folder.exists() and not folder.is_dir():
        raise FlowshadeError(f"the run's folder {folder} is a file; give a folder, or a name that is free.")
    with joined(config.device) as processes:
        if start is not None:
            processes.jointly(check_start, start, config.models.format)  # before captions are made
        banks = processes.jointly(_find_banks, folder, captions, config.seed, processes.first)
        return processes.jointly(_make_trainer, config, folder, banks, start, processes).run()


def _find_banks(folder: Path, captions: Path | None, seed: int, first: bool) -> Path:
    """The folder of captions, made by the first process if need be."""
    if captions is not None:
        return captions
    captions = folder / "captions"
    if first and not has_banks(captions):
        print(f"making captions in {captions} (minutes on a CPU; --captions takes another run's)", flush=True)
        write_captions(captions, seed=seed)
    return captions


def _make_trainer(config: TrainConfig, folder: Path, banks: Path, start: Path | None, processes: Processes) -> Trainer:
    trunk = _load_trunk(banks / TRUNK) if any(stage.lpips for stage in config.stages) else None
    return Trainer(config, folder, *load_banks(banks), start, trunk, processes)


def _load_trunk(path: Path) -> Trunk:
    """The trunk beside the captions, else the installed one."""
    return Trunk.load_file(path) if path.exists() else Trunk.load("vgg")


def export_average(preset: str, folder: Path, path: Path, *, settings: Sequence[str] = ()) -> None:
    """Writes the averaged weights of a run that need not be over, as its last stage would, in float32.

    Args:
        preset: of the run.
        folder: the run's.
        path: the file to write.
        settings: that the run was begun with.

    Raises:
        CheckpointError: no checkpoint there, or one of another preset.
    """
    checkpoint = folder / checkpoints.NAME
    models = changed(_preset(preset), settings).models.build()
    trainable = cast(Trainable, models)
    begin_from(models, checkpoints.load_average(checkpoint), what=str(checkpoint))
    trainable.save(path, dtype=torch.float32)


def _preset(name: str) -> TrainConfig:
    if name not in TRAININGS:
        expected = ", ".join([CAPTIONS, *TRAININGS])
        raise FlowshadeError(f"unknown training preset {name!r}; expected one of {expected}.")
    return TRAININGS[name]()


def _configure(
    preset: str,
    *,
    seed: int,
    scale_time: float,
    stages: Sequence[str] | None,
    device: str | None,
    settings: Sequence[str],
) -> TrainConfig:
    config = changed(_preset(preset), settings)
    if seed < 0:
        raise FlowshadeError(f"the seed is {seed}; expected 0 or more.")
    if not 0 < scale_time < float("inf"):
        raise FlowshadeError(f"the time factor is {scale_time}; expected a positive number.")
    chosen = choose_device(device or config.device)
    selected = _select(config.stages, stages)
    scaled = [dataclasses.replace(stage, seconds=stage.seconds and stage.seconds * scale_time) for stage in selected]
    return dataclasses.replace(config, stages=tuple(scaled), seed=seed, device=str(chosen))


def _select(stages: Sequence[StageConfig], names: Sequence[str] | None) -> list[StageConfig]:
    if names is None:
        return list(stages)
    known = [stage.name for stage in stages]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise FlowshadeError(
            f"stages {', '.join(unknown) or '(none)'} were asked for; expected some of {', '.join(known)}."
        )
    return [stage for stage in stages if stage.name in names]
