"""Datasets of recorded clips: many worlds, looks and paths, over processes and GPUs, with an index.

    plan = DatasetPlan(kinds=("street", "rooms"), clips=200, seconds=20.0, look="any")
    print(project(plan).text())         # disk and time, measured on a few frames, before anything long begins
    generate(plan, Path("data"), workers=4)

A dataset is a folder of clips (see `flowshade.gbuffer.io.folder`) named `KIND-SEED`, and `dataset.json`, which lists
them. What is complete is kept: called again with the same plan, `generate` records only what is missing, and goes on
within a clip that was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.look import LOOKS, Look, sample_look
from flowshade.gbuffer.record import record_clip
from flowshade.world import make_world

INDEX = "dataset.json"
FORMAT, VERSION = "flowshade-dataset", 1
_UNDER_A_ROOF = ("rooms",)
_LAMPLIT = 0.7
"""How often a clip under a roof is lit by its lamps: in daylight looks it is dark but for its windows."""
_PROBE_FRAMES = (2, 8)
"""Lengths of the two recordings that are measured: their difference is free of set-up."""


class DatasetError(FlowshadeError, ValueError):
    """A dataset cannot be planned, continued or read."""


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """What is recorded."""

    kinds: tuple[str, ...] = ("street", "hills", "yard", "rooms", "harbour")
    """Kinds of world, taken in turn."""
    clips: int = 10
    first_seed: int = 0
    """Of the first clip's world; seeds count up."""
    seconds: float = 10.0
    fps: float = 30.0
    size: tuple[int, int] = (720, 1280)
    look: str = "any"
    """A key of `LOOKS`, "any" for one drawn for each clip from the grid that words can name, or "none"."""
    reference: Literal["direct", "paths"] = "paths"
    """How the pictures are made, as in `flowshade.gbuffer.trace.Tracer`."""
    samples: int = 4
    """Material samples a pixel."""
    blur: int = 0
    """Sub-frames of a motion-blurred second picture; 0 = none."""

    def __post_init__(self) -> None:
        if self.clips < 1 or not self.kinds:
            raise DatasetError(
                f"a dataset of {self.clips} clips of kinds {list(self.kinds)} was asked for; expected at least one of "
                "each. Raise --clips, or name a kind."
            )
        if self.look not in ("any", "none", *LOOKS):
            raise DatasetError(f"unknown look {self.look!r}; expected any, none, or one of {', '.join(LOOKS)}.")
        if not self.seconds * self.fps >= 1:
            raise DatasetError(f"clips of {self.seconds} s at {self.fps} FPS hold no frame; expected at least one.")

    @property
    def frames(self) -> int:
        """Of one clip."""
        return round(self.seconds * self.fps)

    def jobs(self) -> Iterator[ClipJob]:
        """The clips in order; the same plan always gives the same ones."""
        for index in range(self.clips):
            seed = self.first_seed + index
            kind = self.kinds[index % len(self.kinds)]
            yield ClipJob(kind=kind, seed=seed, look=self._look(kind, seed), plan=self)

    def _look(self, kind: str, seed: int) -> Look | None:
        if self.look == "any":
            rng = random.Random(seed)
            lamplit = kind in _UNDER_A_ROOF and rng.random() < _LAMPLIT
            return sample_look(rng, "indoor" if lamplit else None)
        return LOOKS.get(self.look)


@dataclass(frozen=True, kw_only=True)
class ClipJob:
    """One clip of a plan."""

    kind: str
    seed: int
    look: Look | None
    plan: DatasetPlan

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed:06d}"

    def record(self, folder: Path, device: str, frames: int | None = None, resume: bool = True) -> None:
        """Records the clip to its folder inside `folder`."""
        plan = self.plan
        record_clip(
            make_world(self.kind, self.seed), folder / self.name, frames=frames or plan.frames, fps=plan.fps,
            size=plan.size, look=self.look, device=device, samples=plan.samples, reference=plan.reference,
            blur=plan.blur, resume=resume,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What a plan will take."""

    frames: int
    """Of the whole dataset."""
    bytes_a_frame: float
    seconds_a_frame: float
    """Of one worker."""
    setup_seconds: float
    """Of one clip: making its world and its tracer."""
    clips: int
    workers: int

    @property
    def bytes(self) -> float:
        return self.frames * self.bytes_a_frame

    @property
    def seconds(self) -> float:
        """Wall clock, if workers do not slow each other down."""
        return (self.frames * self.seconds_a_frame + self.clips * self.setup_seconds) / self.workers

    def text(self) -> str:
        """Two lines: this plan, and four million frames at the same rates."""
        many = 4_000_000
        return (
            f"{self.clips} clips, {self.frames:,} frames: {_size(self.bytes)} and {_duration(self.seconds)} "
            f"on {self.workers} worker{'s' if self.workers > 1 else ''}\n"
            f"at these rates 4,000,000 frames take {_size(many * self.bytes_a_frame)} and "
            f"{_duration(many * self.seconds_a_frame / self.workers)}"
        )


def project(plan: DatasetPlan, *, workers: int = 1, device: str = "cpu") -> Projection:
    """Records a few frames of the plan's first clip to a temporary folder and multiplies."""
    job = next(plan.jobs())
    taken, sizes = [], []
    with tempfile.TemporaryDirectory() as folder:
        # Kernels are compiled, and loaded, before anything is measured.
        for run, frames in enumerate((_PROBE_FRAMES[0], *_PROBE_FRAMES)):
            place = Path(folder) / str(run)
            started = time.perf_counter()
            job.record(place, device, frames=frames, resume=False)
            taken.append(time.perf_counter() - started)
            sizes.append(folder_bytes(place))
    more = _PROBE_FRAMES[1] - _PROBE_FRAMES[0]
    a_frame = max(taken[2] - taken[1], 1e-6) / more
    return Projection(
        frames=plan.frames * plan.clips, clips=plan.clips, workers=workers, seconds_a_frame=a_frame,
        bytes_a_frame=(sizes[2] - sizes[1]) / more, setup_seconds=max(taken[1] - _PROBE_FRAMES[0] * a_frame, 0.0),
    )  # fmt: skip


def generate(
    plan: DatasetPlan,
    folder: Path,
    *,
    workers: int = 0,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Records a plan's clips that `folder` lacks and writes its index.

    Args:
        plan: what to record. Another plan's dataset is refused.
        folder: made if absent.
        workers: processes; 0 records in this one. With "cuda" they share the GPUs in turn.
        device: where to trace.
        progress: called with (clips done, clips in all).

    Returns:
        The content of `dataset.json`, with `bytes` and `seconds` of this call: what was projected can be compared.

    Raises:
        DatasetError: the folder holds a dataset of another plan.
    """
    started = time.perf_counter()
    _check_plan(plan, folder)
    jobs = list(plan.jobs())
    todo = [job for job in jobs if not (folder / job.name).exists()]
    done = len(jobs) - len(todo)
    _write_index(plan, folder, jobs, 0.0)  # the plan is on disk before the first frame
    for _ in _recorded(todo, folder, workers, device):
        done += 1
        _write_index(plan, folder, jobs, time.perf_counter() - started)
        if progress is not None:
            progress(done, len(jobs))
    return _write_index(plan, folder, jobs, time.perf_counter() - started)


def _recorded(jobs: list[ClipJob], folder: Path, workers: int, device: str) -> Iterator[None]:
    if workers == 0:
        for job in jobs:
            yield job.record(folder, device)
        return
    import torch

    gpus = torch.cuda.device_count() if device.startswith("cuda") else 0
    tasks = [(job, folder, f"cuda:{index % gpus}" if gpus else device) for index, job in enumerate(jobs)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_record_in_worker, tasks)


def _record_in_worker(task: tuple[ClipJob, Path, str]) -> None:
    import torch

    torch.set_num_threads(1)
    job, folder, device = task
    job.record(folder, device)


def _check_plan(plan: DatasetPlan, folder: Path) -> None:
    path = folder / INDEX
    if not path.exists():
        return
    found, given = read_index(folder)["plan"], json.loads(json.dumps(dataclasses.asdict(plan)))
    differ = [name for name in given if found.get(name) != given[name] and name != "clips"]
    if differ:
        raise DatasetError(
            f"{folder} holds a dataset of another plan ({', '.join(differ)} differ); expected the same. Give another "
            "folder, or repeat the plan (a larger number of clips goes on)."
        )


def _write_index(plan: DatasetPlan, folder: Path, jobs: list[ClipJob], seconds: float) -> dict[str, Any]:
    """Lists the clips that are complete. Atomic."""
    clips = []
    for job in jobs:
        manifest = folder / job.name / "clip.json"
        if manifest.exists():
            content = json.loads(manifest.read_text())
            look = None if job.look is None else {"name": job.look.name, "caption": job.look.caption()}
            clips.append({
                "path": job.name, "kind": job.kind, "seed": job.seed, "frames": content["frames"],
                "fps": content["fps"], "size": content["size"], "caption": content["caption"], "look": look,
                "channels": list(content["channels"]), "bytes": folder_bytes(folder / job.name),
            })  # fmt: skip
    index = {
        "format": FORMAT, "version": VERSION, "plan": dataclasses.asdict(plan), "clips": clips,
        "frames": sum(clip["frames"] for clip in clips), "bytes": sum(clip["bytes"] for clip in clips),
        "seconds": round(seconds, 3),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{INDEX}.tmp"
    temporary.write_text(json.dumps(index, indent=1) + "\n")
    temporary.replace(folder / INDEX)
    return json.loads(json.dumps(index))


def read_index(folder: Path) -> dict[str, Any]:
    """The content of a dataset's index.

    Raises:
        DatasetError: there is none, or it was not written by this version.
    """
    path = folder / INDEX
    if not path.is_file():
        raise DatasetError(f"{folder} has no {INDEX}; expected a dataset. Make one with: flowshade data generate")
    content = json.loads(path.read_text())
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise DatasetError(
            f"{path} is {content.get('format')!r} version {content.get('version')}; expected {FORMAT!r} version "
            f"{VERSION}. Read it with the Flowshade that wrote it."
        )
    return content


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder and all below it."""
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.1f} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1024
    raise AssertionError("the loop returns")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"
