"""The long suite: one stream of many frames; drift, seams, speed, memory, and places that are seen twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flowshade.api import StyledRenderer
from flowshade.color import from_bytes, linear_to_srgb, to_bytes
from flowshade.errors import FlowshadeError
from flowshade.evaluation.baselines import AlbedoAffine
from flowshade.evaluation.drift import Sample, drift, part_frames, picture_statistics, revisit_pairs
from flowshade.evaluation.methods import Stopwatch
from flowshade.evaluation.metrics import psnr, ssim
from flowshade.evaluation.page import runtime_table, write_html
from flowshade.evaluation.perceptual import Trunk, lpips, trunks
from flowshade.evaluation.plots import line_plot
from flowshade.evaluation.results import REPORT, RESULTS, ResultFolder
from flowshade.evaluation.scoring import AFFINE, NO_RAYS, REFERENCE
from flowshade.evaluation.tables import Table, html_table, number
from flowshade.evaluation.temporal import border_ratio, visible_before, warping_errors
from flowshade.evaluation.worlds import HELD_OUT_SEED
from flowshade.files import plain, write_json
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.shade import shade_without_rays
from flowshade.progress import Progress
from flowshade.provenance import versions
from flowshade.types import CHANNELS, GBuffer, stream_frame


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """What is streamed."""

    kind: str = "street"
    seed: int = HELD_OUT_SEED
    look: str = "overcast"
    frames: int = 10_000
    loop: bool = False
    """The world stands still, the camera goes half of the frames on and comes back the same way."""
    size: tuple[int, int] = (240, 416)
    fps: float = 24.0
    samples: int = 4
    every: int = 0
    """One frame in so many is compared with the reference; 0 takes about 60 in all."""
    window: int = 16
    stream_seed: int = 0
    reference: Literal["direct", "paths"] = "direct"

    def __post_init__(self) -> None:
        if self.frames < 4 * self.window:
            raise FlowshadeError(
                f"a long run has {self.frames} frames in windows of {self.window}; expected four windows or more."
            )
        part = part_frames(self.frames)
        if not any(self.sampled(frame) for frame in range(self.frames - part, self.frames)):
            raise FlowshadeError(
                f"comparing every {self.every} of {self.frames} frames samples none of the last {part}; expected "
                f"every {part} or fewer."
            )

    def sampled(self, frame: int) -> bool:
        """Whether a frame is compared with the reference; the mirror image of one is too, so that places pair up."""
        every = self.every or max(1, self.frames // 60)
        mirrored = self.frames - 1 - frame
        return frame % every == 0 or (self.loop and mirrored % every == 0)


def traced_frames(run: LongRun, device: str) -> Iterator[tuple[int, GBuffer, Tensor | None]]:
    """The frames of a long run one by one: number, buffers and, where sampled, the reference picture [1, 3, H, W]."""
    from flowshade.gbuffer.trace import Tracer
    from flowshade.world import camera_at, make_world, step

    world = make_world(run.kind, run.seed, fps=run.fps)
    channels = tuple(CHANNELS)
    tracer = Tracer(
        world.model, size=run.size, device=device, samples=run.samples, channels=channels, reference=run.reference
    )
    path, data, previous = world.camera_path, world.reset(), None
    stream = stream_frame(camera_at(path, [0.0], *run.size).pose[0])
    for frame in range(run.frames):
        place = min(frame, run.frames - 1 - frame) if run.loop else frame
        camera = camera_at(path, [place / run.fps], *run.size)
        tracer.update(data)
        gbuffer = tracer.gbuffer(camera, previous)
        shown = tracer.shade(LOOKS[run.look], camera, stream=stream, seed=0) if run.sampled(frame) else None
        yield frame, gbuffer, shown
        previous = camera
        if not run.loop:
            step(world, data)


@dataclass(kw_only=True)
class _Kept:
    """A sampled frame: what methods need to be scored once the stream has ended."""

    frame: int
    albedo: Tensor
    pictures: dict[str, Tensor]
    """[1, 3, H, W] uint8 by method."""


class LongStream:
    """Renders a long run in constant memory (but for the sampled frames) and watches it."""

    def __init__(self, renderer: StyledRenderer, run: LongRun) -> None:
        self.run, self._renderer = run, renderer
        self.name = f"{renderer.name}, {renderer.steps} steps"
        self.watch = Stopwatch()
        self.kept: list[_Kept] = []
        self.changes: list[float] = []
        """Warping errors of frames 1 on, in 8-bit steps."""
        self._before: tuple[GBuffer, Tensor] | None = None

    def render(self, device: str, progress: Progress) -> None:
        """Runs the world and the renderer to the end."""
        look = LOOKS[self.run.look]
        self._renderer.reset(self.run.stream_seed)
        self._renderer.set_prompt(look.caption())
        waiting: list[GBuffer] = []
        references: list[Tensor | None] = []
        stream = None
        for frame, gbuffer, shown in traced_frames(self.run, device):
            waiting.append(gbuffer)
            references.append(shown)
            if stream is None and gbuffer.camera is not None:
                stream = stream_frame(gbuffer.camera.pose[0])
            if len(waiting) == self.run.window or frame + 1 == self.run.frames:
                assert stream is not None, "the tracer gives a camera"
                self._window(frame + 1 - len(waiting), GBuffer.cat(waiting), references, look, stream)
                waiting, references = [], []
                progress(frame + 1, self.run.frames)

    def _window(self, start: int, window: GBuffer, references: list[Tensor | None], look: Look, stream: Tensor) -> None:
        rgb = self.watch.push(self._renderer, window, count=start > 0)
        self._follow(window, rgb)
        for offset, reference in enumerate(references):
            if reference is None:
                continue
            one = window[offset : offset + 1]
            assert one.albedo is not None
            made = {
                REFERENCE: reference,
                NO_RAYS: shade_without_rays(one, look, stream=stream),
                self.name: rgb[offset : offset + 1],
            }
            albedo = to_bytes(linear_to_srgb(one.albedo)).cpu()
            pictures = {method: to_bytes(x).cpu() for method, x in made.items()}
            self.kept.append(_Kept(frame=start + offset, albedo=albedo, pictures=pictures))

    def _follow(self, window: GBuffer, rgb: Tensor) -> None:
        """Warping errors from the last frame of the window before to the last of this one."""
        buffers, pictures = window, rgb
        if self._before is not None:
            buffers = GBuffer.cat([self._before[0], window])
            pictures = torch.cat([self._before[1], rgb])
        self._before = (window[window.frames - 1 :], rgb[-1:])
        if buffers.frames > 1:
            assert buffers.motion is not None
            self.changes += warping_errors(pictures, buffers.motion[1:], visible_before(buffers)).tolist()


def evaluate_long(
    renderer: StyledRenderer,
    run: LongRun,
    out: Path,
    *,
    device: str = "cpu",
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Streams, measures and writes `results.json` and `report.html`; returns what the first holds.

    A finished run is not repeated; one that was stopped begins again, since a stream is made from its start.
    """
    found, note = trunks(device)
    settings = {"suite": "long", "model": renderer.name, "fingerprint": renderer.fingerprint, "steps": renderer.steps}
    settings |= {"lpips": sorted(found)} | asdict(run)
    ResultFolder(out, settings)
    stream = LongStream(renderer, run)
    stream.render(device, progress)
    results = plain(_summarise(stream, settings, found.get("alex"), [note] if note else []))
    write_json(out / RESULTS, results)
    _write_page(out / REPORT, results)
    return results


def _summarise(stream: LongStream, settings: dict[str, Any], trunk: Trunk | None, notes: list[str]) -> dict[str, Any]:
    run = stream.run
    _add_affine(stream.kept)
    methods: dict[str, Any] = {}
    series: dict[str, Any] = {"frame": [kept.frame for kept in stream.kept]}
    for method in stream.kept[0].pictures:
        samples = [_sample(kept, method, trunk) for kept in stream.kept]
        methods[method] = {f"drift_{name}": value for name, value in drift(samples, run.frames).items()}
        series[method] = {
            name: [sample.output[name] - sample.reference.get(name, 0.0) for sample in samples]
            for name in samples[0].output
        }
    methods[stream.name] |= {
        "warping_error": float(np.nanmean(stream.changes)),
        "window_ratio": border_ratio(torch.tensor(stream.changes), run.window),
    }
    return {
        "suite": "long",
        "date": date.today().isoformat(),
        "settings": settings,
        "versions": versions(),
        "notes": notes,
        "frames": run.frames,
        "samples": len(stream.kept),
        "methods": methods,
        "rows": [],
        "runtime": stream.watch.summary(),
        "revisit": _revisits(stream, trunk) if run.loop else None,
        "series": series,
        "window_ms": [1000 * seconds for seconds in stream.watch.seconds],
    }


def _add_affine(kept: list[_Kept]) -> None:
    """The best affine map of albedo over all sampled frames."""
    affine = AlbedoAffine()
    for item in kept:
        affine.add(from_bytes(item.albedo), from_bytes(item.pictures[REFERENCE]))
    for item in kept:
        item.pictures[AFFINE] = to_bytes(affine.predict(from_bytes(item.albedo)))


def _sample(kept: _Kept, method: str, trunk: Trunk | None) -> Sample:
    output, reference = (from_bytes(kept.pictures[name]) for name in (method, REFERENCE))
    (found,), (given,) = picture_statistics(output), picture_statistics(reference)
    if trunk is not None:
        found["lpips"] = float(lpips(output, reference, trunk))
    return Sample(frame=kept.frame, output=found, reference=given)


def _revisits(stream: LongStream, trunk: Trunk | None) -> dict[str, Any]:
    """Pictures of the same place, from the first and the last part of the stream, compared with each other."""
    by_frame = {item.frame: item for item in stream.kept}
    pairs = [(a, b) for a, b in revisit_pairs(stream.run.frames) if a in by_frame and b in by_frame]
    summary: dict[str, Any] = {"pairs": len(pairs)}
    for method in stream.kept[0].pictures:
        if not pairs or method == REFERENCE:
            continue
        first, again = (
            from_bytes(torch.cat([by_frame[pair[side]].pictures[method] for pair in pairs])) for side in (0, 1)
        )
        scores = {"psnr": psnr(first, again), "ssim": ssim(first, again)}
        if trunk is not None:
            scores["lpips_alex"] = lpips(first, again, trunk)
        summary[method] = {name: float(values.mean()) for name, values in scores.items()}
    return summary


DRIFTS = ("red", "green", "blue", "contrast", "sharpness", "lpips")


def drift_table(results: dict[str, Any]) -> Table:
    """Methods down, drift of every statistic across, in per cent."""
    names = [name for name in DRIFTS if any(f"drift_{name}" in row for row in results["methods"].values())]
    rows = [
        [method, *(number(100 * row[f"drift_{name}"], 2) for name in names)]
        for method, row in results["methods"].items()
    ]
    return [["drift, %", *names], *rows]


def revisit_table(results: dict[str, Any]) -> Table:
    """Methods down; how alike two pictures of one place are. Empty for a run without a loop."""
    found = {name: value for name, value in (results["revisit"] or {}).items() if name != "pairs"}
    if not found:
        return []
    names = list(next(iter(found.values())))
    rows = [[method, *(number(row[name], 3) for name in names)] for method, row in found.items()]
    return [["same place again", *names], *rows]


def seam_table(results: dict[str, Any]) -> Table:
    """The renderer's warping error and the ratio of its borders of windows to their insides."""
    rows = [
        [method, number(row["warping_error"], 2), number(row["window_ratio"], 3)]
        for method, row in results["methods"].items()
        if "warping_error" in row
    ]
    return [["method", "warping error, 8-bit steps", "border / inside"], *rows]


def _write_page(path: Path, results: dict[str, Any]) -> None:
    series = results["series"]
    methods = [name for name in results["methods"] if name != REFERENCE]
    names = [name for name in DRIFTS if name in series[methods[0]]]
    plots = [
        line_plot(f"{name}: output - reference", series["frame"], {method: series[method][name] for method in methods})
        for name in names
    ]
    windows = results["window_ms"]
    plots.append(line_plot("milliseconds a window", range(len(windows)), {"": windows}))
    notes = [f'<p class="note">{note}</p>' for note in results["notes"]]
    settings = ", ".join(f"{name} {str(value)[:16]}" for name, value in results["settings"].items())
    machine = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    parts = ["<h1>Evaluation: long</h1>", f"<p>{results['date']}, {settings}</p><p>{machine}</p>", *notes]
    parts += [
        "<h2>Drift</h2><p>(output - reference), last 15 % minus first 15 %. Contrast and sharpness are relative to "
    ]
    parts += ["the reference's.</p>", html_table(drift_table(results)), html_table(revisit_table(results))]
    parts += ["<h2>Seams</h2>", html_table(seam_table(results)), "<h2>Runtime</h2>"]
    parts += [html_table(runtime_table(results["runtime"])), f'<div class="plots">{"".join(plots)}</div>']
    write_html(path, "Evaluation: long", parts)
