"""Files made from videos: a clip of estimated G-buffers (`invert_to_files`), a restyled video (`restyle_to_files`)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from einops import rearrange

from flowshade.api import INVERT_WINDOW, StyledRenderer, restyle
from flowshade.errors import FlowshadeError
from flowshade.files import temporary_beside, write_json
from flowshade.gbuffer.io import VideoWriter, open_clip
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.folder import move_into_place
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.limits import check_fps, check_size
from flowshade.gbuffer.io.masks import InstanceMask, Mask, PictureMask
from flowshade.gbuffer.io.outputs import check_apart, check_file, check_folder, writing
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.io.writers import SINKS, Conversion, OutputFormat, SideBySideSink, Sink
from flowshade.inverse.stream import Inverse
from flowshade.inversion import InvertedClip, InvertedWindow, focal_of
from flowshade.provenance import versions
from flowshade.report import Outcome, check_record
from flowshade.timing import StageTimer

Progress = Callable[[int, int], None]
Warn = Callable[[str], None]
CONFIDENCE_TOP = 65535
"""What means certain in a 16-bit picture of confidences."""
CONFIDENCE_FILE = "confidence.json"
"""Says what a folder of confidences holds, and shows that Flowshade wrote it."""


@dataclass(frozen=True, kw_only=True)
class InvertJob:
    """What to invert and which files to write; see the `invert` verb for the fields."""

    video: Path
    output: Path
    format: OutputFormat = "clip"
    size: tuple[int, int] | None = None
    frames: int | None = None
    fps: float | None = None
    fov: float | None = None
    compare: Path | None = None
    confidence: bool = False
    overwrite: bool = False

    @property
    def confidence_folder(self) -> Path:
        """Beside the clip, under its name."""
        return self.output.with_name(f"{self.output.name}.confidence")


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """What came of an `InvertJob`."""

    clip: Conversion
    files: dict[str, Path]
    """Files and folders written, by what they are."""
    seconds: float
    """From the first frame read to the last file closed."""


def check_invert(job: InvertJob) -> None:
    """Raises FlowshadeError for what would fail after the first frame, or leave files behind."""
    if job.format not in get_args(OutputFormat):
        raise ClipError(f"format {job.format!r} is unknown; expected one of {', '.join(get_args(OutputFormat))}.")
    outputs = [("the output", job.output)]
    if job.compare is not None:
        check_file(job.compare, ".mp4", "the comparison")
        outputs.append(("the comparison", job.compare))
    if job.confidence:
        check_folder(job.confidence_folder, "the confidences' folder")
        outputs.append(("the confidences' folder", job.confidence_folder))
    for what, path in outputs:
        check_apart(path, job.video, what)
        if path.exists() and not job.overwrite:
            raise ClipError(
                f"{what} {path} exists already; expected a free name. Give another, or --overwrite (overwrite=True)."
            )
    if job.confidence and job.confidence_folder.exists() and not (job.confidence_folder / CONFIDENCE_FILE).is_file():
        raise ClipError(
            f"{job.confidence_folder} was not written by Flowshade, so it is not overwritten; give another output."
        )
    _check_numbers(job.size, job.fps, job.fov)


def _check_numbers(size: tuple[int, int] | None, fps: float | None, fov: float | None) -> None:
    if size is not None:
        check_size(size)
    if fps is not None:
        check_fps(fps, "fps")
    focal_of(fov)


def invert_to_files(job: InvertJob, inverse: Inverse, progress: Progress | None = None) -> Inversion:
    """Estimates a video's G-buffers and writes them, in constant memory; every file appears whole or not at all.

    Args:
        job: what to invert.
        inverse: a loaded network.
        progress: called after every few frames with frames done and frames in all.

    Raises:
        FlowshadeError: anything the user can mend: the video, the outputs, a number.
    """
    check_invert(job)
    began = time.perf_counter()
    with Footage(job.video, fps=job.fps) as footage:
        clip = InvertedClip(footage, inverse, size=job.size, fov=job.fov)
        _, stop = clip.bounds(0, job.frames)
        with ExitStack() as outputs:
            sinks = _sinks(job, clip)
            for sink in sinks:
                outputs.enter_context(sink)
            confidences = _Confidences(job, inverse) if job.confidence else None
            if confidences is not None:
                outputs.enter_context(confidences)
            for first in range(0, stop, INVERT_WINDOW):
                window = clip.estimate(first, min(first + INVERT_WINDOW, stop))
                for sink in sinks:
                    with writing(sink.path):
                        sink.append(window.gbuffer, window.frames.rgb)
                if confidences is not None:
                    confidences.append(window)
                if progress is not None:
                    progress(first + window.frames.frames, stop)
    files = {"clip": job.output}
    files |= {} if job.compare is None else {"side by side": job.compare}
    files |= {"confidence": job.confidence_folder} if job.confidence else {}
    return Inversion(clip=sinks[0].result(), files=files, seconds=time.perf_counter() - began)


def _sinks(job: InvertJob, clip: InvertedClip) -> list[Sink]:
    sinks = [SINKS[job.format](clip, job.output, clip.info.size, job.overwrite)]
    if job.compare is not None:
        try:
            sinks.append(SideBySideSink(clip, job.compare, clip.info.size, overwrite=True))
        except BaseException as error:
            sinks[0].__exit__(type(error), error, None)
            raise
    return sinks


class _Confidences:
    """A folder of 16-bit pictures, one a channel and frame: 65535 times the confidence."""

    def __init__(self, job: InvertJob, inverse: Inverse) -> None:
        self._path, self._inverse = job.confidence_folder, inverse
        self._temporary = temporary_beside(self._path)
        self._frames = 0
        shutil.rmtree(self._temporary, ignore_errors=True)

    def append(self, window: InvertedWindow) -> None:
        with writing(self._path):
            for name, values in window.confidence.items():
                (self._temporary / name).mkdir(parents=True, exist_ok=True)
                pictures = (values[:, 0] * CONFIDENCE_TOP).round().to(torch.uint16).numpy()
                for index, picture in enumerate(pictures):
                    write_png(self._temporary / name / f"{self._frames + index + 1:06d}.png", picture)
        self._frames += window.frames.frames

    def _finish(self) -> None:
        from flowshade.inverse.stream import TOLERANCES

        about = {
            "frames": self._frames,
            "model": self._inverse.config.name,
            "fingerprint": self._inverse.fingerprint,
            "values": f"probability of an error within the tolerance, times {CONFIDENCE_TOP}",
            "tolerances": TOLERANCES,
        }
        write_json(self._temporary / CONFIDENCE_FILE, about)
        move_into_place(self._temporary, self._path)

    def __enter__(self) -> _Confidences:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                with writing(self._path):
                    self._finish()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class RestyleJob:
    """What to restyle and which video to write; see the `restyle` verb for the fields."""

    video: Path
    output: Path
    prompt: str = ""
    style: str | None = None
    keep: float = 0.0
    mask: Path | None = None
    mask_clip: Path | None = None
    instances: tuple[int, ...] = ()
    seed: int = 0
    window: int | None = None
    size: tuple[int, int] | None = None
    frames: int | None = None
    fps: float | None = None
    fov: float | None = None
    compare: bool = False

    @property
    def record(self) -> Path:
        return self.output.with_suffix(".json")

    @property
    def comparison(self) -> Path:
        return self.output.with_suffix(".compare.mp4")


def check_restyle(job: RestyleJob) -> None:
    """Raises FlowshadeError for what would fail after the first frame, or leave files behind."""
    if job.mask is not None and job.mask_clip is not None:
        raise FlowshadeError("--mask and --mask-clip were both given; expected one of them. Leave one out.")
    if job.instances and job.mask_clip is None:
        raise FlowshadeError("--instances was given without --mask-clip; expected the clip that the ids belong to.")
    if job.mask_clip is not None and not job.instances:
        raise FlowshadeError("--mask-clip was given without --instances; expected ids, such as --instances 3,7.")
    for path in (job.output, job.record, *((job.comparison,) if job.compare else ())):
        check_file(path, path.suffix if path != job.output else ".mp4")
        for source in (job.video, job.mask, job.mask_clip):
            if source is not None:
                check_apart(path, source)
    check_record(job.record)
    _check_numbers(job.size, job.fps, job.fov)


def restyle_to_files(
    job: RestyleJob,
    renderer: StyledRenderer,
    inverse: Inverse,
    progress: Progress | None = None,
    warn: Warn | None = None,
) -> Outcome:
    """Restyles a video into a video, with its rate, size and sound, and a JSON record beside it, streaming.

    Args:
        job: what to restyle.
        renderer: a loaded forward model.
        inverse: a loaded way back.
        progress: called after each window with frames done and frames in all.
        warn: called with what is likely a mistake, such as an instance that never showed.

    Raises:
        FlowshadeError: anything the user can mend: the video, the mask, the prompt, the style, the output's name.
    """
    check_restyle(job)
    timer = StageTimer(renderer.device)
    began = time.perf_counter()
    with ExitStack() as stack:
        footage = stack.enter_context(Footage(job.video, fps=job.fps))
        mask = _open_mask(job, stack)
        windows = restyle(
            footage, job.prompt, job.style, renderer=renderer, inverse=inverse, keep=job.keep, mask=mask, fov=job.fov,
            size=job.size, frames=job.frames, seed=job.seed, window=job.window, progress=progress, timer=timer,
        )  # fmt: skip
        height, width = footage.size
        sound = job.video if footage.is_video else None
        video = stack.enter_context(VideoWriter(job.output, fps=footage.fps, size=footage.size, sound=sound))
        compare = None
        if job.compare:
            compare = stack.enter_context(VideoWriter(job.comparison, fps=footage.fps, size=(height, 2 * width)))
        for window in windows:
            with timer.stage("write"):
                video.append(window.frames)
                if compare is not None:
                    pair = [window.original.to_uint8(), window.frames.to_uint8()]
                    compare.append(rearrange(pair, "n t h w c -> t h (n w) c"))
    seconds = time.perf_counter() - began
    if isinstance(mask, InstanceMask) and mask.unseen() and warn is not None:
        warn(f"instance {', '.join(map(str, mask.unseen()))} showed in no frame of {job.mask_clip}.")
    record = _record(job, renderer, inverse, footage, video.frames, seconds) | {
        "seconds_by_stage": {name: round(value, 3) for name, value in timer.totals().items()}
    }
    write_json(job.record, record)
    files = {"video": job.output} | ({"side by side": job.comparison} if job.compare else {})
    return Outcome(files=files | {"record": job.record}, frames=video.frames, seconds=seconds)


def _open_mask(job: RestyleJob, stack: ExitStack) -> Mask | None:
    if job.mask is not None:
        return PictureMask(stack.enter_context(Footage(job.mask, fps=job.fps)))
    if job.mask_clip is not None:
        return InstanceMask(stack.enter_context(open_clip(job.mask_clip)), job.instances)
    return None


def _record(
    job: RestyleJob, renderer: StyledRenderer, inverse: Inverse, footage: Footage, frames: int, seconds: float
) -> dict[str, Any]:
    """What the JSON beside a video says: enough to make it again."""
    return {
        "clip": str(job.video),
        "prompt": job.prompt,
        "style": job.style,
        "caption": renderer.compose(job.prompt, job.style),
        "keep": job.keep,
        "mask": None if job.mask is None else str(job.mask),
        "mask_clip": None if job.mask_clip is None else str(job.mask_clip),
        "instances": list(job.instances),
        "seed": job.seed,
        "steps": renderer.steps,
        "window": job.window or renderer.model.config.window,
        "frames": frames,
        "size": list(footage.size),
        "worked_at": list(job.size or footage.size),
        "fov": job.fov,
        "fps": footage.fps,
        "model": {"name": renderer.name, "fingerprint": renderer.fingerprint},
        "inverse": {"name": inverse.config.name, "fingerprint": inverse.fingerprint},
        "device": str(renderer.device),
        "versions": versions(),
        "seconds": round(seconds, 3),
        "frames_per_second": round(frames / seconds, 2),
    }
