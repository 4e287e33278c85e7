"""AlayaRenderer's dataset: `<session>/clip_NNNN/clip_NNNN_{rgb,albedo,...}.mp4` and `metadata_with_captions.csv`.

The table has the columns `video` and `prompt`; a clip's row names one of its videos, or its folder, relative to the
table. Depth is in a code that is not published: it stays out of metres unless one is stated, and upstream's own model
takes its bytes as they are (`ClipReader.coded`).
"""

from __future__ import annotations

import csv
from pathlib import Path, PurePosixPath

from flowshade.errors import reason
from flowshade.gbuffer.io.channel_video import ChannelVideoReader
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import MAX_JSON_BYTES
from flowshade.gbuffer.io.picture_folder import channel_in_name

METADATA = "metadata_with_captions.csv"
COLUMNS = ("video", "prompt")
LEVELS = 3
"""How many folders up from a clip its table may lie."""


def find_metadata(path: Path) -> Path | None:
    """The table that a clip (a folder or one of its videos) belongs to; None where there is none."""
    folder = path if path.is_dir() else path.parent
    candidates = [folder, *folder.absolute().parents[: LEVELS - 1]]
    return next((parent / METADATA for parent in candidates if (parent / METADATA).is_file()), None)


def read_metadata(path: Path) -> dict[str, str]:
    """`video` -> `prompt`.

    Raises:
        ClipError: another table, or none.
    """
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ClipError(f"{path} has {path.stat().st_size} bytes; at most {MAX_JSON_BYTES} are read.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            lacking = [name for name in COLUMNS if name not in (table.fieldnames or ())]
            if lacking:
                raise ClipError(f"{path} has no column {lacking[0]!r}; expected {', '.join(COLUMNS)}. Write it again.")
            return {row["video"]: row["prompt"] or "" for row in table if row["video"]}
    except (UnicodeDecodeError, csv.Error) as error:
        raise ClipError(
            f"{path} is no table of text ({reason(error)}); expected CSV in UTF-8. Write it again."
        ) from error


def caption_of(path: Path, metadata: Path) -> str:
    """The prompt of a clip's row; empty where the table has none for it, or by its name alone several."""
    clip = _clip_folder(path)
    named_after = channel_in_name(path.stem) if path.is_file() else None
    name = (named_after[1] if named_after else "") or clip.name
    root = metadata.parent.absolute()
    by_name: set[str] = set()
    for video, prompt in read_metadata(metadata).items():
        named = PurePosixPath(video.replace("\\", "/"))
        whole = root / named
        if whole in (clip, path.absolute()) or (whole.parent == clip and clip != root):
            return prompt
        if named.stem == name or named.stem.startswith(f"{name}_") or named.parent.name == name:
            by_name.add(prompt)
    return by_name.pop() if len(by_name) == 1 else ""


def _clip_folder(path: Path) -> Path:
    return (path if path.is_dir() else path.parent).absolute()


def clips_below(path: Path) -> list[Path]:
    """Folders of clips below a session or a dataset."""
    if not path.is_dir():
        return []
    return sorted({video.parent for depth in ("*", "*/*") for video in path.glob(f"{depth}/*albedo.mp4")})


def is_upstream(path: Path) -> bool:
    """Whether a path is a clip with a table, or a session or dataset with one."""
    if find_metadata(path) is None:
        return False
    folder = path if path.is_dir() else path.parent
    return any(folder.glob("*.mp4")) or bool(clips_below(path))


class UpstreamReader(ChannelVideoReader):
    """Reads a clip of AlayaRenderer's dataset, see this module. Options: `CodedReader`."""

    format = "upstream"

    def _by_channel(self) -> dict[str, Path]:
        clips = clips_below(self._path)
        if clips:
            listed = ", ".join(str(clip.relative_to(self._path)) for clip in clips[:6])
            raise ClipError(
                f"{self._path} holds {len(clips)} clips ({listed}{', ...' if len(clips) > 6 else ''}); expected one. "
                f"Name it: {clips[0]}."
            )
        return super()._by_channel()

    def _caption(self) -> str:
        metadata = find_metadata(self._path)
        return super()._caption() or (caption_of(self._path, metadata) if metadata is not None else "")
