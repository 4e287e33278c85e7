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
from flowshade.gbuffer.io import ClipError, open_clip
from flowshade.gbuffer.io.reader import look_for_format
from flowshade.gbuffer.io.upstream import clips_below
from flowshade.renderer.teacher import fit
from flowshade.renderer.upstream import BUFFERS
from flowshade.upstream import coded_planes

HELD_OUT = 0.05
"""Share of clips that are never learned from."""
DEPTH = 4
"""How many folders down clips are looked for."""
LOOSE_FORMATS = ("pictures", "video")
"""Formats that a folder of other clips may look like."""


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


def find_clips(folders: Sequence[Path]) -> list[Clip]:
    """Every clip in the folders, which may be clips themselves; the same ones are held out on every machine.

    Raises:
        FlowshadeError: a folder without clips, a clip that cannot be read or lacks a buffer, or fewer than two clips.
    """
    clips: dict[str, Clip] = {}
    for folder in folders:
        paths = _clips_in(folder)
        if not paths:
            raise FlowshadeError(f"{folder} holds no clip; expected clip folders in it. See: flowshade inspect CLIP.")
        for path in paths:
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


def _clips_in(path: Path, depth: int = DEPTH) -> list[Path]:
    if not path.exists():
        raise ClipError(f"{path}: nothing is there; expected a folder of clips. Check the path.")
    try:
        found = look_for_format(path).name
    except ClipError:
        found = None
    if found == "upstream" and (below := clips_below(path)):
        return below
    if found is not None and found not in LOOSE_FORMATS:
        return [path]
    below = [] if depth == 0 or not path.is_dir() else [entry for entry in sorted(path.iterdir()) if entry.is_dir()]
    inner = [clip for entry in below if not entry.name.startswith(".") for clip in _strict_clips(entry, depth - 1)]
    if found is None:
        return inner
    try:
        open_clip(path).close()
    except ClipError:
        if not inner:
            raise
        return inner
    return [path]


def _strict_clips(path: Path, depth: int) -> list[Path]:
    """Clips in a folder below; a folder of stray pictures there is no clip and no mistake."""
    try:
        return _clips_in(path, depth)
    except ClipError:
        if _is_loose(path):
            return []
        raise


def _is_loose(path: Path) -> bool:
    return look_for_format(path).name in LOOSE_FORMATS
