"""The two distillations from start to end, as the command line runs them."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from flowshade import budget
from flowshade.checkpoints.catalogue import MODELS, Part
from flowshade.checkpoints.doctor import hash_files
from flowshade.checkpoints.files import open_tensors
from flowshade.checkpoints.loading import find_part, load_part, missing_sentence
from flowshade.checkpoints.store import save_state
from flowshade.codec.tiny import GroupedEncoder, TinyDecoder
from flowshade.codec.wan_vae import WanVAE
from flowshade.errors import CheckpointError, FlowshadeError
from flowshade.files import write_json
from flowshade.presets import codec_distillation, flash_distillation
from flowshade.progress import progress_bar
from flowshade.renderer.flash import FlashConfig, FlashRenderer
from flowshade.renderer.teacher import NEGATIVE_PROMPT, STYLES, ForwardTeacher, TeacherConfig
from flowshade.renderer.transformer import TextContext, WorldTransformer
from flowshade.training.distill import estimate, state
from flowshade.training.distill.clips import Clip, gather_clips
from flowshade.training.distill.codec import Crops, DecoderTask, EncoderTask, VAETeacher
from flowshade.training.distill.flash import FlowTask, Judge, RolloutTask, StudentWindow, Studies, begin_from_teacher
from flowshade.training.distill.loop import Loop, LoopConfig, Task
from flowshade.training.distill.scores import stream_drift
from flowshade.training.distill.teaching import (
    FEW_STEPS,
    FeatureFolder,
    LessonFolder,
    Sample,
    check_disk,
    list_samples,
    make_lesson,
    sample_bytes,
)
from flowshade.training.distill.texts import TextFolder, fill
from flowshade.training.processes import Processes, joined
from flowshade.types import FRAMES_PER_LATENT
from flowshade.upstream import FLASH, FORWARD, UpstreamPrompts

CODEC_DISTILL, FLASH_DISTILL, TEXTS = "codec-distill", "flash-distill", "texts"
KINDS = (CODEC_DISTILL, FLASH_DISTILL, TEXTS)
STUDENT = "student"
"""The folder of the finished student inside a run's, as `flowshade render --checkpoint` takes it."""
MOST_JUDGED = 4
"""Held-out samples that are looked at while learning."""
PARTIAL = ("patch_embedding", "patch_short", "patch_mid", "patch_long", "norm_out")
"""What upstream keeps in `transformer_partial.safetensors`, over the transformer's."""


@dataclass(frozen=True, kw_only=True)
class DistillJob:
    """What is to be distilled from what."""

    clips: tuple[Path, ...]
    """Clips, or folders of them."""
    out: Path
    teacher: str = FORWARD
    """A name, or the path of the teacher's folder or file."""
    size: tuple[int, int] = (448, 832)
    frames: int = 80
    """Of the teacher's samples."""
    window: int = 16
    """Frames of the student's windows."""
    crop: tuple[int, int] = (256, 256)
    crop_frames: int = 16
    """Of what the codecs learn from at a time."""
    codec: Path | None = None
    """Folder with the small codecs: of a `codec-distill` run, or of Flash."""
    student: Path | None = None
    """A Flash to begin from, instead of the teacher's weights."""
    texts: Path | None = None
    """Folder of embeddings; None keeps them in the run's."""
    samples: Path | None = None
    """Folder of the teacher's samples; None keeps them in the run's."""
    styles: tuple[str, ...] = tuple(STYLES)
    prompt: str = ""
    variants: int = 1
    teacher_config: TeacherConfig = TeacherConfig()
    drift_frames: int = 960
    loops: dict[str, LoopConfig] = dataclasses.field(default_factory=dict)
    """By stage, instead of the preset's."""
    stages: tuple[str, ...] | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        whole = FRAMES_PER_LATENT
        if self.window < 1 or self.window % whole or self.frames % self.window or self.frames < self.window:
            raise FlowshadeError(
                f"samples of {self.frames} frames in windows of {self.window} were asked for; expected whole windows, "
                f"and windows in multiples of {whole}. Change --frames or --window."
            )
        if any(length < 16 or length % 16 for length in self.size):
            raise FlowshadeError(f"size is {self.size[0]}x{self.size[1]}; expected multiples of 16, such as 448x832.")
        if self.seed < 0 or self.variants < 1:
            raise FlowshadeError(f"seed is {self.seed} and variants {self.variants}; expected 0 and 1 or more.")
        if self.out.exists() and not self.out.is_dir():
            raise FlowshadeError(f"the run's folder {self.out} is a file; give a folder, or a name that is free.")

    @property
    def crops(self) -> Crops:
        return Crops(size=self.size, crop=self.crop, latents=self.crop_frames // FRAMES_PER_LATENT)

    def plan(self, preset: dict[str, LoopConfig]) -> dict[str, LoopConfig]:
        """The stages that are run, in order."""
        known = preset | self.loops
        names = tuple(preset) if self.stages is None else self.stages
        unknown = [name for name in names if name not in preset]
        if unknown or not names:
            raise FlowshadeError(
                f"stages {', '.join(unknown) or '(none)'} were asked for; expected some of {', '.join(preset)}."
            )
        return {name: known[name] for name in preset if name in names}


def distill_codec(job: DistillJob) -> Path:
    """Learns the small codecs; goes on if the folder holds a run. Returns the folder, which `codec` of a job takes.

    Raises:
        FlowshadeError: clips, weights or settings that the user can mend.
    """
    loops = job.plan(codec_distillation())
    with joined(job.device) as processes:
        clips = _clips(job, processes)
        path = _teacher_part(job.teacher, "vae", alone=True)
        _settle(job.out / "run.json", _codec_settings(job, loops, clips, path), processes)
        vae = load_part(MODELS[FORWARD].part("vae"), path, device=processes.device, dtype=_frozen_type(processes))
        assert isinstance(vae, WanVAE)
        teacher = VAETeacher(vae)
        saved = state.SavedState.newest(job.out / "checkpoints")
        for index, (name, config) in enumerate(loops.items()):
            if saved is not None and saved.stage > index:
                continue
            network = _fresh(MODELS[FLASH].part(name), job.seed).to(processes.device)
            _check_latents(network, vae)
            task: Task
            if isinstance(network, GroupedEncoder):
                task = EncoderTask(network, teacher, clips, job.crops)
            else:
                assert isinstance(network, TinyDecoder)
                task = DecoderTask(network, teacher, clips, job.crops)
            _loop(task, config, job, index, processes).run(saved)
            weights = whole_state(network)
            if processes.first:
                _write(job.out / MODELS[FLASH].part(name).paths[0], weights, torch.float32)
            processes.wait()
    return job.out


def write_texts(job: DistillJob) -> Path:
    """Embeds every prompt that `flash-distill` will ask for, so that it needs no text encoder. Returns the folder."""
    folder = TextFolder(job.out)
    with joined(job.device) as processes:
        _make_texts(job, folder, _samples(job, _clips(job, processes)), processes)
    return folder.folder


def distill_flash(job: DistillJob) -> Path:
    """Samples the teacher, learns the student and scores it; goes on wherever it stopped.

    Returns the student's folder, for `flowshade render --model alaya-flash --checkpoint`.

    Raises:
        FlowshadeError: clips, weights or settings that the user can mend.
    """
    loops = job.plan(flash_distillation())
    with joined(job.device) as processes:
        samples = _samples(job, _clips(job, processes))
        path = _teacher_part(job.teacher, "transformer")
        codec = _codec_parts(job)
        teacher_settings = _teacher_settings(job, path)
        _settle(job.out / "run.json", _flash_settings(job, loops, samples, codec) | teacher_settings, processes)
        texts = TextFolder(job.texts or job.out / "texts")
        lessons = _lesson_folder(job)
        _settle(lessons.folder / "plan.json", teacher_settings, processes)
        _make_texts(job, texts, samples, processes)
        _make_lessons(job, lessons, texts, samples, processes)
        encoder, decoder = _load_codec(codec, processes)
        features = FeatureFolder(job.out / f"features-{hash_files(open_tensors(codec['encoder']))[:12]}")
        _make_features(job, features, encoder, samples, processes)

        student = StudentWindow(_begin_student(job, path), job.teacher_config.schedule).to(processes.device)
        judge = _judge(job, samples, Studies(lessons=lessons, features=features, texts=texts), decoder, processes)
        learned = [sample for sample in samples if not sample.clip.held_out]
        saved = state.SavedState.newest(job.out / "checkpoints")
        for index, (name, config) in enumerate(loops.items()):
            if saved is not None and saved.stage > index:
                continue
            kinds = {"flow": FlowTask, "rollout": RolloutTask}
            _loop(kinds[name](student, learned, judge.studies, judge), config, job, index, processes).run(saved)
            weights = whole_state(student.transformer)
            if processes.first:
                write_student(job.out / STUDENT, weights, codec, job.teacher)
            processes.wait()
        scores = judge.judge(student, job.out / "scores.png" if processes.first else None)
        if processes.first:
            _write_scores(job, scores, _drift(job, samples, texts, processes))
        processes.wait()
    return job.out / STUDENT


def estimate_job(kind: str, job: DistillJob, card: str, gpus: int) -> str:
    """What a job will still take on so many GPUs of a kind: disk, and hours by stage; nothing is loaded or written.

    Raises:
        FlowshadeError: an unknown card, or clips that the user can mend.
    """
    rates, clips = budget.card(card), gather_clips(job.clips)
    held = sum(clip.held_out for clip in clips)
    head = f"{len(clips)} clips, {sum(clip.frames for clip in clips):,} frames; {held} of the clips held out"
    if kind == CODEC_DISTILL:
        lines = estimate.codec_lines(job.crops, job.plan(codec_distillation()), rates)
        return f"{head}\n{estimate.table(lines, gpus, rates)}"
    samples = _samples(job, clips)
    missing = _lesson_folder(job).missing(samples)
    lines = estimate.flash_lines(
        samples=len(missing), held_out=sum(sample.clip.held_out for sample in missing),
        runs=len({sample.run for sample in samples}), frames=job.frames, window=job.window, size=job.size,
        steps=job.teacher_config.steps, few_steps=sum(FEW_STEPS), cfg_scale=job.teacher_config.cfg_scale,
        loops=job.plan(flash_distillation()), rates=rates,
    )  # fmt: skip
    disk = _disk(job, missing, samples) / 2**30
    memory = estimate.memory_of_student(FlashConfig()) / 2**30
    return (
        f"{head}\n{len(samples)} samples of {job.frames} frames, {len(missing)} of them still to be made; "
        f"{disk:.2f} GiB of disk\nstudent: {memory / gpus:.1f} GiB a GPU for weights, gradients, moments and averages, "
        f"activations not counted\n{estimate.table(lines, gpus, rates)}"
    )


def whole_state(network: nn.Module) -> dict[str, Tensor]:
    """A network's tensors on the CPU, gathered from all processes, which call it together."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in network.state_dict().items()
    }


def write_student(folder: Path, weights: dict[str, Tensor], codec: dict[str, Path], teacher: str) -> None:
    """Writes a student as upstream's files of Flash: the folder appears whole, in place of an older one.

    The teacher's text encoder and tokenizer are linked, not copied, where they are known.
    """
    model = MODELS[FLASH]
    temporary, older = (folder.with_name(f".{folder.name}.{end}") for end in ("tmp", "old"))
    for path in (temporary, older):
        shutil.rmtree(path, ignore_errors=True)
    _write(temporary / "transformer" / "diffusion_pytorch_model.safetensors", weights, torch.bfloat16)
    partial = {name: value for name, value in weights.items() if name.startswith(PARTIAL)}
    _write(temporary / model.part("transformer_partial").paths[0], partial, torch.bfloat16)
    for role, path in codec.items():
        target = temporary / model.part(role).paths[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for role in ("text_encoder", "tokenizer"):
        part = model.part(role)
        found = _find(teacher, MODELS[FORWARD].part(role))
        if found is not None:
            link = temporary / part.paths[0 if found.is_file() or role == "tokenizer" else -1]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(found.resolve())
    if folder.exists():
        folder.rename(older)
    temporary.rename(folder)
    shutil.rmtree(older, ignore_errors=True)


def _clips(job: DistillJob, processes: Processes) -> list[Clip]:
    clips = gather_clips(job.clips)
    if processes.first:
        held = ", ".join(clip.name for clip in clips if clip.held_out)
        print(f"{len(clips)} clips, {sum(clip.frames for clip in clips):,} frames; held out: {held}", flush=True)
    return clips


def _samples(job: DistillJob, clips: Sequence[Clip]) -> list[Sample]:
    return list_samples(clips, job.frames, job.styles, job.prompt, job.variants)


def _loop(task: Task, config: LoopConfig, job: DistillJob, stage: int, processes: Processes) -> Loop:
    autocast = processes.device.type == "cuda"
    return Loop(task, config, job.out, stage=stage, seed=job.seed, processes=processes, autocast=autocast)


def _settle(path: Path, settings: dict[str, Any], processes: Processes) -> None:
    """`state.settle`, the first process first."""
    if processes.first:
        state.settle(path, settings)
    processes.wait()
    state.settle(path, settings)


def _codec_settings(job: DistillJob, loops: dict[str, LoopConfig], clips: Sequence[Clip], vae: Path) -> dict[str, Any]:
    return {
        "kind": CODEC_DISTILL,
        "seed": job.seed,
        "crops": dataclasses.asdict(job.crops),
        "clips": _hash(clip.name for clip in clips),
        "vae": hash_files(open_tensors(vae)),
    } | _loop_settings(loops)


def _flash_settings(
    job: DistillJob, loops: dict[str, LoopConfig], samples: Sequence[Sample], codec: dict[str, Path]
) -> dict[str, Any]:
    return {
        "kind": FLASH_DISTILL,
        "window": job.window,
        "samples": _hash(sample.key for sample in samples),
        "codec": {role: hash_files(open_tensors(path)) for role, path in codec.items()},
        "student": None if job.student is None else str(job.student),
    } | _loop_settings(loops)


def _loop_settings(loops: dict[str, LoopConfig]) -> dict[str, Any]:
    """What of the stages changes their losses; how often something is written does not."""
    free = ("log_every", "evaluate_every", "save_seconds")
    return {
        name: {field: value for field, value in dataclasses.asdict(loop).items() if field not in free}
        for name, loop in loops.items()
    }


def _teacher_settings(job: DistillJob, transformer: Path) -> dict[str, Any]:
    config = job.teacher_config
    return {
        "seed": job.seed,
        "size": list(job.size),
        "teacher": hash_files(open_tensors(transformer)),
        "teacher steps": config.steps,
        "guidance": config.cfg_scale,
        "teacher windows": [config.window, config.overlap],
        "frames": job.frames,
    }


def _hash(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _find(teacher: str, part: Part) -> Path | None:
    """Where a part of the teacher lies: beside what was given, else where `models pull` puts it."""
    model = MODELS[FORWARD]
    given = None if teacher == FORWARD else Path(teacher)
    if given is None:
        return find_part(model, part)
    if given.is_file() and part is model.part("transformer"):
        return given
    return find_part(model, part, given if given.is_dir() else given.parent) or find_part(model, part)


def _teacher_part(teacher: str, role: str, *, alone: bool = False) -> Path:
    """A part of the teacher; with `alone` a file that was given is this part itself. Raises: CheckpointError."""
    model = MODELS[FORWARD]
    given = None if teacher == FORWARD else Path(teacher)
    if given is not None and not given.exists():
        raise CheckpointError(
            f"no teacher at {teacher}: nothing is there; expected {FORWARD}, its folder, or its file. Check the path."
        )
    if alone and given is not None and given.is_file():
        return given
    path = _find(teacher, model.part(role))
    if path is None:
        raise CheckpointError(f"{FORWARD} lacks {missing_sentence(model, model.part(role), given)}")
    return path


def _codec_parts(job: DistillJob) -> dict[str, Path]:
    """The files of the small codecs. Raises: CheckpointError."""
    model, folder = MODELS[FLASH], job.codec or job.student
    found = {role: find_part(model, model.part(role), folder) for role in ("encoder", "decoder")}
    missing = [role for role, path in found.items() if path is None]
    if missing:
        raise CheckpointError(
            f"no small {' and no small '.join(missing)} in {folder or 'the folder of ' + FLASH}; make both with: "
            f"flowshade train {CODEC_DISTILL} -o DIR, and give --codec DIR."
        )
    return {role: path for role, path in found.items() if path is not None}


def _frozen_type(processes: Processes) -> torch.dtype:
    return torch.bfloat16 if processes.device.type == "cuda" else torch.float32


def _fresh(part: Part, seed: int) -> nn.Module:
    """A part's network with random weights, the same in every process."""
    assert part.build is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return part.build({})


def _check_latents(network: nn.Module, vae: WanVAE) -> None:
    channels = network.config.latent_channels  # pyright: ignore[reportAttributeAccessIssue]
    if channels != vae.config.z_dim:
        raise CheckpointError(f"the VAE has {vae.config.z_dim} latent channels and the small codec {channels}.")


def _lesson_folder(job: DistillJob) -> LessonFolder:
    config = job.teacher_config
    return LessonFolder(job.samples or job.out / "samples", config.window, config.overlap, job.seed)


def _make_texts(job: DistillJob, folder: TextFolder, samples: Sequence[Sample], processes: Processes) -> None:
    """Embeds the prompts that are missing; the text encoder is gone afterwards."""
    wanted = [sample.prompt for sample in samples]
    wanted += [NEGATIVE_PROMPT] if job.teacher_config.cfg_scale != 1 else []
    missing = folder.missing(wanted)
    if processes.first and missing:
        roles = ("text_encoder", "tokenizer")
        paths = {role: _teacher_part(job.teacher, role) for role in roles}
        prompts = UpstreamPrompts(MODELS[FORWARD], paths, processes.device, keep=True)
        with progress_bar("texts", "prompts") as progress:
            fill(folder, missing, prompts.encode, progress)
        del prompts
        if processes.device.type == "cuda":
            torch.cuda.empty_cache()
    processes.wait()


def _disk(job: DistillJob, missing: Sequence[Sample], samples: Sequence[Sample]) -> int:
    """Bytes of samples that are missing, and of features of all runs."""
    encoder = _fresh_config(MODELS[FLASH].part("encoder"))
    lessons = sum(
        sample_bytes(encoder.latent_channels, job.frames, job.size, encoder.patch, sample.clip.held_out)
        for sample in missing
    )
    runs = len({sample.run for sample in samples})
    place = (job.size[0] // encoder.patch) * (job.size[1] // encoder.patch) * job.frames // FRAMES_PER_LATENT
    return lessons + 2 * runs * encoder.channels * place


def _fresh_config(part: Part) -> Any:
    assert part.build is not None
    with torch.device("meta"):
        return part.build({}).config


def _make_lessons(
    job: DistillJob, folder: LessonFolder, texts: TextFolder, samples: Sequence[Sample], processes: Processes
) -> None:
    """Runs the teacher over the samples that are missing, each process over its share."""
    missing = folder.missing(samples)
    processes.wait()  # before anyone adds to the folder
    if processes.first:
        check_disk(_disk(job, missing, samples), job.out)
    share = processes.share(missing)
    if share:
        device, dtype = processes.device, _frozen_type(processes)
        parts = {role: _teacher_part(job.teacher, role) for role in ("transformer", "vae")}
        loaded = {r: load_part(MODELS[FORWARD].part(r), p, device=device, dtype=dtype) for r, p in parts.items()}
        transformer, vae = loaded["transformer"], loaded["vae"]
        assert isinstance(transformer, WorldTransformer)
        assert isinstance(vae, WanVAE)
        teacher = ForwardTeacher(transformer, vae, job.teacher_config)

        def embedded(text: str) -> TextContext:
            return TextContext(tokens=texts.read(text).tokens.to(device, dtype))

        negative = embedded(NEGATIVE_PROMPT) if job.teacher_config.cfg_scale != 1 else None
        with progress_bar("teacher", "samples", shown=processes.first) as progress:
            for done, sample in enumerate(share):
                make_lesson(teacher, folder, sample, job.size, embedded(sample.prompt), negative)
                progress(done + 1, len(share))
        del teacher, transformer, vae, loaded
        if device.type == "cuda":
            torch.cuda.empty_cache()
    processes.wait()


def _make_features(
    job: DistillJob, folder: FeatureFolder, encoder: GroupedEncoder, samples: Sequence[Sample], processes: Processes
) -> None:
    missing = folder.missing(samples)
    processes.wait()
    share = processes.share(missing)
    with progress_bar("features", "runs", shown=processes.first) as progress:
        for done, sample in enumerate(share):
            folder.make(encoder, sample, job.size, processes.device)
            progress(done + 1, len(share))
    processes.wait()


def _load_codec(codec: dict[str, Path], processes: Processes) -> tuple[GroupedEncoder, TinyDecoder]:
    parts = [
        load_part(MODELS[FLASH].part(role), path, device=processes.device, dtype=torch.float32)
        for role, path in codec.items()
    ]
    encoder, decoder = parts
    assert isinstance(encoder, GroupedEncoder)
    assert isinstance(decoder, TinyDecoder)
    return encoder, decoder


def _begin_student(job: DistillJob, teacher: Path) -> WorldTransformer:
    """The student's network with the weights that it begins from, float32 on the CPU."""
    model = MODELS[FLASH]
    if job.student is not None:
        paths = {
            role: find_part(model, model.part(role), job.student) for role in ("transformer", "transformer_partial")
        }
        main, partial = paths.values()
        if main is None:
            raise CheckpointError(f"--student has {missing_sentence(model, model.part('transformer'), job.student)}")
        overlays = () if partial is None else ((model.part("transformer_partial"), partial),)
        network = load_part(model.part("transformer"), main, dtype=torch.float32, overlays=overlays)
        assert isinstance(network, WorldTransformer)
        return network
    network = _fresh(model.part("transformer"), job.seed)
    given = load_part(MODELS[FORWARD].part("transformer"), teacher, dtype=torch.float32)
    assert isinstance(network, WorldTransformer)
    assert isinstance(given, WorldTransformer)
    begin_from_teacher(network, given)
    return network


def _judge(
    job: DistillJob, samples: Sequence[Sample], studies: Studies, decoder: TinyDecoder, processes: Processes
) -> Judge:
    path = _teacher_part(job.teacher, "vae")
    vae = load_part(MODELS[FORWARD].part("vae"), path, device=processes.device, dtype=_frozen_type(processes))
    assert isinstance(vae, WanVAE)
    held = [sample for sample in samples if sample.clip.held_out]
    return Judge(
        samples=held[:MOST_JUDGED],
        studies=studies,
        decoder=decoder,
        teacher=VAETeacher(vae),
        size=job.size,
        window=job.window // FRAMES_PER_LATENT,
        device=processes.device,
    )


def _drift(job: DistillJob, samples: Sequence[Sample], texts: TextFolder, processes: Processes) -> dict[str, Any]:
    """Drift of a long stream through the first held-out clip, with the student as its files have it."""
    model, folder, device = MODELS[FLASH], job.out / STUDENT, processes.device
    parts = {}
    for role in ("transformer", "encoder", "decoder"):
        path = find_part(model, model.part(role), folder)
        assert path is not None, role
        parts[role] = load_part(model.part(role), path, device=device, dtype=_frozen_type(processes))
    config = FlashConfig(**{role: part.config for role, part in parts.items()}, window=job.window)
    renderer = FlashRenderer(config, **parts)
    sample = next(sample for sample in samples if sample.clip.held_out)
    renderer.set_text(texts.read(sample.prompt))
    frames = max(job.drift_frames // job.window, 1) * job.window
    steps = FEW_STEPS[0]
    found = stream_drift(renderer, sample.clip, job.size, frames=frames, window=job.window, steps=steps, seed=job.seed)
    return {"clip": sample.clip.name, "frames": frames, "steps": steps, "change": found}


def _write_scores(job: DistillJob, scores: dict[str, float], drifted: dict[str, Any]) -> None:
    """Writes `scores.json` and prints it as a table."""
    write_json(job.out / "scores.json", {"held out": scores, "drift": drifted})
    measures = [name for name in ("latent error", "psnr", "lpips") if f"{FEW_STEPS[0]} student {name}" in scores]
    print("against the teacher at all its steps, held-out clips:")
    print("  steps  who      " + "".join(f"{name:>14}" for name in measures))
    for steps in FEW_STEPS:
        for who in ("student", "teacher"):
            row = "".join(f"{scores[f'{steps} {who} {name}']:>14.4f}" for name in measures)
            print(f"  {steps:<5}  {who:<8} {row}")
    change = " ".join(f"{name} {value:+.4f}" for name, value in drifted["change"].items())
    print(f"drift over {drifted['frames']} frames of {drifted['clip']}: {change}", flush=True)


def _write(path: Path, weights: dict[str, Tensor], dtype: torch.dtype) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state({name: value.to(dtype).contiguous() for name, value in weights.items()}, path, {"format": "pt"})
