"""What is evaluated: suites of clips, each in one or more looks, with or without reference pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from flowshade.color import from_bytes
from flowshade.errors import FlowshadeError
from flowshade.evaluation.control import LOOKED_AT, LookPictures, fog_extinction, look_features, mean_radiance
from flowshade.evaluation.metrics import quantise
from flowshade.evaluation.worlds import HELD_OUT_SEED, WorldSuite, reference_clip
from flowshade.gbuffer.io import ClipReader, VideoReader, find_clips, open_clip, resize
from flowshade.gbuffer.io.pictures import read_png
from flowshade.gbuffer.io.resize import resize_reference
from flowshade.gbuffer.io.video import to_planes
from flowshade.gbuffer.look import FOGS, LAMPS, LOOKS, Look
from flowshade.types import CHANNELS, GBuffer


@dataclass(frozen=True, kw_only=True)
class Case:
    """One clip in one look: what a method is given and, if known, what should come out."""

    clip: str
    """Name of the clip, unique in its suite and fit for file names."""
    look: str
    """Name of the look; for clips whose light is no look of ours, "as filmed"."""
    caption: str
    """What the renderer is told; empty = it is told each of the suite's looks, and the closest one counts."""
    gbuffer: GBuffer
    fps: float
    reference: Tensor | None = None
    """[T, 3, H, W] display sRGB in [0, 1], rounded to 8 bits."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Wordings that ask for more and more of one thing, with the looks they mean."""

    name: str
    words: tuple[str, ...]
    captions: tuple[str, ...]
    looks: tuple[Look, ...]
    unit: str
    """What is measured, in words."""
    measure: Callable[[Tensor, GBuffer], float]
    """Pictures [T, 3, H, W] and their buffers to how much of it they show."""


def _fog_ladder() -> Ladder:
    looks = tuple(dataclasses.replace(LOOKS["overcast"], fog_density=density) for density in FOGS)
    return Ladder(
        name="fog",
        words=tuple(FOGS.values()),
        captions=tuple(look.caption() for look in looks),
        looks=looks,
        unit="extinction per metre",
        measure=fog_extinction,
    )


def _lamp_ladder() -> Ladder:
    looks = tuple(dataclasses.replace(LOOKS["night"], lamps=lamps) for lamps in LAMPS)
    return Ladder(
        name="lamps",
        words=tuple(LAMPS.values()),
        captions=tuple(look.caption() for look in looks),
        looks=looks,
        unit="mean radiance",
        measure=lambda pictures, _: mean_radiance(pictures),
    )


LOOK_SEED = HELD_OUT_SEED + 500_000
"""Worlds from this seed on are only used to train the classifier of looks."""
LOOK_WORLDS = 40

LADDERS = (_fog_ladder(), _lamp_ladder())
"""Monotone controls: fog (measured as extinction per metre) and lamps at night (as mean radiance)."""


class Suite(Protocol):
    """A fixed list of clips."""

    name: str
    looks: tuple[str, ...]
    ladders: tuple[Ladder, ...]
    """Monotone controls that it can be asked for; none where there is no world to trace."""

    @property
    def clips(self) -> list[str]:
        """Names of the clips, in order."""
        ...

    def settings(self) -> dict[str, Any]:
        """What the clips depend on, for JSON: results of other settings are not mixed."""
        ...

    def cases(self, index: int) -> Iterator[Case]:
        """One clip in each of its looks."""
        ...

    def look_pictures(self) -> Iterator[LookPictures]:
        """Reference pictures of further worlds, to train the classifier of looks with; none where there are none."""
        ...

    def ladder_frames(self, index: int, frame: int) -> tuple[GBuffer, dict[str, list[Tensor]]]:
        """A clip's frames up to `frame`, and by ladder the reference pictures [1, 3, H, W] of that one in its looks."""
        ...


class HeldOutWorlds:
    """Worlds from seeds that are never trained on, traced when asked for, in canonical looks."""

    name = "worlds"
    ladders = LADDERS

    def __init__(self, suite: WorldSuite, device: str = "cpu") -> None:
        self._suite = suite
        self._device = device
        self.looks = suite.looks

    @property
    def clips(self) -> list[str]:
        kinds = self._suite.kinds
        return [f"{kinds[index % len(kinds)]}-{HELD_OUT_SEED + index}" for index in range(self._suite.worlds)]

    def settings(self) -> dict[str, Any]:
        listed = dataclasses.asdict(self._suite)
        return {name: value for name, value in listed.items() if name not in ("worlds", "steps", "window")}

    def cases(self, index: int) -> Iterator[Case]:
        clip = reference_clip(self._suite, index, self._device, channels=tuple(CHANNELS))
        for name, rgb in clip.pictures.items():
            yield Case(
                clip=self.clips[index],
                look=name,
                caption=LOOKS[name].caption(),
                gbuffer=clip.gbuffer,
                fps=self._suite.fps,
                reference=quantise(rgb),
            )

    def look_pictures(self) -> Iterator[LookPictures]:
        """One small frame of each of `LOOK_WORLDS` worlds in every look."""
        suite = dataclasses.replace(self._suite, frames=1, size=LOOKED_AT)
        for index in range(LOOK_WORLDS):
            clip = reference_clip(suite, index, self._device, first_seed=LOOK_SEED)
            for look, rgb in clip.pictures.items():
                features = look_features(quantise(rgb)).cpu()
                yield LookPictures(world=f"{clip.kind}-{clip.seed}", look=look, method="reference", features=features)

    def ladder_frames(self, index: int, frame: int) -> tuple[GBuffer, dict[str, list[Tensor]]]:
        from flowshade.gbuffer.rollout import rollout
        from flowshade.gbuffer.trace import Tracer
        from flowshade.world import make_world

        suite = self._suite
        seed = HELD_OUT_SEED + index
        world = make_world(suite.kinds[index % len(suite.kinds)], seed, fps=suite.fps)
        tracer = Tracer(
            world.model, size=suite.size, device=self._device, samples=suite.samples, reference=suite.reference
        )
        before = [traced.gbuffer for traced in rollout(world, tracer, frames=frame, seed=seed)]
        looks = [look for ladder in self.ladders for look in ladder.looks]
        (last,) = rollout(
            world, tracer, frames=frame + 1, looks=looks, seed=seed, wanted=lambda number: number == frame
        )
        pictures = iter(last.pictures)
        shown = {ladder.name: [next(pictures) for _ in ladder.looks] for ladder in self.ladders}
        return GBuffer.cat([*before, last.gbuffer]), shown


class RecordedClips:
    """Clips on disk, of any format: scored against the pictures that came with them, or without any.

    Args:
        name: "cycles" (every clip holds reference pictures) or "files" (none is looked for).
        paths: clips, or folders of clips.
        looks: what the renderer is told. With reference pictures, the look whose first frames come closest counts.
        frames: at most this many of each clip.
        size: height and width to resize to; None keeps each clip's own.

    Raises:
        FlowshadeError: no clip was found, or one without reference pictures where they are needed.
    """

    ladders: tuple[Ladder, ...] = ()

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        *,
        looks: tuple[str, ...],
        frames: int | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.looks = looks
        self._frames, self._size = frames, size
        if not paths:
            raise FlowshadeError("no clips were given; expected one or more clips, or folders of clips.")
        self._paths = _named([clip for path in paths for clip in find_clips(path)])
        if name == "cycles":
            self._check_references()

    def _check_references(self) -> None:
        for name, path in self._paths.items():
            with open_clip(path) as clip:
                if not clip.info.has_reference:
                    raise FlowshadeError(
                        f"clip {name} ({path}) holds no reference pictures; expected them in this suite. Leave it out, "
                        "or use: flowshade eval files"
                    )

    @property
    def clips(self) -> list[str]:
        return list(self._paths)

    def settings(self) -> dict[str, Any]:
        return {"looks": list(self.looks), "frames": self._frames, "size": self._size and list(self._size)}

    def cases(self, index: int) -> Iterator[Case]:
        name = self.clips[index]
        with open_clip(self._paths[name]) as clip:
            stop = len(clip) if self._frames is None else min(self._frames, len(clip))
            gbuffer, fps = self._sized(clip.read(0, stop)), clip.info.fps
            reference = self._reference(clip, stop) if self.name == "cycles" else None
        if reference is not None:
            yield Case(clip=name, look="as filmed", caption="", gbuffer=gbuffer, fps=fps, reference=reference)
            return
        for look in self.looks:
            yield Case(clip=name, look=look, caption=LOOKS[look].caption(), gbuffer=gbuffer, fps=fps)

    def _sized(self, gbuffer: GBuffer) -> GBuffer:
        return gbuffer if self._size is None else resize(gbuffer, self._size)

    def _reference(self, clip: ClipReader, stop: int) -> Tensor:
        rgb = clip.reference(0, stop)
        assert rgb is not None, "checked when the suite was made"
        return quantise(rgb if self._size is None else resize_reference(rgb, self._size))

    def look_pictures(self) -> Iterator[LookPictures]:
        return iter(())

    def ladder_frames(self, index: int, frame: int) -> tuple[GBuffer, dict[str, list[Tensor]]]:
        raise AssertionError("clips on disk have no ladders")


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Clips by the names of their files; the second of a name gets -2."""
    named: dict[str, Path] = {}
    for path in paths:
        base, count = path.resolve().stem or "clip", 1
        name = base
        while name in named:
            count += 1
            name = f"{base}-{count}"
        named[name] = path
    return named


class PredictedVideos:
    """Somebody else's results: CLIP.LOOK.mp4, or a folder CLIP.LOOK of PNG pictures; CLIP alone where a clip has one
    look.

    Raises:
        FlowshadeError: the folder does not exist.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FlowshadeError(f"{folder} is no folder; expected one that holds CLIP.LOOK.mp4 files.")
        self.folder = folder
        self.name = folder.resolve().name

    def pictures(self, case: Case) -> Tensor:
        """[T, 3, H, W] display sRGB in [0, 1] of a case, brought to its size.

        Raises:
            FlowshadeError: nothing is there for it, or fewer frames than the clip has.
        """
        path = self._find(case)
        if path.is_dir():
            files = sorted(path.glob("*.png"))
            frames = [torch.from_numpy(read_png(file)) for file in files[: case.gbuffer.frames]]
            pictures = torch.stack(frames) if frames else torch.zeros(0)
        else:
            with VideoReader(path) as video:
                pictures = video.read(0, min(video.frames, case.gbuffer.frames))
        if pictures.shape[0] < case.gbuffer.frames:
            raise FlowshadeError(
                f"{path} has {pictures.shape[0]} frames; expected {case.gbuffer.frames}, as many as the clip. Render "
                "the whole clip, or give fewer --frames."
            )
        return resize_reference(from_bytes(to_planes(pictures[..., :3])), case.gbuffer.size)

    def _find(self, case: Case) -> Path:
        stems = [f"{case.clip}.{case.look}", case.clip]
        tried = [self.folder / f"{stem}{suffix}" for stem in stems for suffix in (".mp4", "")]
        for path in tried:
            if path.exists():
                return path
        raise FlowshadeError(
            f"{self.folder} holds nothing for {case.clip} in look {case.look!r}; expected {tried[0].name} or a folder "
            f"{tried[1].name} of PNG pictures."
        )
