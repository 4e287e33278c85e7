"""How long recordings hold up: both ends of a long clip, the physics in between, and a recording that is killed.

    python benchmarks/recording.py --size 160x288 --minutes 53 --part 60 --out out/long

Records the first and the last `--part` seconds, with the physics of everything between them run and not recorded, and
says what the whole clip would take at these rates. Then it records the beginning again as a process of its own, kills
that with SIGKILL, resumes it, and compares every file with the recording that was not disturbed.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowshade.dataset.generate import folder_bytes
from flowshade.gbuffer.io import ClipWriter
from flowshade.gbuffer.io.folder import partial_folder
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.rollout import rollout, save_state
from flowshade.gbuffer.trace import Tracer
from flowshade.world import World, make_world, step


@dataclass
class Part:
    """One end of the clip."""

    name: str
    frames: int
    seconds: float
    busy: float
    """Seconds of processor time, which other work on the machine does not change."""
    bytes: int
    memory: float
    """Resident set of the process at its end, MiB."""

    def show(self) -> None:
        print(
            f"{self.name:<6} {self.frames} frames, {self.frames / self.seconds:.2f} frames/s, "
            f"{self.busy / self.frames * 1e3:.0f} ms of processor time a frame, "
            f"{self.bytes / self.frames / 2**10:.0f} KiB a frame, resident {self.memory:.0f} MiB",
            flush=True,
        )


def resident() -> float:
    """Of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def record_part(world: World, options: argparse.Namespace, name: str, first: int, state: np.ndarray | None) -> Part:
    """Records `--part` seconds from a frame on."""
    count, folder = round(options.part * options.fps), options.out / name
    tracer = Tracer(world.model, size=options.size)
    looks = () if options.look == "none" else (LOOKS[options.look],)
    frames = rollout(world, tracer, frames=first + count, looks=looks, first=first, state=state)
    head = next(frames)  # kernels are loaded and the structures built before anything is measured
    with ClipWriter(folder, size=options.size, fps=options.fps, overwrite=True) as writer:
        writer.append(head.gbuffer, head.pictures[0] if looks else None)
        started = np.array([time.perf_counter(), time.process_time()])
        for frame in frames:
            writer.append(frame.gbuffer, frame.pictures[0] if looks else None)
        taken = np.array([time.perf_counter(), time.process_time()]) - started
    wall, busy = taken * count / max(count - 1, 1)
    return Part(name, count, float(wall), float(busy), folder_bytes(folder), resident())


def run_physics(world: World, frames: int) -> tuple[np.ndarray, float]:
    """The state after a number of frames, and the seconds of processor time it took."""
    data = world.reset()
    started = time.process_time()
    for _ in range(frames):
        step(world, data)
    if not np.isfinite(data.qpos).all():
        raise ValueError(f"the physics of {world.name} are not finite after {frames} frames; expected finite numbers.")
    return save_state(world, data), time.process_time() - started


def kill_and_resume(options: argparse.Namespace, undisturbed: Path) -> None:
    """Kills a recording once it is half-way, resumes it, and compares all its files. Raises: ValueError."""
    clip, count = options.out / "killed", min(round(options.part * options.fps), 120)
    shutil.rmtree(clip, ignore_errors=True)
    shutil.rmtree(partial_folder(clip), ignore_errors=True)
    height, width = options.size
    command = [
        sys.executable, "-m", "flowshade.cli", "world", "record", options.world, "--seed", str(options.seed),
        "-o", str(clip), "--frames", str(count), "--fps", str(options.fps), "--size", f"{height}x{width}",
        "--look", options.look, "--resume", "--device", "cpu",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    frames = partial_folder(clip) / "frames"
    while process.poll() is None and (not frames.exists() or sum(1 for _ in frames.iterdir()) < count * 0.6):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    written = sum(1 for _ in frames.iterdir())
    subprocess.run(command, check=True)
    files = sorted((clip / "frames").iterdir())
    differ = [file.name for file in files if file.read_bytes() != (undisturbed / "frames" / file.name).read_bytes()]
    if len(files) != count or differ:
        raise ValueError(
            f"after the kill {len(files)} of {count} frames are there and {len(differ)} differ ({differ[:3]})."
        )
    print(f"killed with {written} of {count} files written, resumed: {count} frames, all bytes as if undisturbed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default="street")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="160x288", type=lambda text: tuple(int(side) for side in text.split("x")))
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--minutes", type=float, default=53.0, help="length of the whole clip")
    parser.add_argument("--part", type=float, default=60.0, help="seconds recorded at each end")
    parser.add_argument("--look", default="none", help="also record a reference picture")
    parser.add_argument("--out", type=Path, default=Path("out/long"))
    options = parser.parse_args()
    world = make_world(options.world, options.seed).with_fps(options.fps)
    total, part = round(60 * options.minutes * options.fps), round(options.part * options.fps)
    first = record_part(world, options, "first", 0, None)
    first.show()
    state, seconds = run_physics(world, total - part - 1)
    print(
        f"physics {total - part - 1} frames, {seconds / (total - part - 1) * 1e3:.1f} ms of processor time a frame",
        flush=True,
    )
    last = record_part(world, options, "last", total - part, state)
    last.show()
    rate = (first.seconds + last.seconds) / (first.frames + last.frames)
    size = (first.bytes + last.bytes) / (first.frames + last.frames)
    print(f"all {total} frames at these rates: {total * rate / 3600:.1f} hours, {total * size / 2**30:.1f} GiB")
    kill_and_resume(options, options.out / "first")


if __name__ == "__main__":
    main()
