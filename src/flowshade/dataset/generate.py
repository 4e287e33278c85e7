"""Datasets of recorded clips: many worlds, looks and paths, over processes and GPUs, with an index.

    plan = DatasetPlan(kinds=("street", "rooms"), clips=200, seconds=20.0, look="any")
    print(project(plan).text())         # disk and time, measured on a few frames, before anything long begins
    generate(plan, Path("data"), workers=4)

A dataset is a folder of clips (see `flowshade.gbuffer.io.folder`) named `KIND-SEED`, and an index of them (see
`flowshade.dataset.index`). What is complete is kept: called again with the same plan, `generate` records only what is
missing, and goes on within a clip that was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from flowshade.dataset.index import INDEX, DatasetError, read_index, split_of, write_index
from flowshade.files import free_space
from flowshade.gbuffer.environment import is_hdri_name, look_named
from flowshade.gbuffer.look import LOOKS, Look, sample_look
from flowshade.gbuffer.particles import particles_of
from flowshade.gbuffer.record import record_clip
from flowshade.progress import Progress
from flowshade.world import make_world

_UNDER_A_ROOF = ("rooms",)
_LAMPLIT = 0.7
"""How often a clip under a roof is lit by its lamps: in daylight looks it is dark but for its windows."""
_PROBE_FRAMES = (1, 4)
"""Lengths of the two recordings of each kind that are measured: their difference is free of set-up."""


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """What is recorded."""

    kinds: tuple[str, ...] = ("street", "hills", "yard", "rooms", "harbour")
    """Kinds of world, taken in turn."""
    clips: int = 10
    cameras: int = 1
    """Clips of each world, each along another camera path."""
    first_seed: int = 0
    """Of the first clip's world; seeds count up."""
    seconds: float = 10.0
    fps: float = 30.0
    size: tuple[int, int] = (720, 1280)
    look: str = "any"
    """A key of `LOOKS`, an HDRI (as in `environment.look_named`; turned otherwise in each clip), "any"
    for one drawn for each clip from the grid that words can name, or "none"."""
    reference: Literal["direct", "paths"] = "paths"
    """How the pictures are made, as in `flowshade.gbuffer.trace.Tracer`."""
    samples: int = 4
    """Material samples a pixel."""
    blur: int = 0
    """Sub-frames of a motion-blurred second picture; 0 = none."""
    particles: bool = False
    """Whether clips keep a layer of what falls or rises in their look, under the open sky."""

    def __post_init__(self) -> None:
        if self.clips < 1 or self.cameras < 1 or not self.kinds:
            raise DatasetError(
                f"a dataset of {self.clips} clips, {self.cameras} cameras and kinds {list(self.kinds)} was asked for; "
                "expected at least one of each. Raise --clips or --cameras, or name a kind."
            )
        if self.look not in ("any", "none", *LOOKS) and not is_hdri_name(self.look):
            raise DatasetError(
                f"unknown look {self.look!r}; expected any, none, an HDRI, or one of {', '.join(LOOKS)}."
            )
        if not self.seconds * self.fps >= 1:
            raise DatasetError(f"clips of {self.seconds} s at {self.fps} FPS hold no frame; expected at least one.")

    @property
    def frames(self) -> int:
        """Of one clip."""
        return round(self.seconds * self.fps)

    def jobs(self) -> Iterator[ClipJob]:
        """The clips in order; the same plan always gives the same ones."""
        for index in range(self.clips):
            world, camera = divmod(index, self.cameras)
            seed = self.first_seed + world
            kind = self.kinds[world % len(self.kinds)]
            yield ClipJob(kind=kind, seed=seed, camera=camera, look=self._look(kind, seed, camera), plan=self)

    def _look(self, kind: str, seed: int, camera: int) -> Look | None:
        if self.look == "any":
            rng = random.Random(f"{seed}-{camera}" if camera else seed)
            lamplit = kind in _UNDER_A_ROOF and rng.random() < _LAMPLIT
            return sample_look(rng, "indoor" if lamplit else None)
        if self.look == "none":
            return None
        turn = 45.0 * random.Random(f"{seed}-{camera}-turn").randrange(8)  # of HDRIs
        return look_named(self.look, turn=turn)


@dataclass(frozen=True, kw_only=True)
class ClipJob:
    """One clip of a plan."""

    kind: str
    seed: int
    camera: int
    """Which of the world's camera paths."""
    look: Look | None
    plan: DatasetPlan

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed:06d}" + (f"-{self.camera}" if self.camera else "")

    def record(self, folder: Path, device: str, frames: int | None = None, resume: bool = True) -> None:
        """Records the clip to its folder inside `folder`."""
        plan = self.plan
        record_clip(
            make_world(self.kind, self.seed), folder / self.name, frames=frames or plan.frames, fps=plan.fps,
            size=plan.size, look=self.look, device=device, samples=plan.samples, reference=plan.reference,
            blur=plan.blur, path=self.camera, particles="auto" if self._has_weather else None, resume=resume,
        )  # fmt: skip

    @property
    def _has_weather(self) -> bool:
        return self.plan.particles and self.look is not None and self.kind not in _UNDER_A_ROOF

    def row(self, manifest: dict[str, Any], size: int) -> dict[str, Any]:
        """The clip in the index.

        Args:
            manifest: what its `clip.json` says.
            size: bytes on disk.
        """
        look = self.look
        return {
            "path": self.name, "world": self.kind, "seed": self.seed, "camera": self.camera,
            "split": split_of(self.kind, self.seed), "caption": manifest["caption"],
            "look": None if look is None else look.name, "look_caption": None if look is None else look.caption(),
            "particles": particles_of(look) if self._has_weather and look is not None else None,
            "reference": None if look is None else self.plan.reference, "frames": manifest["frames"],
            "fps": manifest["fps"], "height": manifest["size"][0], "width": manifest["size"][1], "bytes": size,
            "channels": list(manifest["channels"]),
        }  # fmt: skip


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

    def numbers(self) -> dict[str, float]:
        """What the index keeps, to be compared with what it took."""
        return {"frames": self.frames, "bytes": round(self.bytes), "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """Two lines: this plan, and four million frames at the same rates."""
        many = 4_000_000
        return (
            f"{self.clips} clips, {self.frames:,} frames: {_size(self.bytes)} and {_duration(self.seconds)} "
            f"on {self.workers} worker{'s' if self.workers > 1 else ''}\n"
            f"at these rates 4,000,000 frames take {_size(many * self.bytes_a_frame)} and "
            f"{_duration(many * self.seconds_a_frame / self.workers)}"
        )


def project(plan: DatasetPlan, folder: Path | None = None, *, workers: int = 1, device: str = "cpu") -> Projection:
    """Records a few frames of each kind of world to a temporary folder, and multiplies.

    Args:
        plan: what is to be recorded.
        folder: the dataset's, whose complete clips are left out; None projects the whole plan.
        workers: processes that will share the work.
        device: where to trace.

    Raises:
        DatasetError: the folder holds a dataset of another plan.
    """
    if folder is not None:
        _check_plan(plan, folder)
    first: dict[str, ClipJob] = {}
    for job in plan.jobs():
        first.setdefault(job.kind, job)
    probes = []
    with tempfile.TemporaryDirectory() as place:
        # Kernels are compiled, and loaded, before anything is measured.
        _probe(next(iter(first.values())), Path(place), device, _PROBE_FRAMES[0])
        for job in first.values():
            probes.append([_probe(job, Path(place), device, frames) for frames in _PROBE_FRAMES])
    more = _PROBE_FRAMES[1] - _PROBE_FRAMES[0]
    rates = [max(long[0] - short[0], 1e-6) / more for short, long in probes]
    setup = [max(short[0] - _PROBE_FRAMES[0] * rate, 0.0) for (short, _), rate in zip(probes, rates)]
    clips = plan.clips if folder is None else len(_Recorded(plan, folder, None).todo())
    return Projection(
        frames=plan.frames * clips, clips=clips, workers=workers, seconds_a_frame=mean(rates),
        bytes_a_frame=mean((long[1] - short[1]) / more for short, long in probes), setup_seconds=mean(setup),
    )  # fmt: skip


def _probe(job: ClipJob, folder: Path, device: str, frames: int) -> tuple[float, int]:
    """Seconds and bytes of a short recording, which is removed again."""
    started = time.perf_counter()
    job.record(folder, device, frames=frames, resume=False)
    taken, size = time.perf_counter() - started, folder_bytes(folder / job.name)
    shutil.rmtree(folder / job.name)
    return taken, size


def check_disk(projection: Projection, folder: Path) -> None:
    """Raises: DatasetError where a projected dataset does not fit on the disk of its folder."""
    free = free_space(folder)
    if projection.bytes > free:
        raise DatasetError(
            f"{folder} would take {_size(projection.bytes)} and its disk has {_size(free)} left; expected room for all "
            "of it. Lower --clips, --seconds or --size, or give a folder on another disk."
        )


def generate(
    plan: DatasetPlan,
    folder: Path,
    *,
    workers: int = 0,
    device: str = "cpu",
    projection: Projection | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Records a plan's clips that `folder` lacks and writes its index.

    Args:
        plan: what to record. Another plan's dataset is refused.
        folder: made if absent.
        workers: processes; 0 records in this one. With "cuda" they share the GPUs in turn.
        device: where to trace.
        projection: kept in the index beside what it took.
        progress: called with (clips done, clips in all).

    Returns:
        The content of `dataset.json`: `bytes` of all clips, `seconds` of this call, and `projected`, if it was given.

    Raises:
        DatasetError: the folder holds a dataset of another plan.
    """
    started = time.perf_counter()
    _check_plan(plan, folder)
    recorded = _Recorded(plan, folder, projection)
    todo = recorded.todo()
    done = plan.clips - len(todo)
    recorded.write(0.0)  # the plan is on disk before the first frame
    for _ in _recording(todo, folder, workers, device):
        done += 1
        recorded.write(time.perf_counter() - started)
        if progress is not None:
            progress(done, plan.clips)
    return recorded.write(time.perf_counter() - started)


def _recording(jobs: list[ClipJob], folder: Path, workers: int, device: str) -> Iterator[None]:
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


class _Recorded:
    """The clips of a plan that are complete; each is measured once."""

    def __init__(self, plan: DatasetPlan, folder: Path, projection: Projection | None) -> None:
        self._plan, self._folder = plan, folder
        self._projected = None if projection is None else projection.numbers()
        self._rows: dict[str, dict[str, Any]] = {}
        self._jobs = list(plan.jobs())

    def todo(self) -> list[ClipJob]:
        """What is still to be recorded."""
        return [job for job in self._jobs if not (self._folder / job.name).exists()]

    def write(self, seconds: float) -> dict[str, Any]:
        """Writes the index of what is there now."""
        for job in self._jobs:
            manifest = self._folder / job.name / "clip.json"
            if job.name not in self._rows and manifest.exists():
                size = folder_bytes(self._folder / job.name)
                self._rows[job.name] = job.row(json.loads(manifest.read_text()), size)
        rows = [self._rows[job.name] for job in self._jobs if job.name in self._rows]
        header: dict[str, Any] = {"plan": dataclasses.asdict(self._plan), "seconds": round(seconds, 3)}
        if self._projected is not None:
            header["projected"] = self._projected
        return write_index(self._folder, header, rows)


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
