"""The package for people who import it: load a renderer, say how things should look, push G-buffers, get pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.checkpoints.inverse import DIFFUSION_INVERSES, load_diffusion_inverse
from flowshade.checkpoints.store import (
    default_inverse_weights,
    default_weights,
    load_inverse_file,
    load_renderer_file,
    read_metadata,
)
from flowshade.device import choose_device
from flowshade.errors import CheckpointError, FlowshadeError, PromptError
from flowshade.gbuffer.io import ClipReader, open_clip, resize
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.masks import Mask
from flowshade.gbuffer.io.resize import resize_reference
from flowshade.inverse.diffusion import DiffusionConfig, DiffusionInverse
from flowshade.inverse.stream import Inverse, VideoInverse
from flowshade.inversion import InvertedClip, InvertedWindow
from flowshade.progress import Progress
from flowshade.renderer.batch import push_together
from flowshade.renderer.fast import speed_up
from flowshade.renderer.flash import FlashRenderer
from flowshade.renderer.prompt import CaptionBank, PromptEncoder
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.stream import Stream
from flowshade.renderer.styles import Style, compose, find_style, load_styles
from flowshade.timing import StageTimer, watching
from flowshade.types import FRAMES_PER_LATENT, Frames, GBuffer
from flowshade.upstream import FLASH, FORWARD, UpstreamPrompts, coded_planes, load_flash

Clip = ClipReader | GBuffer | str | Path
"""What can be rendered: an open clip, buffers in memory, or the path of a clip."""

COMPACT = "compact"
"""Name of the model that ships with the package."""

INVERSE_NAMES = (COMPACT, "compact-inverse")
"""Of the inverse that ships: what `load_inverse` is usually given, and what the catalogue calls it."""

INVERT_WINDOW = 8
"""Frames that `invert` gives at a time."""

MOST_STEPS = 1000
"""Denoising steps a window that can be asked for; the schedule resolves no more."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """One step of a render: which frames, what they held and how they came out."""

    start: int
    """Number of the first frame in the clip."""
    gbuffer: GBuffer
    """The buffers as rendered (resized if that was asked for), on the device they came from."""
    frames: Frames
    """The pictures, on the renderer's device."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A run of frames under one caption."""

    start: int
    stop: int
    caption: str


class StyledRenderer:
    """A stream: a model, a prompt encoder and the named styles.

    `reset`, `set_prompt`, `push`, in that order; `push` again for as long as the world runs. What changes is the
    model's memory of its own past pictures and the current prompt; memory does not grow.

    Args:
        model: the network and its streaming state.
        name: what the model is called.
        fingerprint: which weights it has.
        steps: denoising steps a window; None takes the model's own.
        styles: styles by name; None takes the built-in ones and the user's.
        encoder: turns captions into embeddings; None takes the compact model's.
    """

    takes_codes = False
    """Whether the model takes a clip's own 8-bit planes, as upstream's do, instead of channels in physical units."""

    def __init__(
        self,
        model: Renderer | FlashRenderer,
        *,
        name: str,
        fingerprint: str,
        steps: int | None = None,
        styles: Mapping[str, Style] | None = None,
        encoder: PromptEncoder | CaptionBank | UpstreamPrompts | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.fingerprint = fingerprint
        self.steps = model.config.steps if steps is None else steps
        if not 1 <= self.steps <= MOST_STEPS:
            raise FlowshadeError(f"steps is {self.steps}; expected 1 to {MOST_STEPS}.")
        self.styles = dict(load_styles() if styles is None else styles)
        self.encoder = PromptEncoder(model.device) if encoder is None else encoder
        self.caption = ""
        self._sun: Tensor | None = None
        self.reset()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def preparations(self) -> int | None:
        """Stages so far that were slow as the first of their shapes, by CUDA graphs; None = there are none."""
        return None if self.model.graphs is None else self.model.graphs.preparations

    @property
    def past_frames(self) -> int:
        """Pictures that a stream remembers; from then on its windows are all alike."""
        return self.model.transformer.history_frames * FRAMES_PER_LATENT

    def open_stream(self, seed: int = 0) -> Stream | FlashRenderer:
        """A further stream through the same weights; it needs a prompt (`set_text`) and goes on in `push_streams`."""
        return self.model.open_stream(seed)

    def push_streams(
        self, streams: Sequence[Stream | FlashRenderer], windows: Sequence[GBuffer], *, steps: int | None = None
    ) -> list[Frames]:
        """Renders the next window of each of several streams, in one batch where the model can.

        Side effect: the streams' memory moves on.

        Args:
            streams: different ones, of this renderer's `open_stream`.
            windows: one a stream, all of one size and number of frames.
            steps: denoising steps; the renderer's when None.

        Raises:
            ValueError: what `renderer.batch.push_together` refuses.
        """
        steps = self.steps if steps is None else steps
        if isinstance(self.model, Renderer):
            return push_together(self.model, cast(Sequence[Stream], streams), windows, steps=steps)
        return [
            cast(FlashRenderer, stream).push(coded_planes(window, 0, window.frames), steps=steps)
            for stream, window in zip(streams, windows, strict=True)
        ]

    @property
    def dtype(self) -> torch.dtype:
        """What matrix products run in."""
        return self.model.autocast_dtype or self.model.transformer.dtype

    def reset(self, seed: int = 0) -> None:
        """Starts a new stream. Forgets all pictures; prompt and sun stay."""
        self.model.reset(seed)
        self._set_caption(self.caption, self._sun)

    def set_prompt(self, prompt: str, style: str | None = None, sun: Float[Tensor, "3"] | None = None) -> None:
        """Says how the next windows should look. Works in the middle of a stream.

        Args:
            prompt: what the scene is and how it feels.
            style: a named style, which sets light and weather; None leaves them to the prompt.
            sun: unit vector towards the sun in the stream frame (`types.stream_frame`), if the world knows it.

        Raises:
            StyleError: no such style.
            PromptError: a prompt longer than the encoder takes.
        """
        self._set_caption(self.compose(prompt, style), sun)

    def compose(self, prompt: str, style: str | None = None) -> str:
        """The caption that a prompt and a style give together."""
        return compose(prompt, None if style is None else find_style(style, self.styles))

    def push(self, window: GBuffer) -> Frames:
        """Renders the next frames of the stream.

        Side effect: the model's memory moves on. A window of other than a multiple of `FRAMES_PER_LATENT` frames
        should be a stream's last, since it is completed by repeating its last frame.

        Args:
            window: any number of frames of any size, the same for a whole stream.

        Returns:
            As many pictures of the same size, on the renderer's device.
        """
        return self.model.push(self._given(window, 0, window.frames, None), steps=self.steps)

    def render(
        self,
        clip: Clip,
        prompt: str = "",
        style: str | None = None,
        *,
        sun: Float[Tensor, "3"] | None = None,
        prompts_at: Mapping[int, str] | None = None,
        seed: int = 0,
        window: int | None = None,
        start: int = 0,
        frames: int | None = None,
        size: tuple[int, int] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Frames]:
        """Renders a clip window by window, in constant memory however long it is.

        Args:
            clip: an open clip, buffers, or a path.
            prompt: what the scene is and how it feels.
            style: a named style; it stays when the prompt changes.
            sun: unit vector towards the sun in the stream frame, if known.
            prompts_at: prompts that take over at frames of the clip. A change falls on the first frame of a group of
                `FRAMES_PER_LATENT` (counted from `start`), the one that holds the frame asked for.
            seed: the same seed on the same machine gives the same pictures.
            window: frames rendered together, a multiple of `FRAMES_PER_LATENT`; None takes the model's own. Short
                windows answer sooner, long ones cost less a frame.
            start: first frame of the clip.
            frames: how many; None takes all there are.
            size: height and width to resize the buffers to.
            progress: called after every window with frames done and frames in all.

        Yields:
            The pictures of one window after another.
        """
        windows = self.stream(
            clip,
            prompt,
            style,
            sun=sun,
            prompts_at=prompts_at,
            seed=seed,
            window=window,
            start=start,
            frames=frames,
            size=size,
            progress=progress,
        )
        return (item.frames for item in windows)

    def stream(
        self,
        clip: Clip,
        prompt: str = "",
        style: str | None = None,
        *,
        sun: Float[Tensor, "3"] | None = None,
        prompts_at: Mapping[int, str] | None = None,
        seed: int = 0,
        window: int | None = None,
        start: int = 0,
        frames: int | None = None,
        size: tuple[int, int] | None = None,
        progress: Progress | None = None,
        timer: StageTimer | None = None,
    ) -> Iterator[Window]:
        """`render`, with the buffers beside the pictures. Arguments are checked here, before the first frame.

        A `timer` is told how long the stages take: read, encode, history, transformer, decode.
        """
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise FlowshadeError(f"size is {size}; expected (height, width) in pixels, each at least 1.")
        with ExitStack() as opened:
            if isinstance(clip, (str, Path)):
                clip = opened.enter_context(open_clip(clip))
            segments = self._plan(clip, prompt, style, prompts_at or {}, start, frames)
            window = self.model.config.window if window is None else window
            if window < 1 or window % FRAMES_PER_LATENT:
                raise FlowshadeError(
                    f"window is {window} frames; expected a multiple of {FRAMES_PER_LATENT}, such as 8."
                )
            return self._stream(clip, segments, sun, seed, window, size, progress, timer, opened.pop_all())

    def _plan(
        self,
        clip: ClipReader | GBuffer,
        prompt: str,
        style: str | None,
        prompts_at: Mapping[int, str],
        start: int,
        frames: int | None,
    ) -> list[Segment]:
        """Which frames come under which caption; what cannot be rendered so fails here."""
        stop = _check_span(clip, start, frames)
        prompts = keyframes_from(prompts_at, start, stop)
        if prompt and start in prompts:
            raise PromptError(
                f"the prompt {prompt!r} would never be seen: {prompts[start]!r} takes over within the first "
                f"{FRAMES_PER_LATENT} frames. Give one of them, or a later frame."
            )
        prompts = {start: prompt, **prompts}
        segments = plan_segments({at: self.compose(text, style) for at, text in prompts.items()}, stop)
        self.encoder.encode([segment.caption for segment in segments])  # a prompt that is too long fails here
        return segments

    def _stream(
        self,
        clip: ClipReader | GBuffer,
        segments: Sequence[Segment],
        sun: Tensor | None,
        seed: int,
        window: int,
        size: tuple[int, int] | None,
        progress: Progress | None,
        timer: StageTimer | None,
        opened: ExitStack,
    ) -> Iterator[Window]:
        begin, end = segments[0].start, segments[-1].stop
        self.reset(seed)
        with opened, nullcontext() if timer is None else watching(timer, self.model):
            for segment in segments:
                self._set_caption(segment.caption, sun)
                for first in range(segment.start, segment.stop, window):
                    last = min(first + window, segment.stop)
                    with nullcontext() if timer is None else timer.stage("read"):
                        gbuffer = _read(clip, first, last, size)
                        given: Any = gbuffer if not self.takes_codes else self._given(clip, first, last, size)
                    frames = self.model.push(given, steps=self.steps)
                    yield Window(start=first, gbuffer=gbuffer, frames=frames)
                    if progress is not None:
                        progress(last - begin, end - begin)

    def _given(self, clip: ClipReader | GBuffer, first: int, last: int, size: tuple[int, int] | None) -> Any:
        """What the model takes of these frames."""
        return coded_planes(clip, first, last, size) if self.takes_codes else _read(clip, first, last, size)

    def _set_caption(self, caption: str, sun: Tensor | None) -> None:
        self.model.set_text(self.encoder.encode([caption]))
        self.model.set_sun(sun)
        self.caption, self._sun = caption, sun


class FlashStream(StyledRenderer):
    """AlayaRenderer-Flash as a stream: its prompts go through umt5, its clips byte for byte where they are 8-bit."""

    takes_codes = True


def load_renderer(
    name: str | Path = COMPACT,
    *,
    checkpoint: str | Path | None = None,
    text_device: torch.device | str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    steps: int | None = None,
    styles: str | Path | None = None,
    encoder: PromptEncoder | CaptionBank | None = None,
    fast: bool | None = None,
    compile: bool = False,
    fp8: bool = False,
) -> StyledRenderer:
    """Loads a model by name, or from a file.

    Args:
        name: "compact", the model that ships with the package, "alaya-flash", or the path of a `.safetensors` file.
        checkpoint: of "alaya-flash": its folder or its transformer's file; None looks where `models pull` puts it.
        text_device: of "alaya-flash": where prompts are encoded; None takes `device`.
        device: where it runs; None takes a GPU when there is one.
        dtype: what matrix products run in; None takes bfloat16 on a GPU and float32 on a CPU.
        steps: denoising steps a window; fewer are faster. None takes the model's own.
        styles: a further styles file.
        encoder: of the compact model: embeds captions, on `device`; None loads one. A `CaptionBank` knows its own
            captions alone, and needs no weights of an encoder.
        fast: run the fast path (`renderer.fast.speed_up`): fused layers everywhere, on a GPU also CUDA graphs and
            attention chosen by timing. The first windows of a shape take longer. None runs it on a GPU.
        compile: the fast path with kernels that PyTorch compiles, some seconds for every new shape.
        fp8: the fast path with 8-bit linear layers, which changes the pictures a little; GPUs of compute capability
            8.9 and later.

    Raises:
        CheckpointError: weights that are missing, or are not what was expected.
        FlowshadeError: another dtype, an unknown device, an impossible number of steps, or fp8 without such a GPU.
    """
    if name == FLASH:
        if encoder is not None:
            raise FlowshadeError(f"{FLASH} embeds captions by umt5 and got another encoder; leave encoder out.")
        given = None if checkpoint is None else Path(checkpoint)
        loaded = load_flash(given, device=device, dtype=dtype, text_device=text_device)
        _speed_up(loaded.renderer, fast, compile, fp8)
        return FlashStream(
            loaded.renderer,
            name=FLASH,
            fingerprint=loaded.fingerprint,
            steps=steps,
            styles=load_styles(styles),
            encoder=loaded.prompts,
        )
    if name == FORWARD:
        raise CheckpointError(f"{FORWARD} is no stream but makes whole clips; use: flowshade alaya --help")
    if checkpoint is not None:
        raise CheckpointError(f"a checkpoint goes with {FLASH!r}; give {str(checkpoint)!r} as the model itself.")
    path = default_weights() if name == COMPACT else Path(name)
    if name != COMPACT and not path.exists() and path.suffix != ".safetensors":
        raise CheckpointError(
            f"unknown model {str(name)!r}; expected {COMPACT!r}, {FLASH!r} or the path of a .safetensors file of "
            "Flowshade's."
        )
    if dtype not in (None, torch.float32, torch.bfloat16):
        raise FlowshadeError(f"dtype is {dtype}; expected torch.float32, torch.bfloat16 or None.")
    chosen = choose_device(device)
    model = load_renderer_file(path, chosen)
    if dtype is None:
        dtype = torch.bfloat16 if chosen.type == "cuda" else torch.float32
    model.autocast_dtype = None if dtype == torch.float32 else dtype
    _speed_up(model, fast, compile, fp8)
    return StyledRenderer(
        model,
        name=model.config.name,
        fingerprint=read_metadata(path)["fingerprint"],
        steps=steps,
        styles=load_styles(styles),
        encoder=encoder,
    )


def _speed_up(model: Renderer | FlashRenderer, fast: bool | None, compile: bool, fp8: bool) -> None:
    if fast is None:
        fast = model.device.type == "cuda"
    if fast or compile or fp8:
        speed_up(model, kernels="inductor" if compile else None, fp8=fp8)


def load_inverse(
    name: str | Path = COMPACT,
    *,
    checkpoint: str | Path | None = None,
    device: torch.device | str | None = None,
    config: DiffusionConfig | None = None,
) -> Inverse | DiffusionInverse:
    """Loads an inverse, pictures to G-buffers, by name or from a file.

    Args:
        name: "compact", the model that ships with the package, "alaya-inverse" or "cosmos-inverse", of 7B parameters,
            or the path of a `.safetensors` file of Flowshade's.
        checkpoint: of the 7B ones: the folder of their files or the transformer's file; None looks where `models pull`
            puts them.
        device: where it runs; None takes a GPU when there is one. The compact one's numbers are float32 everywhere.
        config: how a 7B one is run; None runs it as upstream does.

    Raises:
        CheckpointError: weights that are missing, or are not an inverse's.
        MissingDependencyError: a package that the 7B ones need is not installed.
        FlowshadeError: an unknown device, too little memory, or options of the 7B ones with another.
    """
    if name in DIFFUSION_INVERSES:
        return load_diffusion_inverse(str(name), checkpoint, device=device, config=config)
    if checkpoint is not None or config is not None:
        raise FlowshadeError(
            f"a checkpoint, steps, chunks and depth codes go with {' or '.join(DIFFUSION_INVERSES)}, and {str(name)!r} "
            "was asked for; leave them out, or give a file of Flowshade's as the model itself."
        )
    path = default_inverse_weights() if name in INVERSE_NAMES else Path(name)
    if name not in INVERSE_NAMES and not path.exists() and path.suffix != ".safetensors":
        raise CheckpointError(
            f"unknown inverse {str(name)!r}; expected {COMPACT!r}, {', '.join(map(repr, DIFFUSION_INVERSES))} or the "
            "path of a .safetensors file of Flowshade's."
        )
    chosen = choose_device(device)
    inverse = load_inverse_file(path, chosen)
    if chosen.type == "cpu":  # convolutions run faster there with channels last
        inverse.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return inverse


def invert(
    video: Footage | str | Path,
    *,
    inverse: VideoInverse | None = None,
    fov: float | None = None,
    size: tuple[int, int] | None = None,
    frames: int | None = None,
    window: int = INVERT_WINDOW,
    fps: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Iterator[InvertedWindow]:
    """Estimates the G-buffers of a video, window by window, in constant memory however long it is.

    Args:
        video: opened footage, or the path of a video, of a folder of pictures or of one picture.
        inverse: the network; None loads the compact one. Its stream is taken over.
        fov: horizontal field of view in degrees, if known.
        size: height and width in pixels to work at; None keeps the video's.
        frames: how many, from the first; None takes all.
        window: frames a window, at least 1. The values do not depend on it.
        fps: rate of pictures, or of a video of variable rate; see `Footage`.
        seed: of the inverse's noise, if it draws any; None takes its own.
        progress: called after every window with frames done and frames in all.

    Yields:
        Windows of [T, C, H, W] float32 buffers in the convention of `flowshade.types`, with the pictures and the
        confidences, if the inverse gives any; see `InvertedWindow`.

    Raises:
        ClipError: footage that cannot be read, or has fewer frames.
        FlowshadeError: a window, size or field of view that cannot be.
    """
    with ExitStack() as opened:
        footage = video if isinstance(video, Footage) else opened.enter_context(Footage(video, fps=fps))
        stop = _check_length(footage, frames)
        if window < 1:
            raise FlowshadeError(f"window is {window} frames; expected 1 or more.")
        clip = InvertedClip(footage, inverse or load_inverse(), size=size, fov=fov, frames=stop, seed=seed)
        return _invert(clip, stop, window, progress, opened.pop_all())


def _invert(
    clip: InvertedClip, stop: int, window: int, progress: Progress | None, opened: ExitStack
) -> Iterator[InvertedWindow]:
    with opened:
        for first in range(0, stop, window):
            last = min(first + window, stop)
            yield clip.estimate(first, last)
            if progress is not None:
                progress(last, stop)


@dataclass(frozen=True, kw_only=True)
class RestyledWindow:
    """One step of a restyling, on the CPU."""

    start: int
    """Number of the first frame in the video."""
    frames: Frames
    """The pictures, at the video's own size."""
    original: Frames
    """What they were."""
    gbuffer: GBuffer
    """The buffers between, at the size worked at."""


def restyle(
    video: Footage | str | Path,
    prompt: str = "",
    style: str | None = None,
    *,
    renderer: StyledRenderer | None = None,
    inverse: VideoInverse | None = None,
    keep: float = 0.0,
    mask: Mask | None = None,
    fov: float | None = None,
    size: tuple[int, int] | None = None,
    frames: int | None = None,
    seed: int = 0,
    window: int | None = None,
    fps: float | None = None,
    progress: Progress | None = None,
    timer: StageTimer | None = None,
) -> Iterator[RestyledWindow]:
    """Gives a video another look: its buffers are estimated and rendered, window by window, in constant memory.

    Args:
        video: opened footage, or the path of a video, of a folder of pictures or of one picture.
        prompt: what the scene is and how it feels.
        style: a named style, which sets light and weather.
        renderer: the forward model; None loads the compact one. Its stream is taken over, as the inverse's is.
        inverse: the way back; None loads the compact one. Its noise, if it draws any, has the same seed.
        keep: share of the original in the result, [0, 1], mixed in display sRGB.
        mask: where the look changes; None = everywhere. Elsewhere the original stays as it is.
        fov: horizontal field of view in degrees, if known.
        size: height and width in pixels to work at; None takes the video's. The result has the video's own size.
        frames: how many, from the first; None takes all.
        seed, window, progress, timer: as in `StyledRenderer.stream`.
        fps: as in `Footage`.

    Raises:
        ClipError: footage or a mask that cannot be read, or is too short.
        FlowshadeError: an unknown style, or a number that cannot be.
    """
    with ExitStack() as opened:
        footage = video if isinstance(video, Footage) else opened.enter_context(Footage(video, fps=fps))
        stop = _check_length(footage, frames)
        if not 0 <= keep <= 1:
            raise FlowshadeError(f"keep is {keep:g}; expected the original's share of the result, 0 to 1.")
        if mask is not None:
            mask.check(stop, footage.size)
        clip = InvertedClip(footage, inverse or load_inverse(), size=size, fov=fov, frames=stop, seed=seed)
        windows = (renderer or load_renderer()).stream(
            clip, prompt, style, seed=seed, window=window, frames=stop, progress=progress, timer=timer
        )
        return _restyle(footage, windows, keep, mask, opened.pop_all())


def _restyle(
    footage: Footage, windows: Iterator[Window], keep: float, mask: Mask | None, opened: ExitStack
) -> Iterator[RestyledWindow]:
    # A reader of its own, since the clip reads ahead of it.
    with opened, Footage(footage.path, fps=footage.fps) as originals:
        for window in windows:
            stop = window.start + window.frames.frames
            original = originals.read(window.start, stop).rgb
            rendered = window.frames.rgb.cpu().float().clamp(0, 1)
            if window.gbuffer.size != footage.size:
                rendered = resize_reference(rendered, footage.size).clamp(0, 1)
            share = torch.full_like(rendered[:, :1], 1 - keep)  # [T, 1, H, W]
            if mask is not None:
                share = share * mask.read(window.start, stop, footage.size)
            yield RestyledWindow(
                start=window.start,
                frames=Frames(rgb=torch.lerp(original, rendered, share)),
                original=Frames(rgb=original),
                gbuffer=window.gbuffer.to("cpu"),
            )


def _check_length(footage: Footage, frames: int | None) -> int:
    if frames is not None and not 1 <= frames <= footage.frames:
        raise FlowshadeError(
            f"{frames} frames were asked for, {footage.path} has {footage.frames}; expected 1 to {footage.frames}. "
            "Give another number of frames."
        )
    return footage.frames if frames is None else frames


def keyframes_from(prompts_at: Mapping[int, str], start: int, stop: int) -> dict[int, str]:
    """Prompt keyframes inside [start, stop), on the first frame of their latent group; sorted.

    A keyframe before `start` counts from `start` on (the latest of them); one at or after `stop` is an error.

    Raises:
        PromptError: a keyframe that lies beyond the last frame, or below 0, or two in one latent group.
    """
    moved: dict[int, str] = {}
    for frame in sorted(prompts_at):
        if not 0 <= frame < stop:
            raise PromptError(
                f"a prompt was given for frame {frame}; expected 0 to {stop - 1}, the frames that are rendered."
            )
        offset = max(frame - start, 0)
        at = start + offset - offset % FRAMES_PER_LATENT
        if at in moved and frame > start and moved[at] != prompts_at[frame]:
            raise PromptError(
                f"two prompts fall on frames {at} to {at + FRAMES_PER_LATENT - 1}, which are made together: "
                f"{moved[at]!r} and {prompts_at[frame]!r} (frame {frame}). Move one of them."
            )
        moved[at] = prompts_at[frame]
    return moved


def plan_segments(captions: Mapping[int, str], stop: int) -> list[Segment]:
    """Runs of frames with their captions, from where each caption begins and where all end."""
    starts = sorted(captions)
    return [
        Segment(start=first, stop=last, caption=captions[first])
        for first, last in zip(starts, [*starts[1:], stop], strict=True)
    ]


def _read(clip: ClipReader | GBuffer, first: int, last: int, size: tuple[int, int] | None) -> GBuffer:
    gbuffer = clip[first:last] if isinstance(clip, GBuffer) else clip.read(first, last)
    return gbuffer if size is None else resize(gbuffer, size)


def _check_span(clip: ClipReader | GBuffer, start: int, frames: int | None) -> int:
    total = clip.frames if isinstance(clip, GBuffer) else len(clip)
    stop = total if frames is None else start + frames
    if not 0 <= start < stop <= total:
        raise FlowshadeError(
            f"frames {start} to {stop} were asked for, the clip has {total}; choose a start and a number of frames "
            "inside it."
        )
    return stop
