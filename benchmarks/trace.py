"""How many G-buffers a second the tracer makes, and reference pictures with them: direct light, and path-traced.

    python benchmarks/trace.py                                   # CPU, and CUDA where there is a device
    python benchmarks/trace.py --device cuda --size 480x832 --what paths --paths 16

Counted, per frame: new poses to the device and the BVH refit (`update`), all channels (`gbuffer`), and in the second
and third row of each world one reference picture as well (`shade`). Physics is not counted. Frames follow the world's
own camera path. On a GPU frames per second are taken over all frames together, queued without waiting, and the median
and p99 from frames waited for one by one. Prints each row of a markdown table as soon as it is measured; `--json FILE`
also keeps them, row by row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch

from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.trace import Tracer
from flowshade.types import Camera, stream_frame
from flowshade.world import World, camera_at, make_world, step


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table."""

    hardware: str
    date: str
    world: str
    triangles: int
    geoms: int
    size: tuple[int, int]
    samples: int
    what: str
    frames: int
    frames_per_second: float
    median_ms: float
    p99_ms: float

    def row(self) -> str:
        height, width = self.size
        return (
            f"| {self.hardware} | {self.date} | {self.world} ({self.geoms} geoms, {self.triangles:,} triangles) | "
            f"{height}x{width} | {self.what} | {self.frames_per_second:.1f} | "
            f"{self.median_ms:.2f} | {self.p99_ms:.2f} |"
        )


HEADER = "| hardware | date | world | size | what | frames/s | median ms | p99 ms |\n|---|---|---|---|---|---|---|---|"


def machine(device: torch.device, threads: int | None) -> str:
    """The GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {threads or os.cpu_count()} threads"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(frame: Callable[[int], None], frames: int, device: torch.device, label: str) -> tuple[float, list[float]]:
    """Frames a second of all together, and milliseconds of each when waited for."""
    for index in range(min(3, frames)):
        frame(index)
    wait(device)
    started = time.perf_counter()
    for index in range(frames):
        frame(index)
    wait(device)
    together = frames / (time.perf_counter() - started)
    each = []
    for index in range(frames):
        started = time.perf_counter()
        frame(index)
        wait(device)
        each.append(1000 * (time.perf_counter() - started))
        if sys.stderr.isatty():
            print(f"\r{label}: {index + 1}/{frames}", end="" if index + 1 < frames else "\n", file=sys.stderr)
    return together, each


def measure(world: World, size: tuple[int, int], device: torch.device, args: argparse.Namespace) -> Iterator[Result]:
    cameras = camera_at(world.camera_path, np.arange(args.frames) / world.fps, *size)
    views: list[Camera] = [cameras[index : index + 1] for index in range(args.frames)]
    stream = stream_frame(views[0].pose[0])
    data = world.reset()
    step(world, data)
    look = LOOKS[args.look]
    for what in args.what:
        reference = "paths" if what == "paths" else "direct"
        tracer = Tracer(
            world.model, size=size, device=device, samples=args.samples, threads=args.threads, reference=reference,
            paths=args.paths, sun_rays=args.sun_rays, sky_rays=args.sky_rays,
        )  # fmt: skip

        def frame(index: int, tracer: Tracer = tracer, shaded: bool = what != "buffers") -> None:
            tracer.update(data)
            tracer.gbuffer(views[index], previous=views[max(index - 1, 0)])
            if shaded:
                tracer.shade(look, stream=stream)

        words = {
            "buffers": "G-buffer",
            "direct": f"G-buffer and picture ({args.look}, {args.sun_rays} sun, {args.sky_rays} sky rays)",
            "paths": f"G-buffer and picture ({args.look}, {args.paths} paths)",
        }[what]
        slow = {"buffers": 1, "direct": 5, "paths": 10}[what] if device.type == "cpu" else 1
        frames = max(args.frames // slow, 2)
        label = f"{world.name} {size[0]}x{size[1]} {device.type}, {words}"
        together, each = timed(frame, frames, device, label)
        yield Result(
            hardware=machine(device, args.threads), date=date.today().isoformat(), world=world.name,
            triangles=tracer.triangles, geoms=world.model.ngeom, size=size, samples=args.samples,
            what=words, frames=frames, frames_per_second=together,
            median_ms=float(np.median(each)), p99_ms=float(np.percentile(each, 99)),
        )  # fmt: skip


def parse_size(text: str) -> tuple[int, int]:
    height, width = text.lower().split("x")
    return int(height), int(width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
    parser.add_argument("--size", nargs="+", type=parse_size, default=[(240, 416), (480, 832)], metavar="HxW")
    parser.add_argument("--world", nargs="+", default=["street", "hills"])
    parser.add_argument("--seed", type=int, default=0, help="of the worlds")
    parser.add_argument("--look", default="sunny", choices=LOOKS)
    parser.add_argument("--what", nargs="+", default=["buffers", "direct", "paths"],
                        choices=["buffers", "direct", "paths"])  # fmt: skip
    parser.add_argument("--paths", type=int, default=16, help="path samples a pixel")
    parser.add_argument("--sun-rays", type=int, default=4, help="a pixel, of direct light")
    parser.add_argument("--sky-rays", type=int, default=12, help="a pixel, of direct light")
    parser.add_argument("--samples", type=int, default=4, help="material samples a pixel")
    parser.add_argument("--frames", type=int, default=0, help="default: 20 on a CPU, 300 on a GPU")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: all cores)")
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    given, results = args.frames, []
    print(HEADER, flush=True)
    for name in args.device:
        device = torch.device(name)
        args.frames = given or (300 if device.type == "cuda" else 20)
        for kind in args.world:
            for size in args.size:
                for result in measure(make_world(kind, args.seed), size, device, args):
                    results.append(result)
                    print(result.row(), flush=True)
                    if args.json:
                        args.json.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
