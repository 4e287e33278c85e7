"""How fast the renderer is, end to end: five buffers in memory in, pictures in memory out.

    python benchmarks/render.py                                  # 240x416 on a CPU, 480x832 on a GPU
    python benchmarks/render.py --size 480x832 --device cuda --steps 2 --window 16 --windows 100

Counted: copying buffers to the device, encoding them, the history, the transformer's steps, decoding, and pictures
lying on the device in [0, 1]. Not counted: reading and tracing buffers, encoding text, writing video. The first windows
are warm-up, until the memory of the past is full. Prints a markdown row; `--json FILE` also keeps everything.
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

from flowshade.api import StyledRenderer, choose_device, load_renderer
from flowshade.checkpoints.store import default_weights
from flowshade.presets import compact_renderer, debug_renderer
from flowshade.renderer.renderer import Renderer
from flowshade.report import hardware
from flowshade.timing import StageTimer
from flowshade.types import FRAMES_PER_LATENT, Camera, GBuffer

PRESETS = {"compact": compact_renderer, "debug": debug_renderer}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table."""

    hardware: str
    torch: str
    date: str
    model: str
    size: tuple[int, int]
    dtype: str
    steps: int
    window: int
    windows: int
    frames_per_second: float
    """Frames over the time of all measured windows together."""
    median_ms: float
    """Of a window."""
    p99_ms: float
    first_frame_ms: float
    """A new stream: first window of `FRAMES_PER_LATENT` frames in, its pictures out."""
    stages_ms: dict[str, float]
    """Mean a window, from a pass of its own with the stages timed."""
    peak_memory_mib: float
    """GPU: allocated by torch. CPU: the process's resident set."""


def buffers(size: tuple[int, int], frames: int, device: torch.device) -> GBuffer:
    """Smooth buffers over a tilted plane with a moving camera; what they show does not change the cost."""
    height, width = size
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    phase = torch.arange(frames)[:, None, None] / 24
    wave = 0.5 + 0.5 * torch.sin(20 * x + 10 * y + phase)  # [T, H, W]
    normal = torch.stack([0.2 * wave, 1 - 0.2 * wave, wave], 1)
    pose = torch.eye(4).repeat(frames, 1, 1)
    pose[:, :3, :3] = torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    gbuffer = GBuffer(
        albedo=torch.stack([wave, 1 - wave, 0.5 * wave], 1),
        normal=normal / normal.norm(dim=1, keepdim=True),
        depth=(2 + 30 * (1 - y) + wave)[:, None],
        roughness=wave[:, None],
        metallic=(wave > 0.8).float()[:, None],
        camera=Camera(
            intrinsics=torch.tensor([width * 0.9, width * 0.9, width / 2, height / 2]).repeat(frames, 1), pose=pose
        ),
    )
    return gbuffer.to(device)


def load(options: argparse.Namespace, device: torch.device) -> StyledRenderer:
    """The shipped weights if there are any, else random ones of the preset: the cost is the same."""
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    if options.preset is None and (options.model != "compact" or default_weights().is_file()):
        return load_renderer(options.model, device=device, dtype=dtype, steps=options.steps)
    torch.manual_seed(0)
    model = Renderer(PRESETS[options.preset or "compact"]()).to(device).eval()
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    model.autocast_dtype = None if dtype == torch.float32 else dtype
    return StyledRenderer(model, name=f"{model.config.name} (random weights)", fingerprint="", steps=options.steps)


def push(renderer: StyledRenderer, window: GBuffer) -> float:
    """Seconds from buffers in memory to pictures in memory."""
    synchronise(renderer.device)
    began = time.perf_counter()
    renderer.push(window)
    synchronise(renderer.device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(renderer: StyledRenderer, size: tuple[int, int], window: int, windows: int) -> Result:
    """Warms up, then times a new stream's first window, `windows` windows, and the stages of some more."""
    device = renderer.device
    # Each latent frame of the past must exist before the cost is that of a long stream.
    warmup = -(-renderer.model.transformer.history_frames * FRAMES_PER_LATENT // window) + 2
    clip = buffers(size, window, device)
    first = clip[:FRAMES_PER_LATENT]
    renderer.set_prompt("a city street", "sunny")
    renderer.reset()
    for _ in range(2):
        push(renderer, first)
    renderer.reset()
    first_frame = push(renderer, first)
    renderer.reset()
    for _ in range(warmup):
        push(renderer, clip)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [push(renderer, clip) for _ in range(windows)]
    stages = stage_times(renderer, clip, max(windows // 4, 1))
    return Result(
        hardware=hardware(),
        torch=torch.__version__,
        date=date.today().isoformat(),
        model=renderer.name,
        size=size,
        dtype=str(renderer.dtype).removeprefix("torch."),
        steps=renderer.steps,
        window=window,
        windows=windows,
        frames_per_second=window * windows / sum(seconds),
        median_ms=1000 * statistics.median(seconds),
        p99_ms=1000 * sorted(seconds)[min(int(0.99 * windows), windows - 1)],
        first_frame_ms=1000 * first_frame,
        stages_ms=stages,
        peak_memory_mib=peak_memory(device) / 2**20,
    )


def stage_times(renderer: StyledRenderer, clip: GBuffer, windows: int) -> dict[str, float]:
    """Mean milliseconds a window of every stage."""
    timer = StageTimer(renderer.device)
    with renderer.timed(timer):
        for _ in range(windows):
            push(renderer, clip)
    return {name: 1000 * total / windows for name, total in timer.totals().items()}


def peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def table(results: list[Result]) -> str:
    """Markdown: a row a result."""
    names = list(dict.fromkeys(name for result in results for name in result.stages_ms))
    header = ["hardware", "model", "size", "dtype", "steps", "window", "FPS", "median ms", "p99 ms", "first frame ms"]
    rows = [[*header, *(f"{name} ms" for name in names), "peak MiB"]]
    rows.append(["---"] * len(rows[0]))
    for r in results:
        stages = [f"{r.stages_ms.get(name, 0):.1f}" for name in names]
        what = [r.hardware, r.model, f"{r.size[0]}x{r.size[1]}", r.dtype, str(r.steps), str(r.window)]
        speed = [f"{value:.1f}" for value in (r.frames_per_second, r.median_ms, r.p99_ms, r.first_frame_ms)]
        rows.append([*what, *speed, *stages, f"{r.peak_memory_mib:.0f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="HxW in pixels; by default 240x416 on a CPU and 480x832 on a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--steps", type=int, nargs="+", default=[2], help="one row each")
    parser.add_argument("--window", type=int, nargs="+", default=[16], help="frames a window; one row each")
    parser.add_argument("--windows", type=int, default=20, help="windows that are timed")
    parser.add_argument("--model", default="compact", help="a model's name or file")
    parser.add_argument("--preset", choices=PRESETS, help="random weights of this preset instead of a model")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    device = choose_device(options.device)
    height, width = (options.size or ("480x832" if device.type == "cuda" else "240x416")).split("x")
    results = []
    for steps in options.steps:
        renderer = load(argparse.Namespace(**{**vars(options), "steps": steps}), device)
        for window in options.window:
            results.append(measure(renderer, (int(height), int(width)), window, options.windows))
    print(f"{date.today().isoformat()}, torch {torch.__version__}, {options.windows} windows, eager\n")
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
