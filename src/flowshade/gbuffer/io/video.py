"""Pictures in video files: H.264 in MP4, written and read frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import av.error
import numpy as np
import torch
from av.audio.layout import AudioLayout
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from einops import rearrange
from jaxtyping import Shaped, UInt8
from torch import Tensor

from flowshade.errors import reason
from flowshade.files import temporary_beside
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_fps, check_picture, check_size
from flowshade.gbuffer.io.outputs import check_file, writing
from flowshade.types import Frames

BT709 = 1
"""The number H.264 gives to BT.709 primaries, transfer and matrix."""
# FFmpeg's quick conversions between RGB and YUV darken by about one step of 255 each; these round.
TO_YUV = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP
TO_RGB = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


PREROLL = 0.1
"""Seconds of sound before the first picture that are kept: decoders of AAC need a packet to start from."""


class VideoWriter:
    """Writes pictures to an MP4 file, in constant memory.

    The file appears under its own name when `close` is called (or the `with` block ends well); until then, and
    after an error, only a temporary neighbour exists and is removed. H.264 with 4:2:0 chroma wants even sizes:
    odd ones are padded by repeating the last row or column (`padded` says so).

    Args:
        path: an .mp4 file.
        fps: frames per second.
        size: height and width of the pictures in pixels.
        crf: H.264 quality, 0 (best) to 51; 18 is visually lossless.
        lossless: keep every byte (RGB H.264). Data survives; browsers do not play it.
        overwrite: replace an existing file.
        sound: a file whose first audio stream goes along, as long as the pictures last; copied where MP4 can hold it,
            else encoded as AAC. None, or a file without audio: no sound.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        fps: float,
        size: tuple[int, int],
        crf: int = 18,
        lossless: bool = False,
        overwrite: bool = True,
        sound: Path | None = None,
    ) -> None:
        self.path = Path(path)
        self.size = size
        self.frames = 0
        height, width = size
        self.padded = size if lossless else (height + height % 2, width + width % 2)
        _check_video_request(self.path, fps, size, overwrite)
        self._lossless, self._fps = lossless, fps
        self._sound: SoundTrack | None = None
        self._temporary = temporary_beside(self.path)
        self._container: OutputContainer | None = None
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            container = av.open(_url(self._temporary), "w", format="mp4", options={"movflags": "faststart"})
            self._container = container
            try:
                self._stream = self._add_stream(container, fps, crf)
                self._sound = None if sound is None else SoundTrack.of(sound, container)
            except BaseException:
                self.discard()
                raise

    def _add_stream(self, container: OutputContainer, fps: float, crf: int) -> av.VideoStream:
        codec, options = ("libx264rgb", {"qp": "0"}) if self._lossless else ("libx264", {"crf": str(crf)})
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001), options=options)
        stream.height, stream.width = self.padded
        stream.pix_fmt = "rgb24" if self._lossless else "yuv420p"
        if not self._lossless:
            # Untagged files are played with whichever matrix the player prefers, which shifts colours.
            context = stream.codec_context
            context.colorspace = context.color_primaries = context.color_trc = BT709
            context.color_range = ColorRange.MPEG
        return stream

    def append(self, pictures: UInt8[Tensor, "T H W 3"] | np.ndarray | Frames) -> None:
        """Adds pictures: uint8 [T, H, W, 3] display sRGB, or `Frames`.

        Raises:
            ClipError: pictures of another kind or size, or a file that cannot be written.
        """
        with writing(self.path):
            self._append(pictures)

    def _append(self, pictures: UInt8[Tensor, "T H W 3"] | np.ndarray | Frames) -> None:
        if self._container is None:
            raise ClipError(f"{self.path} is closed; open another VideoWriter to write more.")
        for picture in self._checked(pictures):
            frame = av.VideoFrame.from_ndarray(self._pad(picture), format="rgb24")
            if not self._lossless:
                frame = frame.reformat(
                    format="yuv420p",
                    dst_colorspace=Colorspace.ITU709,
                    dst_color_range=ColorRange.MPEG,
                    interpolation=TO_YUV,
                )
            self._container.mux(self._stream.encode(frame))
            self.frames += 1
            if self._sound is not None:
                self._sound.write(self._container, until=self.frames / self._fps)

    def _checked(self, pictures: Tensor | np.ndarray | Frames) -> np.ndarray:
        if isinstance(pictures, Frames):
            pictures = pictures.to_uint8()
        array = pictures.detach().cpu().numpy() if isinstance(pictures, Tensor) else np.asarray(pictures)
        expected = (*self.size, 3)
        if array.ndim != 4 or array.shape[1:] != expected or array.dtype != np.uint8:
            raise ClipError(
                f"{self.path.name} got pictures {array.dtype} {list(array.shape)}; expected uint8 "
                f"[T, {self.size[0]}, {self.size[1]}, 3]. Resize them, or open the video with their size."
            )
        return array

    def _pad(self, picture: np.ndarray) -> np.ndarray:
        below, right = self.padded[0] - self.size[0], self.padded[1] - self.size[1]
        padded = np.pad(picture, ((0, below), (0, right), (0, 0)), mode="edge") if below or right else picture
        return np.ascontiguousarray(padded)

    def close(self) -> None:
        """Finishes the file and gives it its name.

        Raises:
            ClipError: no picture was appended, or the file cannot be written.
        """
        if self._container is None:
            return
        if self.frames == 0:
            self.discard()
            raise ClipError(f"{self.path} got no pictures; append at least one before closing.")
        try:
            with writing(self.path):
                self._container.mux(self._stream.encode(None))
                if self._sound is not None:
                    self._sound.finish(self._container)
                self._container.close()
                self._container = None
                self._temporary.replace(self.path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written so far."""
        container, self._container = self._container, None
        sound, self._sound = self._sound, None
        try:
            if sound is not None:
                sound.close()
            if container is not None:
                # On a full disk FFmpeg cannot finish this file either, which is thrown away.
                with suppress(OSError, av.error.FFmpegError):
                    container.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _layout(layout: AudioLayout) -> str:
    """The name of a layout; some files say only how many channels there are."""
    return {1: "mono", 2: "stereo"}.get(layout.nb_channels, layout.name)


class SoundTrack:
    """The first audio stream of a file on its way into another, a stretch at a time.

    Args:
        path: the file, for messages.
        source: it, opened.
        out: the file being written, before its first packet.
    """

    def __init__(self, path: Path, source: InputContainer, out: OutputContainer) -> None:
        self._path, self._source = path, source
        stream = source.streams.audio[0]
        self._copied = stream.codec_context.codec.name in out.supported_codecs
        if self._copied:
            self._stream = out.add_stream_from_template(stream)
        else:
            self._stream = out.add_stream("aac", rate=stream.rate, layout=_layout(stream.codec_context.layout))
        first = source.streams.video[0].start_time if source.streams.video else None
        base = source.streams.video[0].time_base if source.streams.video else None
        self._begin = float(first * base) if first is not None and base is not None else 0.0
        self._packets = source.demux(stream)
        self._waiting: Packet | None = None

    @staticmethod
    def of(path: Path, out: OutputContainer) -> SoundTrack | None:
        """The track of a file; None if it has no audio.

        Raises:
            ClipError: a file that cannot be opened.
        """
        try:
            source = av.open(_url(path), metadata_errors="replace")
        except av.error.FFmpegError as error:
            raise ClipError(
                f"{path} cannot be opened for its sound ({reason(error)}); expected a video. Check the path."
            ) from error
        if not source.streams.audio:
            source.close()
            return None
        return SoundTrack(path, source, out)

    def write(self, out: OutputContainer, until: float) -> None:
        """Sends on what sounds before `until`, seconds from the first picture."""
        while (packet := self._peek()) is not None and self._time(packet) < until:
            self._waiting = None
            if self._time(packet) >= -PREROLL:
                self._send(out, packet)

    def finish(self, out: OutputContainer) -> None:
        """Ends the stream."""
        if not self._copied:
            out.mux(self._stream.encode(None))
        self.close()

    def close(self) -> None:
        self._source.close()

    def _peek(self) -> Packet | None:
        try:
            while self._waiting is None:
                packet = next(self._packets, None)
                if packet is None or packet.dts is None:  # the end: an empty packet that flushes decoders
                    return None
                self._waiting = packet
        except av.error.FFmpegError as error:
            raise ClipError(
                f"the sound of {self._path} cannot be read ({reason(error)}). It is damaged: write it again."
            ) from error
        return self._waiting

    def _time(self, packet: Packet) -> float:
        """Seconds from the first picture."""
        stamp = packet.dts if packet.pts is None else packet.pts
        assert stamp is not None
        return float(stamp * packet.time_base) - self._begin

    def _send(self, out: OutputContainer, packet: Packet) -> None:
        if not self._copied:
            for frame in packet.decode():
                frame.pts = None  # the encoder counts samples itself
                out.mux(self._stream.encode(frame))
            return
        shift = round(self._begin / packet.time_base)
        packet.pts = None if packet.pts is None else packet.pts - shift
        packet.dts = None if packet.dts is None else packet.dts - shift
        packet.stream = self._stream
        out.mux(packet)


def _check_video_request(path: Path, fps: float, size: tuple[int, int], overwrite: bool) -> None:
    check_file(path, ".mp4")
    check_fps(fps, f"{path}: fps")
    check_size(size)
    if path.exists() and not overwrite:
        raise ClipError(f"{path} exists already; give another name, or --overwrite (overwrite=True in Python).")


def _url(path: Path) -> str:
    """A file's name as FFmpeg takes it: `fog:night.mp4` alone would name a protocol."""
    return f"file:{path.absolute()}"


class VideoReader:
    """A video file as pictures. Runs are decoded in order; going back starts again from the beginning.

    Args:
        path: any video file that FFmpeg decodes.
        deep: keep what a video of more than 8 bits has: pictures are then int32 up to `top`, which is 65535.
        any_rate: take the frames of a video of variable rate one after another, whatever their times.
        resample: frames a second that a video of variable rate is brought to, each frame being the one that is shown at
            its time: length and sound are kept. Others are read as they are.
        turn: turn frames upright where the file says how; else such a file is refused.

    Raises:
        ClipError: not a video, no picture stream, rotated, larger than `limits` allows, or of variable frame rate.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        deep: bool = False,
        any_rate: bool = False,
        resample: float | None = None,
        turn: bool = False,
    ) -> None:
        self.path = Path(path)
        self._sources: np.ndarray | None = None
        self._open()
        self._stored = (self._stream.height, self._stream.width)
        check_picture(self.path, self._stored, 3, 2)
        self.variable_rate = False
        self.frames, self.fps = self._scan(any_rate or resample is not None)
        if self.variable_rate and resample is not None:
            self._resample(resample)
        self.subsampled = "444" not in self.pixel_format and not self.pixel_format.startswith(("rgb", "bgr", "gbr"))
        stored = self._stream.codec_context.format
        self.bits = max((part.bits for part in stored.components), default=8) if stored is not None else 8
        self.top = 65535 if deep and self.bits > 8 else 255
        self._open()
        self.quarters = self._rotation(turn)
        height, width = self._stored
        self.size = (width, height) if self.quarters % 2 else self._stored
        self._open()

    @property
    def transfer(self) -> int:
        """The number that H.273 gives to the video's transfer function; 2 where it is not said."""
        return self._stream.codec_context.color_trc

    @property
    def pixel_format(self) -> str:
        return self._stream.codec_context.pix_fmt or "unknown"

    def __len__(self) -> int:
        return self.frames

    def _open(self) -> None:
        self.close()
        try:
            self._container = av.open(_url(self.path), metadata_errors="replace")
        except av.error.FFmpegError as error:
            raise ClipError(
                f"{self.path} cannot be opened as a video ({reason(error)}); expected MP4 or anything FFmpeg decodes. "
                "It may be cut short: write it again."
            ) from error
        if not self._container.streams.video:
            raise ClipError(f"{self.path} has no picture stream; expected a video file.")
        self._stream = self._container.streams.video[0]
        if self._stream.codec_context is None:
            raise ClipError(f"{self.path} says no codec that is known; expected H.264 or anything FFmpeg decodes.")
        self._decoded = self._pictures()
        self._next, self._decoded_to = 0, -1
        self._held: np.ndarray | None = None

    def _scan(self, any_rate: bool) -> tuple[int, float]:
        """Counts packets (headers can lie) and checks that they are evenly spaced."""
        count, times, announced = 0, [], self._stream.frames
        try:
            for packet in self._container.demux(self._stream):
                if packet.size and not packet.is_discard:
                    count += 1
                    times += [] if packet.pts is None else [packet.pts]
        except av.error.FFmpegError as error:
            raise ClipError(
                f"{self.path} cannot be read to its end ({reason(error)}). It is damaged: write it again."
            ) from error
        if not count or count < announced:
            raise ClipError(
                f"{self.path} holds {count} of {announced or 'its'} frames; it is cut short. Write it again."
            )
        self._times = np.array(sorted(times))
        steps = np.diff(self._times)
        self.variable_rate = bool(steps.size and steps.max() - steps.min() > max(1, 0.02 * np.median(steps)))
        if self.variable_rate and not any_rate:
            raise ClipError(
                f"{self.path} has a variable frame rate (steps of {steps.min()} to {steps.max()} ticks); expected "
                "evenly spaced frames. Give fps=... to take its frames one after another at that rate, or make it "
                f"constant first: ffmpeg -i {self.path.name} -vf fps=24 constant.mp4"
            )
        rate = self._stream.average_rate
        return count, float(rate) if rate else 0.0

    def _resample(self, fps: float) -> None:
        """Finds which frame is shown at each time of an even rate."""
        base = self._stream.time_base
        if len(self._times) != self.frames or base is None:
            raise ClipError(
                f"{self.path} has a variable frame rate and says the times of {len(self._times)} of {self.frames} "
                f"frames only; make its rate constant first: ffmpeg -i {self.path.name} -vf fps={fps:g} constant.mp4"
            )
        times = (self._times - self._times[0]) * float(base)
        last = float(np.median(np.diff(times)))  # how long the last frame is shown
        count = max(1, round((times[-1] + last) * fps))
        self._sources = np.searchsorted(times, np.arange(count) / fps + 1e-6, side="right") - 1
        self.frames, self.fps = count, float(fps)

    def _rotation(self, turn: bool) -> int:
        """Quarter turns, counterclockwise, that bring frames upright."""
        rotation = next((frame.rotation for frame in self._frames()), 0)
        if rotation and (not turn or rotation % 90):
            raise ClipError(
                f"{self.path} is stored rotated by {rotation} degrees; expected upright frames. "
                "Rotate it for good first: ffmpeg -i IN -c:v libx264 -crf 10 OUT.mp4"
            )
        return rotation // 90 % 4

    def _frames(self) -> Iterator[av.VideoFrame]:
        try:
            yield from self._container.decode(self._stream)
        except av.error.FFmpegError as error:
            raise ClipError(
                f"{self.path} cannot be decoded at frame {self._next} ({reason(error)}). It is damaged: write it again."
            ) from error

    def _pictures(self) -> Iterator[np.ndarray]:
        for frame in self._frames():
            if (frame.height, frame.width) != self._stored:
                raise ClipError(
                    f"{self.path} changes to {frame.height}x{frame.width} pixels from {self._stored[0]}x"
                    f"{self._stored[1]}; expected one size. It is damaged, or was joined from several: write it again."
                )
            picture = self._picture(frame)
            yield np.ascontiguousarray(np.rot90(picture, self.quarters)) if self.quarters else picture

    def _picture(self, frame: av.VideoFrame) -> np.ndarray:
        if self.top == 255:
            return frame.to_ndarray(format="rgb24", interpolation=TO_RGB)
        if frame.format.name.startswith("gray"):  # FFmpeg's conversion of deep grey to RGB is inexact
            grey = frame.to_ndarray().astype(np.float64) * (65535 / (2**self.bits - 1))
            return np.repeat(grey.round().astype(np.int32)[..., None], 3, -1)
        return frame.to_ndarray(format="rgb48le", interpolation=TO_RGB).astype(np.int32)

    def read(self, start: int = 0, stop: int | None = None) -> Shaped[Tensor, "T H W 3"]:
        """Frames `start` to `stop` (excluded), display values as stored: uint8, or int32 where `top` is 65535."""
        stop = self.frames if stop is None else stop
        if not 0 <= start < stop <= self.frames:
            raise ClipError(
                f"{self.path}: frames {start} to {stop} were asked for, the video has {self.frames}; "
                "give 0 <= start < stop <= frames."
            )
        if start < self._next:
            self._open()
        while self._next < start:
            self._advance()
        return torch.stack([torch.from_numpy(self._advance()) for _ in range(start, stop)])

    def _advance(self) -> np.ndarray:
        source = self._next if self._sources is None else int(self._sources[self._next])
        while self._decoded_to < source:
            self._held = next(self._decoded, None)
            if self._held is None:
                raise ClipError(
                    f"{self.path} ends after {self._next} frames; {self.frames} were expected from its packets. "
                    "It is cut short or damaged: write it again."
                )
            self._decoded_to += 1
        assert self._held is not None
        self._next += 1
        return self._held

    def windows(self, frames: int) -> Iterator[Shaped[Tensor, "T H W 3"]]:
        """Consecutive runs of `frames` pictures; the last may be shorter."""
        for start in range(0, self.frames, frames):
            yield self.read(start, min(start + frames, self.frames))

    def close(self) -> None:
        if getattr(self, "_container", None) is not None:
            self._container.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_video(path: Path | str) -> UInt8[Tensor, "T H W 3"]:
    """A whole video in memory. For long ones, and for the frame rate, use `VideoReader`."""
    with VideoReader(path) as video:
        return video.read()


def write_video(path: Path | str, pictures: UInt8[Tensor, "T H W 3"] | np.ndarray, *, fps: float) -> None:
    """A whole video at once, uint8 [T, H, W, 3]."""
    with VideoWriter(path, fps=fps, size=(pictures.shape[1], pictures.shape[2])) as video:
        video.append(pictures)


def to_planes(pictures: Shaped[Tensor, "T H W 3"]) -> Tensor:
    """[T, H, W, 3] -> [T, 3, H, W], as stored."""
    return rearrange(pictures, "t h w c -> t c h w")
