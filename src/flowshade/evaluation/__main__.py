"""`python -m flowshade.evaluation`: scores a renderer on held-out worlds and writes a table and a sheet."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from flowshade.checkpoints.store import default_weights, load_renderer_file
from flowshade.evaluation.worlds import WorldSuite, evaluate_worlds, markdown_table
from flowshade.gbuffer.look import LOOKS
from flowshade.renderer.prompt import CaptionBank, PromptEncoder
from flowshade.renderer.transformer import TextContext


def canonical_contexts(bank: Path | None, device: str, looks: Sequence[str]) -> dict[str, TextContext]:
    """The canonical caption of each look asked for, embedded: from a caption bank, or by the prompt encoder."""
    encoder = PromptEncoder(device) if bank is None else CaptionBank.load(bank).to(device)
    return {name: encoder.encode([LOOKS[name].caption()]) for name in looks}


def main(arguments: list[str] | None = None) -> None:
    """Scores a renderer file."""
    parser = argparse.ArgumentParser(prog="python -m flowshade.evaluation", description=__doc__)
    parser.add_argument("--model", type=Path, default=default_weights())
    parser.add_argument("--out", type=Path, default=Path("out/eval"))
    parser.add_argument("--captions", type=Path, help="caption bank, for machines without the prompt encoder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--worlds", type=int, default=WorldSuite.worlds)
    parser.add_argument("--kinds", nargs="+", default=WorldSuite.kinds, help="of worlds, in turn")
    parser.add_argument("--frames", type=int, default=WorldSuite.frames)
    parser.add_argument("--size", type=int, nargs=2, default=WorldSuite.size)
    parser.add_argument("--steps", type=int, nargs="+", default=WorldSuite.steps)
    parser.add_argument("--window", type=int, default=WorldSuite.window)
    parser.add_argument("--workers", type=int, default=0, help="processes that trace; 0 = this one does")
    parser.add_argument("--looks", nargs="+", default=WorldSuite.looks, choices=tuple(LOOKS))
    parser.add_argument("--reference", default=WorldSuite.reference, choices=("direct", "paths"))
    options = parser.parse_args(arguments)
    suite = WorldSuite(
        worlds=options.worlds,
        kinds=tuple(options.kinds),
        frames=options.frames,
        size=tuple(options.size),
        steps=tuple(options.steps),
        window=options.window,
        looks=tuple(options.looks),
        reference=options.reference,
    )
    renderer = load_renderer_file(options.model, device=options.device).eval()
    contexts = canonical_contexts(options.captions, options.device, suite.looks)
    rows = evaluate_worlds(renderer, contexts, suite, device=options.device, out=options.out, workers=options.workers)
    print(markdown_table(rows))
    print(f"scores and sheet: {options.out}")


if __name__ == "__main__":
    main()
