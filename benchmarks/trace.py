"""How many G-buffers a second the tracer makes, and reference pictures with them: direct light, and path-traced.

    python benchmarks/trace.py                                   # CPU, and CUDA where there is a device
    python benchmarks/trace.py --device cuda --size 480x832 --what paths --paths 16

Counted, per frame: new poses to the device and the BVH refit (`update`), all channels (`gbuffer`), and in the second
and third row of each world one reference picture as well (`shade`). Physics is not counted. Frames follow the world's
own camera path. On a GPU frames per second are taken over all frames together, queued without waiting, and the median
and p99 from frames waited for one by one. Prints each row of a markdown table as soon as it is measured; `--json FILE`
also keeps them, row by row. A row takes `--seconds` at most, compiling kernels aside (minutes, the first time of all);
a row that is ended from outside (Ctrl-C, SIGTERM) is printed of the frames it had. Progress goes to stderr.

One small picture does not fill a large GPU. `--together 1 4` also traces four worlds, seeds in a row, in turns in one
process, each on a CUDA stream of its own: frames a second are of all of them, median and p99 of a frame of each.
`--processes 1 4` measures with four processes on the one device too, each with worlds of its own (seeds go on from
those of the process before), as the recorder and the training pool have them. They begin together, when all have their
kernels and first frames, and end together, when the first of them has traced `--frames` (or after half of `--seconds`),
so that all are at work while frames are counted. Frames a second are all frames of all processes, between the first
begin and the last end; frames are queued without waiting, and median and p99 are from a round before, in which every
process waits for each of its frames.

`--what rays` tells how far the rays of direct light are from what the machine can do: rays a second of each kernel that
traces, as it runs within a picture, and their share of a peak, measured on the same tree: parallel neighbours (a
camera's rays, 16 a pixel), any hit, nothing shaded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import numpy as np
import peak
import torch
import warp as wp

from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.trace import Tracer
from flowshade.progress import Progress, progress_bar
from flowshade.provenance import hardware
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
    together: int
    """Worlds traced in turns; what follows but the rate is of one frame of each."""
    processes: int
    """On the one device, each with so many worlds; what follows but the rate is of each of them."""
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


@dataclass(frozen=True, kw_only=True)
class RayResult:
    """One row of the table of rays."""

    hardware: str
    date: str
    world: str
    size: tuple[int, int]
    kernel: str
    rays: int
    ms: float
    share: float
    """Of the peak's rays a second, [0, 1] but for noise."""

    def row(self) -> str:
        height, width = self.size
        return (
            f"| {self.hardware} | {self.date} | {self.world} | {height}x{width} | {self.kernel} | {self.rays:,} | "
            f"{self.ms:.3f} | {self.rays / self.ms / 1000:.1f} | {self.share:.0%} |"
        )


RAY_HEADER = (
    "| hardware | date | world | size | kernel | rays | median ms | million rays/s | of the peak |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
HEADER = "| hardware | date | world | size | what | frames/s | median ms | p99 ms |\n|---|---|---|---|---|---|---|---|"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Timing:
    """What was measured of one row so far."""

    triangles: int = 0
    geoms: int = 0
    rate: float = 0.0
    """Frames a second, of all together if that was reached."""
    each: list[float] = field(default_factory=list)
    """Milliseconds of frames waited for one by one."""


def warm_up(frame: Callable[[int], None], frames: int, device: torch.device, seconds: float) -> None:
    """The first frame, which compiles kernels where they are not cached, and two more if there is time."""
    frame(0)
    wait(device)
    begun = time.perf_counter()
    for index in range(1, min(3, frames)):
        frame(index)
        wait(device)
        if time.perf_counter() - begun > seconds / 4:
            break


def timed(
    frame: Callable[[int], None], frames: int, device: torch.device, progress: Progress, seconds: float, found: Timing
) -> None:
    """Fills `found`: milliseconds of frames waited for one by one, then frames a second of all together.

    Each half takes half of `seconds` at most, and ends with fewer frames then.
    """
    warm_up(frame, frames, device, seconds)
    begun = time.perf_counter()
    for index in range(frames):
        started = time.perf_counter()
        frame(index)
        wait(device)
        found.each.append(1000 * (time.perf_counter() - started))
        found.rate = 1000 * len(found.each) / sum(found.each)
        progress(index + 1, frames)
        if time.perf_counter() - begun > seconds / 2:
            break
    count = len(found.each)
    started = time.perf_counter()
    for index in range(count):
        frame(index)
    wait(device)
    found.rate = count / (time.perf_counter() - started)


def make_tracer(
    world: World, size: tuple[int, int], device: torch.device, args: argparse.Namespace, what: str
) -> Tracer:
    return Tracer(
        world.model, size=size, device=device, samples=args.samples, threads=args.threads,
        reference="paths" if what == "paths" else "direct", paths=args.paths, sun_rays=args.sun_rays,
        sky_rays=args.sky_rays,
    )  # fmt: skip


class Lane:
    """A world, its tracer and the CUDA stream that it is traced on."""

    def __init__(
        self, world: World, size: tuple[int, int], device: torch.device, args: argparse.Namespace, what: str
    ) -> None:
        cameras = camera_at(world.camera_path, np.arange(args.frames) / world.fps, *size)
        self._views: list[Camera] = [cameras[index : index + 1] for index in range(args.frames)]
        self._frame = stream_frame(self._views[0].pose[0])
        self._look = LOOKS[args.look] if what != "buffers" else None
        self._data = world.reset()
        step(world, self._data)
        self.tracer = make_tracer(world, size, device, args, what)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def trace(self, index: int) -> None:
        with torch.cuda.stream(self._stream):  # None changes nothing
            self.tracer.update(self._data)
            self.tracer.gbuffer(self._views[index], previous=self._views[max(index - 1, 0)])
            if self._look is not None:
                self.tracer.shade(self._look, stream=self._frame)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a row measures."""

    kind: str
    together: int
    processes: int
    size: tuple[int, int]
    device: torch.device
    what: str
    args: argparse.Namespace

    @property
    def frames(self) -> int:
        slow = {"buffers": 1, "direct": 5, "paths": 10}[self.what] if self.device.type == "cpu" else 1
        return max(self.args.frames // slow, 2)

    @property
    def words(self) -> str:
        args = self.args
        words = {
            "buffers": "G-buffer",
            "direct": f"G-buffer and picture ({args.look}, {args.sun_rays} sun, {args.sky_rays} sky rays)",
            "paths": f"G-buffer and picture ({args.look}, {args.paths} paths)",
        }[self.what]
        words += f", {self.together} worlds at once" if self.together > 1 else ""
        return words + (f", {self.processes} processes" if self.processes > 1 else "")

    def frame(self, process: int, found: Timing) -> Callable[[int], None]:
        """What traces a frame of every world of a process; says in `found` what the first of them holds."""
        first = self.args.seed + process * self.together
        worlds = [make_world(self.kind, first + index) for index in range(self.together)]
        lanes = [Lane(world, self.size, self.device, self.args, self.what) for world in worlds]
        found.triangles, found.geoms = lanes[0].tracer.triangles, worlds[0].model.ngeom
        wait(self.device)

        def frame(index: int) -> None:
            for lane in lanes:
                lane.trace(index)

        return frame


def measure(case: Case) -> Iterator[Result]:
    args, found, stopped = case.args, Timing(), False
    label = f"{case.kind} {case.size[0]}x{case.size[1]} {case.device.type}, {case.words}"
    print(f"{label} (compiles kernels first where they are not cached)", file=sys.stderr, flush=True)
    try:
        with progress_bar(label) as progress:
            if case.processes > 1:
                timed_by_processes(case, progress, found)
            else:
                timed(case.frame(0, found), case.frames, case.device, progress, args.seconds, found)
    except KeyboardInterrupt:
        if not found.each:
            raise
        stopped = True
    yield Result(
        hardware=hardware(case.device, args.threads or os.cpu_count()), date=date.today().isoformat(),
        world=case.kind, triangles=found.triangles, geoms=found.geoms, size=case.size, samples=args.samples,
        what=case.words + (f", stopped after {len(found.each)} frames" if stopped else ""), together=case.together,
        processes=case.processes, frames=len(found.each), frames_per_second=case.together * found.rate,
        median_ms=float(np.median(found.each)), p99_ms=float(np.percentile(found.each, 99)),
    )  # fmt: skip
    if stopped:
        raise KeyboardInterrupt


# Processes ------------------------------------------------------------------------------------------------------------

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 10.0
"""Seconds that processes have to send what they found, once they are asked to end."""


class Round:
    """A stretch of time in which all processes trace; what they share of it."""

    def __init__(self, processes: int) -> None:
        self.over = SPAWN.RawValue("b", 0)
        self.done = SPAWN.RawArray("l", processes)
        self._gate = SPAWN.Barrier(processes)

    def trace(
        self, process: int, frame: Callable[[int], None], case: Case, each: list[float] | None
    ) -> tuple[int, float, float]:
        """Traces until the first process has all its frames, or half the seconds are over.

        Args:
            each: takes milliseconds of frames, which are then waited for one by one.

        Returns:
            Frames traced to the end, begin and end (seconds of a clock that all processes share).
        """
        self._gate.wait()
        count, begun = 0, time.monotonic()
        while not self.over.value and time.monotonic() - begun < case.args.seconds / 2:
            started = time.perf_counter()
            frame(count % case.frames)
            if each is not None:
                wait(case.device)
                each.append(1000 * (time.perf_counter() - started))
            count += 1
            self.done[process] = count
            if count == case.frames:
                self.over.value = 1
        wait(case.device)
        return count, begun, time.monotonic()


def process_main(process: int, case: Case, first: Any, rounds: list[Round], reply: Connection) -> None:
    """One process of a row; `first` is set once kernels are compiled, by process 0."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also sent to whole groups: the process that asked ends this one
        signal.signal(number, signal.SIG_IGN)
    found = Timing()
    frame = case.frame(process, found)
    if process > 0:
        first.wait()
    warm_up(frame, case.frames, case.device, case.args.seconds)
    first.set()
    spans = [rounds[0].trace(process, frame, case, found.each), rounds[1].trace(process, frame, case, None)]
    reply.send((found, spans))


def timed_by_processes(case: Case, progress: Progress, found: Timing) -> None:
    """`timed` for several processes on one device: fills `found` with the frames of all.

    Raises:
        RuntimeError: a process ended without an answer; it has printed why.
    """
    first, rounds = SPAWN.Event(), [Round(case.processes) for _ in range(2)]
    workers: dict[Connection, Any] = {}
    for process in range(case.processes):
        mine, theirs = SPAWN.Pipe(duplex=False)
        worker = SPAWN.Process(target=process_main, args=(process, case, first, rounds, theirs), daemon=True)
        worker.start()
        theirs.close()
        workers[mine] = worker
    try:
        collect(case, workers, rounds, progress, found, math.inf)
    except KeyboardInterrupt:
        for each in rounds:
            each.over.value = 1
        collect(case, workers, rounds, progress, found, PATIENCE)
        raise
    finally:
        for worker in workers.values():
            worker.kill()
            worker.join()


def collect(
    case: Case, workers: dict[Connection, Any], rounds: list[Round], progress: Progress, found: Timing, patience: float
) -> None:
    """Fills `found` once all processes have answered; leaves it if they have not after `patience` seconds."""
    begun, answers = time.monotonic(), {}
    while len(answers) < len(workers):
        if time.monotonic() - begun > patience:
            return
        ready = wait_for([reply for reply in workers if reply not in answers], timeout=0.5)
        answers |= {reply: receive(reply, worker) for reply, worker in workers.items() if reply in ready}
        progress(sum(sum(each.done) for each in rounds), 2 * case.processes * case.frames)
    timings, spans = zip(*answers.values(), strict=True)
    found.triangles, found.geoms = timings[0].triangles, timings[0].geoms
    found.each = [ms for timing in timings for ms in timing.each]
    for stretch in zip(*spans, strict=True):  # the second round's rate stays, unless it was not reached
        counts, begins, ends = zip(*stretch, strict=True)
        if any(counts):
            found.rate = sum(counts) / (max(ends) - min(begins))


def receive(reply: Connection, worker: Any) -> tuple[Timing, list[tuple[int, float, float]]]:
    try:
        return reply.recv()
    except EOFError:
        worker.join()
        raise RuntimeError(
            f"{worker.name} of {__file__} ended with exit code {worker.exitcode} before it answered; what it printed "
            "says why. Try fewer --processes if memory ran out."
        ) from None


# Rays -----------------------------------------------------------------------------------------------------------------


class Clock:
    """Milliseconds of the kernels that trace rays, and how many rays they had, of one tracer's pictures."""

    def __init__(self, tracer: Tracer) -> None:
        self.ms: dict[str, list[float]] = {}
        self.rays: dict[str, int] = {}
        self._tracer, self._launch = tracer, tracer.launch_dealt
        tracer.launch_dealt = self._timed  # pyright: ignore[reportAttributeAccessIssue]

    def picture(self, shade: Callable[[], object]) -> None:
        """Adds one picture."""
        self._now: dict[str, float] = {}
        self.rays = {}
        shade()
        for name, ms in self._now.items():
            self.ms.setdefault(name, []).append(ms)

    def _timed(self, kernel: Any, before: list[Any], after: list[Any], lanes: int = 1) -> None:
        name = kernel.key.rpartition(".")[2]
        wait(self._tracer.device)
        started = time.perf_counter()
        self._launch(kernel, before, after, lanes)
        wait(self._tracer.device)
        if name.startswith("trace_"):
            self._now[name] = self._now.get(name, 0.0) + 1000 * (time.perf_counter() - started)
            self.rays[name] = self.rays.get(name, 0) + self._count(name, before, after, lanes)

    def _count(self, name: str, before: list[Any], after: list[Any], lanes: int) -> int:
        """Rays that were traced; threads without one are none."""
        height, width = self._tracer.size
        slots = lanes * height * width
        if name == "trace_peak":
            return slots
        rays = after[-1]
        if name == "trace_bounces":
            return int((wp.to_torch(rays.t)[:slots] > 0).sum())
        if name == "trace_shadows":
            return int((wp.to_torch(rays.sun)[:slots].sum(-1) > 0).sum())
        toward = torch.tensor([*before[2].sun_dir], device=self._tracer.device)
        hits = self._tracer.hits
        facing = (wp.to_torch(hits.normal) @ toward > 0) & (wp.to_torch(hits.geom) >= 0)
        return lanes * int(facing.sum())


def measure_rays(
    world: World, size: tuple[int, int], device: torch.device, args: argparse.Namespace
) -> Iterator[RayResult]:
    """The peak, and what the kernels of a picture that trace reach of it."""
    tracer = make_tracer(world, size, device, args, "rays")
    camera = camera_at(world.camera_path, np.zeros(1), *size)
    data = world.reset()
    step(world, data)
    tracer.update(data)
    tracer.gbuffer(camera)
    found = wp.zeros(peak.LANES * size[0] * size[1], dtype=int, device=str(device))
    clock = Clock(tracer)

    def picture() -> None:
        with tracer.on_stream():
            mesh = tracer.light_meshes()[0]
            tracer.launch_dealt(peak.trace_peak, [mesh, tracer.view], [found], peak.LANES)
        tracer.shade(LOOKS[args.look], stream=stream_frame(camera.pose[0]))

    clock.picture(picture)
    clock.ms.clear()
    frames = 3 if device.type == "cpu" else 50
    begun = time.perf_counter()
    with progress_bar(f"{world.name} {size[0]}x{size[1]} {device.type}, rays", "pictures") as progress:
        for index in range(frames):
            clock.picture(picture)
            progress(index + 1, frames)
            if time.perf_counter() - begun > args.seconds:
                break
    best = clock.rays["trace_peak"] / float(np.median(clock.ms["trace_peak"]))
    for name, ms in clock.ms.items():
        median = float(np.median(ms))
        yield RayResult(
            hardware=hardware(device, args.threads or os.cpu_count()), date=date.today().isoformat(),
            world=world.name, size=size, kernel=name, rays=clock.rays[name], ms=median,
            share=clock.rays[name] / median / best,
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
    parser.add_argument("--together", nargs="+", type=int, default=[1], help="worlds traced in turns; one row each")
    parser.add_argument("--processes", nargs="+", type=int, default=[1], help="on each device; one row each")
    parser.add_argument("--look", default="sunny", choices=LOOKS)
    parser.add_argument("--what", nargs="+", default=["buffers", "direct", "paths", "rays"],
                        choices=["buffers", "direct", "paths", "rays"])  # fmt: skip
    parser.add_argument("--paths", type=int, default=16, help="path samples a pixel")
    parser.add_argument("--sun-rays", type=int, default=4, help="a pixel, of direct light")
    parser.add_argument("--sky-rays", type=int, default=12, help="a pixel, of direct light")
    parser.add_argument("--samples", type=int, default=4, help="material samples a pixel")
    parser.add_argument("--frames", type=int, default=0, help="default: 20 on a CPU, 300 on a GPU")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: all cores)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="most that a row may take once its kernels are compiled"
    )
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a row under way is still printed
    try:
        run(args)
    except KeyboardInterrupt:
        print("stopped; the rows above are complete but where they say otherwise.", file=sys.stderr)
        sys.exit(130)


def run(args: argparse.Namespace) -> None:
    given, kept = args.frames, []

    def tell(result: Result | RayResult) -> None:
        print(result.row(), flush=True)
        kept.append(asdict(result))
        if args.json:
            args.json.write_text(json.dumps(kept, indent=2) + "\n")

    scenes = [(torch.device(name), kind, size) for name in args.device for kind in args.world for size in args.size]
    if set(args.what) != {"rays"}:
        print(HEADER, flush=True)
    for device, kind, size in scenes:
        args.frames = given or (300 if device.type == "cuda" else 20)
        for together, processes, what in itertools.product(args.together, args.processes, args.what):
            if what == "rays":
                continue
            for result in measure(Case(kind=kind, together=together, processes=processes, size=size, device=device,
                                       what=what, args=args)):  # fmt: skip
                tell(result)
    if "rays" in args.what:
        print(f"\n{RAY_HEADER}", flush=True)
        for device, kind, size in scenes:
            for result in measure_rays(make_world(kind, args.seed), size, device, args):
                tell(result)


if __name__ == "__main__":
    main()
