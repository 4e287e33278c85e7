"""One video a channel: `albedo.mp4`, or upstream's `clip_0001_albedo.mp4`, with `rgb` as the reference picture."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float, Shaped
from torch import Tensor

from flowshade.color import from_bytes
from flowshade.gbuffer.io.coding import CodedReader
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.picture_folder import channel_in_name
from flowshade.gbuffer.io.video import VideoReader, to_planes

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")
VIDEO_CHANNELS = ("albedo", "depth", "metallic", "normal", "roughness")


class ChannelVideoReader(CodedReader):
    """Reads one video a channel, see this module.

    `path` is a folder that holds one clip, or one of the clip's videos (which names the clip where a folder holds
    several). Options: `CodedReader`.
    """

    format = "video"

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        any_rate = self._conventions.fps is not None
        self._videos = {
            name: VideoReader(path, deep=name != "rgb", any_rate=any_rate) for name, path in self._by_channel().items()
        }
        for what, values in (
            ("frames", {name: video.frames for name, video in self._videos.items()}),
            ("size", {name: video.size for name, video in self._videos.items()}),
            ("frame rate", {n: 0 if any_rate else round(video.fps, 3) for n, video in self._videos.items()}),
        ):
            if len(set(values.values())) > 1:
                listed = ", ".join(f"{name} {value}" for name, value in values.items())
                raise ClipError(
                    f"{self._path}: channels differ in {what}: {listed}; expected the same. Export them again."
                )
        self.top = {name: video.top for name, video in self._videos.items() if name != "rgb"}
        uneven = [name for name, video in self._videos.items() if video.variable_rate]
        if uneven:
            warnings.append(f"{', '.join(uneven)}: of variable frame rate; frames are taken one after another.")
        lossy = [name for name, video in self._videos.items() if video.subsampled and name not in ("rgb", "albedo")]
        if lossy:
            warnings.append(
                f"{', '.join(lossy)}: stored as compressed colour video at half colour resolution; values are inexact."
            )
        first = next(iter(self._videos.values()))
        return first.frames, first.size, first.fps or None

    def _by_channel(self) -> dict[str, Path]:
        clips: dict[str, dict[str, Path]] = {}
        videos = (path for path in self._folder.iterdir() if path.suffix.lower() in VIDEO_SUFFIXES)
        for path in sorted(videos):
            channel, clip = channel_in_name(path.stem) or ("", "")
            if channel in (*VIDEO_CHANNELS, "rgb"):
                if channel in clips.setdefault(clip, {}):
                    raise ClipError(
                        f"{self._folder} holds {channel} twice ({clips[clip][channel].name} and {path.name}); keep one."
                    )
                clips[clip][channel] = path
        clips = {clip: videos for clip, videos in clips.items() if set(videos) - {"rgb"}}
        if self._path.is_file():
            clips = {clip: videos for clip, videos in clips.items() if self._path in videos.values()}
        if not clips:
            raise ClipError(
                f"{self._path} holds no video named after a channel; expected albedo.mp4 or clip_0001_albedo.mp4, with "
                f"{', '.join(VIDEO_CHANNELS)}. Rename them (a plain video is no G-buffer clip)."
            )
        if len(clips) > 1:
            one = next(iter(next(iter(clips.values())).values()))
            raise ClipError(
                f"{self._path} holds the clips {', '.join(clips)}; expected one. Name one of its videos: {one}."
            )
        return next(iter(clips.values()))

    def _has_pictures(self) -> bool:
        return "rgb" in self._videos

    def _raw(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        return to_planes(self._videos[channel].read(start, stop))

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        return from_bytes(self._ordered(self._raw("rgb", start, stop)))

    def close(self) -> None:
        for video in self._videos.values():
            video.close()
