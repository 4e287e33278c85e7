"""How fast the renderer is, end to end: five buffers in memory in, pictures in memory out.

    python benchmarks/render.py                                  # 240x416 on a CPU, 480x832 on a GPU
    python benchmarks/render.py --size 480x832 --device cuda --steps 2 --window 16 --windows 100
    python benchmarks/render.py --device cuda --steps 2 --window 4 16 --variants plain triton+graphs inductor+graphs
    python benchmarks/render.py --world street                   # physics and tracing of the buffers counted too

Counted: encoding buffers that lie on the device, the history, the transformer's steps, decoding, and pictures lying on
the device in [0, 1]. Not counted: reading, tracing and copying buffers, encoding text, writing video. The first windows
are warm-up, until the memory of the past is full. Prints a markdown row; `--json FILE` also keeps everything.

`--variants` takes `plain`, the plain path, and `KERNELS` or `KERNELS+graphs`, what `renderer.fast.speed_up` is given;
"differs" is |frames - plain frames| / |plain frames| over a stream's first four windows. `--budget` ends in time.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from itertools import product, repeat
from pathlib import Path
from typing import Any

import torch

from flowshade.checkpoints.store import default_weights, load_renderer_file
from flowshade.errors import FlowshadeError
from flowshade.nn.tuning import disagreement
from flowshade.provenance import hardware
from flowshade.renderer.fast import slow_down, speed_up
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.transformer import TextContext
from flowshade.timing import StageTimer, watching
from flowshade.types import FRAMES_PER_LATENT, Camera, GBuffer

PROMPT_TOKENS = 24
"""Of a typical caption. Random embeddings stand for it: encoding text is not counted."""

ENDLESS = 10**9
"""Frames of a recording that is never waited for."""

VARIANTS = ("plain", "torch", "triton", "inductor", "torch+graphs", "triton+graphs", "inductor+graphs")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table."""

    hardware: str
    torch: str
    date: str
    model: str
    size: tuple[int, int]
    dtype: str
    world: str | None
    """Run and traced while it is rendered; None: the same buffers again and again."""
    steps: int
    window: int
    variant: str
    differs: float
    """From the plain path, relative."""
    windows: int
    frames_per_second: float
    """Frames over the time of all measured windows together."""
    median_ms: float
    """Of a window."""
    p99_ms: float
    first_frame_ms: float
    """A new stream: first window of `FRAMES_PER_LATENT` frames in, its pictures out; the best of three."""
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


def traced(world: str, size: tuple[int, int], frames: int, device: torch.device) -> Iterator[GBuffer]:
    """Windows of a world that runs and is traced as they are asked for."""
    from flowshade.gbuffer.record import record
    from flowshade.world import make_world

    traced = record(make_world(world, 0), frames=ENDLESS, fps=24, size=size, device=device)
    while True:
        yield GBuffer.cat([next(traced)[0] for _ in range(frames)])


def load(model: str, preset: str | None, dtype: str, device: torch.device) -> tuple[Renderer, str]:
    """A renderer and its name: the shipped weights if there are any, else random ones, which cost the same."""
    path = default_weights() if model == "compact" else Path(model)
    if preset is None and (model != "compact" or path.is_file()):
        renderer = load_renderer_file(path, device)
        name = renderer.config.name
    else:
        from flowshade import presets

        torch.manual_seed(0)
        config = presets.debug_renderer() if preset == "debug" else presets.compact_renderer()
        renderer = Renderer(config).to(device).eval()
        torch.nn.init.normal_(renderer.transformer.proj_out.weight, std=0.2)  # a new network's output is silent
        name = f"{config.name} (random weights)"
    if dtype == "bfloat16" or (dtype == "auto" and device.type == "cuda"):
        renderer.autocast_dtype = torch.bfloat16
    return renderer, name


def reset(renderer: Renderer) -> None:
    """A new stream with a prompt."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(1, PROMPT_TOKENS, renderer.config.transformer.text_dim, generator=generator)
    renderer.reset(seed=0)
    renderer.set_text(TextContext(tokens=tokens))


def push(renderer: Renderer, windows: Iterator[GBuffer], steps: int) -> float:
    """Seconds from asking for buffers to pictures in memory."""
    synchronise(renderer.device)
    began = time.perf_counter()
    renderer.push(next(windows), steps=steps)
    synchronise(renderer.device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def first_pictures(renderer: Renderer, clip: GBuffer, steps: int, windows: int = 4) -> torch.Tensor:
    """Of a new stream."""
    reset(renderer)
    return torch.cat([renderer.push(clip, steps=steps).rgb for _ in range(windows)])


def measure_variant(renderer: Renderer, name: str, variant: str, **setting: Any) -> Result:
    """`measure`, with the renderer as the variant has it."""
    plain = first_pictures(renderer, buffers(setting["size"], setting["window"], renderer.device), setting["steps"])
    kernels, _, graphs = variant.partition("+")
    try:
        if kernels != "plain":
            speed_up(renderer, kernels=kernels, graphs=graphs == "graphs")  # pyright: ignore[reportArgumentType]
        return measure(renderer, name, variant=variant, plain=plain, **setting)
    finally:
        slow_down(renderer)


def measure(
    renderer: Renderer,
    name: str,
    *,
    size: tuple[int, int],
    world: str | None,
    steps: int,
    window: int,
    windows: int,
    variant: str,
    plain: torch.Tensor,
) -> Result:
    """Warms up, then times a new stream's first window, `windows` windows, and the stages of some more."""
    device = renderer.device
    clip = buffers(size, window, device)
    source = repeat(clip) if world is None else traced(world, size, window, device)
    first = repeat(clip[:FRAMES_PER_LATENT]) if world is None else traced(world, size, FRAMES_PER_LATENT, device)
    first_frame = min(first_window(renderer, first, steps) for _ in range(3))
    reset(renderer)
    # Each latent frame of the past must exist before the cost is that of a long stream.
    for _ in range(-(-renderer.transformer.history_frames * FRAMES_PER_LATENT // window) + 4):
        push(renderer, source, steps)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [push(renderer, source, steps) for _ in range(windows)]
    peak = peak_memory(device)
    return Result(
        hardware=hardware(),
        torch=torch.__version__,
        date=date.today().isoformat(),
        model=name,
        size=size,
        world=world,
        dtype=str(renderer.autocast_dtype or renderer.transformer.dtype).removeprefix("torch."),
        steps=steps,
        window=window,
        variant=variant,
        differs=disagreement(first_pictures(renderer, clip, steps), plain),
        windows=windows,
        frames_per_second=window * windows / sum(seconds),
        median_ms=1000 * statistics.median(seconds),
        p99_ms=1000 * sorted(seconds)[min(int(0.99 * windows), windows - 1)],
        first_frame_ms=1000 * first_frame,
        stages_ms=stage_times(renderer, source, steps, max(windows // 4, 1)),
        peak_memory_mib=peak / 2**20,
    )


def first_window(renderer: Renderer, windows: Iterator[GBuffer], steps: int) -> float:
    """Seconds that the first window of a new stream takes."""
    reset(renderer)
    return push(renderer, windows, steps)


def stage_times(renderer: Renderer, source: Iterator[GBuffer], steps: int, windows: int) -> dict[str, float]:
    """Mean milliseconds a window of every stage."""
    timer = StageTimer(renderer.device)
    with watching(timer, renderer):
        for _ in range(windows):
            push(renderer, source, steps)
    return {name: 1000 * total / windows for name, total in timer.totals().items()}


def peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def table(results: list[Result]) -> str:
    """Markdown: a row a result."""
    names = list(dict.fromkeys(name for result in results for name in result.stages_ms))
    header = [
        "hardware",
        "model",
        "size",
        "world",
        "dtype",
        "steps",
        "window",
        "variant",
        "FPS",
        "median ms",
        "p99 ms",
        "first frame ms",
    ]
    rows = [[*header, *(f"{name} ms" for name in names), "peak MiB", "differs"]]
    rows.append(["---"] * len(rows[0]))
    for r in results:
        stages = [f"{r.stages_ms.get(name, 0):.1f}" for name in names]
        setting = [f"{r.size[0]}x{r.size[1]}", r.world or "", r.dtype, str(r.steps), str(r.window), r.variant]
        speed = [f"{value:.1f}" for value in (r.frames_per_second, r.median_ms, r.p99_ms, r.first_frame_ms)]
        rows.append([r.hardware, r.model, *setting, *speed, *stages, f"{r.peak_memory_mib:.0f}", f"{r.differs:.1e}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="HxW in pixels; by default 240x416 on a CPU and 480x832 on a GPU")
    parser.add_argument("--world", help="run and trace this world while rendering, and count it")
    parser.add_argument("--device", help="by default a GPU when there is one")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--steps", type=int, nargs="+", default=[2], help="one row each")
    parser.add_argument("--window", type=int, nargs="+", default=[16], help="frames a window; one row each")
    parser.add_argument("--windows", type=int, default=20, help="windows that are timed")
    parser.add_argument("--variants", nargs="+", default=["plain"], choices=VARIANTS, help="one row each")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no row is started")
    parser.add_argument("--model", default="compact", help="a model's name or file")
    parser.add_argument("--preset", choices=("compact", "debug"), help="random weights of this preset, no model")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    height, width = (options.size or ("480x832" if device.type == "cuda" else "240x416")).split("x")
    renderer, name = load(options.model, options.preset, options.dtype, device)
    size = int(height), int(width)
    began, results = time.perf_counter(), []
    for steps, window, variant in product(options.steps, options.window, options.variants):
        what = f"{steps} steps, window {window}, {variant}"
        if time.perf_counter() - began > options.budget:
            print(f"{what}: not run, {options.budget:.0f} s are spent", flush=True)
            continue
        setting = {"size": size, "world": options.world, "steps": steps, "window": window, "windows": options.windows}
        try:
            results.append(measure_variant(renderer, name, variant, **setting))
        except FlowshadeError as error:  # a variant that this machine cannot run; the others go on
            print(f"{what}: {error}", flush=True)
            continue
        print(f"{what}: {results[-1].frames_per_second:.1f} frames a second", flush=True)
    print(f"\n{date.today().isoformat()}, torch {torch.__version__}, {options.windows} windows\n")
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
