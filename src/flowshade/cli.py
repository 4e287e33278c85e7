"""The `flowshade` command: one function a verb. It parses, calls the package and prints; nothing is computed here."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from flowshade.errors import FlowshadeError, MissingDependencyError
from flowshade.evaluation.vlm.command import add_commands as add_vlm_commands
from flowshade.progress import progress_bar

if TYPE_CHECKING:
    from flowshade.api import StyledRenderer
    from flowshade.checkpoints.catalogue import Model
    from flowshade.evaluation.suites import PredictedVideos, RecordedClips, Suite
    from flowshade.world import World

app = tyro.extras.SubcommandApp()
world_app = tyro.extras.SubcommandApp()
models_app = tyro.extras.SubcommandApp()
data_app = tyro.extras.SubcommandApp()
eval_app = tyro.extras.SubcommandApp()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the files of a clip do not say about themselves; these go before gbuffer.json beside the clip."""

    albedo_code: Annotated[Literal["srgb", "linear"] | None, arg(help="How albedo is stored.")] = None
    normals: Annotated[
        Literal["camera", "world", "depth", "skip"] | None,
        arg(help="The space of normals; depth rebuilds them from depth, skip leaves them out."),
    ] = None
    normal_axes: Annotated[
        Literal["opengl", "directx", "opencv"] | None,
        arg(help="Of camera-space normals: opengl is Y up, Z to the viewer; directx Y down; opencv Y down, Z away."),
    ] = None
    normal_code: Annotated[
        Literal["signed", "half"] | None, arg(help="Of floating-point normals: as they are, or (n+1)/2.")
    ] = None
    up: Annotated[Literal["x", "y", "z"] | None, arg(help="Of world-space normals: the axis that points up.")] = None
    handedness: Annotated[Literal["right", "left"] | None, arg(help="Of world-space normals.")] = None
    depth_kind: Annotated[
        Literal["planar", "ray"] | None, arg(help="Along the optical axis, or distance to the camera's centre.")
    ] = None
    depth_code: Annotated[
        str | None,
        arg(
            metavar="CODE",
            help="linear, inverse:S, unit:METRES, far:METRES, disparity:K, reversed-z:NEAR[,FAR] or z-buffer:NEAR,FAR.",
        ),
    ] = None
    order: Annotated[
        Literal["rgb", "bgr"] | None, arg(help="Of planes in pictures and videos: bgr if red and blue are exchanged.")
    ] = None
    bits: Annotated[
        int | None, arg(metavar="N", help="Bits that integers use, where a file's own are more (10 in a 16-bit PNG).")
    ] = None
    unit: Annotated[
        str | None, arg(metavar="UNIT", help="Of linear distances: m, cm, mm, km, in, ft, or metres a unit.")
    ] = None
    fov: Annotated[float | None, arg(metavar="DEGREES", help="Horizontal field of view.")] = None
    cameras: Annotated[Path | None, arg(metavar="JSON", help="The cameras file.")] = None
    layer: Annotated[str | None, arg(metavar="NAME", help="The view layer of EXR files that hold several.")] = None

    def stated(self) -> dict[str, Any]:
        """What was given, as reader options."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return values | ({"cameras": str(self.cameras)} if self.cameras is not None else {})


@dataclass(frozen=True, kw_only=True)
class SevenB:
    """How a 7B inverse is run; by default as upstream runs it."""

    checkpoint: Annotated[
        Path | None,
        arg(metavar="PATH", help="Its folder or its transformer's file, instead of what was pulled."),
    ] = None
    steps: Annotated[int | None, arg(metavar="N", help="Denoising steps a buffer; by default 15.")] = None
    chunk: Annotated[int | None, arg(metavar="N", help="Frames at a time, 8 n + 1; by default 57.")] = None
    overlap: Annotated[
        int | None, arg(metavar="N", help="Frames that chunks share and are blended over, 8 n + 1; by default 17.")
    ] = None
    work_at: Annotated[
        str | None,
        arg(metavar="HxW", help="What it works at, multiples of 16; by default 704x1280, or own: the pictures' size."),
    ] = None
    depth_code: Annotated[
        str | None,
        arg(
            metavar="CODE",
            help="What its depth means, which is not published: inverse:METRES or linear:METRES; by default none, and "
            "the code is kept beside the clip.",
        ),
    ] = None
    offload: Annotated[bool, arg(help="Keep networks in host memory and bring each to the GPU for its turn.")] = False

    def config(self) -> Any:
        """As `DiffusionConfig`; None if nothing was given."""
        from flowshade.inverse.diffusion import DiffusionConfig, parse_depth

        given = {name: getattr(self, name) for name in ("steps", "chunk", "overlap") if getattr(self, name) is not None}
        if self.work_at is not None:
            given["size"] = None if self.work_at == "own" else _parse_size(self.work_at)
        if self.depth_code is not None:
            given["depth"], given["depth_scale"] = parse_depth(self.depth_code)
        if self.offload:
            given["offload"] = True
        return DiffusionConfig(**given) if given else None


PLAIN_7B = SevenB()


@dataclass(frozen=True, kw_only=True)
class Distilling:
    """What `train codec-distill`, `flash-distill` and `texts` take; see docs/distill.md."""

    clips: Annotated[
        tuple[Path, ...], arg(metavar="DIR", help="codec-distill, flash-distill, texts: clips, or folders of clips.")
    ] = ()
    teacher: Annotated[
        str, arg(metavar="PATH", help="The teacher: alaya-forward, its folder or its file (codec-distill: the VAE's).")
    ] = "alaya-forward"
    codec: Annotated[
        Path | None, arg(metavar="DIR", help="flash-distill: the run of codec-distill, or a folder of Flash.")
    ] = None
    student: Annotated[
        Path | None, arg(metavar="DIR", help="flash-distill: a Flash to begin from, instead of the teacher's weights.")
    ] = None
    samples: Annotated[
        Path | None, arg(metavar="DIR", help="flash-distill: where the teacher's samples are kept; by default here.")
    ] = None
    size: Annotated[str, arg(metavar="HxW", help="Height and width that clips are resized to.")] = "448x832"
    crop: Annotated[str, arg(metavar="HxW", help="codec-distill: of what is learned from at a time.")] = "256x256"
    frames: Annotated[
        int | None, arg(metavar="N", help="Of the teacher's samples (80), or of the codecs' crops (16).")
    ] = None
    window: Annotated[int, arg(metavar="N", help="flash-distill: frames of the student's windows.")] = 16
    prompt: Annotated[str, arg(metavar="TEXT", help="The caption of clips that have none.")] = ""
    prompt_styles: Annotated[
        tuple[str, ...] | None,
        arg(metavar="NAME", help="The teacher's styles that captions get in turn; default: all."),
    ] = None
    variants: Annotated[int, arg(metavar="N", help="Samples of every run of frames, in as many styles.")] = 1
    teacher_steps: Annotated[int, arg(metavar="N", help="The teacher's denoising steps.")] = 50
    cfg_scale: Annotated[float, arg(metavar="X", help="The teacher's guidance.")] = 5.0
    drift_frames: Annotated[int, arg(metavar="N", help="flash-distill: length of the stream whose drift is told.")] = (
        960
    )
    updates: Annotated[int | None, arg(metavar="N", help="Of every stage; by default the preset's.")] = None
    batch: Annotated[int | None, arg(metavar="N", help="Samples an update, over all GPUs.")] = None
    learning_rate: Annotated[float | None, arg(metavar="X", help="By default the preset's.")] = None
    estimate: Annotated[bool, arg(help="Say what disk and GPU hours it would take, and stop.")] = False
    card: Annotated[str, arg(metavar="NAME", help="With --estimate: for this card (h200, h100, rtx-4090, ...).")] = (
        "h200"
    )
    gpus: Annotated[int, arg(metavar="N", help="With --estimate: how many; a run takes those torchrun starts.")] = 1


NOTHING_DISTILLED = Distilling()
DistillFlags = Annotated[Distilling, OmitArgPrefixes]

Checkpoint = Annotated[
    Path | None,
    arg(metavar="PATH", help="Of a named model: its folder or its transformer's file, instead of what was pulled."),
]
Device = Annotated[str, arg(metavar="NAME", help="auto, cpu, cuda or cuda:N; auto takes a GPU when there is one.")]
Fast = Annotated[bool, arg(help="On a GPU: fused layers and CUDA graphs; the first windows take longer.")]
Fov = Annotated[float | None, arg(metavar="DEGREES", help="The camera's horizontal field of view, if you know it.")]
Fps = Annotated[float | None, arg(metavar="FPS", help="Frames a second; by default what the clip states.")]
Format = Annotated[str | None, arg(metavar="NAME", help="Read it as this format instead of finding out.")]
FrameCount = Annotated[int | None, arg(metavar="N", help="How many frames; by default all.")]
MOST_DIGITS = 12
"""Of whole numbers in sizes and keyframes."""
NOTHING_STATED = Reading()
ReadingFlags = Annotated[Reading, OmitArgPrefixes]
Size = Annotated[str | None, arg(metavar="HxW", help="Height and width in pixels, such as 240x416.")]
TextDevice = Annotated[
    str, arg(metavar="NAME", help="Where upstream's text encoder runs, 11.4 GB: auto (with the model), cpu, cuda:N.")
]
InverseModel = Annotated[
    str,
    arg(metavar="NAME", help="compact, alaya-inverse or cosmos-inverse (7B), or an inverse's .safetensors file."),
]
Video = Annotated[
    Positional[Path], arg(metavar="VIDEO", help="A video file, a folder of numbered pictures, or one picture.")
]
VideoFps = Annotated[
    float | None,
    arg(metavar="FPS", help="Frames a second of pictures (else 24), or of a video of variable rate."),
]
StylesFile = Annotated[Path | None, arg(metavar="FILE", help="A further styles file (TOML).")]


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status. A user's mistake is one sentence on stderr and status 2."""
    try:
        with _stopped_cleanly():
            app.cli(prog="flowshade", description="G-buffers and a prompt in, a styled video out.", args=args)
    except KeyboardInterrupt:
        print("\nstopped.", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("FLOWSHADE_DEBUG") == "1":
            raise
        print(f"flowshade: {_sentence(error)}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        if os.environ.get("FLOWSHADE_DEBUG") == "1" or not _is_out_of_memory(error):
            raise
        print(
            "flowshade: out of memory; give a smaller --size, a shorter --window or --chunk or --offload where the "
            "command has them, or free memory.",
            file=sys.stderr,
        )
        return 2
    return 0


@contextmanager
def _stopped_cleanly() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, so that temporary files are removed."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command
def inspect(
    path: Annotated[Positional[Path], arg(metavar="PATH", help="A clip: a folder or a file.")],
    format: Format = None,
    fps: Fps = None,
    sheet: Annotated[Path | None, arg(metavar="PNG", help="Also write a contact sheet of all channels.")] = None,
    guess: Annotated[
        bool, arg(help="Find out from the values what the files do not say: axes, spaces, depth, unit; with evidence.")
    ] = False,
    write: Annotated[bool, arg(help="With --guess: write the proposal to gbuffer.json beside the clip.")] = False,
    reading: ReadingFlags = NOTHING_STATED,
) -> None:
    """Say what a clip holds: format, frames, size, channels found and missing, ranges, axes, warnings."""
    from flowshade.gbuffer.io import check_sheet, guess_conventions, inspect_clip

    if write and not guess:
        raise FlowshadeError("--write goes with --guess; give both to write what is proposed.")
    if guess:
        proposal = guess_conventions(path, format=format, **reading.stated())
        print(proposal)
        print(f"  wrote     {proposal.save()}" if write else "  Write it to gbuffer.json with --guess --write.")
        return
    if sheet is not None:
        check_sheet(sheet, path)
    found = inspect_clip(path, format=format, fps=fps, **reading.stated())
    print(found)
    if sheet is not None:
        found.save_sheet(sheet)
        print(f"  sheet     {sheet}")


@app.command
def convert(
    source: Annotated[Positional[Path], arg(metavar="SRC", help="A clip: a folder or a file.")],
    target: Annotated[Positional[Path], arg(metavar="DST", help="Where to write.")],
    to: Annotated[
        Literal["clip", "exr", "png", "flash", "video", "upstream", "side-by-side"],
        arg(
            help="clip: Flowshade's own, lossless; exr: lossless, a part a channel, for Blender and Nuke; png: 16 bit; "
            "flash: upstream's windows; video: one a channel; upstream: its dataset's layout; side-by-side: one MP4 to "
            "look at."
        ),
    ] = "clip",
    format: Format = None,
    fps: Fps = None,
    size: Size = None,
    start: Annotated[int, arg(metavar="N", help="First frame.")] = 0,
    frames: FrameCount = None,
    overwrite: Annotated[bool, arg(help="Replace DST if it exists.")] = False,
    reading: ReadingFlags = NOTHING_STATED,
) -> None:
    """Convert a clip to another layout, window by window."""
    from flowshade.gbuffer import io

    with progress_bar("converting") as progress:
        done = io.convert(
            source,
            target,
            format=to,
            size=None if size is None else _parse_size(size),
            start=start,
            stop=None if frames is None else start + frames,
            overwrite=overwrite,
            progress=progress,
            source_format=format,
            fps=fps,
            **reading.stated(),
        )
    print(f"wrote {done.path}: {done.frames} frames of {', '.join(done.channels)} as {done.format}")
    for note in done.notes:
        print(f"note: {note}")


@app.command
def render(
    clip: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="CLIP", help="A clip of G-buffers: a folder or a file, or window-NN.npy files of Flash."),
    ],
    output: Annotated[Path, arg(name="output", aliases=["-o"], metavar="MP4", help="The video to write.")],
    prompt: Annotated[str, arg(metavar="TEXT", help="What the scene is and how it feels.")] = "",
    style: Annotated[
        str | None, arg(metavar="NAME", help="A named look for light and weather; see: flowshade styles.")
    ] = None,
    prompt_at: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(metavar='FRAME:"TEXT"', help="A prompt that takes over at a frame of the clip; may be repeated."),
    ] = (),
    steps: Annotated[
        int | None, arg(metavar="N", help="Denoising steps a window, fewer are faster; by default the model's own.")
    ] = None,
    seed: Annotated[int, arg(metavar="N", help="The same seed on the same machine gives the same video.")] = 0,
    window: Annotated[
        int | None, arg(metavar="N", help="Frames rendered together, a multiple of 4; by default the model's own.")
    ] = None,
    size: Size = None,
    start: Annotated[int, arg(metavar="N", help="First frame.")] = 0,
    frames: FrameCount = None,
    fps: Fps = None,
    device: Device = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], arg(help="auto takes bfloat16 on a GPU and float32 on a CPU.")
    ] = "auto",
    model: Annotated[
        str, arg(metavar="NAME", help="A name (see: flowshade models list), or the path of a .safetensors file.")
    ] = "compact",
    checkpoint: Checkpoint = None,
    text_device: TextDevice = "auto",
    styles: StylesFile = None,
    fast: Fast = True,
    compile: Annotated[bool, arg(help="The fast path with kernels compiled by PyTorch.")] = False,
    fp8: Annotated[
        bool, arg(help="The fast path with 8-bit linear layers, slightly other pictures; recent NVIDIA GPUs.")
    ] = False,
    format: Format = None,
    compare: Annotated[bool, arg(help="Also write OUT.compare.mp4: the buffers beside the result.")] = False,
    sheet: Annotated[bool, arg(help="Also write OUT.sheet.png: a few frames, their buffers and the result.")] = False,
    reading: ReadingFlags = NOTHING_STATED,
) -> None:
    """Render a clip to a video in the look that a prompt and a style ask for. Writes OUT.json beside it."""
    from flowshade import report
    from flowshade.api import load_renderer

    path, windows = _one_clip(clip)
    job = report.RenderJob(
        clip=path,
        windows=windows,
        output=output,
        prompt=prompt,
        style=style,
        prompts_at=_parse_keyframes(prompt_at),
        seed=seed,
        window=window,
        size=None if size is None else _parse_size(size),
        start=start,
        frames=frames,
        fps=fps,
        format=format if windows is None else "flash",
        conventions=reading.stated(),
        compare=compare,
        sheet=sheet,
    )
    report.check(job)  # before the model is loaded
    renderer = load_renderer(
        model,
        checkpoint=checkpoint,
        text_device=text_device,
        device=device,
        dtype=_parse_dtype(dtype),
        steps=steps,
        styles=styles,
        fast=None if fast else False,
        compile=compile,
        fp8=fp8,
    )
    with progress_bar("rendering") as progress:
        outcome = report.render_to_files(job, renderer, progress, _warn)
    for name, path in outcome.files.items():
        print(f"{name:<12} {path}")
    print(f"{outcome.frames} frames in {outcome.seconds:.1f} s, {outcome.frames / outcome.seconds:.1f} frames a second")


@app.command
def invert(
    video: Video,
    output: Annotated[Path, arg(name="output", aliases=["-o"], metavar="CLIP", help="The clip to write.")],
    to: Annotated[
        Literal["clip", "exr", "png", "flash", "video", "upstream", "side-by-side"],
        arg(help="The clip's format, as in: flowshade convert."),
    ] = "clip",
    fov: Fov = None,
    size: Annotated[
        str | None, arg(metavar="HxW", help="Height and width of the buffers, such as 240x416; by default the video's.")
    ] = None,
    frames: FrameCount = None,
    fps: VideoFps = None,
    compare: Annotated[
        Path | None, arg(metavar="MP4", help="Also write this video: picture and buffers side by side.")
    ] = None,
    confidence: Annotated[
        bool, arg(help="Also write CLIP.confidence: how sure the model is of each channel, 16-bit PNG files.")
    ] = False,
    model: InverseModel = "compact",
    seed: Annotated[int | None, arg(metavar="N", help="Of the noise that a 7B inverse begins from; by default 0.")] = (
        None
    ),
    device: Device = "auto",
    overwrite: Annotated[bool, arg(help="Replace what is written if it exists.")] = False,
    seven_b: Annotated[SevenB, OmitArgPrefixes] = PLAIN_7B,
) -> None:
    """Estimate the G-buffers of a video: albedo, normal, depth (up to one scale), roughness, metallic."""
    from flowshade import videos
    from flowshade.api import load_inverse

    job = videos.InvertJob(
        video=video, output=output, format=to, size=None if size is None else _parse_size(size), frames=frames, fps=fps,
        fov=fov, compare=compare, confidence=confidence, seed=seed, overwrite=overwrite,
    )  # fmt: skip
    videos.check_invert(job, model)  # before the model is loaded
    inverse = load_inverse(model, checkpoint=seven_b.checkpoint, device=device, config=seven_b.config())
    with progress_bar("inverting") as progress:
        done = videos.invert_to_files(job, inverse, progress)
    for name, path in done.files.items():
        print(f"{name:<12} {path}")
    frames_done = done.clip.frames
    print(f"{frames_done} frames in {done.seconds:.1f} s, {frames_done / done.seconds:.1f} frames a second")
    for note in done.clip.notes:
        print(f"note: {note}")


@app.command
def restyle(
    video: Video,
    output: Annotated[Path, arg(name="output", aliases=["-o"], metavar="MP4", help="The video to write.")],
    prompt: Annotated[str, arg(metavar="TEXT", help="What the scene is and how it feels.")] = "",
    style: Annotated[
        str | None, arg(metavar="NAME", help="A named look for light and weather; see: flowshade styles.")
    ] = None,
    keep: Annotated[
        str | None, arg(metavar="original:SHARE", help="Mix this share of the original in, such as original:0.3.")
    ] = None,
    mask: Annotated[
        Path | None, arg(metavar="PATH", help="White = restyle: a picture, a folder of them, or a video.")
    ] = None,
    mask_clip: Annotated[
        Path | None, arg(metavar="CLIP", help="Restyle only things of this G-buffer clip; with --instances.")
    ] = None,
    instances: Annotated[str | None, arg(metavar="ID,ID", help="Which things of --mask-clip, such as 3,7.")] = None,
    fov: Fov = None,
    size: Annotated[
        str | None,
        arg(metavar="HxW", help="Height and width to work at, such as 240x416; the result has the video's own."),
    ] = None,
    frames: FrameCount = None,
    fps: VideoFps = None,
    steps: Annotated[
        int | None, arg(metavar="N", help="Denoising steps a window, fewer are faster; by default the model's own.")
    ] = None,
    seed: Annotated[int, arg(metavar="N", help="The same seed on the same machine gives the same video.")] = 0,
    window: Annotated[
        int | None, arg(metavar="N", help="Frames rendered together, a multiple of 4; by default the model's own.")
    ] = None,
    model: Annotated[
        str, arg(metavar="NAME", help="The renderer: a name (see: flowshade models list), or a .safetensors file.")
    ] = "compact",
    checkpoint: Checkpoint = None,
    inverse: InverseModel = "compact",
    styles: StylesFile = None,
    device: Device = "auto",
    compare: Annotated[bool, arg(help="Also write OUT.compare.mp4: original and result side by side.")] = False,
    seven_b: Annotated[SevenB, arg(name="inverse")] = PLAIN_7B,
) -> None:
    """Give a video another look; rate, size and sound stay. Writes OUT.json beside it."""
    from flowshade import videos
    from flowshade.api import load_inverse, load_renderer

    job = videos.RestyleJob(
        video=video, output=output, prompt=prompt, style=style, keep=0.0 if keep is None else _parse_keep(keep),
        mask=mask, mask_clip=mask_clip, instances=() if instances is None else _parse_ids(instances), seed=seed,
        window=window, size=None if size is None else _parse_size(size), frames=frames, fps=fps, fov=fov,
        compare=compare,
    )  # fmt: skip
    videos.check_restyle(job)  # before the models are loaded
    renderer = load_renderer(model, checkpoint=checkpoint, device=device, steps=steps, styles=styles)
    back = load_inverse(inverse, checkpoint=seven_b.checkpoint, device=device, config=seven_b.config())
    with progress_bar("restyling") as progress:
        outcome = videos.restyle_to_files(job, renderer, back, progress, _warn)
    for name, path in outcome.files.items():
        print(f"{name:<12} {path}")
    print(f"{outcome.frames} frames in {outcome.seconds:.1f} s, {outcome.frames / outcome.seconds:.1f} frames a second")


@app.command
def styles(
    file: Annotated[Path | None, arg(name="styles", metavar="FILE", help="A further styles file (TOML).")] = None,
) -> None:
    """List the named styles: the built-in ones and your own."""
    from rich.console import Console
    from rich.table import Table

    from flowshade.renderer.styles import load_styles, user_file

    table = Table("style", "adds to the prompt", "from", box=None, pad_edge=False)
    for style in load_styles(file).values():
        table.add_row(style.name, style.caption or "(nothing)", style.source)
    Console().print(table)
    print(f"Your own go into {user_file()}, or into a file given with --styles.")


@world_app.command(name="list")
def world_list() -> None:
    """List the kinds of world, and the looks their reference pictures can have."""
    from flowshade.gbuffer.environment import installed_hdris
    from flowshade.gbuffer.look import LOOKS
    from flowshade.world import WORLDS

    for kind, world in WORLDS.items():
        print(f"{kind:<12} {world.about}")
    print("\nlooks for --look:")
    for name, look in LOOKS.items():
        print(f"{name:<12} {look.caption()}")
    print("FILE.hdr     or .exr: the sky and light of an equirectangular picture; hdri:NAME if it is installed:")
    print(f"             {', '.join(installed_hdris()) or 'none (npm install @pmndrs/assets brings 18)'}")


@world_app.command(name="record")
def world_record(
    kind: Annotated[
        Positional[str],
        arg(metavar="KIND", help="A kind (see: flowshade world list), or an MJCF or URDF file."),
    ],
    output: Annotated[Path, arg(name="output", aliases=["-o"], metavar="DIR", help="The clip folder to write.")],
    seed: Annotated[int, arg(metavar="N", help="Which world of that kind.")] = 0,
    path: Annotated[int, arg(metavar="N", help="Which of the world's camera paths.")] = 0,
    seconds: Annotated[float | None, arg(metavar="S", help="Length of the clip; by default 10.")] = None,
    frames: Annotated[int | None, arg(metavar="N", help="Length of the clip in frames, instead of --seconds.")] = None,
    size: Annotated[str, arg(metavar="HxW", help="Height and width in pixels.")] = "240x416",
    fps: Annotated[float, arg(metavar="FPS", help="Frames a second.")] = 24.0,
    look: Annotated[
        str,
        arg(
            metavar="NAME",
            help="Also record a reference picture in this look, or under an HDRI (a .hdr or .exr file, or hdri:NAME of "
            "an installed one); none records only buffers.",
        ),
    ] = "none",
    samples: Annotated[int, arg(metavar="N", help="Material samples a pixel.")] = 4,
    sampling_seed: Annotated[int, arg(metavar="N", help="Of the sampling pattern: other noise, the same world.")] = 0,
    reference: Annotated[
        Literal["direct", "paths"], arg(help="How the picture is made: direct light (fast), or path-traced.")
    ] = "direct",
    blur: Annotated[int, arg(metavar="N", help="Also keep a motion-blurred picture of N sub-frames.")] = 0,
    particles: Annotated[
        Literal["none", "auto", "rain", "snow", "fireflies", "bubbles"],
        arg(help="Also keep these as a layer of their own; auto takes what the look has."),
    ] = "none",
    resume: Annotated[bool, arg(help="Go on with a recording of the same settings that was stopped.")] = False,
    device: Device = "auto",
    overwrite: Annotated[bool, arg(help="Replace DIR if it exists.")] = False,
) -> None:
    """Record a clip of G-buffers from a world, with the camera that moved through it."""
    from flowshade.device import choose_device
    from flowshade.gbuffer.record import record_clip

    with progress_bar("recording") as progress:
        record_clip(
            _make_world(kind, seed),
            output,
            seconds=seconds,
            frames=frames,
            fps=fps,
            size=_parse_size(size),
            look=None if look == "none" else look,
            device=choose_device(device),
            seed=sampling_seed,
            path=path,
            samples=samples,
            reference=reference,
            blur=blur,
            particles=None if particles == "none" else particles,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
    print(f"wrote {output}")


@models_app.command(name="list")
def models_list() -> None:
    """List the models that load by name: files, where they are published, licences, and what is there already."""
    from flowshade.checkpoints.catalogue import MODELS
    from flowshade.checkpoints.loading import find_part, models_folder

    for model in MODELS.values():
        print(f"{model.name:<16} {model.title}\n{'':<16} licence: {model.licence}")
        for part in model.parts:
            found = find_part(model, part)
            where = ", ".join(source.repo for source in part.sources) or "not known here"
            print(f"  {part.role:<20} {part.gigabytes:>6.2f} GB  {part.about}; from {where}; {found or 'not there'}")
        for unknown in model.unknown:
            print(f"  not published: {unknown}")
    print(f"\npulled models lie in {models_folder()} (FLOWSHADE_MODELS changes it).")


@models_app.command(name="pull")
def models_pull(
    name: Annotated[Positional[str], arg(metavar="NAME", help="Which model; see: flowshade models list.")],
    repo: Annotated[str | None, arg(metavar="OWNER/NAME", help="Another repository to take its files from.")] = None,
    revision: Annotated[
        str | None, arg(metavar="REV", help="Branch, tag or commit; by default the one pulled before, else the newest.")
    ] = None,
) -> None:
    """Download what a model lacks; resumes, and honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE."""
    from flowshade.checkpoints.pull import pull

    folder = pull(_find_model(name), repo=repo, revision=revision, say=print)
    print(f"{name} lies in {folder}; look at it with: flowshade doctor {name}")


@models_app.command(name="check")
def models_check(
    name: Annotated[Positional[str], arg(metavar="NAME", help="Which model; see: flowshade models list.")],
    checkpoint: Checkpoint = None,
    render: Annotated[bool, arg(help="Also make a tiny picture with a fixed seed.")] = True,
    device: Device = "cpu",
) -> None:
    """For owners of weights: hashes, statistics and a tiny fixed-seed render, to compare with somebody else's."""
    from flowshade.checkpoints.doctor import check_part
    from flowshade.checkpoints.loading import find_part, find_parts
    from flowshade.upstream import check_render

    model = _find_model(name)
    if not model.parts:
        raise FlowshadeError(f"{name} is checked whenever it is loaded; see: flowshade doctor {name}.")
    paths = find_parts(model, checkpoint)
    for part in model.parts:
        path = paths.get(part.role) or find_part(model, part)
        if path is None or not part.keymaps:
            continue
        done = check_part(part, path)
        print(f"{part.role}: {done.path}\n  sha256       {done.sha256}\n  fingerprint  {done.fingerprint}")
        print(f"  tensors      {done.tensors}, {done.values} values, {done.broken} of them not finite")
        print(f"  values       mean {done.mean:.6g}, std {done.std:.6g}, largest {done.largest:.6g}")
    if render:
        for what, value in check_render(model, paths, device).items():
            print(f"render {what:<12} {value}")


app.command(models_app, name="models", help="Models that load by name: list, download, check.")


@app.command
def doctor(
    name: Annotated[
        Positional[str | None],
        arg(metavar="NAME", help="Also look at this model's files; by default the compact ones."),
    ] = None,
    checkpoint: Annotated[Path | None, arg(metavar="DIR", help="Its folder, instead of what was pulled.")] = None,
) -> None:
    """Say what is wrong on this machine or with a model's files, and what mends it. Status 2 if anything is."""
    from flowshade.checkpoints.doctor import diagnose

    marks = {"good": "ok  ", "note": "note", "bad": "BAD "}
    findings = list(diagnose(None if name is None else _find_model(name), checkpoint))
    for finding in findings:
        print(f"{marks[finding.level]} {finding.what:<20} {finding.text}")
    bad = sum(finding.level == "bad" for finding in findings)
    if bad:
        raise FlowshadeError(f"{bad} of {len(findings)} findings are bad; see above.")


@app.command
def alaya(
    gbuffer_dir: Annotated[Path, arg(metavar="DIR", help="The clip: albedo.mp4, depth.mp4, ..., or any clip.")],
    save_dir: Annotated[Path, arg(metavar="DIR", help="Videos go to DIR/{clip}_{clip}/epoch27_{style}.mp4.")],
    checkpoint: Annotated[
        Path | None, arg(metavar="PATH", help="The fine-tune's file or the folder of all files; else what was pulled.")
    ] = None,
    gpu: Annotated[int | None, arg(metavar="N", help="Which GPU; by default the first, or the CPU.")] = None,
    style: Annotated[
        str | None, arg(metavar="NAME", help="With --prompt: the video's name, the prompt as it is.")
    ] = None,
    prompt: Annotated[
        str | None, arg(metavar="TEXT", help="The prompt, or with --styles the caption they are spliced into.")
    ] = None,
    styles: Annotated[
        tuple[str, ...] | None, arg(metavar="NAME ...", help="Several styles in one batch; by default all.")
    ] = None,
    styles_json: Annotated[Path | None, arg(metavar="FILE", help="Other styles: JSON of names and words.")] = None,
    caption_csv: Annotated[Path | None, arg(metavar="FILE", help="Captions by clip, columns video and prompt.")] = None,
    num_frames: Annotated[int, arg(metavar="N", help="Frames; beyond 81 in overlapping windows.")] = 81,
    height: Annotated[int, arg(metavar="PX", help="Height, a multiple of 16.")] = 480,
    width: Annotated[int, arg(metavar="PX", help="Width, a multiple of 16.")] = 832,
    seed: Annotated[int, arg(metavar="N", help="The noise's.")] = 0,
    cfg_scale: Annotated[float, arg(metavar="X", help="Guidance; 1 is faster and without it.")] = 5.0,
    num_inference_steps: Annotated[int, arg(metavar="N", help="Denoising steps.")] = 50,
    window: Annotated[int, arg(metavar="N", help="Frames made together, 4 n + 1; fewer take less memory.")] = 81,
    text_device: TextDevice = "auto",
    reference: Annotated[
        bool, arg(help="Round between steps as upstream's script does, to reproduce its pixels.")
    ] = False,
) -> None:
    """Render with AlayaRenderer's forward teacher; takes the options of upstream's inference_gbuffer_caption.py."""
    from flowshade.renderer.teacher import TeacherConfig
    from flowshade.upstream import AlayaJob, alaya_prompts, run_alaya

    job = AlayaJob(
        gbuffer_dir=gbuffer_dir,
        save_dir=save_dir,
        checkpoint=checkpoint,
        prompts=alaya_prompts(
            style=style,
            prompt=prompt,
            styles=styles,
            styles_json=styles_json,
            caption_csv=caption_csv,
            clip=gbuffer_dir.absolute().name,
        ),
        num_frames=num_frames,
        height=height,
        width=width,
        seed=seed,
        config=TeacherConfig(steps=num_inference_steps, cfg_scale=cfg_scale, window=window, reference=reference),
        text_device=text_device,
        device=None if gpu is None else f"cuda:{gpu}",
        dtype=_parse_dtype("bfloat16") if reference else None,
    )
    with progress_bar("rendering", "steps") as progress:
        outputs = run_alaya(job, progress, _warn)
    for name, path in outputs.items():
        print(f"{name:<16} {path}")


@app.command
def budget(
    model: Annotated[
        str, arg(metavar="NAME", help="compact, alaya-forward, alaya-flash, alaya-inverse or cosmos-inverse.")
    ] = "compact",
    size: Annotated[str, arg(metavar="HxW", help="Height and width in pixels.")] = "480x832",
    frames: Annotated[int, arg(metavar="N", help="How many.")] = 81,
    gpu_memory: Annotated[
        float | None, arg(metavar="GIB", help="Memory to fit into, such as 8, 12, 16 or 24; by default the card's.")
    ] = None,
    card: Annotated[
        str | None, arg(metavar="NAME", help="Predict for this card (h200, rtx-4090, ...); by default this machine.")
    ] = None,
    steps: Annotated[int | None, arg(metavar="N", help="Denoising steps; by default the model's own.")] = None,
) -> None:
    """Predict memory and time by stage, and the settings that fit. Status 2 if none do."""
    from flowshade import budget as costs
    from flowshade.device import choose_device

    rates = costs.measure_rates(choose_device(None)) if card is None else costs.card(card)
    memory = rates.memory if gpu_memory is None else gpu_memory * costs.GIB
    found, fits = costs.plan(
        model, size=_parse_size(size), frames=frames, memory=memory, dtype=rates.dtype, steps=steps
    )
    print(f"{model}, {frames} frames of {size}, {rates.name}, {str(rates.dtype).removeprefix('torch.')} (predicted)")
    for stage in found.stages:
        print(
            f"  {stage.name:<16} {stage.seconds(rates):>9.2f} s  {stage.resident / costs.GIB:>7.2f} GiB, of it weights "
            f"{stage.weights / costs.GIB:.2f} and activations {stage.cost.peak / costs.GIB:.2f}"
        )
    seconds = found.seconds(rates)
    rate, peak = frames / seconds, found.peak / costs.GIB
    print(f"  {'together':<16} {seconds:>9.2f} s, {rate:.2f} frames a second; peak {peak:.2f} GiB")
    print("settings: " + ", ".join(f"{name} {value}" for name, value in found.settings.items()))
    if not fits:
        raise FlowshadeError(
            f"{model} at {size} needs {found.peak / costs.GIB:.1f} GiB even so; give a smaller --size or another model."
        )


app.command(world_app, name="world", help="Procedural worlds: list them, record clips from them.")


@data_app.command(name="generate")
def data_generate(
    output: Annotated[Path, arg(name="output", aliases=["-o"], metavar="DIR", help="The dataset folder.")],
    kinds: Annotated[tuple[str, ...], arg(metavar="KIND", help="Kinds of world, taken in turn.")] = (
        "street", "hills", "yard", "rooms", "harbour",
    ),
    clips: Annotated[int, arg(metavar="N", help="How many clips.")] = 10,
    cameras: Annotated[int, arg(metavar="N", help="Clips of each world, each along another camera path.")] = 1,
    seconds: Annotated[float, arg(metavar="S", help="Length of a clip.")] = 10.0,
    size: Annotated[str, arg(metavar="HxW", help="Height and width in pixels.")] = "720x1280",
    fps: Annotated[float, arg(metavar="FPS", help="Frames a second.")] = 30.0,
    look: Annotated[str, arg(metavar="NAME", help="A look, an HDRI, any (one drawn for each clip), or none.")] = "any",
    reference: Annotated[
        Literal["direct", "paths"], arg(help="How pictures are made: direct light (fast), or path-traced.")
    ] = "paths",
    blur: Annotated[int, arg(metavar="N", help="Also keep motion-blurred pictures of N sub-frames.")] = 0,
    particles: Annotated[bool, arg(help="Also keep rain, snow or bubbles of the look as a layer.")] = False,
    seed: Annotated[int, arg(metavar="N", help="Of the first clip's world.")] = 0,
    workers: Annotated[int, arg(metavar="N", help="Processes; 0 records in this one.")] = 0,
    device: Device = "auto",
    project_only: Annotated[bool, arg(help="Say what disk and time it would take, and stop.")] = False,
) -> None:  # fmt: skip
    """Record a dataset of clips from many worlds; what is complete is kept when it is run again."""
    from flowshade.dataset.generate import DatasetPlan, check_disk, folder_bytes, generate, project
    from flowshade.dataset.index import write_parquet
    from flowshade.device import choose_device

    plan = DatasetPlan(
        kinds=kinds, clips=clips, cameras=cameras, seconds=seconds, size=_parse_size(size), fps=fps, look=look,
        reference=reference, blur=blur, particles=particles, first_seed=seed,
    )  # fmt: skip
    chosen = str(choose_device(device))
    before = folder_bytes(output) if output.is_dir() else 0
    projection = project(plan, output, workers=max(workers, 1), device=chosen)
    print(f"projected: {projection.text()}")
    if project_only:
        return
    check_disk(projection, output)
    with progress_bar("recording", "clips") as progress:
        index = generate(plan, output, workers=workers, device=chosen, projection=projection, progress=progress)
    added = folder_bytes(output) - before
    print(
        f"wrote {output}: {len(index['clips'])} clips, {index['frames']:,} frames, {index['bytes'] / 2**20:.1f} MiB; "
        f"now {added / 2**20:.1f} MiB (projected {projection.bytes / 2**20:.1f}) in {index['seconds']:.1f} s "
        f"(projected {projection.seconds:.1f})"
    )
    try:
        write_parquet(output)
    except MissingDependencyError as error:
        print(f"note: {error}")


app.command(data_app, name="data", help="Datasets of recorded clips.")


EvalOutput = Annotated[
    Path, arg(name="output", aliases=["-o"], metavar="DIR", help="The results' folder; a run that was stopped goes on.")
]
EvalModel = Annotated[str, arg(metavar="NAME", help="A model's name, or the path of its .safetensors file.")]
EvalSteps = Annotated[int | None, arg(metavar="N", help="Denoising steps a window; by default the model's own.")]
EvalWindow = Annotated[int, arg(metavar="N", help="Frames rendered together, a multiple of 4.")]
EvalLooks = Annotated[tuple[str, ...], arg(metavar="NAME", help="Looks (see: flowshade world list).")]
EvalKinds = Annotated[tuple[str, ...], arg(metavar="KIND", help="Kinds of world, taken in turn.")]
EvalReference = Annotated[Literal["direct", "paths"], arg(help="The reference: direct light, or path-traced.")]
EvalPred = Annotated[
    Path | None, arg(metavar="DIR", help="Score these videos (CLIP.LOOK.mp4, or folders of PNG) instead of a model.")
]
EvalCaptions = Annotated[
    Path | None,
    arg(metavar="FILE", help="A caption bank of `train captions` instead of the prompt encoder, for where it is not."),
]
EvalEvery = Annotated[int, arg(metavar="N", help="LPIPS and the Frechet distance look at every N-th frame.")]
EVAL_HELP = (
    "Score renderers: held-out worlds, clips with or without reference pictures, long streams; compare two runs. Score "
    "an inverse, and estimated buffers of real footage: ranked by a vision-language model, or by their consistency."
)
SIX = ("sunny", "overcast", "sunset", "night", "fog", "snow")


@eval_app.command(name="worlds")
def eval_worlds(
    output: EvalOutput,
    worlds: Annotated[int, arg(metavar="N", help="How many held-out worlds.")] = 4,
    frames: Annotated[int, arg(metavar="N", help="Frames of each.")] = 16,
    kinds: EvalKinds = ("street", "hills"),
    looks: EvalLooks = SIX,
    size: Annotated[str, arg(metavar="HxW", help="Height and width in pixels.")] = "240x416",
    reference: EvalReference = "direct",
    pred: EvalPred = None,
    model: EvalModel = "compact",
    captions: EvalCaptions = None,
    steps: EvalSteps = None,
    window: EvalWindow = 8,
    seed: Annotated[int, arg(metavar="N", help="Of the stream's noise.")] = 0,
    lpips_every: EvalEvery = 4,
    controls: Annotated[bool, arg(help="Also measure ladders of wordings and answers to changed prompts.")] = True,
    device: Device = "auto",
) -> None:
    """Held-out worlds in canonical looks, against the traced reference."""
    from flowshade.device import choose_device
    from flowshade.evaluation.suites import HeldOutWorlds
    from flowshade.evaluation.worlds import WorldSuite

    asked = WorldSuite(
        worlds=worlds,
        frames=frames,
        kinds=kinds,
        looks=_known_looks(looks),
        size=_parse_size(size),
        reference=reference,
    )
    suite = HeldOutWorlds(asked, str(choose_device(device)))
    method = _method(pred, model, captions, steps, device)
    _evaluate(suite, method, output, device, window=window, seed=seed, lpips_every=lpips_every, controls=controls)


@eval_app.command(name="cycles")
def eval_cycles(
    clips: Annotated[Positional[tuple[Path, ...]], arg(metavar="CLIP", help="Clips, or folders of clips.")],
    output: EvalOutput,
    looks: EvalLooks = SIX,
    frames: FrameCount = None,
    size: Size = None,
    pred: EvalPred = None,
    model: EvalModel = "compact",
    captions: EvalCaptions = None,
    steps: EvalSteps = None,
    window: EvalWindow = 8,
    seed: Annotated[int, arg(metavar="N", help="Of the stream's noise.")] = 0,
    lpips_every: EvalEvery = 4,
    device: Device = "auto",
) -> None:
    """Clips that hold pictures of another renderer, such as Cycles; the look that comes closest counts."""
    suite = _recorded("cycles", clips, looks, frames, size)
    method = _method(pred, model, captions, steps, device)
    _evaluate(suite, method, output, device, window=window, seed=seed, lpips_every=lpips_every)


@eval_app.command(name="files")
def eval_files(
    clips: Annotated[Positional[tuple[Path, ...]], arg(metavar="CLIP", help="Clips, or folders of clips.")],
    output: EvalOutput,
    looks: EvalLooks = SIX,
    frames: FrameCount = None,
    size: Size = None,
    pred: EvalPred = None,
    model: EvalModel = "compact",
    captions: EvalCaptions = None,
    steps: EvalSteps = None,
    window: EvalWindow = 8,
    seed: Annotated[int, arg(metavar="N", help="Of the stream's noise.")] = 0,
    device: Device = "auto",
) -> None:
    """Any clips, without reference pictures: content, stability, speed."""
    suite = _recorded("files", clips, looks, frames, size)
    _evaluate(suite, _method(pred, model, captions, steps, device), output, device, window=window, seed=seed)


@eval_app.command(name="long")
def eval_long(
    output: EvalOutput,
    frames: Annotated[int, arg(metavar="N", help="How many.")] = 10_000,
    loop: Annotated[bool, arg(help="A still world: the camera goes half of the way on and comes back.")] = False,
    kind: Annotated[str, arg(metavar="KIND", help="Kind of world.")] = "street",
    look: Annotated[str, arg(metavar="NAME", help="The look.")] = "overcast",
    size: Annotated[str, arg(metavar="HxW", help="Height and width in pixels.")] = "240x416",
    reference: EvalReference = "direct",
    every: Annotated[int, arg(metavar="N", help="Compare one frame in N with the reference; 0: about 60 in all.")] = 0,
    model: EvalModel = "compact",
    captions: EvalCaptions = None,
    steps: EvalSteps = None,
    window: EvalWindow = 16,
    seed: Annotated[int, arg(metavar="N", help="Of the stream's noise.")] = 0,
    device: Device = "auto",
) -> None:
    """One long stream: drift, seams, speed, memory, and with --loop whether a place looks the same again."""
    from flowshade.device import choose_device
    from flowshade.evaluation import long
    from flowshade.evaluation.page import runtime_table
    from flowshade.evaluation.tables import markdown

    run = long.LongRun(
        kind=kind, look=_known_looks((look,))[0], frames=frames, loop=loop, size=_parse_size(size), every=every,
        window=window, stream_seed=seed, reference=reference,
    )  # fmt: skip
    renderer = _load_told(model, captions, steps, device)
    with progress_bar("streaming") as progress:
        results = long.evaluate_long(renderer, run, output, device=str(choose_device(device)), progress=progress)
    tables = (long.drift_table(results), long.revisit_table(results), long.seam_table(results))
    for table in (*tables, runtime_table(results["runtime"])):
        print(markdown(table))
    for note in results["notes"]:
        _warn(note)
    print(f"report: {output / 'report.html'}")


@eval_app.command(name="inverse")
def eval_inverse(
    output: Annotated[Path, arg(name="output", aliases=["-o"], metavar="DIR", help="The results' folder.")],
    clips: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="CLIP", help="Clips with pictures, or folders of clips; by default held-out worlds are traced."),
    ] = (),
    worlds: Annotated[int, arg(metavar="N", help="How many held-out worlds.")] = 32,
    frames: Annotated[int, arg(metavar="N", help="Frames of each, at most.")] = 16,
    kinds: EvalKinds = ("street", "hills"),
    looks: EvalLooks = ("sunny", "overcast", "sunset", "night"),
    size: Annotated[str, arg(metavar="HxW", help="Of worlds: height and width in pixels.")] = "240x416",
    reference: EvalReference = "direct",
    model: Annotated[
        str, arg(metavar="NAME", help="compact, or an inverse's .safetensors file; none of 7B, which is no stream.")
    ] = "compact",
    window: Annotated[int, arg(metavar="N", help="Frames pushed at a time.")] = 8,
    workers: Annotated[int, arg(metavar="N", help="Processes that trace; 0 traces in this one.")] = 0,
    device: Device = "auto",
) -> None:
    """An inverse's buffers against the true ones, beside the same network without memory and a constant."""
    from flowshade.api import load_inverse
    from flowshade.checkpoints.inverse import DIFFUSION_INVERSES
    from flowshade.device import choose_device
    from flowshade.evaluation import inverse as scores
    from flowshade.evaluation.worlds import WorldSuite
    from flowshade.gbuffer.io import find_clips
    from flowshade.inverse.stream import Inverse

    if model in DIFFUSION_INVERSES:
        raise FlowshadeError(f"{model} makes chunks and is no stream; expected compact, or a file of Flowshade's.")
    suite = WorldSuite(
        worlds=worlds, frames=frames, kinds=kinds, looks=_known_looks(looks), size=_parse_size(size), window=window,
        reference=reference,
    )  # fmt: skip
    given = [scores.read_reference_clip(clip, frames) for path in clips for clip in find_clips(path)]
    inverse, where = load_inverse(model, device=device), str(choose_device(device))
    assert isinstance(inverse, Inverse)
    with progress_bar("evaluating", "clips") as progress:
        options: dict[str, Any] = {"device": where, "out": output, "progress": progress, "warn": _warn}
        if given:
            table = scores.score_clips(inverse, given, window=window, shown=len(given), **options)
        else:
            table = scores.evaluate_inverse(inverse, suite, workers=workers, **options)
    print(scores.markdown_table(table))
    print(f"scores and sheet: {output}")


@eval_app.command(name="compare")
def eval_compare(
    first: Annotated[Positional[Path], arg(metavar="A", help="An evaluation's folder.")],
    second: Annotated[Positional[Path], arg(metavar="B", help="Another one of the same suite.")],
    methods: Annotated[
        tuple[str, str] | None, arg(metavar="NAME", help="A method of each; by default what each is about.")
    ] = None,
) -> None:
    """Differences of every metric on the clips that both have, with 95 % bootstrap intervals."""
    from flowshade.evaluation.compare import compare_table, load_and_compare
    from flowshade.evaluation.tables import markdown

    print(markdown(compare_table(load_and_compare(first, second, methods))))


def _known_looks(names: Sequence[str]) -> tuple[str, ...]:
    from flowshade.gbuffer.look import LOOKS

    unknown = [name for name in names if name not in LOOKS]
    if unknown:
        raise FlowshadeError(f"unknown look {unknown[0]!r}; expected one of {', '.join(LOOKS)}.")
    return tuple(names)


def _recorded(
    name: str, clips: tuple[Path, ...], looks: tuple[str, ...], frames: int | None, size: str | None
) -> RecordedClips:
    from flowshade.evaluation.suites import RecordedClips

    chosen = None if size is None else _parse_size(size)
    return RecordedClips(name, clips, looks=_known_looks(looks), frames=frames, size=chosen)


def _method(
    pred: Path | None, model: str, captions: Path | None, steps: int | None, device: str
) -> StyledRenderer | PredictedVideos:
    from flowshade.evaluation.suites import PredictedVideos

    return _load_told(model, captions, steps, device) if pred is None else PredictedVideos(pred)


def _load_told(model: str, captions: Path | None, steps: int | None, device: str) -> StyledRenderer:
    """A renderer whose prompts its encoder embeds, or a caption bank knows."""
    from flowshade.api import load_renderer
    from flowshade.device import choose_device
    from flowshade.renderer.prompt import CaptionBank

    bank = None if captions is None else CaptionBank.load(captions).to(choose_device(device))
    return load_renderer(model, device=device, steps=steps, encoder=bank)


def _evaluate(
    suite: Suite, method: StyledRenderer | PredictedVideos, output: Path, device: str, **options: Any
) -> None:
    from flowshade.device import choose_device
    from flowshade.evaluation import page
    from flowshade.evaluation.run import Evaluation, evaluate
    from flowshade.evaluation.tables import markdown

    with progress_bar("evaluating", "clips in a look") as progress:
        results = evaluate(suite, method, output, Evaluation(device=str(choose_device(device)), **options), progress)
    looks = [page.look_table(results, "psnr")] if len(results["looks"]) > 1 else []
    tables = [page.method_table(results), *looks, page.control_table(results), *page.ladder_tables(results)]
    for table in (*tables, page.runtime_table(results["runtime"])):
        print(markdown(table))
    for note in results["notes"]:
        _warn(note)
    print(f"report: {output / 'report.html'}")


@app.command
def train(
    preset: Annotated[
        Positional[str],
        arg(
            metavar="PRESET",
            help="Which run: compact, or debug, which goes through every stage in about a minute. "
            "captions only writes the captions and looks that a run needs, for a machine without the prompt encoder. "
            "codec-distill and flash-distill learn from AlayaRenderer's teacher; texts only embeds their prompts.",
        ),
    ],
    output: Annotated[
        Path, arg(name="output", aliases=["-o"], metavar="DIR", help="The run's folder; continued if it holds a run.")
    ],
    captions: Annotated[
        Path | None,
        arg(metavar="DIR", help="What `train captions` (flash-distill: `train texts`) wrote; by default made here."),
    ] = None,
    start: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="What to begin from: a run's checkpoint.safetensors (its averages), or weights such as the package's.",
        ),
    ] = None,
    seed: Annotated[int, arg(metavar="N", help="Of weights, worlds and batches.")] = 0,
    scale_time: Annotated[float, arg(metavar="X", help="Multiplies the time limit of every stage.")] = 1.0,
    stages: Annotated[
        tuple[str, ...] | None, arg(metavar="NAME ...", help="Only these stages; by default all of the preset's.")
    ] = None,
    device: Annotated[str | None, arg(metavar="NAME", help="Instead of the preset's.")] = None,
    capture: Annotated[bool, arg(help="Capture updates as CUDA graphs, for the renderer's stages on a GPU.")] = False,
    settings: Annotated[
        tuple[str, ...],
        arg(
            name="set",
            metavar="NAME=VALUE ...",
            help="Other settings than the preset's, such as rollout.lpips=0.1 clips.path_traced=0; docs/training.md.",
        ),
    ] = (),
    export: Annotated[
        Path | None,
        arg(metavar="FILE", help="Train nothing: write the averaged weights of the run in DIR, over or not, to FILE."),
    ] = None,
    distill: DistillFlags = NOTHING_DISTILLED,
) -> None:
    """Train a model of your own."""
    from flowshade.training import run

    if preset in ("codec-distill", "flash-distill", "texts"):
        if start is not None or scale_time != 1 or capture or settings or export is not None:
            raise FlowshadeError(
                f"--start, --scale-time, --capture, --set and --export do not go with {preset}; see --student and "
                "--updates."
            )
        _distill(preset, output, distill, texts=captions, seed=seed, stages=stages, device=device)
        return
    if distill != NOTHING_DISTILLED:
        given = [name for name, value in vars(distill).items() if value != getattr(NOTHING_DISTILLED, name)]
        raise FlowshadeError(f"--{given[0].replace('_', '-')} does not go with preset {preset!r}; leave it out.")
    if preset == run.CAPTIONS:
        run.write_captions(output, seed=seed)
        print(f"captions and looks: {output}")
        return
    if export is not None:
        run.export_average(preset, output, export, settings=settings)
        print(f"averaged weights: {export}")
        return
    path = run.train(
        preset,
        output,
        captions=captions,
        start=start,
        seed=seed,
        scale_time=scale_time,
        stages=stages,
        device=device,
        capture=capture,
        settings=settings,
    )
    print(f"trained renderer: {path}")


def _distill(
    kind: str,
    output: Path,
    given: Distilling,
    *,
    texts: Path | None,
    seed: int,
    stages: tuple[str, ...] | None,
    device: str | None,
) -> None:
    from flowshade.presets import codec_distillation, flash_distillation
    from flowshade.renderer.teacher import STYLES, TeacherConfig
    from flowshade.training.distill import run

    if not given.clips:
        raise FlowshadeError(f"{kind} has nothing to learn from; give --clips DIR ... with G-buffer clips.")
    preset = codec_distillation() if kind == run.CODEC_DISTILL else flash_distillation()
    changes = {name: getattr(given, name) for name in ("updates", "batch", "learning_rate")}
    changes = {name: value for name, value in changes.items() if value is not None}
    job = run.DistillJob(
        clips=given.clips, out=output, teacher=given.teacher, size=_parse_size(given.size), window=given.window,
        frames=(given.frames if kind != run.CODEC_DISTILL else None) or run.DistillJob.frames,
        crop=_parse_size(given.crop), crop_frames=given.frames or run.DistillJob.crop_frames, codec=given.codec,
        student=given.student, texts=texts, samples=given.samples, prompt=given.prompt, variants=given.variants,
        styles=tuple(STYLES) if given.prompt_styles is None else given.prompt_styles,
        teacher_config=TeacherConfig(steps=given.teacher_steps, cfg_scale=given.cfg_scale),
        drift_frames=given.drift_frames, stages=stages, seed=seed, device=device,
        loops={name: dataclasses.replace(loop, **changes) for name, loop in preset.items()},
    )  # fmt: skip
    if given.estimate:
        print(run.estimate_job(kind, job, given.card, given.gpus))
        return
    act = {run.CODEC_DISTILL: run.distill_codec, run.FLASH_DISTILL: run.distill_flash, run.TEXTS: run.write_texts}[kind]
    print(f"{kind}: {act(job)}")


@app.command
def play(
    world: Annotated[str, arg(metavar="KIND", help="A kind of world; see: flowshade world list.")] = "street",
    seed: Annotated[int, arg(metavar="N", help="Which world of that kind.")] = 0,
    mjcf: Annotated[Path | None, arg(metavar="FILE", help="An MJCF or URDF file instead.")] = None,
    clip: Annotated[Path | None, arg(metavar="DIR", help="A clip of G-buffers instead, round and round.")] = None,
    model: Annotated[
        str, arg(metavar="NAME", help="A model's name, or the path of its .safetensors file.")
    ] = "compact",
    checkpoint: Checkpoint = None,
    size: Annotated[
        str | None, arg(metavar="HxW", help="Height and width in pixels; by default 128x224, on a GPU 480x832.")
    ] = None,
    fps: Annotated[float | None, arg(metavar="FPS", help="World ticks a second; by default 30, on a GPU 60.")] = None,
    steps: Annotated[int | None, arg(metavar="N", help="Denoising steps when there is time; default: the model's.")] = (
        None
    ),
    window: Annotated[int, arg(metavar="N", help="Frames rendered together; 4 answers soonest.")] = 4,
    fast: Fast = True,
    sessions: Annotated[int, arg(metavar="N", help="Players at a time.")] = 8,
    device: Device = "auto",
    host: Annotated[str, arg(metavar="NAME", help="Where to listen; only this machine can connect by default.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, arg(metavar="N", help="Where to listen.")] = 8765,
    token: Annotated[str | None, arg(metavar="TEXT", help="Players must give it: http://.../?token=TEXT")] = None,
    push: Annotated[bool, arg(help="Also take windows of G-buffers from engines; see docs/play.md.")] = False,
) -> None:
    """Play in a world in the browser, and change its look by typing. Needs: pip install 'flowshade[play]'."""
    from flowshade.play.launch import Launch, run

    launch = Launch(
        world=world, seed=seed, mjcf=mjcf, clip=clip, model=model, checkpoint=checkpoint,
        size=None if size is None else _parse_size(size), fps=fps, steps=steps, window=window,
        fast=None if fast else False,
        sessions=sessions, device=device, host=host, port=port, token=token, push=push,
    )  # fmt: skip
    run(launch, announce=lambda address: print(f"playing at {address} (Ctrl+C ends it)", flush=True))


@app.command
def version() -> None:
    """Print the versions of Flowshade and of what its results depend on."""
    from flowshade.provenance import versions

    for name, value in versions().items():
        print(f"{name:<14} {value}")


def _find_model(name: str) -> Model:
    from flowshade.checkpoints.catalogue import MODELS

    if name not in MODELS:
        raise FlowshadeError(f"unknown model {name!r}; expected one of {', '.join(MODELS)}.")
    return MODELS[name]


def _one_clip(paths: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...] | None]:
    """A clip's path and, where it is given as files of Flash windows, those."""
    if paths and all(path.suffix == ".npy" for path in paths):
        folders = {path.parent for path in paths}
        if len(folders) > 1:
            raise FlowshadeError(f"the windows lie in {len(folders)} folders; expected one. Copy them together.")
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise FlowshadeError(f"{missing[0]}: nothing is there; expected a window. Check the path.")
        return paths[0].parent, paths
    if len(paths) != 1:
        raise FlowshadeError(f"{len(paths)} clips were given; expected one, or window-NN.npy files of one clip.")
    return paths[0], None


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _make_world(kind: str, seed: int) -> World:
    from flowshade.world import WORLDS, load_mjcf, load_urdf, make_world

    path = Path(kind)
    if kind in WORLDS:
        return make_world(kind, seed)
    if path.suffix.lower() in (".xml", ".urdf"):
        return load_urdf(path) if path.suffix.lower() == ".urdf" else load_mjcf(path)
    raise FlowshadeError(
        f"unknown world {kind!r}; expected one of {', '.join(WORLDS)}, or the path of an MJCF (.xml) or URDF file."
    )


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _is_out_of_memory(error: Exception) -> bool:
    """torch has a type of its own for GPUs only; for CPUs a RuntimeError says it in words."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _parse_size(text: str) -> tuple[int, int]:
    height, by, width = text.lower().partition("x")
    if not (by and _is_whole(height) and _is_whole(width) and int(height) and int(width)):
        raise FlowshadeError(f"size {text[:40]!r} cannot be read; expected HxW in pixels, such as 240x416.")
    from flowshade.gbuffer.io.limits import check_size

    size = int(height), int(width)
    check_size(size)
    return size


def _is_whole(text: str) -> bool:
    """Whether text is a whole number of no more digits than any that is asked for."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _parse_keyframes(texts: Sequence[str]) -> dict[int, str]:
    keyframes: dict[int, str] = {}
    for text in texts:
        frame, colon, prompt = text.partition(":")
        if not colon or not _is_whole(frame.strip()):
            raise FlowshadeError(f'--prompt-at got {text[:80]!r}; expected FRAME:TEXT, such as 48:"heavy snow".')
        if int(frame) in keyframes:
            raise FlowshadeError(f"--prompt-at names frame {int(frame)} twice; give each frame one prompt.")
        keyframes[int(frame)] = prompt.strip()
    return keyframes


def _parse_keep(text: str) -> float:
    what, colon, share = text.partition(":")
    try:
        value = float(share) if colon and what.strip() == "original" else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise FlowshadeError(f"--keep got {text[:40]!r}; expected original:SHARE, 0 to 1, such as original:0.3.")
    return value


def _parse_ids(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(_is_whole(part) and 0 < int(part) < 2**31 for part in parts):
        raise FlowshadeError(f"--instances got {text[:40]!r}; expected ids from 1 up with commas between, such as 3,7.")
    return tuple(int(part) for part in parts)


def _parse_dtype(name: str) -> Any:
    import torch

    return None if name == "auto" else getattr(torch, name)


add_vlm_commands(eval_app)
app.command(eval_app, name="eval", help=EVAL_HELP)


if __name__ == "__main__":
    sys.exit(main())
