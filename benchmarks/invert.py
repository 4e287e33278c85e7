"""How fast the inverse is: pictures in memory in, G-buffers and confidences in memory out.

    python benchmarks/invert.py                             # 240x416 on a CPU, 480x832 on a GPU
    python benchmarks/invert.py --size 480x832 --device cuda --window 1 4 8

Counted: pictures that lie on the device to buffers that lie there. Not counted: reading and resizing video, writing the
clip. The first windows are warm-up, until the memory of the past is full. Prints a markdown row a window size.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch

from flowshade.api import load_inverse
from flowshade.inverse.stream import Inverse
from flowshade.inversion import RUN
from flowshade.provenance import hardware
from flowshade.types import Frames


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table."""

    hardware: str
    torch: str
    date: str
    model: str
    size: tuple[int, int]
    window: int
    windows: int
    frames_per_second: float
    """Frames over the time of all measured windows together."""
    median_ms: float
    """Of a window."""
    p99_ms: float
    peak_memory_mib: float
    """GPU: allocated by torch. CPU: the process's resident set."""


def measure(inverse: Inverse, *, size: tuple[int, int], window: int, windows: int) -> Result:
    """Warms up, then times `windows` windows of a stream."""
    device = inverse.device
    generator = torch.Generator().manual_seed(0)
    frames = Frames(rgb=torch.rand(window, 3, *size, generator=generator).to(device))
    inverse.reset()
    for _ in range(-(-inverse.config.remembered // window) + 2):
        push(inverse, frames)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [push(inverse, frames) for _ in range(windows)]
    return Result(
        hardware=hardware(),
        torch=torch.__version__,
        date=date.today().isoformat(),
        model=inverse.config.name,
        size=size,
        window=window,
        windows=windows,
        frames_per_second=window * windows / sum(seconds),
        median_ms=1000 * statistics.median(seconds),
        p99_ms=1000 * sorted(seconds)[min(int(0.99 * windows), windows - 1)],
        peak_memory_mib=peak_memory(device) / 2**20,
    )


def push(inverse: Inverse, frames: Frames) -> float:
    """Seconds from pictures to buffers."""
    synchronise(inverse.device)
    began = time.perf_counter()
    inverse.push(frames)
    synchronise(inverse.device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def table(results: list[Result]) -> str:
    """Markdown: a row a result."""
    rows = [["hardware", "model", "size", "window", "FPS", "median ms", "p99 ms", "peak MiB"]]
    rows.append(["---"] * len(rows[0]))
    for r in results:
        what = [r.hardware, r.model, f"{r.size[0]}x{r.size[1]}", str(r.window)]
        rows.append([*what, *(f"{x:.1f}" for x in (r.frames_per_second, r.median_ms, r.p99_ms, r.peak_memory_mib))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="HxW in pixels; by default 240x416 on a CPU and 480x832 on a GPU")
    parser.add_argument("--device", help="by default a GPU when there is one")
    parser.add_argument("--window", type=int, nargs="+", default=[RUN], help="pictures a call; one row each")
    parser.add_argument("--windows", type=int, default=20, help="windows that are timed")
    parser.add_argument("--model", default="compact", help="a model's name or file")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args(arguments)
    inverse = load_inverse(options.model, device=options.device)
    if not isinstance(inverse, Inverse):
        parser.error(f"--model got {options.model}; this measures compact inverses, inverse7b.py the others.")
    height, width = (options.size or ("480x832" if inverse.device.type == "cuda" else "240x416")).split("x")
    size = int(height), int(width)
    results = [measure(inverse, size=size, window=window, windows=options.windows) for window in options.window]
    print(f"{date.today().isoformat()}, torch {torch.__version__}, {options.windows} windows, float32, eager\n")
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
