"""Footage and results on disk: which clips there are, which method has which channels of them, and their frames.

footage/plaza.mp4            a video, or a folder of pictures, or any clip that holds its pictures
method/plaza/                a clip in any format of `flowshade.gbuffer.io`
method/plaza_albedo.mp4      or its videos, named after the clip and the channel
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from flowshade.gbuffer.io import ClipError, ClipReader, VideoReader, open_clip
from flowshade.gbuffer.io.channel_video import VIDEO_SUFFIXES
from flowshade.gbuffer.io.footage import PICTURE_SUFFIXES
from flowshade.gbuffer.io.picture_folder import channel_in_name
from flowshade.gbuffer.io.pictures import read_picture
from flowshade.gbuffer.io.sequence import numbered
from flowshade.gbuffer.view import channel_picture, to_uint8
from flowshade.progress import Progress
from flowshade.types import GBuffer


class Pictures:
    """The RGB pictures of one clip of footage, decoded when asked for.

    Args:
        path: a video, a folder of numbered pictures, or a clip that comes with its pictures.

    Raises:
        ClipError: none of these.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._video: VideoReader | None = None
        self._files: list[Path] = []
        self._clip: ClipReader | None = None
        if path.is_file():
            self._video = VideoReader(path, any_rate=True)
            self.frames = self._video.frames
        elif files := _plain_pictures(path):
            self._files = list(numbered(files, str(path)).values())
            self.frames = len(self._files)
        else:
            self._clip = open_clip(path)
            if not self._clip.info.has_reference:
                self._clip.close()
                raise ClipError(f"{path} is a clip without pictures; expected RGB footage. Give the folder of videos.")
            self.frames = self._clip.info.frames

    def read(self, start: int, stop: int) -> UInt8[Tensor, "T H W 3"]:
        """Frames `start` to `stop` (excluded) as display bytes."""
        if self._video is not None:
            return self._video.read(start, stop).to(torch.uint8)
        if self._clip is not None:
            pictures = self._clip.reference(start, stop)
            assert pictures is not None
            return to_uint8(pictures)
        return torch.stack([_display(path) for path in self._files[start:stop]])

    def close(self) -> None:
        for reader in (self._video, self._clip):
            if reader is not None:
                reader.close()


def _plain_pictures(folder: Path) -> list[Path]:
    """Pictures of a folder that are named after no channel, so that they must be footage."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file()]
    return [path for path in files if (channel_in_name(path.stem) or ("rgb",))[0] == "rgb"]


def _display(path: Path) -> UInt8[Tensor, "H W 3"]:
    picture = read_picture(path)
    if picture.dtype == np.uint16:
        picture = (picture / 257).round().astype(np.uint8)
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, -1)
    return torch.from_numpy(np.ascontiguousarray(picture[..., :3]))


def find_footage(folder: Path) -> dict[str, Path]:
    """The clips of a folder of footage by name: its videos, and its folders.

    Raises:
        ClipError: no folder, nothing in it, or two of one name.
    """
    if not folder.is_dir():
        raise ClipError(f"{folder} is no folder; expected one with a video or a folder of pictures for each clip.")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not (path.is_dir() or path.suffix.lower() in VIDEO_SUFFIXES):
            continue
        name = path.stem if path.is_file() else path.name
        if name in found:
            raise ClipError(f"{folder} holds the clip {name} twice ({found[name].name}, {path.name}); keep one.")
        found[name] = path
    if not found:
        raise ClipError(
            f"{folder} holds no clip; expected videos ({', '.join(VIDEO_SUFFIXES)}) or folders of pictures."
        )
    return found


def find_result(folder: Path, clip: str) -> Path | None:
    """A method's result for a clip: the folder of that name, or the first of the videos named after it."""
    if (folder / clip).is_dir():
        return folder / clip
    for path in sorted(folder.iterdir()):
        named = channel_in_name(path.stem) if path.suffix.lower() in VIDEO_SUFFIXES else None
        if named is not None and named[0] != "rgb" and named[1].rstrip("._-") == clip:
            return path
    return None


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The footage, and every method's results for it."""

    footage: dict[str, Path]
    results: dict[str, dict[str, Path]]
    """Method -> clip -> its result."""
    channels: dict[tuple[str, str], tuple[str, ...]]
    """(method, clip) -> channels it has."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.results)

    @staticmethod
    def find(footage: Path, methods: dict[str, Path], *, clips: Sequence[str] = ()) -> Contest:
        """Looks at the folders. Every result is opened once, so that mistakes are found before anything is asked.

        Args:
            footage: folder of videos, folders of pictures or clips.
            methods: name -> folder of results.
            clips: only these; all if empty.

        Raises:
            ClipError: a folder that is missing, a clip that no method has, or a result that cannot be read.
        """
        found = find_footage(footage)
        if unknown := [name for name in clips if name not in found]:
            raise ClipError(f"{footage} has no clip {unknown[0]!r}; expected one of {', '.join(found)}.")
        found = {name: path for name, path in found.items() if not clips or name in clips}
        results: dict[str, dict[str, Path]] = {}
        channels: dict[tuple[str, str], tuple[str, ...]] = {}
        for method, folder in methods.items():
            if not folder.is_dir():
                raise ClipError(f"method {method}: {folder} is no folder; expected one result a clip in it.")
            pairs = [(clip, find_result(folder, clip)) for clip in found]
            results[method] = {clip: path for clip, path in pairs if path is not None}
            if not results[method]:
                raise ClipError(
                    f"method {method}: {folder} has no result for {', '.join(list(found)[:4])}; expected folders or "
                    "videos named after the clips of the footage. Rename them."
                )
            for clip, path in results[method].items():
                with open_clip(path) as reader:
                    channels[method, clip] = reader.info.channels
        return Contest(footage=found, results=results, channels=channels)

    def complete(self, channel: str) -> list[str]:
        """The clips of which every method has this channel: blocks that can be ranked and compared."""
        return [
            clip
            for clip in self.footage
            if all(channel in self.channels.get((method, clip), ()) for method in self.methods)
        ]

    def lacking(self, channel: str) -> list[str]:
        """In words: which methods lack this channel of which clips."""
        return [
            f"{method} has no {channel} of {clip}"
            for clip in self.footage
            for method in self.methods
            if channel not in self.channels.get((method, clip), ())
        ]

    def digest(self) -> str:
        """sha256 over the names and contents of all files, to tell whether a stopped run still judges the same."""
        total = hashlib.sha256()
        named = [("", clip, path) for clip, path in self.footage.items()]
        named += [(method, clip, path) for method, all_of in self.results.items() for clip, path in all_of.items()]
        for method, clip, path in named:
            for file in _files_of(path, clip):
                total.update(f"{method}\0{clip}\0{file.name}\0".encode())
                with file.open("rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()


def _files_of(path: Path, clip: str) -> list[Path]:
    """The files of a clip: all below its folder, or for a video named after clip and channel its neighbours too."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    named = channel_in_name(path.stem)
    if named is None or path.stem == clip:
        return [path]
    return sorted(file for file in path.parent.iterdir() if file.is_file() and file.name.startswith(named[1]))


class OpenClip:
    """One clip of the footage with every method's result, open for reading; use it in a `with` block."""

    def __init__(self, contest: Contest, clip: str) -> None:
        self.clip = clip
        with ExitStack() as opened:
            self.rgb = opened.enter_context(closing(Pictures(contest.footage[clip])))
            self.results = {
                name: opened.enter_context(open_clip(paths[clip]))
                for name, paths in contest.results.items()
                if clip in paths
            }
            self._opened = opened.pop_all()

    @property
    def frames(self) -> int:
        """Frames that the footage and all results have; they are matched from the first on."""
        return min([self.rgb.frames, *(reader.info.frames for reader in self.results.values())])

    def shown(self, channel: str, wanted: Sequence[int], size: tuple[int, int]) -> dict[str, UInt8[Tensor, "T H W 3"]]:
        """A channel of every method as pictures of frames `wanted` at `size` (height, width).

        All methods share one code (`flowshade.gbuffer.view`). Depth is first divided by the clip's median and shown as
        1 / (z + 1), so that a factor of scale changes nothing.
        """
        return {name: self._shown(reader, channel, wanted, size) for name, reader in self.results.items()}

    def _shown(self, reader: ClipReader, channel: str, wanted: Sequence[int], size: tuple[int, int]) -> Tensor:
        parts = [reader.read(index, index + 1) for index in wanted]
        if channel == "depth":
            parts = _even_depth(parts)
        return resize_bytes(torch.cat([channel_picture(part, channel) for part in parts]), size)

    def footage(self, wanted: Sequence[int], size: tuple[int, int]) -> UInt8[Tensor, "T H W 3"]:
        """The RGB pictures of frames `wanted` at `size`."""
        return resize_bytes(torch.cat([self.rgb.read(index, index + 1) for index in wanted]), size)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the footage."""
        height, width = self.rgb.read(0, 1).shape[1:3]
        return height, width

    def __enter__(self) -> OpenClip:
        return self

    def __exit__(self, *stopped: object) -> None:
        self._opened.close()


def _even_depth(parts: list[GBuffer]) -> list[GBuffer]:
    from flowshade.gbuffer.view import DEPTH_SCALE_METRES

    depths = [part.depth for part in parts if part.depth is not None]
    finite = torch.cat([depth[depth.isfinite()] for depth in depths])
    if not finite.numel() or finite.median() <= 0:
        return parts
    factor = DEPTH_SCALE_METRES / finite.median()
    return [GBuffer(depth=depth * factor) for depth in depths]


def resize_bytes(pictures: UInt8[Tensor, "T H W 3"], size: tuple[int, int]) -> UInt8[Tensor, "T h w 3"]:
    """Pictures at another size; averaged when made smaller."""
    if tuple(pictures.shape[1:3]) == size:
        return pictures
    smaller = size[0] < pictures.shape[1]
    how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    resized = [cv2.resize(picture.numpy(), (size[1], size[0]), interpolation=how) for picture in pictures]
    return torch.from_numpy(np.stack(resized))


def each_clip(contest: Contest, progress: Progress) -> Iterator[OpenClip]:
    """Every clip of the footage in turn, open."""
    for index, clip in enumerate(contest.footage):
        with OpenClip(contest, clip) as opened:
            yield opened
        progress(index + 1, len(contest.footage))
