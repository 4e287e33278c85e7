"""`python -m flowshade.training`: `flowshade train` for machines that lack what the rest of the command line needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flowshade.errors import FlowshadeError
from flowshade.presets import TRAININGS
from flowshade.training.run import CAPTIONS, train, write_captions


def main(arguments: list[str] | None = None) -> int:
    """Trains, or makes the captions that training needs; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flowshade.training", description=__doc__)
    parser.add_argument("preset", choices=[CAPTIONS, *sorted(TRAININGS)], help="captions: make them and stop")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/train"), help="folder of the run; continued if it holds a checkpoint"
    )
    parser.add_argument("--banks", type=Path, help="folder of captions and looks; by default captions in the run's")
    parser.add_argument("--start", type=Path, help="a training checkpoint or a file of weights to begin from")
    parser.add_argument("--seed", type=int, default=0, help="weights, worlds and batches")
    parser.add_argument("--scale-time", type=float, default=1.0, help="multiplies every stage's time limit")
    parser.add_argument("--stages", nargs="+", help="only these stages, by name")
    parser.add_argument("--device", help="overrides the preset's")
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except (FlowshadeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.preset == CAPTIONS:
        folder = options.banks or options.out / "captions"
        write_captions(folder, seed=options.seed)
        print(f"captions and looks: {folder}")
        return
    path = train(
        options.preset,
        options.out,
        captions=options.banks,
        start=options.start,
        seed=options.seed,
        scale_time=options.scale_time,
        stages=options.stages,
        device=options.device,
    )
    print(f"trained renderer: {path}")


if __name__ == "__main__":
    sys.exit(main())
