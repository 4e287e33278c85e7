"""Upstream's models from their files: Flash as a stream, the forward teacher as upstream's own command runs it."""

from __future__ import annotations

import csv
import gc
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from flowshade.checkpoints.catalogue import MODELS, Model
from flowshade.checkpoints.inverse import DIFFUSION_INVERSES, load_diffusion_inverse
from flowshade.checkpoints.loading import examine, find_parts, load_part
from flowshade.codec.tiny import GroupedEncoder, TinyDecoder
from flowshade.codec.wan_vae import WanVAE
from flowshade.color import to_bytes
from flowshade.device import choose_device
from flowshade.errors import FlowshadeError, PromptError, StyleError
from flowshade.gbuffer.io import ClipError, ClipReader, VideoWriter, open_clip
from flowshade.gbuffer.io.coding import OUR_CODING
from flowshade.inverse.diffusion import DiffusionConfig
from flowshade.progress import Progress
from flowshade.renderer.flash import FlashConfig, FlashRenderer
from flowshade.renderer.teacher import NEGATIVE_PROMPT, STYLES, ForwardTeacher, TeacherConfig, fit, style_prompt
from flowshade.renderer.transformer import TextContext, WorldTransformer
from flowshade.renderer.umt5 import Umt5Encoder
from flowshade.renderer.upstream import BUFFERS
from flowshade.types import Frames, GBuffer

FLASH, FORWARD = "alaya-flash", "alaya-forward"
TOP = 255
"""Largest integer of upstream's planes."""
FPS = 15
"""Of the teacher's videos."""


class UpstreamPrompts:
    """umt5-xxl, loaded when a prompt is new and let go afterwards: it weighs four times what it serves.

    Args:
        model: the text encoder's and tokenizer's model.
        paths: where its parts lie (`find_parts`).
        device: where prompts are encoded.
        keep: keep the encoder for the next prompt.
    """

    def __init__(
        self, model: Model, paths: Mapping[str, Path], device: torch.device, *, keep: bool = False, cache: int = 256
    ) -> None:
        self._model, self._paths, self._device, self._keep = model, paths, device, keep
        self._capacity = cache
        self._cache: OrderedDict[str, TextContext] = OrderedDict()
        self._encoder: Umt5Encoder | None = None
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> TextContext:
        """Embeds prompts, see `Umt5Encoder.encode`. One thread at a time; others wait."""
        with self._lock:
            return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> TextContext:
        new = list(dict.fromkeys(text for text in texts if text not in self._cache))
        if new:
            encoder = self._encoder or self._load()
            for text in new:
                self._cache[text] = encoder.encode([text])
            self._encoder = encoder if self._keep else None
            del encoder
            gc.collect()
        tokens = torch.cat([self._cache[text].tokens for text in texts])
        for text in texts:
            self._cache.move_to_end(text)
        while len(self._cache) > self._capacity:
            self._cache.popitem(last=False)
        return TextContext(tokens=tokens)

    def check(self, text: str) -> None:
        """Embeds the prompt, which is then at hand; raises what `encode` raises."""
        self.encode([text])

    def _load(self) -> Umt5Encoder:
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        part = self._model.part("text_encoder")
        network = load_part(part, self._paths["text_encoder"], device=self._device, dtype=dtype)
        return Umt5Encoder(network, self._paths["tokenizer"])


@dataclass(frozen=True)
class LoadedFlash:
    """Flash, its prompt encoder, and which weights it has."""

    renderer: FlashRenderer
    prompts: UpstreamPrompts
    fingerprint: str


def load_flash(
    checkpoint: Path | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    text_device: torch.device | str | None = None,
) -> LoadedFlash:
    """Loads AlayaRenderer-Flash.

    Args:
        checkpoint: the folder with its files, or its transformer's file; None looks where `models pull` puts them.
        device: where it runs; None takes a GPU when there is one.
        dtype: type of its weights; None takes bfloat16 on a GPU and float32 on a CPU.
        text_device: where prompts are encoded; None takes `device`.

    Raises:
        CheckpointError: files that are missing or are not what they should be.
    """
    chosen = choose_device(device)
    dtype = dtype or (torch.bfloat16 if chosen.type == "cuda" else torch.float32)
    model = MODELS[FLASH]
    paths = find_parts(model, checkpoint)
    overlays = ((model.part("transformer_partial"), paths["transformer_partial"]),)
    transformer = load_part(
        model.part("transformer"), paths["transformer"], device=chosen, dtype=dtype, overlays=overlays
    )
    encoder = load_part(model.part("encoder"), paths["encoder"], device=chosen, dtype=dtype)
    decoder = load_part(model.part("decoder"), paths["decoder"], device=chosen, dtype=dtype)
    assert isinstance(transformer, WorldTransformer)
    assert isinstance(encoder, GroupedEncoder)
    assert isinstance(decoder, TinyDecoder)
    config = FlashConfig(transformer=transformer.config, encoder=encoder.config, decoder=decoder.config)
    renderer = FlashRenderer(config, transformer, encoder, decoder).eval()
    fingerprint = examine(model.part("transformer"), paths["transformer"]).fingerprint
    return LoadedFlash(
        renderer, UpstreamPrompts(model, paths, _text_device(text_device, chosen), keep=True), fingerprint
    )


def _text_device(asked: torch.device | str | None, device: torch.device) -> torch.device:
    return device if asked in (None, "auto") else choose_device(asked)


def coded_planes(
    clip: ClipReader | GBuffer, start: int, stop: int, size: tuple[int, int] | None = None
) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
    """8-bit planes of frames `start` to `stop` as upstream stores them, resized with Lanczos if a size is given.

    Clips in upstream's own layouts come byte for byte. Others, in physical units, are coded: albedo sRGB, normals
    (n + 1) / 2, depth 10 / (z + 10).
    """
    if isinstance(clip, ClipReader):
        try:
            planes = clip.coded(start, stop)
        except ClipError:  # the format holds no 8-bit planes, or other ones
            planes = code(clip.read(start, stop))
    else:
        planes = code(clip[start:stop])
    missing = [name for name in BUFFERS if name not in planes]
    if missing:
        raise FlowshadeError(
            f"the clip lacks {', '.join(missing)}; upstream's models take all of {', '.join(BUFFERS)}. "
            "Export them too, or use --model compact."
        )
    return {name: planes[name] if size is None else fit(planes[name], size) for name in BUFFERS}


def code(gbuffer: GBuffer) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
    """Channels in physical units to 8-bit planes by `OUR_CODING`, on the device they lie on: upstream's own depth code
    is not published."""
    channels = {name: value for name, value in gbuffer.channels().items() if name in BUFFERS}
    codes = {name: OUR_CODING.encode(name, value, TOP) for name, value in channels.items()}
    return {name: code.to(torch.uint8).expand(-1, 3, -1, -1) for name, code in codes.items()}


@dataclass(frozen=True, kw_only=True)
class AlayaJob:
    """What upstream's `inference_gbuffer_caption.py` is asked for, under its names."""

    gbuffer_dir: Path
    save_dir: Path
    checkpoint: Path | None = None
    """The fine-tune's file, or the folder with all files; None looks where `models pull` puts them."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """A finished prompt for every style's name; one video each."""
    num_frames: int = 81
    height: int = 480
    width: int = 832
    seed: int = 0
    config: TeacherConfig = TeacherConfig()
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    text_device: torch.device | str | None = None
    """Where prompts are encoded; None = `device`. The text encoder takes 11.4 GB of it for a moment."""

    def __post_init__(self) -> None:
        if self.height % 16 or self.width % 16 or self.num_frames < 1:
            raise FlowshadeError(
                f"{self.num_frames} frames of {self.height}x{self.width} were asked for; expected 1 or more frames, "
                "and a height and width in multiples of 16."
            )
        if not self.prompts:
            raise PromptError(
                "there is nothing to render; give --style NAME --prompt TEXT, or --styles with a caption."
            )

    def outputs(self) -> dict[str, Path]:
        """The video of every style, in upstream's folders and names."""
        folder = self.save_dir / output_folder(self.gbuffer_dir.absolute().name)
        return {style: folder / f"epoch27_{style}.mp4" for style in self.prompts}


def run_alaya(
    job: AlayaJob,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Path]:
    """Renders a clip with the forward teacher, all styles of the job in one batch; videos appear whole.

    Args:
        job: what to render.
        progress: called after every step with steps done and steps in all.
        warn: told what should be known about the clip.

    Returns:
        The video of every style.

    Raises:
        FlowshadeError: files, prompts or a clip that the user can mend.
    """
    device = choose_device(job.device)
    model = MODELS[FORWARD]
    paths = find_parts(model, job.checkpoint)
    with open_clip(job.gbuffer_dir) as clip:
        frames = min(job.num_frames, len(clip))
        if frames < job.num_frames and warn is not None:
            warn(f"the clip has {len(clip)} frames; {job.num_frames} were asked for.")
        prompts = UpstreamPrompts(model, paths, _text_device(job.text_device, device))
        negative = None if job.config.cfg_scale == 1 else NEGATIVE_PROMPT
        texts = list(job.prompts.values())
        prompts.encode(texts + ([] if negative is None else [negative]))  # all at once: the encoder is loaded once
        teacher = load_teacher(model, paths, job.config, device=device, dtype=job.dtype)
        runs = teacher.render(
            lambda start, stop: coded_planes(clip, start, stop, (job.height, job.width)),
            frames,
            prompts.encode(texts),
            None if negative is None else prompts.encode([negative]),
            seed=job.seed,
            progress=progress,
        )
        outputs = job.outputs()
        with ExitStack() as stack:
            writers = [
                stack.enter_context(VideoWriter(path, fps=FPS, size=(job.height, job.width)))
                for path in outputs.values()
            ]
            for run in runs:
                for writer, pictures in zip(writers, run):
                    writer.append(pictures)
    return outputs


def load_teacher(
    model: Model,
    paths: Mapping[str, Path],
    config: TeacherConfig,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> ForwardTeacher:
    """Loads the forward teacher's transformer and VAE, in bfloat16 on a GPU and float32 on a CPU unless told."""
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    transformer = load_part(model.part("transformer"), paths["transformer"], device=device, dtype=dtype)
    vae = load_part(model.part("vae"), paths["vae"], device=device, dtype=dtype)
    assert isinstance(transformer, WorldTransformer)
    assert isinstance(vae, WanVAE)
    return ForwardTeacher(transformer, vae, config)


def alaya_prompts(
    *,
    style: str | None,
    prompt: str | None,
    styles: Sequence[str] | None,
    styles_json: Path | None,
    caption_csv: Path | None,
    clip: str,
) -> dict[str, str]:
    """The prompt of every style, as upstream's command finds them.

    `style` and `prompt` together: the prompt as it is. Otherwise the caption (`prompt`, or the row of `caption_csv`
    whose video lies in `clip`) is spliced with each of `styles`, by default all.

    Raises:
        StyleError: an unknown style, or a styles file that cannot be read.
        PromptError: no caption.
    """
    if style is not None and prompt is not None and styles is None:
        return {style: prompt}
    known = STYLES if styles_json is None else _read_styles(styles_json)
    wanted = list(styles) if styles is not None else ([style] if style is not None else list(known))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise StyleError(f"unknown style {unknown[0]!r}; expected one of {', '.join(known)}.")
    caption = prompt if prompt is not None else _find_caption(caption_csv, clip)
    return {name: style_prompt(caption, known[name]) for name in wanted}


def output_folder(clip: str) -> str:
    """Upstream's folder for a clip's videos: `session/clip_0052` becomes `session_clip52`, a lone name `X_X`."""
    parts = clip.split("/")
    short = re.sub(r"clip_0*", "clip", parts[1]) if len(parts) > 1 else parts[0]
    return f"{parts[0].replace(' ', '_')}_{short}"


def _read_styles(path: Path) -> dict[str, str | None]:
    try:
        styles = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StyleError(f"{path} is not a styles file ({error}); expected JSON of names and words.") from error
    if not isinstance(styles, dict) or not all(value is None or isinstance(value, str) for value in styles.values()):
        raise StyleError(f"{path} is not a styles file; expected a JSON object of names to words or null.")
    return styles


def _find_caption(path: Path | None, clip: str) -> str:
    if path is None:
        raise PromptError(
            "there is no caption; give --prompt TEXT, or --caption_csv FILE with columns video and prompt."
        )
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise PromptError(f"{path} cannot be read ({error}); expected a CSV with columns video and prompt.") from error
    for row in rows:
        if clip in (row.get("video") or "") and row.get("prompt"):
            return row["prompt"]
    raise PromptError(f"{path} has no caption for {clip} in {len(rows)} rows; give --prompt TEXT.")


CHECK_SIZE = (64, 64)
"""Of the tiny render that owners of weights compare."""


def check_render(model: Model, paths: Mapping[str, Path], device: torch.device | str = "cpu") -> dict[str, str]:
    """A tiny render from fixed buffers, text and noise: its mean, spread and hash, to compare between machines.

    The text encoder is left out, so that 11 GB need not be there. On one kind of machine the hash repeats; between
    machines only mean and spread agree.
    """
    chosen = choose_device(device)
    generator = torch.Generator().manual_seed(0)
    frames = 5 if model.name == FORWARD else 8
    shape = (frames, 3, *CHECK_SIZE)
    planes = {name: torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8) for name in BUFFERS}
    if model.name in DIFFUSION_INVERSES:
        return _check_inverse(model, paths, chosen, generator)
    if model.name == FORWARD:
        config = TeacherConfig(steps=2, tiling=None)
        teacher = load_teacher(model, paths, config, device=chosen, dtype=torch.float32)
        text, negative = (_random_text(teacher.transformer, generator) for _ in range(2))
        pictures = torch.cat(list(teacher.render(lambda a, b: planes, frames, text, negative)), 1)[0]
    else:
        folder = paths["transformer"]
        flash = load_flash(folder if folder.is_file() else folder.parent, device=chosen, dtype=torch.float32).renderer
        flash.set_text(_random_text(flash.transformer, generator))
        pictures = flash.push(planes, steps=2).to_uint8()
    return _summary(pictures.cpu())


def _check_inverse(
    model: Model, paths: Mapping[str, Path], device: torch.device, generator: torch.Generator
) -> dict[str, str]:
    """The planes that an inverse makes of 9 random pictures, 2 steps a buffer."""
    config = DiffusionConfig(steps=2, chunk=9, overlap=0, size=None)
    inverse = load_diffusion_inverse(model, paths["transformer"], device=device, dtype=torch.float32, config=config)
    made = list(inverse.invert([Frames(rgb=torch.rand(config.chunk, 3, *CHECK_SIZE, generator=generator))]))
    planes = torch.cat([value for part in made for value in part.codes.values()])
    return _summary(to_bytes(planes))


def _summary(pictures: UInt8[Tensor, "..."]) -> dict[str, str]:
    """Mean, spread and hash of 8-bit values."""
    values = pictures.double()
    digest = hashlib.sha256(pictures.numpy().tobytes()).hexdigest()
    return {"mean": f"{float(values.mean()):.4f}", "std": f"{float(values.std()):.4f}", "sha256": digest}


def _random_text(transformer: WorldTransformer, generator: torch.Generator) -> TextContext:
    weight = transformer.patch_embedding.weight
    tokens = torch.randn(1, 16, transformer.config.text_dim, generator=generator)
    return TextContext(tokens=tokens.to(weight.device, weight.dtype))
