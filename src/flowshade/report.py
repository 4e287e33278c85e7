"""A render's files: video, side by side, contact sheet and a JSON record of how it was made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from flowshade.api import StyledRenderer, Window
from flowshade.errors import FlowshadeError
from flowshade.files import write_json
from flowshade.gbuffer.io import ClipReader, VideoWriter, open_clip, open_windows
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_fps, check_size, read_json
from flowshade.gbuffer.io.outputs import check_apart, check_file
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.view import channel_picture, contact_sheet, resize_pictures, side_by_side
from flowshade.progress import Progress
from flowshade.provenance import versions
from flowshade.timing import StageTimer
from flowshade.types import CORE_CHANNELS, GBuffer

RECORD_FIELDS = ("clip", "caption", "seed", "model", "versions")
"""What shows that a JSON file is the record of a render."""
SHEET_ROWS = 4
"""Frames on a contact sheet."""
SHEET_WIDTH = 320
"""Widest picture on a contact sheet, in pixels."""


@dataclass(frozen=True, kw_only=True)
class RenderJob:
    """What to render and which files to write; see the `render` verb for the fields."""

    clip: Path
    output: Path
    prompt: str = ""
    style: str | None = None
    prompts_at: dict[int, str] = field(default_factory=dict)
    seed: int = 0
    window: int | None = None
    size: tuple[int, int] | None = None
    start: int = 0
    frames: int | None = None
    fps: float | None = None
    format: str | None = None
    windows: tuple[Path, ...] | None = None
    """Of a folder of Flash windows: the files to render."""
    conventions: dict[str, Any] = field(default_factory=dict)
    """What is stated about the clip, by the names of `ClipConventions`."""
    compare: bool = False
    sheet: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a `RenderJob`."""

    files: dict[str, Path]
    """Files written, by what they are."""
    frames: int
    seconds: float
    """From the first frame read to the last file closed."""


def render_to_files(
    job: RenderJob,
    renderer: StyledRenderer,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Outcome:
    """Renders a clip to a video and a JSON record beside it, streaming; every file appears whole or not at all.

    Args:
        job: what to render.
        renderer: a loaded model.
        progress: called after each window with frames done and frames in all.
        warn: called before the first window with each warning about the clip and, if so, which buffers it lacks.

    Raises:
        FlowshadeError: anything the user can mend: the clip, the prompt, the style, the output's name.
    """
    check(job)
    timer = StageTimer(renderer.device)
    began = time.perf_counter()
    with _open(job) as clip:
        if warn is not None:
            for text in _warnings(clip, renderer):
                warn(text)
        windows = renderer.stream(
            clip,
            job.prompt,
            job.style,
            prompts_at=job.prompts_at,
            seed=job.seed,
            window=job.window,
            start=job.start,
            frames=job.frames,
            size=job.size,
            progress=progress,
            timer=timer,
        )
        total = (len(clip) - job.start) if job.frames is None else job.frames
        size = job.size or clip.info.size
        with _Outputs(job, size, clip.info.fps, total) as outputs:
            told = warn is None
            for window in windows:
                if not told and (text := _not_finite(window)) is not None:
                    told = True
                    warn(text)  # pyright: ignore[reportOptionalCall]
                with timer.stage("write"):
                    outputs.append(window)
    seconds = time.perf_counter() - began
    record = _record(job, renderer, clip, size, total, seconds, timer.totals())
    files = _files(job)
    write_json(files["record"], record)
    return Outcome(files=files, frames=total, seconds=seconds)


def _open(job: RenderJob) -> ClipReader:
    if job.windows is not None:
        return open_windows(job.windows, fps=job.fps, **job.conventions)
    return open_clip(job.clip, format=job.format, fps=job.fps, **job.conventions)


def _warnings(clip: ClipReader, renderer: StyledRenderer) -> list[str]:
    if renderer.takes_codes:
        return []  # codes are passed on as they are, whatever they mean
    missing = ", ".join(clip.info.missing)
    lacks = [f"the clip has no {missing}; the model goes by the other buffers."] if missing else []
    return [*clip.info.warnings, *lacks]


def _not_finite(window: Window) -> str | None:
    """A sentence about values that are no numbers; depth may be +inf, the sky."""
    for name, value in window.gbuffer.channels().items():
        bad = ~torch.isfinite(value) if name != "depth" else torch.isnan(value) | (value == -torch.inf)
        if bad.any():
            frame = window.start + int(bad.flatten(1).any(1).nonzero()[0])
            return (
                f"{name} holds {int(bad.sum())} values that are not finite, the first in frame {frame}; they are "
                "rendered as if nothing were there. Export the clip again if that is wrong."
            )
    return None


class _Outputs:
    """The video and, if asked for, the side-by-side video and the sheet. Nothing stays behind after an error."""

    def __init__(self, job: RenderJob, size: tuple[int, int], fps: float, total: int) -> None:
        self.files = {what: path for what, path in _files(job).items() if what != "record"}
        self._video = VideoWriter(job.output, fps=fps, size=size)
        self._compare = None
        if job.compare:
            wide = (size[0], size[1] + 2 * (size[1] // 3))
            try:
                self._compare = VideoWriter(self.files["side by side"], fps=fps, size=wide)
            except BaseException:
                self._video.discard()
                raise
        self._rows: dict[int, dict[str, Tensor]] = {}
        self._picked: set[int] = set()
        if job.sheet:
            self._picked = {job.start + frame for frame in _spread(total, SHEET_ROWS)}

    def append(self, window: Window) -> None:
        pictures = window.frames.to_uint8().cpu()
        self._video.append(pictures)
        buffers = window.gbuffer.to("cpu") if self._compare or self._picked else window.gbuffer
        if self._compare is not None:
            self._compare.append(side_by_side(buffers, pictures))
        for offset in range(window.frames.frames):
            if window.start + offset in self._picked:
                one = slice(offset, offset + 1)
                self._rows[window.start + offset] = _tiles(buffers[one]) | {"result": _tile(pictures[one])}

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        writers = [writer for writer in (self._video, self._compare) if writer is not None]
        try:
            if kind is not None:
                return
            for writer in writers:
                writer.close()
        finally:
            for writer in writers:  # those that are closed have nothing left
                writer.discard()
        if self._rows:
            tiles = [tile for row in self._rows.values() for tile in row.values()]
            labels = [f"{name} {frame}" for frame, row in self._rows.items() for name in row]
            sheet = contact_sheet(tiles, len(tiles) // len(self._rows), labels)
            write_png(self.files["sheet"], sheet.numpy())


def _tiles(frame: GBuffer) -> dict[str, Tensor]:
    names = [name for name in CORE_CHANNELS if name in frame.channels()]
    return {name: _tile(channel_picture(frame, name)) for name in names}


def _tile(picture: UInt8[Tensor, "1 H W 3"]) -> UInt8[Tensor, "h w 3"]:
    height, width = picture.shape[1:3]
    scale = min(1.0, SHEET_WIDTH / width)
    return resize_pictures(picture.cpu(), (max(1, round(height * scale)), max(1, round(width * scale))))[0]


def _record(
    job: RenderJob,
    renderer: StyledRenderer,
    clip: ClipReader,
    size: tuple[int, int],
    frames: int,
    seconds: float,
    stages: dict[str, float],
) -> dict[str, Any]:
    """What the JSON beside a video says: enough to make it again, and how long it took."""
    return {
        "clip": str(job.clip),
        "format": clip.info.format,
        "conventions": job.conventions,
        "channels": list(clip.info.channels),
        "missing": list(clip.info.missing),
        "warnings": list(clip.info.warnings),
        "prompt": job.prompt,
        "style": job.style,
        "caption": renderer.compose(job.prompt, job.style),
        "keyframes": [
            {"frame": frame, "prompt": text, "caption": renderer.compose(text, job.style)}
            for frame, text in sorted(job.prompts_at.items())
        ],
        "seed": job.seed,
        "steps": renderer.steps,
        "window": job.window or renderer.model.config.window,
        "start": job.start,
        "frames": frames,
        "size": list(size),
        "fps": clip.info.fps,
        "model": {"name": renderer.name, "fingerprint": renderer.fingerprint},
        "dtype": str(renderer.dtype).removeprefix("torch."),
        "device": str(renderer.device),
        "versions": versions(),
        "seconds": round(seconds, 3),
        "seconds_by_stage": {name: round(value, 3) for name, value in stages.items()},
        "frames_per_second": round(frames / seconds, 2),
    }


def _spread(total: int, count: int) -> list[int]:
    """Up to `count` different frame numbers, evenly spread over `total`, away from the ends."""
    return sorted({min(int((index + 0.5) * total / count), total - 1) for index in range(count)})


def _files(job: RenderJob) -> dict[str, Path]:
    """What a job writes, by what it is; the record comes last."""
    files = {"video": job.output}
    if job.compare:
        files["side by side"] = job.output.with_suffix(".compare.mp4")
    if job.sheet:
        files["sheet"] = job.output.with_suffix(".sheet.png")
    return files | {"record": job.output.with_suffix(".json")}


def check(job: RenderJob) -> None:
    """Raises FlowshadeError for what would fail after the first frame, or leave files behind."""
    check_file(job.output, ".mp4")
    for path in _files(job).values():
        check_file(path, path.suffix)
        check_apart(path, job.clip)
    check_record(_files(job)["record"])
    if job.fps is not None:
        check_fps(job.fps, "fps")
    if job.size is not None:
        check_size(job.size)


def check_record(path: Path) -> None:
    """Refuses to replace a JSON file that is not the record of an earlier render. Raises: FlowshadeError."""
    if not path.exists():
        return
    try:
        found = read_json(path)
    except ClipError:  # no JSON, hence no record
        found = None
    if not isinstance(found, dict) or not set(RECORD_FIELDS) <= set(found):
        raise FlowshadeError(
            f"{path} is not the record of an earlier render, so it is not replaced; expected its name to be free for "
            "the video's record. Move it away, or give another output."
        )
