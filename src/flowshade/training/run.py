"""Runs as the command line starts them: a preset's name, a folder, and captions made on the spot if need be."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flowshade.presets import TRAININGS
from flowshade.renderer.prompt import PromptEncoder
from flowshade.training.captions import build_banks, load_banks, save_banks, world_descriptions
from flowshade.training.trainer import Trainer

WORLDS_DESCRIBED = 6
"""Worlds of each kind whose descriptions go into the captions."""


def write_captions(folder: Path, *, seed: int = 0) -> None:
    """Draws looks and writes their captions and embeddings into `folder`; needs the prompt encoder's weights."""
    from flowshade.world import WORLDS

    texts = world_descriptions(tuple(WORLDS), WORLDS_DESCRIBED)
    save_banks(folder, *build_banks(texts, PromptEncoder(), seed=seed))


def train(preset: str, folder: Path, *, captions: Path | None = None, seed: int = 0, device: str | None = None) -> Path:
    """Trains a preset in `folder` (continued if it holds a run); returns the trained renderer's file.

    Args:
        preset: a name in `TRAININGS`.
        folder: where checkpoints and logs go.
        captions: a folder of `write_captions`; None makes them in `folder / "captions"`.
        seed: of weights, worlds and batches.
        device: instead of the preset's.

    Raises:
        ValueError: an unknown preset, or captions that are not there.
    """
    if preset not in TRAININGS:
        raise ValueError(f"unknown training preset {preset!r}; expected captions or one of {', '.join(TRAININGS)}.")
    config = TRAININGS[preset]()
    config = dataclasses.replace(config, seed=seed, device=device or config.device)
    if captions is None:
        captions = folder / "captions"
        if not captions.is_dir():
            write_captions(captions, seed=seed)
    return Trainer(config, folder, *load_banks(captions)).run()
