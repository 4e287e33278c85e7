"""DiffusionRenderer's folders: `gbuffer_frames/<clip>/<chunk:04d>.<frame:04d>.<pass>.jpg`, passes as in `PASSES`.

Chunks follow one another; the frames of each are counted from its own beginning. How depth is coded is not published.
"""

from __future__ import annotations

import re
from pathlib import Path

from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.picture_folder import PictureFolderReader, pictures_in
from flowshade.gbuffer.io.sequence import check_no_gap

PASSES = {
    "basecolor": "albedo",
    "normal": "normal",
    "depth": "depth",
    "roughness": "roughness",
    "metallic": "metallic",
    "rgb": "rgb",
}
FOLDER = "gbuffer_frames"
_NAME = re.compile(rf"(\d{{4}})\.(\d{{4}})\.({'|'.join(PASSES)})\.(?:jpe?g|png)", re.IGNORECASE)


def find_clip(path: Path) -> Path | None:
    """The one clip's folder below `path`, or `path` itself; None where no file is named as DiffusionRenderer's are.

    Raises:
        ClipError: several clips.
    """
    if not path.is_dir():
        return None
    if _holds_frames(path):
        return path
    root = path / FOLDER if (path / FOLDER).is_dir() else path
    if root.name != FOLDER:
        return None
    clips = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and _holds_frames(folder)]
    if len(clips) > 1:
        raise ClipError(
            f"{root} holds the clips {', '.join(clip.name for clip in clips[:6])}; expected one. Name it: {clips[0]}."
        )
    return clips[0] if clips else None


def _holds_frames(folder: Path) -> bool:
    return any(_NAME.fullmatch(path.name) for path in folder.iterdir())


class DiffusionRendererReader(PictureFolderReader):
    """Reads DiffusionRenderer's `gbuffer_frames`, see this module. Options: `CodedReader`."""

    format = "diffusion-renderer"

    def _by_channel(self) -> dict[str, list[Path]]:
        clip = find_clip(self._path)
        if clip is None:
            raise ClipError(
                f"{self._path} holds no files such as 0000.0000.basecolor.jpg; expected some. Export it so."
            )
        found: dict[str, list[Path]] = {}
        for path in pictures_in(clip):
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found.setdefault(PASSES[match[3].lower()], []).append(path)
        return found

    def _by_frame(self, found: dict[str, list[Path]]) -> dict[str, dict[int, Path]]:
        return {name: _in_order(paths) for name, paths in found.items()}


def _in_order(paths: list[Path]) -> dict[int, Path]:
    """Files of one pass by frame, counted over all chunks."""
    chunks: dict[int, dict[int, Path]] = {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        assert match is not None
        frames = chunks.setdefault(int(match[1]), {})
        if int(match[2]) in frames:
            raise ClipError(f"{path.parent}: {frames[int(match[2])].name} and {path.name} are one frame; keep one.")
        frames[int(match[2])] = path
    folder = paths[0].parent
    check_no_gap(sorted(chunks), f"{folder}, chunks")
    ordered: list[Path] = []
    for chunk, frames in sorted(chunks.items()):
        if 0 not in frames:
            raise ClipError(f"{folder}: chunk {chunk} begins with frame {min(frames)}; expected 0. Export it again.")
        check_no_gap(sorted(frames), f"{folder}, chunk {chunk}")
        ordered += [frames[number] for number in sorted(frames)]
    return dict(enumerate(ordered))
