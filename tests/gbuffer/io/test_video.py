import struct
from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from flowshade.gbuffer.io import ClipError, VideoReader, VideoWriter, open_clip, read_video, write_video
from flowshade.types import Frames


def smooth(frames: int = 6, size: tuple[int, int] = (32, 48)) -> torch.Tensor:
    """Coloured ramps that move a little from frame to frame: what 4:2:0 video can keep."""
    y, x = np.mgrid[: size[0], : size[1]]
    ramps = [np.stack([x / size[1], y / size[0], 0.25 + 0.1 * t + 0 * x], -1) * 200 + 20 for t in range(frames)]
    return torch.from_numpy(np.stack(ramps).round().astype(np.uint8))


def noise(frames: int = 6, size: tuple[int, int] = (16, 18)) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, (frames, *size, 3), dtype=np.uint8))


def test_colours_survive(tmp_path):
    pictures = smooth()
    write_video(tmp_path / "v.mp4", pictures, fps=24)
    found = read_video(tmp_path / "v.mp4")
    assert found.shape == pictures.shape
    assert (found.float() - pictures.float()).abs().mean() < 2


def test_writing_and_reading_does_not_darken(tmp_path):
    """FFmpeg's default conversions lose about 1.3 steps of 255 on average, which would pass for drift."""
    colours = np.random.default_rng(0).integers(16, 240, (2, 4, 6, 3), dtype=np.uint8)
    pictures = torch.from_numpy(colours.repeat(16, 1).repeat(16, 2))
    with VideoWriter(tmp_path / "v.mp4", fps=24, size=(64, 96), crf=1) as video:
        video.append(pictures)
    bias = (read_video(tmp_path / "v.mp4").float() - pictures.float()).mean((0, 1, 2))
    assert bias.abs().max() < 0.4, bias


def test_players_are_told_the_colour_matrix(tmp_path):
    write_video(tmp_path / "v.mp4", smooth(), fps=24)
    with av.open(str(tmp_path / "v.mp4")) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (stream.codec_context.pix_fmt, stream.average_rate) == ("yuv420p", 24)
        assert (context.colorspace, context.color_primaries, context.color_trc, context.color_range) == (1, 1, 1, 1)


def test_lossless_is_exact_for_any_size(tmp_path):
    for index, size in enumerate([(16, 18), (15, 17)]):
        pictures = noise(size=size)
        with VideoWriter(tmp_path / f"{index}.mp4", fps=30, size=size, lossless=True) as video:
            video.append(pictures)
        assert torch.equal(read_video(tmp_path / f"{index}.mp4"), pictures)


def test_odd_sizes_are_padded_by_repetition(tmp_path):
    pictures = smooth(size=(31, 47))
    with VideoWriter(tmp_path / "v.mp4", fps=24, size=(31, 47), crf=4) as video:
        video.append(pictures)
        assert video.padded == (32, 48)
    found = read_video(tmp_path / "v.mp4").float()
    assert found.shape[1:3] == (32, 48)
    assert (found[:, :31, :47] - pictures.float()).abs().mean() < 2
    assert (found[:, 31] - found[:, 30]).abs().mean() < 4


def test_frames_and_arrays_are_taken_too(tmp_path):
    pictures = smooth(2)
    with VideoWriter(tmp_path / "v.mp4", fps=24, size=(32, 48), lossless=True) as video:
        video.append(pictures.numpy())
        video.append(Frames(rgb=pictures.permute(0, 3, 1, 2).float() / 255))
        assert video.frames == 4
    assert torch.equal(read_video(tmp_path / "v.mp4"), torch.cat([pictures, pictures]))


def test_the_same_pictures_give_the_same_file(tmp_path):
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / name, smooth(), fps=24)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_the_file_appears_when_complete(tmp_path):
    video = VideoWriter(tmp_path / "v.mp4", fps=24, size=(32, 48))
    video.append(smooth())
    assert not (tmp_path / "v.mp4").exists()
    video.close()
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]
    with pytest.raises(ClipError, match="is closed"):
        video.append(smooth())


def test_an_exception_leaves_the_old_file(tmp_path):
    write_video(tmp_path / "v.mp4", smooth(2), fps=24)
    with pytest.raises(KeyError), VideoWriter(tmp_path / "v.mp4", fps=24, size=(32, 48)) as video:
        video.append(smooth(5))
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]
    assert len(read_video(tmp_path / "v.mp4")) == 2


def test_wrong_pictures_and_requests(tmp_path):
    path = tmp_path / "v.mp4"
    request = {"path": path, "fps": 24, "size": (32, 48)}
    for wrong in (smooth(2, (30, 48)), smooth(2).float(), smooth(2)[0], smooth(2).permute(0, 3, 1, 2)):
        with pytest.raises(ClipError, match=r"expected uint8 \[T, 32, 48, 3\]"), VideoWriter(**request) as video:
            video.append(wrong)
    with pytest.raises(ClipError, match="got no pictures"), VideoWriter(path, fps=24, size=(32, 48)):
        pass
    with pytest.raises(ClipError, match=r"v.avi; expected a name that ends in .mp4"):
        VideoWriter(tmp_path / "v.avi", fps=24, size=(32, 48))
    with pytest.raises(ClipError, match="expected a positive number"):
        VideoWriter(path, fps=0, size=(32, 48))
    path.write_bytes(b"")
    with pytest.raises(ClipError, match="exists already"):
        VideoWriter(path, fps=24, size=(32, 48), overwrite=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.mp4"]


def test_reading_in_any_order(tmp_path):
    pictures = noise(30)
    with VideoWriter(tmp_path / "v.mp4", fps=Fraction(30000, 1001), size=(16, 18), lossless=True) as video:
        video.append(pictures)
    with VideoReader(tmp_path / "v.mp4") as reader:
        assert (len(reader), reader.size) == (30, (16, 18)) and reader.fps == pytest.approx(29.97, abs=1e-2)
        for start, stop in ((12, 15), (15, 17), (3, 5), (25, 30), (0, 1)):
            assert torch.equal(reader.read(start, stop), pictures[start:stop])
        assert torch.equal(torch.cat(list(reader.windows(7))), pictures)
        with pytest.raises(ClipError, match="the video has 30"):
            reader.read(29, 31)


def test_videos_that_cannot_be_read(tmp_path):
    with pytest.raises(ClipError, match="cannot be opened as a video"):
        read_video(tmp_path / "absent.mp4")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(ClipError, match="cannot be opened as a video"):
        read_video(tmp_path / "text.mp4")
    write_video(tmp_path / "whole.mp4", noise(40), fps=24)
    data = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    with pytest.raises(ClipError, match="cut short"):
        read_video(tmp_path / "cut.mp4")


def write_deep(path, ramp: np.ndarray, codec: str, pixels: str, frames: int = 3) -> None:
    """A video of more than 8 bits, every frame the same [H, W] of 16-bit values in all planes."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=24)
        stream.height, stream.width, stream.pix_fmt = *ramp.shape, pixels
        if codec == "libx265":
            stream.options = {"x265-params": "lossless=1:log-level=error"}
        for _ in range(frames):
            if pixels == "gray16le":
                frame = av.VideoFrame.from_ndarray(ramp, format=pixels)
            else:
                frame = av.VideoFrame.from_ndarray(np.stack([ramp] * 3, -1), format="rgb48le").reformat(format=pixels)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.mark.parametrize(("codec", "pixels"), [("libx265", "gbrp10le"), ("ffv1", "gbrp16le"), ("ffv1", "gray16le")])
def test_videos_of_more_than_8_bits_keep_them(tmp_path, codec, pixels):
    ramp = np.linspace(0, 65535, 64 * 32).reshape(32, 64).round().astype(np.uint16)
    write_deep(tmp_path / "roughness.mkv", ramp, codec, pixels)
    clip = open_clip(tmp_path)
    found = clip.read(1, 2).roughness[0, 0].double() * 65535
    step = 65535 / 1023 if pixels == "gbrp10le" else 0.01
    assert (found - torch.from_numpy(ramp.astype(np.float64))).abs().max() <= step
    assert found.unique().numel() > 1000
    with pytest.raises(ClipError, match="roughness are not 8 bit"):
        clip.coded()
    assert read_video(tmp_path / "roughness.mkv").dtype == torch.uint8


def write_uneven(path, times=(0, 40, 80, 200, 240)) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24, options={"bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for time, picture in zip(times, smooth(5).numpy(), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def test_variable_frame_rate(tmp_path):
    write_uneven(tmp_path / "albedo.mp4")
    with pytest.raises(ClipError, match="variable frame rate .* Give fps=... to take its frames one after another"):
        read_video(tmp_path / "albedo.mp4")
    with pytest.raises(ClipError, match="variable frame rate"):
        open_clip(tmp_path)
    clip = open_clip(tmp_path, fps=25)
    assert clip.info.fps == 25 and clip.info.frames == 5 and clip.read().frames == 5
    assert any("albedo: of variable frame rate" in text for text in clip.info.warnings)


def test_rotated_video_is_refused_when_it_is_opened(tmp_path):
    """The rotation that phones write: the display matrix in the track header."""
    write_video(tmp_path / "albedo.mp4", smooth(2), fps=24)
    data = bytearray((tmp_path / "albedo.mp4").read_bytes())
    at = data.index(b"tkhd") + 4 + 4 + 4 * 5 + 8 + 8
    quarter_turn = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    assert struct.unpack_from(">9i", data, at)[0] == 65536  # the identity stood there
    data[at : at + 36] = quarter_turn
    (tmp_path / "albedo.mp4").write_bytes(data)
    with pytest.raises(ClipError, match="stored rotated by -?90 degrees"):
        open_clip(tmp_path)


def test_a_channel_in_two_videos(tmp_path):
    for suffix in ("mp4", "mkv"):
        write_deep(tmp_path / f"albedo.{suffix}", np.zeros((32, 32), np.uint16), "libx265", "gbrp10le")
    with pytest.raises(ClipError, match=r"holds albedo twice \(albedo.mkv and albedo.mp4\)"):
        open_clip(tmp_path)


@pytest.fixture
def channel_videos(tmp_path):
    def make(folder: str = "clip", prefix: str = "clip_0001_", frames: int = 5, lossless: bool = True, **more):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in ("albedo", "depth", "metallic", "normal", "roughness", "rgb"):
            given = {"frames": frames, "size": (16, 18), "fps": 24, **more.get(name, {})}
            path = tmp_path / folder / f"{prefix}{name}.mp4"
            with VideoWriter(path, fps=given["fps"], size=given["size"], lossless=lossless) as video:
                video.append(noise(given["frames"], given["size"]))
        return tmp_path / folder

    return make


@pytest.mark.parametrize("prefix", ["", "clip_0001_"])
def test_one_video_a_channel(channel_videos, prefix):
    clip = open_clip(channel_videos(prefix=prefix))
    info = clip.info
    assert (info.format, info.frames, info.size, info.fps) == ("video", 5, (16, 18), 24.0)
    assert info.missing == ("depth",) and info.has_reference
    assert not any("inexact" in text for text in info.warnings)
    planes = noise(5).permute(0, 3, 1, 2)
    for value in clip.coded(1, 4).values():
        assert torch.equal(value, planes[1:4])
    assert torch.equal((clip.reference(2, 5) * 255).round().byte(), planes[2:5])


def test_several_clips_in_a_folder(channel_videos):
    folder = channel_videos(prefix="clip_0001_")
    channel_videos(prefix="clip_0002_", frames=7)
    with pytest.raises(ClipError, match="holds the clips clip_0001, clip_0002; expected one. Name one of its videos"):
        open_clip(folder)
    assert open_clip(folder / "clip_0002_normal.mp4").info.frames == 7


def test_lossy_channels_are_reported(channel_videos):
    warnings = open_clip(channel_videos(lossless=False)).info.warnings
    assert any(text.startswith("depth, metallic, normal, roughness: stored as compressed") for text in warnings)


def test_channel_videos_must_agree(channel_videos):
    with pytest.raises(ClipError, match=r"differ in frames: albedo 5, depth 5, metallic 5, normal 4"):
        open_clip(channel_videos("frames", normal={"frames": 4}))
    with pytest.raises(ClipError, match="differ in size"):
        open_clip(channel_videos("size", normal={"size": (16, 20)}))
    with pytest.raises(ClipError, match="differ in frame rate"):
        open_clip(channel_videos("rate", normal={"fps": 30}))


def test_a_plain_video_is_no_clip(tmp_path):
    write_video(tmp_path / "holiday.mp4", smooth(2), fps=24)
    for path in (tmp_path, tmp_path / "holiday.mp4"):
        with pytest.raises(ClipError, match="no video named after a channel"):
            open_clip(path)
