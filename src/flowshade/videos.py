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
from torch import Tensor

from flowshade.api import INVERT_WINDOW, StyledRenderer, restyle
from flowshade.checkpoints.inverse import DIFFUSION_INVERSES
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
from flowshade.inverse.diffusion import DiffusionInverse
from flowshade.inverse.stream import TOLERANCES, VideoInverse
from flowshade.inversion import InvertedClip, InvertedWindow, focal_of
from flowshade.progress import Progress
from flowshade.provenance import versions
from flowshade.report import Outcome, check_record
from flowshade.timing import StageTimer

Warn = Callable[[str], None]
TOP = 65535
"""What means 1 in a 16-bit picture."""
CONFIDENCE_FILE = "confidence.json"
DEPTH_FILE = "depth-code.json"
"""Say what a folder of confidences or of a relative depth's code holds, and show that Flowshade wrote it."""


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
    seed: int | None = None
    overwrite: bool = False

    @property
    def confidence_folder(self) -> Path:
        """Beside the clip, under its name."""
        return self.output.with_name(f"{self.output.name}.confidence")

    @property
    def depth_folder(self) -> Path:
        """The same, for the code of a depth that is relative and so has no place in a clip."""
        return self.output.with_name(f"{self.output.name}.depth-code")


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """What came of an `InvertJob`."""

    clip: Conversion
    files: dict[str, Path]
    """Files and folders written, by what they are."""
    seconds: float
    """From the first frame read to the last file closed."""


def check_invert(job: InvertJob, model: str | None = None) -> None:
    """Raises FlowshadeError for what would fail after the first frame, or leave files behind.

    `model` is the name of an inverse that is not loaded yet; None checks what does not depend on it.
    """
    if job.confidence and model in DIFFUSION_INVERSES:
        raise _unsure(str(model))
    if job.format not in get_args(OutputFormat):
        raise ClipError(f"format {job.format!r} is unknown; expected one of {', '.join(get_args(OutputFormat))}.")
    outputs = [("the output", job.output)]
    if job.compare is not None:
        check_file(job.compare, ".mp4", "the comparison")
        outputs.append(("the comparison", job.compare))
    for what, path in outputs:
        _check_free(job, what, path)
    if job.confidence:
        _check_beside(job, "the confidences' folder", job.confidence_folder, CONFIDENCE_FILE)
    _check_numbers(job.size, job.fps, job.fov)


def _check_free(job: InvertJob, what: str, path: Path) -> None:
    check_apart(path, job.video, what)
    if path.exists() and not job.overwrite:
        raise ClipError(
            f"{what} {path} exists already; expected a free name. Give another, or --overwrite (overwrite=True)."
        )


def _check_beside(job: InvertJob, what: str, folder: Path, file: str) -> None:
    check_folder(folder, what)
    _check_free(job, what, folder)
    if folder.exists() and not (folder / file).is_file():
        raise ClipError(f"{folder} was not written by Flowshade, so it is not overwritten; give another output.")


def check_inverse(job: InvertJob, inverse: VideoInverse) -> None:
    """Raises FlowshadeError for what a job asks of an inverse that cannot give it."""
    if job.confidence and not inverse.confident:
        raise _unsure(inverse.name)
    if _keeps_depth_code(inverse):
        _check_beside(job, "the depth code's folder", job.depth_folder, DEPTH_FILE)


def _unsure(model: str) -> FlowshadeError:
    return FlowshadeError(
        f"--confidence was asked for, and {model} does not say how sure it is; leave it out, or use compact."
    )


def _keeps_depth_code(inverse: VideoInverse) -> bool:
    """Whether depth comes as a code alone."""
    return "depth" in inverse.codes and "depth" not in inverse.channels


def _check_numbers(size: tuple[int, int] | None, fps: float | None, fov: float | None) -> None:
    if size is not None:
        check_size(size)
    if fps is not None:
        check_fps(fps, "fps")
    focal_of(fov)


def invert_to_files(job: InvertJob, inverse: VideoInverse, progress: Progress | None = None) -> Inversion:
    """Estimates a video's G-buffers and writes them, in constant memory; every file appears whole or not at all.

    Args:
        job: what to invert.
        inverse: a loaded network.
        progress: called after every few frames with frames done and frames in all.

    Raises:
        FlowshadeError: anything the user can mend: the video, the outputs, a number.
    """
    check_invert(job)
    check_inverse(job, inverse)
    began = time.perf_counter()
    with Footage(job.video, fps=job.fps) as footage:
        clip = InvertedClip(footage, inverse, size=job.size, fov=job.fov, frames=job.frames, seed=job.seed)
        with ExitStack() as outputs:
            sinks = _sinks(job, clip)
            for sink in sinks:
                outputs.enter_context(sink)
            beside = {what: outputs.enter_context(folder) for what, folder in _folders_beside(job, inverse).items()}
            progress = None if progress is None else _InChunks(clip, inverse, progress)
            for first in range(0, len(clip), INVERT_WINDOW):
                window = clip.estimate(first, min(first + INVERT_WINDOW, len(clip)))
                for sink in sinks:
                    with writing(sink.path):
                        sink.append(window.gbuffer, window.frames.rgb)
                for folder in beside.values():
                    folder.append(window)
                if progress is not None:
                    progress(window.stop, len(clip))
    files = {"clip": job.output}
    files |= {} if job.compare is None else {"side by side": job.compare}
    files |= {what: folder.path for what, folder in beside.items()}
    return Inversion(clip=sinks[0].result(), files=files, seconds=time.perf_counter() - began)


class _InChunks:
    """Progress in frames that also moves while an inverse works at a chunk, and never back.

    Args:
        clip: what is read.
        inverse: what it is read with.
        progress: called with frames done and in all.
    """

    def __init__(self, clip: InvertedClip, inverse: VideoInverse, progress: Progress) -> None:
        self._clip, self._progress, self._shown = clip, progress, 0
        if isinstance(inverse, DiffusionInverse) and inverse.progress is None:
            self._given = inverse.config.chunk - inverse.config.overlap
            inverse.progress = self._evaluated

    def _evaluated(self, done: int, total: int) -> None:
        given = min(self._given, len(self._clip) - self._clip.made)
        self(self._clip.made + given * done // total, len(self._clip))

    def __call__(self, done: int, total: int) -> None:
        self._shown = max(self._shown, done)
        self._progress(self._shown, total)


def _sinks(job: InvertJob, clip: InvertedClip) -> list[Sink]:
    sinks = [SINKS[job.format](clip, job.output, clip.info.size, job.overwrite)]
    if job.compare is not None:
        try:
            sinks.append(SideBySideSink(clip, job.compare, clip.info.size, overwrite=True))
        except BaseException as error:
            sinks[0].__exit__(type(error), error, None)
            raise
    return sinks


def _folders_beside(job: InvertJob, inverse: VideoInverse) -> dict[str, _PictureFolder]:
    """What goes beside the clip, since it holds neither."""
    about = {"model": inverse.name, "fingerprint": inverse.fingerprint}
    folders = {}
    if job.confidence:
        values = f"probability of an error within the tolerance, times {TOP}"
        folders["confidence"] = _PictureFolder(
            job.confidence_folder,
            CONFIDENCE_FILE,
            {**about, "values": values, "tolerances": TOLERANCES},
            lambda window: window.confidence,
        )
    if _keeps_depth_code(inverse):
        values = f"the network's depth, [0, 1], times {TOP}: relative; neither scale nor direction is published"
        folders["depth code"] = _PictureFolder(
            job.depth_folder,
            DEPTH_FILE,
            {**about, "values": values},
            lambda window: {"depth": window.codes["depth"].mean(1, keepdim=True)},
        )
    return folders


class _PictureFolder:
    """A folder of 16-bit pictures, one a name and frame: 65535 times a value in [0, 1]. It appears whole or not at all.

    Args:
        path: the folder.
        file: the name of the JSON file in it that says what it holds.
        about: what that says, besides the number of frames.
        values: takes a window's [T, 1, H, W] values by name.
    """

    def __init__(
        self, path: Path, file: str, about: dict[str, Any], values: Callable[[InvertedWindow], dict[str, Tensor]]
    ) -> None:
        self.path, self._file, self._about, self._values = path, file, about, values
        self._temporary = temporary_beside(self.path)
        self._frames = 0
        shutil.rmtree(self._temporary, ignore_errors=True)

    def append(self, window: InvertedWindow) -> None:
        with writing(self.path):
            for name, values in self._values(window).items():
                (self._temporary / name).mkdir(parents=True, exist_ok=True)
                pictures = (values[:, 0] * TOP).round().to(torch.uint16).numpy()
                for index, picture in enumerate(pictures):
                    write_png(self._temporary / name / f"{self._frames + index + 1:06d}.png", picture)
        self._frames += window.frames.frames

    def _finish(self) -> None:
        write_json(self._temporary / self._file, {"frames": self._frames, **self._about})
        move_into_place(self._temporary, self.path)

    def __enter__(self) -> _PictureFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                with writing(self.path):
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
    inverse: VideoInverse,
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
        sound = job.video if footage.is_video and not footage.retimed else None
        if footage.retimed and warn is not None:
            warn(f"{job.video} plays at another rate now; its sound, if it has any, is left out.")
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
    job: RestyleJob, renderer: StyledRenderer, inverse: VideoInverse, footage: Footage, frames: int, seconds: float
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
        "inverse": {"name": inverse.name, **inverse.about()},
        "device": str(renderer.device),
        "versions": versions(),
        "seconds": round(seconds, 3),
        "frames_per_second": round(frames / seconds, 2),
    }
