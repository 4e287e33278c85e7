"""Clips in folders of clips: a dataset, a session of AlayaRenderer's, or one clip alone."""

from __future__ import annotations

from pathlib import Path

from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.reader import look_for_format, open_clip
from flowshade.gbuffer.io.upstream import clips_below

DEPTH = 4
"""How many folders down clips are looked for."""
LOOSE_FORMATS = ("pictures", "video")
"""Formats that a folder of other things may look like: it is a clip if it opens as one."""


def find_clips(path: Path) -> list[Path]:
    """The clip at a path, else the clips in the folders below it, by name; hidden folders are left out.

    What looks like a clip counts, whether or not it can be read: opening it says what is wrong with it.

    Raises:
        ClipError: nothing is there, or no clip; says what the reader made of it.
    """
    clips = _clips_in(path, DEPTH) if path.exists() else []
    if not clips:
        try:
            open_clip(path).close()
        except ClipError as error:
            raise ClipError(f"no clip was found in {path}: {error}") from error
    return clips


def _clips_in(path: Path, depth: int) -> list[Path]:
    format = _format_of(path)
    if format == "upstream" and (below := clips_below(path)):
        return below
    if format is not None and (format not in LOOSE_FORMATS or _opens(path)):
        return [path]
    folders = sorted(path.iterdir()) if depth and path.is_dir() else []
    shown = [folder for folder in folders if folder.is_dir() and not folder.name.startswith(".")]
    return [clip for folder in shown for clip in _clips_in(folder, depth - 1)]


def _format_of(path: Path) -> str | None:
    stated = ClipConventions.beside(path).format
    try:
        return stated or look_for_format(path).name
    except ClipError:
        return None


def _opens(path: Path) -> bool:
    try:
        open_clip(path).close()
    except ClipError:
        return False
    return True
