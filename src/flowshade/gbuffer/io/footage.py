"""Pictures without buffers: a video file, a folder of numbered pictures, or one picture, read run by run."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor

from flowshade.color import from_bytes
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_fps
from flowshade.gbuffer.io.pictures import read_picture
from flowshade.gbuffer.io.reader import DEFAULT_FPS, check_name
from flowshade.gbuffer.io.resize import resize_reference
from flowshade.gbuffer.io.sequence import numbered
from flowshade.gbuffer.io.video import VideoReader
from flowshade.types import Frames

PICTURE_SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg")
"""Of pictures that hold display values."""
TOPS = {"uint8": 255, "uint16": 65535}
"""Type of a picture's numbers -> the one that means 1."""


class Footage:
    """A video, a folder of pictures or one picture as frames in display sRGB; nothing is kept between calls.

    Folders are ordered by the last number in each name; gaps and doubles are errors. Transparency is dropped, grey
    becomes RGB.

    Args:
        path: a video file that FFmpeg decodes, a folder of PNG, TIFF or JPEG files, or one of those.
        fps: frames a second; None takes the video's own, and 24 for pictures. Given, a video of variable rate is taken
            frame by frame.

    Raises:
        ClipError: nothing there, no picture stream, no frame, a gap, damage, or a rate that no clip can have.
    """

    def __init__(self, path: Path | str, *, fps: float | None = None) -> None:
        self.path = Path(path)
        check_name(self.path)
        if not self.path.exists():
            raise ClipError(
                f"{self.path}: nothing is there; expected a video, a folder of pictures or a picture. Check the path."
            )
        self._video: VideoReader | None = None
        self._pictures: list[Path] = []
        if self.path.is_dir():
            self._pictures = _pictures_in(self.path)
        elif self.path.suffix.lower() in PICTURE_SUFFIXES:
            self._pictures = [self.path]
        else:
            self._video = VideoReader(self.path, any_rate=fps is not None)
        self.frames = len(self._pictures) if self._video is None else self._video.frames
        self.size: tuple[int, int] = _decode(self._pictures[0]).shape[:2] if self._video is None else self._video.size
        own = DEFAULT_FPS if self._video is None else self._video.fps
        self.fps = check_fps(own if fps is None else fps, f"{self.path}: fps")

    @property
    def is_video(self) -> bool:
        return self._video is not None

    def __len__(self) -> int:
        return self.frames

    def read(self, start: int, stop: int, size: tuple[int, int] | None = None) -> Frames:
        """Frames `start` to `stop` (excluded), [T, 3, H, W], averaged to another height and width if one is given.

        Raises:
            ClipError: frames that are not there, damage, or a picture of another size than the first.
        """
        if not 0 <= start < stop <= self.frames:
            raise ClipError(
                f"{self.path}: frames {start} to {stop} were asked for, it has {self.frames}; expected one or more of "
                "those it has. Give another number of frames."
            )
        if self._video is not None:
            rgb = from_bytes(rearrange(self._video.read(start, stop), "t h w c -> t c h w"))
        else:
            rgb = torch.stack([self._picture(path) for path in self._pictures[start:stop]])
        return Frames(rgb=rgb if size in (None, self.size) else resize_reference(rgb, size).clamp(0, 1))

    def _picture(self, path: Path) -> Tensor:
        values = _decode(path)
        if values.shape[:2] != self.size:
            raise ClipError(
                f"{path} is {values.shape[0]}x{values.shape[1]} pixels and {self._pictures[0].name} "
                f"{self.size[0]}x{self.size[1]}; expected one size. Resize it, or move it away."
            )
        planes = values[..., None] if values.ndim == 2 else values
        planes = planes[..., :1] if planes.shape[-1] < 3 else planes[..., :3]
        rgb = torch.from_numpy(planes.astype(np.float32) / TOPS[str(values.dtype)])  # [H, W, 1 or 3]
        return repeat(rgb, "h w 1 -> 3 h w") if rgb.shape[-1] == 1 else rearrange(rgb, "h w c -> c h w").contiguous()

    def close(self) -> None:
        if self._video is not None:
            self._video.close()

    def __enter__(self) -> Footage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pictures_in(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file()]
    found = [path for path in found if not path.name.startswith(".")]
    if not found:
        raise ClipError(
            f"{folder} holds no pictures; expected files such as frame_0001.png (one of "
            f"{', '.join(PICTURE_SUFFIXES)}). Give a folder of pictures, a video or one picture."
        )
    return found if len(found) == 1 else list(numbered(found, str(folder)).values())


def _decode(path: Path) -> np.ndarray:
    values = read_picture(path)
    if str(values.dtype) not in TOPS:
        raise ClipError(
            f"{path} holds {values.dtype} values; expected a picture of 8 or 16 bits, in display sRGB. Write it so."
        )
    return values
