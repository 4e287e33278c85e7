"""Score a renderer on worlds it was never trained on, in canonical looks, streamed as at run time.

Beside it stand two plain baselines (see `flowshade.evaluation.baselines`) and the tracer's picture, which is the
reference.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flowshade.color import from_bytes, linear_to_srgb, to_bytes
from flowshade.errors import FlowshadeError
from flowshade.evaluation.baselines import AlbedoAffine
from flowshade.evaluation.metrics import psnr, ssim
from flowshade.evaluation.tables import markdown
from flowshade.evaluation.temporal import window_step_ratio
from flowshade.files import write_image, write_json, write_text
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.shade import shade_without_rays
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.transformer import TextContext
from flowshade.types import CORE_CHANNELS, GBuffer, stream_frame

HELD_OUT_SEED = 1_000_000
"""Worlds from this seed on are never trained on."""

CANONICAL = ("sunny", "overcast", "sunset", "night", "fog", "snow")
"""The six looks of the main table; the others are reported beneath."""


@dataclass(frozen=True, kw_only=True)
class WorldSuite:
    """What is rendered and scored."""

    worlds: int = 32
    kinds: tuple[str, ...] = ("street", "hills")
    looks: tuple[str, ...] = (*CANONICAL, "autumn", "neon", "underwater")
    """By default those that the shipped weights were trained in."""
    size: tuple[int, int] = (240, 416)
    frames: int = 24
    fps: float = 24.0
    samples: int = 4
    """Material rays a pixel."""
    reference: Literal["direct", "paths"] = "direct"
    """How the pictures to compare with are made, as in `flowshade.gbuffer.trace.Tracer`."""
    steps: tuple[int, ...] = (2, 4)
    window: int = 8
    """Frames pushed at a time."""

    def __post_init__(self) -> None:
        counts = {"worlds": self.worlds, "frames": self.frames, "window": self.window, "looks": len(self.looks)}
        for name, count in counts.items():
            if count < 1:
                raise FlowshadeError(f"the suite has {count} {name}; expected at least 1.")


@dataclass(frozen=True, kw_only=True)
class ReferenceClip:
    """One held-out clip and its reference pictures."""

    kind: str
    seed: int
    gbuffer: GBuffer
    pictures: dict[str, Tensor]
    """Look name to [T, 3, H, W] display sRGB."""


def reference_clip(
    suite: WorldSuite,
    index: int,
    device: str,
    channels: Sequence[str] = (*CORE_CHANNELS, "emission", "motion", "instance"),
    first_seed: int = HELD_OUT_SEED,
) -> ReferenceClip:
    """Traces one of the suite's clips, or of those from another seed on."""
    from flowshade.gbuffer.rollout import rollout
    from flowshade.gbuffer.trace import Tracer
    from flowshade.world import make_world

    kind, seed = suite.kinds[index % len(suite.kinds)], first_seed + index
    world = make_world(kind, seed, fps=suite.fps)
    tracer = Tracer(
        world.model, size=suite.size, device=device, samples=suite.samples, channels=channels, reference=suite.reference
    )
    looks = [LOOKS[name] for name in suite.looks]
    frames = list(rollout(world, tracer, frames=suite.frames, looks=looks, seed=seed))
    pictures = zip(*(frame.pictures for frame in frames))
    return ReferenceClip(
        kind=kind,
        seed=seed,
        gbuffer=GBuffer.cat([frame.gbuffer for frame in frames]).to(device),
        pictures={name: torch.cat(run) for name, run in zip(suite.looks, pictures)},
    )


def parked_clips(suite: WorldSuite, device: str, workers: int = 0) -> Iterator[ReferenceClip]:
    """The suite's clips in order, in host memory; `workers` processes trace them, each on one of the GPUs in turn."""
    if workers == 0:
        yield from (_parked(reference_clip(suite, index, device)) for index in range(suite.worlds))
        return
    gpus = torch.cuda.device_count() if torch.device(device).type == "cuda" else 0
    jobs = [(suite, index, f"cuda:{index % gpus}" if gpus else device) for index in range(suite.worlds)]
    with torch.multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from map(pickle.loads, pool.imap(_trace_pickled, jobs))


def _trace_pickled(job: tuple[WorldSuite, int, str]) -> bytes:
    """Body of a worker. Bytes, since tensors would travel as shared memory that holds a file open each."""
    torch.set_num_threads(1)
    return pickle.dumps(_parked(reference_clip(*job)))


@dataclass
class Scores:
    """Per-frame metrics by method and look."""

    psnr: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    ssim: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    step_ratio: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Change of the error at window borders over its change inside windows; 1 = borders cannot be told."""

    def add(self, method: str, look: str, prediction: Tensor, reference: Tensor, window: int) -> None:
        key = (method, look)
        self.psnr.setdefault(key, []).extend(psnr(prediction, reference).tolist())
        self.ssim.setdefault(key, []).extend(ssim(prediction, reference).tolist())
        self.step_ratio.setdefault(key, []).append(window_step_ratio(prediction, reference, window))

    def rows(self) -> list[dict]:
        return [
            {
                "method": method,
                "look": look,
                "psnr": float(np.mean(values)),
                "ssim": float(np.mean(self.ssim[method, look])),
                "window_step_ratio": _mean(self.step_ratio[method, look]),
                "frames": len(values),
            }
            for (method, look), values in self.psnr.items()
        ]


def _mean(values: list[float]) -> float | None:
    """Mean of the numbers among the values; None if there is none."""
    numbers = [value for value in values if np.isfinite(value)]
    return float(np.mean(numbers)) if numbers else None


def evaluate_worlds(
    renderer: Renderer,
    contexts: dict[str, TextContext],
    suite: WorldSuite,
    *,
    device: str,
    out: Path,
    workers: int = 0,
    progress: Callable[[str], None] = print,
) -> list[dict]:
    """Renders and scores every clip in every look; writes `scores.json`, `scores.md` and `sheet.png` to `out`.

    Args:
        renderer: in eval mode, on `device`.
        contexts: for each look, the embedded canonical caption.
        suite: what to render.
        device: where to trace and render.
        out: folder for the results, made if absent.
        workers: processes that trace; 0 = this one does.
        progress: called with a line for each clip.
    """
    scores, sheet, affine = Scores(), [], {name: AlbedoAffine() for name in suite.looks}
    clips = []
    for parked in parked_clips(suite, device, workers):
        clips.append(parked)
        clip = _unparked(parked, device)
        albedo = linear_to_srgb(_require(clip.gbuffer.albedo))
        for name in suite.looks:
            affine[name].add(albedo, clip.pictures[name])
        progress(f"traced {len(clips)} of {suite.worlds}: {clip.kind} {clip.seed}")
    for index, parked in enumerate(clips):
        clip = _unparked(parked, device)
        results = _render_clip(renderer, contexts, clip, suite)
        albedo = linear_to_srgb(_require(clip.gbuffer.albedo))
        stream = stream_frame(_require(clip.gbuffer.camera).pose[0])
        for name in suite.looks:
            reference = clip.pictures[name]
            plain = shade_without_rays(clip.gbuffer, LOOKS[name], _require(clip.gbuffer.camera), stream=stream)
            scores.add("albedo affine", name, affine[name].predict(albedo), reference, suite.window)
            scores.add("no rays", name, plain, reference, suite.window)
            for steps in suite.steps:
                scores.add(
                    f"{renderer.config.name}, {steps} steps", name, results[steps, name], reference, suite.window
                )
        if index < 2 * len(suite.kinds):
            sheet.append((clip, {name: results[min(suite.steps), name] for name in suite.looks}))
        progress(f"scored {index + 1} of {suite.worlds}: {clip.kind} {clip.seed}")
    out.mkdir(parents=True, exist_ok=True)
    rows = scores.rows()
    write_json(out / "scores.json", rows)
    write_text(out / "scores.md", markdown_table(rows))
    write_sheet(out / "sheet.png", sheet, suite.looks)
    return rows


def _require(value):
    assert value is not None, "the tracer writes every channel"
    return value


def _parked(clip: ReferenceClip) -> ReferenceClip:
    """A clip in host memory, pictures in bytes: all clips at once would not fit a small GPU."""
    pictures = {name: to_bytes(rgb).cpu() for name, rgb in clip.pictures.items()}
    return ReferenceClip(kind=clip.kind, seed=clip.seed, gbuffer=clip.gbuffer.to("cpu"), pictures=pictures)


def _unparked(clip: ReferenceClip, device: str) -> ReferenceClip:
    pictures = {name: from_bytes(rgb.to(device)) for name, rgb in clip.pictures.items()}
    return ReferenceClip(kind=clip.kind, seed=clip.seed, gbuffer=clip.gbuffer.to(device), pictures=pictures)


@torch.no_grad()
def _render_clip(
    renderer: Renderer, contexts: dict[str, TextContext], clip: ReferenceClip, suite: WorldSuite
) -> dict[tuple[int, str], Tensor]:
    results = {}
    for steps in suite.steps:
        for name in suite.looks:
            renderer.reset(seed=clip.seed)
            renderer.set_text(contexts[name])
            windows = [renderer.push(window, steps=steps).rgb for window in clip.gbuffer.windows(suite.window)]
            results[steps, name] = torch.cat(windows)
    return results


def markdown_table(rows: Sequence[dict]) -> str:
    """Methods down, looks across; PSNR in dB and SSIM, with the mean over the six canonical looks."""
    looks = list(dict.fromkeys(row["look"] for row in rows))
    table = {(row["method"], row["look"]): row for row in rows}
    lines = [["method", *looks, "six canonical"]]
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [f"{table[method, look]['psnr']:.1f} / {table[method, look]['ssim']:.3f}" for look in looks]
        main = [table[method, look] for look in CANONICAL if (method, look) in table]
        mean = f"{np.mean([r['psnr'] for r in main]):.2f} / {np.mean([r['ssim'] for r in main]):.3f}" if main else "-"
        lines.append([method, *cells, mean])
    return markdown(lines)


def write_sheet(path: Path, clips: Sequence[tuple[ReferenceClip, dict[str, Tensor]]], looks: Sequence[str]) -> None:
    """Rows: looks; columns, for one of the clips in turn: albedo, normal, depth, result, reference."""
    from PIL import Image, ImageDraw

    from flowshade.gbuffer.view import channel_picture, to_uint8

    rows = []
    for index, name in enumerate(looks):
        clip, results = clips[index % len(clips)]
        last = clip.gbuffer[clip.gbuffer.frames - 1 :]
        buffers = [channel_picture(last, channel)[0] for channel in ("albedo", "normal", "depth")]
        pictures = [to_uint8(run[-1:])[0] for run in (results[name], clip.pictures[name])]
        rows.append(np.concatenate([np.asarray(torch.as_tensor(x).cpu()) for x in (*buffers, *pictures)], 1))
    image = Image.fromarray(np.concatenate(rows))
    draw = ImageDraw.Draw(image)
    for index, name in enumerate(looks):
        draw.text((6, index * rows[0].shape[0] + 4), name, fill="white", stroke_fill="black", stroke_width=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, image)
