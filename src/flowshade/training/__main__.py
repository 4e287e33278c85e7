"""`python -m flowshade.training`: the trainer without the rest of the command line, for machines that lack it."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from flowshade.presets import TRAININGS
from flowshade.training.captions import load_banks
from flowshade.training.checkpoint import load_checkpoint
from flowshade.training.trainer import Trainer


def make_banks(out: Path) -> None:
    """Draws looks, writes their captions and embeds them. Needs the prompt encoder's weights."""
    from flowshade.renderer.prompt import PromptEncoder
    from flowshade.training.captions import build_banks, save_banks, world_descriptions
    from flowshade.training.pool import ClipSpec

    looks, captions = build_banks(world_descriptions(ClipSpec().kinds), PromptEncoder())
    save_banks(out, looks, captions)
    print(f"{len(looks.looks)} looks, {len(captions)} captions in {out}")


def main(arguments: list[str] | None = None) -> None:
    """Trains, or makes the banks that training needs."""
    parser = argparse.ArgumentParser(prog="python -m flowshade.training", description=__doc__)
    parser.add_argument("preset", choices=["captions", *sorted(TRAININGS)], help="captions: make the banks and stop")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/train"), help="folder of the run; continued if it holds a checkpoint"
    )
    parser.add_argument("--banks", type=Path, required=True, help="folder of looks and captions")
    parser.add_argument("--start", type=Path, help="a training checkpoint whose averaged weights to begin from")
    parser.add_argument("--seed", type=int, default=0, help="weights, worlds and batches")
    parser.add_argument("--scale-time", type=float, default=1.0, help="multiplies every stage's time limit")
    parser.add_argument("--stages", nargs="*", help="only these stages, by name")
    parser.add_argument("--device", help="overrides the preset's")
    options = parser.parse_args(arguments)
    if options.preset == "captions":
        make_banks(options.banks)
        return
    config = TRAININGS[options.preset]()
    stages = [
        dataclasses.replace(stage, seconds=stage.seconds and stage.seconds * options.scale_time)
        for stage in config.stages
        if options.stages is None or stage.name in options.stages
    ]
    config = dataclasses.replace(
        config, stages=tuple(stages), seed=options.seed, device=options.device or config.device
    )
    looks, captions = load_banks(options.banks)
    start = load_checkpoint(options.start) if options.start else None
    path = Trainer(config, options.out, looks, captions, start).run()
    print(f"trained renderer: {path}")


if __name__ == "__main__":
    main()
