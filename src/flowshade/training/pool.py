"""Pairs made by the tracer, kept in the memory of the training device and refreshed while training runs.

A clip is traced once and shaded in several looks. Producers (worker processes, or the trainer itself when
`workers` is 0) pack what they trace to bytes; `ClipPool` holds the packed clips on the training device and unpacks
windows of them into `Planes` when a batch is drawn.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from flowshade.codec.encoding import EncodingProfile, encode_buffers
from flowshade.color import from_bytes, to_bytes
from flowshade.training.captions import LookBank
from flowshade.types import CORE_CHANNELS, FRAMES_PER_LATENT, Camera, GBuffer, Planes, stream_frame

SPAWN = torch.multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class ClipSpec:
    """What producers make."""

    kinds: tuple[str, ...] = ("street", "hills")
    size: tuple[int, int] = (240, 416)
    frames: int = 48
    """Frames of a clip; enough that the whole memory of the renderer is filled at its end."""
    looks: int = 2
    """Looks in which each clip is shaded."""
    frame_rates: tuple[float, ...] = (12.0, 15.0, 24.0, 30.0)
    """A clip's rate is drawn from these, so that speeds differ from scene to scene."""
    samples: int = 4
    """Material rays a pixel."""
    sun_rays: int = 2
    sky_rays: int = 6
    """Rays a pixel of the reference; its filter averages over 4x4 pixels, so half of the tracer's defaults will do."""
    path_traced: float = 0.0
    """Share of clips whose pictures are path-traced, [0, 1]; the others show direct light."""
    paths: int = 16
    """Path samples a pixel."""
    large_share: float = 0.0
    """Share of clips that are `large_size`, [0, 1]; they lie apart in the pool and are batched with each other."""
    large_size: tuple[int, int] = (480, 832)
    large_looks: int = 1
    varied: float = 0.0
    """Share of clips whose materials are drawn anew (`flowshade.world.variation`), [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class PackedClip:
    """A traced clip in bytes: encoded planes as they stand in a profile, without depth and rays."""

    surface: UInt8[Tensor, "T C H W"]
    """Every 8-bit plane, (x + 1) / 2 * 255."""
    depth: Int[Tensor, "T 1 H W"]
    """Encoded depth, (x + 1) / 2 * 65535 - 32768, int16."""
    rgb: UInt8[Tensor, "K T 3 H W"]
    """The reference picture in each look."""
    intrinsics: Float[Tensor, "T 4"]
    pose: Float[Tensor, "T 4 4"]
    look: Int[Tensor, " K"]
    """Rows of the look bank."""
    sun: Float[Tensor, "K 3"]
    """Towards the sun in the stream frame; zero where the look has none."""

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in PACKED}


TRACED = (*CORE_CHANNELS, "emission")
"""Channels that producers ask the tracer for."""

PACKED = ("surface", "depth", "rgb", "intrinsics", "pose", "look", "sun")


def surface_planes(profile: EncodingProfile) -> list[int]:
    """Indices of a profile's planes that are stored as bytes."""
    return [i for name, planes in profile.slices.items() if name not in ("depth", "rays") for i in _range(planes)]


def _range(planes: slice) -> range:
    return range(planes.start, planes.stop)


def pack_clip(gbuffer: GBuffer, rgb: Tensor, look: Tensor, sun: Tensor, profile: EncodingProfile) -> PackedClip:
    """Packs a clip and its pictures `[K, T, 3, H, W]` (sRGB, [0, 1]) to bytes on the CPU."""
    if gbuffer.camera is None:
        raise ValueError("pack_clip got a clip without camera; training clips need one: record it with the world's.")
    planes = encode_buffers(gbuffer, profile, None).values[0]
    depth = planes[:, profile.slices["depth"]]
    return PackedClip(
        surface=((planes[:, surface_planes(profile)] + 1) * 127.5).round().to(torch.uint8).cpu(),
        depth=((depth + 1) * 32767.5 - 32768).round().clamp(-32768, 32767).to(torch.int16).cpu(),
        rgb=to_bytes(rgb).cpu(),
        intrinsics=gbuffer.camera.intrinsics.float().cpu(),
        pose=gbuffer.camera.pose.float().cpu(),
        look=look.cpu(),
        sun=sun.cpu(),
    )


def trace_clip(
    kind: str, seed: int, bank: LookBank, spec: ClipSpec, profile: EncodingProfile, device: str
) -> PackedClip:
    """Builds the world of a seed, runs it along one of its paths and shades it in drawn looks."""
    from flowshade.gbuffer.rollout import rollout
    from flowshade.gbuffer.trace import Tracer
    from flowshade.world import make_world
    from flowshade.world.variation import vary_materials

    rng, rate, large = _first_draws(seed, spec)
    world = make_world(kind, seed, fps=rate)
    materials = np.random.default_rng((seed, 1))  # a generator of its own: other draws stay what they were
    if materials.random() < spec.varied:
        vary_materials(world.model, materials)
    rows = [bank.draw(kind, rng) for _ in range(spec.large_looks if large else spec.looks)]
    tracer = Tracer(
        world.model,
        size=spec.large_size if large else spec.size,
        device=device,
        samples=spec.samples,
        channels=TRACED,
        sun_rays=spec.sun_rays,
        sky_rays=spec.sky_rays,
        reference="paths" if rng.random() < spec.path_traced else "direct",
        paths=spec.paths,
    )
    looks = [bank.looks[row] for row in rows]
    frames = list(rollout(world, tracer, frames=spec.frames, looks=looks, seed=seed))
    pictures = torch.stack([torch.cat(frame.pictures) for frame in frames], 1)  # [K, T, 3, H, W]
    sun = torch.stack([look.sun_vector() * look.has_sun for look in looks])
    clip = GBuffer.cat([frame.gbuffer for frame in frames])
    return pack_clip(clip, pictures, torch.tensor(rows), sun.float(), profile)


def _first_draws(seed: int, spec: ClipSpec) -> tuple[np.random.Generator, float, bool]:
    """A clip's generator, its frame rate and whether it is large."""
    rng = np.random.default_rng(seed)
    rate = float(rng.choice(spec.frame_rates))
    return rng, rate, spec.large_share > 0 and rng.random() < spec.large_share


@dataclass(kw_only=True)
class Batch:
    """Runs of frames drawn from the pool; L latent frames of four pictures each."""

    planes: Planes
    rgb: Float[Tensor, "B T 3 H W"]
    """Reference pictures, sRGB, [0, 1]."""
    caption: Int[Tensor, "B L"]
    """Rows of the caption bank: the caption changes where the look does."""
    sun: Float[Tensor, "B L 3"]
    """Towards the sun in the stream frame; zero = no sun."""
    intrinsics: Float[Tensor, "B T 4"]
    pose: Float[Tensor, "B T 4 4"]
    """As in `Camera`."""


@dataclass(kw_only=True)
class _Shelf:
    """Packed clips of one size on the training device."""

    capacity: int
    device: torch.device
    store: dict[str, Tensor] = field(default_factory=dict, repr=False)
    valid: list[bool] = field(default_factory=list, repr=False)
    looks: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    """Rows of the look bank, by slot: a copy on the host."""
    received: int = 0

    def put(self, clip: PackedClip) -> None:
        """Stores a clip in the slot of the oldest one."""
        if not self.store:
            self._allocate(clip)
        slot = self.received % self.capacity
        self.valid[slot] = False
        for name, value in clip.tensors().items():
            self.store[name][slot].copy_(value, non_blocking=True)
        self.looks[slot] = clip.look.numpy()
        self.valid[slot] = True
        self.received += 1

    def _allocate(self, clip: PackedClip) -> None:
        for name, value in clip.tensors().items():
            self.store[name] = torch.empty(self.capacity, *value.shape, dtype=value.dtype, device=self.device)
        self.valid = [False] * self.capacity

    @property
    def pixels(self) -> int:
        """Of a frame."""
        return self.store["rgb"].shape[-2] * self.store["rgb"].shape[-1]


@dataclass(kw_only=True)
class ClipPool:
    """Packed clips on the training device, on a shelf for each of the two sizes."""

    capacity: int
    """Clips of ordinary size; large ones come on top, as many as their share of what is traced."""
    spec: ClipSpec
    profile: EncodingProfile
    bank: LookBank
    device: torch.device
    _small: _Shelf = field(init=False, repr=False)
    _large: _Shelf = field(init=False, repr=False)
    received: int = 0
    """Clips put into the pool; the oldest are replaced."""
    pairs: int = 0
    """Pictures with their buffers that were put into it."""

    def __post_init__(self) -> None:
        self._small = _Shelf(capacity=self.capacity, device=self.device)
        self._large = _Shelf(capacity=math.ceil(self.capacity * self.spec.large_share), device=self.device)

    def put(self, clip: PackedClip) -> None:
        """Stores a clip in the slot of the oldest one of its size."""
        large = self.spec.large_share > 0 and tuple(clip.rgb.shape[-2:]) == self.spec.large_size
        (self._large if large else self._small).put(clip)
        self.pairs += clip.rgb.shape[0] * clip.rgb.shape[1]
        self.received += 1

    def skip(self, *, large: bool) -> None:
        """Counts a clip that was put and is replaced by now, instead of putting it again."""
        (self._large if large else self._small).received += 1
        self.received += 1

    def replaced(self, large: Sequence[bool]) -> list[bool]:
        """Which clips are replaced once clips of these sizes have been put, in this order."""
        room = {True: self._large.capacity, False: self._small.capacity}
        gone = []
        for size in reversed(large):
            gone.append(room[size] <= 0)
            room[size] -= 1
        return gone[::-1]

    def __len__(self) -> int:
        return sum(self._small.valid) + sum(self._large.valid)

    def draw(
        self, batch: int, latents: int, rng: np.random.Generator, *, switch: float = 0.0, large: float = 0.0
    ) -> Batch:
        """Draws `batch` runs of `latents` latent frames, each from a random clip, start and look.

        With probability `switch` a run changes to another look of its clip at one of its quarters. With probability
        `large` the runs are of large clips, if there are any: as many fewer as they have more pixels.
        """
        shelf = self._small
        if large and any(self._large.valid) and (rng.random() < large or not any(self._small.valid)):
            shelf = self._large
            batch = max(1, batch * self.spec.size[0] * self.spec.size[1] // shelf.pixels)
        frames = latents * FRAMES_PER_LATENT
        slots = rng.choice(np.flatnonzero(shelf.valid), batch)
        starts = rng.integers((self.spec.frames - frames) // FRAMES_PER_LATENT + 1, size=batch) * FRAMES_PER_LATENT
        rows = self._on_device(starts[:, None] + np.arange(frames))  # [B, T]
        picks = self._draw_looks(batch, latents, shelf.store["rgb"].shape[1], rng, switch)  # [B, L]
        looks = np.stack([shelf.looks[slot][pick] for slot, pick in zip(slots, picks, strict=True)])  # [B, L]
        captions = np.stack([self._draw_captions(row, rng) for row in looks])
        slot, pick = self._on_device(slots)[:, None], self._on_device(picks)
        return Batch(
            planes=self._unpack(shelf.store, slot[:, 0], rows),
            rgb=from_bytes(shelf.store["rgb"][slot, pick.repeat_interleave(FRAMES_PER_LATENT, 1), rows]),
            caption=self._on_device(captions),
            sun=shelf.store["sun"][slot, pick],
            intrinsics=shelf.store["intrinsics"][slot, rows],
            pose=shelf.store["pose"][slot, rows],
        )

    def _draw_looks(self, batch: int, latents: int, looks: int, rng: np.random.Generator, switch: float) -> np.ndarray:
        picks = np.repeat(rng.integers(looks, size=batch)[:, None], latents, 1)  # [B, L]
        for row in np.flatnonzero(rng.random(batch) < switch):
            start = latents // 4 * rng.integers(1, 4) if latents >= 4 else 0
            picks[row, start:] = rng.integers(looks)
        return picks

    def _draw_captions(self, looks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One caption for each look that occurs in a run."""
        chosen = {look: rng.choice(self.bank.captions[look]) for look in np.unique(looks)}
        return np.array([chosen[look] for look in looks])

    def _unpack(self, store: dict[str, Tensor], slot: Int[Tensor, " B"], rows: Int[Tensor, "B T"]) -> Planes:
        surface = store["surface"][slot[:, None], rows]  # [B, T, C, H, W]
        slices = self.profile.slices
        values = torch.empty(
            *surface.shape[:2], self.profile.planes, *surface.shape[-2:], device=self.device, dtype=torch.float32
        )
        values[:, :, surface_planes(self.profile)] = surface.float() / 127.5 - 1
        values[:, :, slices["depth"]] = (store["depth"][slot[:, None], rows].float() + 32768) / 32767.5 - 1
        values[:, :, slices["rays"]] = self._rays(store, slot, rows, surface.shape[-2:])
        present = torch.ones(len(slot), len(self.profile.names), dtype=torch.bool, device=self.device)
        return Planes(values=values, present=present)

    def _rays(
        self, store: dict[str, Tensor], slot: Tensor, rows: Tensor, size: torch.Size
    ) -> Float[Tensor, "B T 3 H W"]:
        """View rays in the frame of the stream that the clip's first camera opened."""
        pose = store["pose"][slot[:, None], rows]
        streams = torch.stack([stream_frame(first) for first in store["pose"][slot, 0].cpu()])
        flat = Camera(
            intrinsics=rearrange(store["intrinsics"][slot[:, None], rows], "b t c -> (b t) c"),
            pose=rearrange(pose, "b t i j -> (b t) i j"),
        ).rays(*size)
        world = rearrange(flat, "(b t) c h w -> b t c h w", b=len(slot))
        return torch.einsum("bij,btjhw->btihw", streams.to(self.device), world)

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)


@dataclass(kw_only=True)
class Producers:
    """Worker processes that trace clips without end and a thread that puts what they make into a pool.

    With `workers` = 0 nothing is started; `fill` then traces in the calling process.
    """

    pool: ClipPool
    workers: int
    first_seed: int = 0
    stride: int = 1
    """Between seeds: others' producers have those that lie between."""
    trace_device: str = "cpu"
    interval: float = 0.0
    """Seconds between clips once `fill` has returned; workers wait meanwhile and leave their GPU to the trainer.

    A worker needs a permit for each clip. There is one for each worker, and a received clip gives its permit back: at
    once while the pool is being filled, and after the interval from then on, so that nothing is traced ahead.
    """
    _filled: threading.Event = field(default_factory=threading.Event, repr=False)
    _processes: list = field(default_factory=list, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _failure: list[str] = field(default_factory=list, repr=False)
    _begun: Any = field(default_factory=lambda: SPAWN.Value("q", 0), repr=False)
    """Clips that were begun, counted over all workers."""

    @property
    def begun(self) -> int:
        """Clips that were begun: the place of the next seed."""
        return self._begun.get_obj().value  # without the lock, which a worker may have died with

    def seeds(self, worker: int) -> Iterator[tuple[str, int]]:
        """The worlds that a worker makes: whichever are next, so that no two workers make one, nor one twice."""
        while True:
            with self._begun.get_lock():
                index = self._begun.value
                self._begun.value = index + 1
            yield self._world(index)

    def _world(self, index: int) -> tuple[str, int]:
        """Kinds in turn."""
        kinds = self.pool.spec.kinds
        return kinds[(self.first_seed + index) % len(kinds)], self.first_seed + self.stride * index

    def go_on(self, begun: int) -> None:
        """Takes up where producers stopped that had begun so many clips.

        Without workers the pool is what it was: its clips are traced again. With workers, who deliver in no certain
        order, clips are new ones, of the seeds that come next.
        """
        if self.workers == 0:
            sizes = [_first_draws(self._world(index)[1], self.pool.spec)[2] for index in range(begun)]
            for index, gone in enumerate(self.pool.replaced(sizes)):
                if gone:
                    self.pool.skip(large=sizes[index])
                else:
                    self._trace(*self._world(index))
        self._begun.value = begun

    def _trace(self, kind: str, seed: int) -> None:
        pool = self.pool
        pool.put(trace_clip(kind, seed, pool.bank, pool.spec, pool.profile, self.trace_device))

    def start(self) -> None:
        if self.workers == 0:
            return
        clips, permits = SPAWN.Queue(maxsize=2 * self.workers), SPAWN.Semaphore(self.workers)
        for worker in range(self.workers):
            arguments = (worker, self, clips, permits)
            process = SPAWN.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)
        threading.Thread(target=self._receive, args=(clips, permits), daemon=True).start()

    def __getstate__(self) -> dict:
        """What a worker needs: the description, not the pool's tensors."""
        pool = self.pool
        light = ClipPool(capacity=0, spec=pool.spec, profile=pool.profile, bank=pool.bank, device=torch.device("cpu"))
        return {
            "pool": light,
            "workers": self.workers,
            "first_seed": self.first_seed,
            "stride": self.stride,
            "trace_device": self.trace_device,
            "interval": self.interval,
            "_begun": self._begun,
        }

    def __setstate__(self, state: dict) -> None:
        begun = state.pop("_begun")
        self.__init__(**state)
        self._begun = begun

    def _receive(self, clips, permits) -> None:
        """Body of the thread that fills the pool. A failure travels to the trainer as text."""
        try:
            self._receive_all(clips, permits)
        except Exception:
            self._failure.append(traceback.format_exc())
            raise

    def _receive_all(self, clips, permits) -> None:
        stream = torch.cuda.Stream(self.pool.device) if self.pool.device.type == "cuda" else None
        while not self._stop.is_set():
            try:
                item = clips.get(timeout=1.0)
            except queue.Empty:
                continue
            if isinstance(item, str):
                self._failure.append(item)
                return
            with torch.cuda.stream(stream):
                self.pool.put(PackedClip(**item))
            if stream is not None:
                stream.synchronize()
            if self._filled.is_set():
                self._stop.wait(self.interval)
            permits.release()

    def fill(self, clips: int, seconds: float = 0.0) -> None:
        """Waits until the pool has received `clips` clips in all (traces them here when there are no workers).

        Workers have at least `seconds` for it.
        """
        until = time.perf_counter() + seconds
        worlds = self.seeds(0)
        while self.pool.received < clips or (self.workers and time.perf_counter() < until):
            self.check()
            if self.workers == 0:
                self._trace(*next(worlds))
            else:
                time.sleep(0.05)
        self._filled.set()

    def check(self) -> None:
        """Raises RuntimeError when a worker has failed or died."""
        if self._failure:
            raise RuntimeError(f"a producer failed:\n{self._failure[0]}")
        dead = [process.exitcode for process in self._processes if process.exitcode not in (None, 0)]
        if dead and not self._stop.is_set():
            raise RuntimeError(f"a producer died with exit code {dead[0]}; see its output above.")

    def stop(self) -> None:
        self._stop.set()
        for process in self._processes:
            process.terminate()


def _work(worker: int, producers: Producers, clips, permits) -> None:
    """A worker process. It ends with the trainer, however that ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _produce(worker, producers, clips, permits)


def _end_with_parent() -> None:
    parent = torch.multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _produce(worker: int, producers: Producers, clips, permits) -> None:
    """Body of a worker process. A failure travels to the trainer as text."""
    torch.set_num_threads(1)
    pool, device = producers.pool, _only_visible(producers.trace_device)
    try:
        for kind, seed in producers.seeds(worker):
            permits.acquire()
            clip = trace_clip(kind, seed, pool.bank, pool.spec, pool.profile, device)
            clips.put(clip.tensors())
            if device.startswith("cuda"):
                torch.cuda.empty_cache()  # a worker that waits leaves its memory to the trainer
    except Exception:
        clips.put(f"worker {worker}, world {kind} {seed}:\n{traceback.format_exc()}")
        raise


def _only_visible(device: str) -> str:
    """Hides every GPU but one from this process, which must not have used any; returns that one's new name."""
    if not device.startswith("cuda:"):
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    index = int(device.removeprefix("cuda:"))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index] if visible else str(index)
    return "cuda:0"
