"""The clips that a distillation learns from: found in folders, some held out, read as upstream's 8-bit planes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from flowshade.color import to_bytes
from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import find_clips, open_clip
from flowshade.renderer.teacher import fit
from flowshade.renderer.upstream import BUFFERS
from flowshade.upstream import coded_planes

HELD_OUT = 0.05
"""Share of clips that are never learned from."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A clip on disk."""

    path: Path
    name: str
    """Below the folder that was given, with that folder's own name: the same on every machine."""
    frames: int
    size: tuple[int, int]
    caption: str
    has_reference: bool
    """Whether pictures of the scene come with the buffers."""
    held_out: bool = False

    def planes(self, start: int, stop: int, size: tuple[int, int]) -> UInt8[Tensor, "T D 3 H W"]:
        """Frames `start` to `stop` of the buffers, in the order `BUFFERS`, resized with Lanczos."""
        with open_clip(self.path) as reader:
            planes = coded_planes(reader, start, stop, size)
        return torch.stack([planes[name] for name in BUFFERS], 1)

    def pictures(self, start: int, stop: int, size: tuple[int, int]) -> UInt8[Tensor, "T 3 H W"]:
        """The pictures that came with the buffers, or albedo where there are none; resized with Lanczos."""
        if not self.has_reference:
            return self.planes(start, stop, size)[:, BUFFERS.index("albedo")]
        with open_clip(self.path) as reader:
            rgb = reader.reference(start, stop)
        assert rgb is not None
        return fit(to_bytes(rgb), size)


def gather_clips(folders: Sequence[Path]) -> list[Clip]:
    """Every clip in the folders, which may be clips themselves; the same ones are held out on every machine.

    Raises:
        FlowshadeError: a folder without clips, a clip that cannot be read or lacks a buffer, or fewer than two clips.
    """
    clips: dict[str, Clip] = {}
    for folder in folders:
        for path in find_clips(folder):
            name = path.relative_to(folder.parent).as_posix() if path != folder else folder.absolute().name
            if name in clips:
                raise FlowshadeError(
                    f"{path} and {clips[name].path} are both called {name}; rename one of the folders."
                )
            clips[name] = _open(path, name)
    if len(clips) < 2:
        raise FlowshadeError(
            "one clip was found; expected two or more, since some are held out. Cut it into two with: "
            "flowshade convert --start N --frames N."
        )
    held = held_out(list(clips))
    return [dataclasses.replace(clip, held_out=name in held) for name, clip in sorted(clips.items())]


def held_out(names: Sequence[str]) -> set[str]:
    """Which clips are held out: by a hash of their names, so that further clips change nothing; at least one."""
    place = {name: int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) / 16**12 for name in names}
    return {name for name in names if place[name] < HELD_OUT} or {min(names, key=lambda name: place[name])}


def _open(path: Path, name: str) -> Clip:
    with open_clip(path) as reader:
        info = reader.info
        planes = coded_planes(reader, 0, 1)  # says in a sentence which buffer is missing
    assert set(planes) == set(BUFFERS)
    return Clip(
        path=path, name=name, frames=info.frames, size=info.size, caption=info.caption, has_reference=info.has_reference
    )
