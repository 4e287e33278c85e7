"""Videos, folders and single pictures as frames; masks from pictures and from instance ids; sound that goes along."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from flowshade.gbuffer.io import ClipError, VideoWriter, open_clip, write_clip, write_video
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.masks import InstanceMask, PictureMask
from flowshade.gbuffer.io.pictures import write_png
from flowshade.types import GBuffer


def ramp(frames: int = 3, size: tuple[int, int] = (16, 24)) -> np.ndarray:
    """Pictures whose brightness says their number."""
    return np.stack([np.full((*size, 3), 40 * (index + 1) % 256, np.uint8) for index in range(frames)])


def write_pictures(folder: Path, pictures: np.ndarray) -> Path:
    folder.mkdir()
    for index, picture in enumerate(pictures):
        write_png(folder / f"frame_{index + 8}.png", picture)  # 8, 9, 10: order by number, not by name
    return folder


def test_a_folder_is_ordered_by_number_and_a_video_gives_the_same(tmp_path: Path) -> None:
    pictures = ramp()
    write_video(tmp_path / "in.mp4", pictures, fps=12)
    with Footage(write_pictures(tmp_path / "in", pictures)) as folder, Footage(tmp_path / "in.mp4") as video:
        assert (folder.frames, folder.size, folder.fps, folder.is_video) == (3, (16, 24), 24, False)
        assert (video.frames, video.size, video.fps, video.is_video) == (3, (16, 24), 12, True)
        expected = torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255
        assert torch.equal(folder.read(0, 3).rgb, expected)
        torch.testing.assert_close(video.read(1, 3).rgb, expected[1:], atol=2 / 255, rtol=0)  # H.264 at crf 18
        assert folder.read(0, 1, (8, 12)).rgb.shape == (1, 3, 8, 12)


def test_one_picture_of_any_kind(tmp_path: Path) -> None:
    write_png(tmp_path / "grey.png", np.full((4, 6), 32768, np.uint16))
    with Footage(tmp_path / "grey.png", fps=5) as grey:
        assert (grey.frames, grey.fps) == (1, 5)
        torch.testing.assert_close(grey.read(0, 1).rgb, torch.full((1, 3, 4, 6), 32768 / 65535))
    folder = tmp_path / "one"
    folder.mkdir()
    write_png(folder / "photograph.png", ramp(1)[0])  # needs no number
    assert Footage(folder).frames == 1


def corners(height: int = 24, width: int = 40) -> np.ndarray:
    """A picture whose four corners differ: red, green, blue and white, clockwise from the upper left."""
    picture = np.zeros((height, width, 3), np.uint8)
    for (row, column), colour in zip(
        ((0, 0), (0, 1), (1, 1), (1, 0)), ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))
    ):
        picture[row * height // 2 :, column * width // 2 :][: height // 2, : width // 2] = colour
    return picture


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_come_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    stored = Image.fromarray(corners())
    exif = Image.Exif()
    exif[274] = orientation
    path = tmp_path / f"a.{suffix}"
    options = {"quality": 98, "subsampling": 0} if suffix == "jpg" else {}
    if suffix == "tif":
        stored.save(path, tiffinfo={274: orientation})
    else:
        stored.save(path, exif=exif, **options)
    with Image.open(path) as picture:
        expected = np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    with Footage(path) as footage:
        assert footage.size == expected.shape[:2]
        assert footage.size == ((24, 40) if orientation < 5 else (40, 24))
        rgb = footage.read(0, 1).rgb[0].permute(1, 2, 0).numpy() * 255
    np.testing.assert_allclose(rgb, expected, atol=6)


def test_a_turned_picture_of_16_bits_comes_upright(tmp_path: Path) -> None:
    stored = (np.arange(6 * 9, dtype=np.uint16) * 1000).reshape(6, 9)
    Image.fromarray(stored).save(tmp_path / "a.tif", tiffinfo={274: 6})
    with Footage(tmp_path / "a.tif") as footage:
        rgb = footage.read(0, 1).rgb[0, 0].numpy()
    np.testing.assert_allclose(rgb, np.rot90(stored, -1) / 65535, atol=1e-6)


MATRICES = {
    90: (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30),
    180: (-65536, 0, 0, 0, -65536, 0, 0, 0, 1 << 30),
    270: (0, -65536, 0, 65536, 0, 0, 0, 0, 1 << 30),
}
"""Display matrices of a track that is shown turned clockwise by so many degrees (ISO 14496-12, 8.3.2)."""


@pytest.mark.parametrize("degrees", MATRICES)
def test_turned_videos_come_upright(tmp_path: Path, degrees: int) -> None:
    path = tmp_path / "phone.mp4"
    write_video(path, np.stack([corners()] * 2), fps=24)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 4 + 4 * 5 + 8 + 8
    assert struct.unpack_from(">9i", data, at)[0] == 65536
    data[at : at + 36] = struct.pack(">9i", *MATRICES[degrees])
    path.write_bytes(data)
    expected = np.rot90(corners(), -degrees // 90)
    with Footage(path) as footage:
        assert footage.size == expected.shape[:2]
        rgb = footage.read(1, 2).rgb[0].permute(1, 2, 0).numpy() * 255
    height, width = expected.shape[:2]
    for row in (height // 4, 3 * height // 4):
        for column in (width // 4, 3 * width // 4):
            np.testing.assert_allclose(rgb[row, column], expected[row, column], atol=12)


def write_uneven(path: Path, times: tuple[int, ...], *, sound: bool = False) -> None:
    """A video whose pictures, brighter one by one, are shown from times in milliseconds; perhaps with a tone."""
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=30, options={"crf": "5"})
        video.width, video.height, video.pix_fmt, video.time_base = 24, 16, "yuv420p", Fraction(1, 1000)
        video.codec_context.time_base = Fraction(1, 1000)
        audio = out.add_stream("aac", rate=48000, layout="mono") if sound else None
        for index, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((16, 24, 3), 20 + 20 * index, np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            out.mux(video.encode(frame))
        if audio is not None:
            samples = np.zeros((1, 1024), np.float32)
            for start in range(0, 48 * times[-1], 1024):
                part = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
                part.sample_rate, part.pts = 48000, start
                out.mux(audio.encode(part))
            out.mux(audio.encode(None))
        out.mux(video.encode(None))


def test_a_variable_rate_becomes_an_even_one_of_the_same_length(tmp_path: Path) -> None:
    path = tmp_path / "uneven.mp4"
    write_uneven(path, (0, 100, 200, 500, 600, 700))
    with pytest.raises(ClipError, match=r"variable frame rate.*Give fps="):
        Footage(path)
    with Footage(path, fps=10) as footage:
        assert (footage.frames, footage.fps, footage.retimed) == (8, 10, False)
        shown = [(footage.read(index, index + 1).rgb.mean().item() * 255 - 20) / 20 for index in range(8)]
        assert np.round(shown).tolist() == [0, 1, 2, 2, 2, 3, 4, 5]
        assert torch.equal(footage.read(2, 3).rgb, footage.read(4, 5).rgb)  # going back too
    with Footage(path, fps=5) as footage:
        assert footage.frames == 4
        shown = [(footage.read(index, index + 1).rgb.mean().item() * 255 - 20) / 20 for index in range(4)]
        assert np.round(shown).tolist() == [0, 2, 2, 4]


def test_another_rate_of_an_even_video_is_said(tmp_path: Path) -> None:
    write_video(tmp_path / "in.mp4", ramp(), fps=12)
    with Footage(tmp_path / "in.mp4", fps=24) as footage:
        assert (footage.frames, footage.fps, footage.retimed) == (3, 24, True)
    assert not Footage(tmp_path / "in.mp4", fps=12).retimed


def encode(path: Path, picture: np.ndarray, kind: str, format: str, **context: int) -> None:
    """One picture as H.265 or another kind of video."""
    with av.open(str(path), "w") as out:
        video = out.add_stream(kind, rate=24, options={"x265-params": "lossless=1:log-level=none"})
        video.height, video.width, video.pix_fmt = *picture.shape[:2], format
        for name, value in context.items():
            setattr(video.codec_context, name, value)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb48le" if picture.dtype == np.uint16 else "rgb24")
        out.mux(video.encode(frame.reformat(format=format, dst_colorspace="ITU709")))
        out.mux(video.encode(None))


def test_ten_bits_are_kept_and_high_dynamic_range_is_refused(tmp_path: Path) -> None:
    steps = np.repeat(np.linspace(20000, 21000, 64, dtype=np.uint16)[None, :, None], 32, 0).repeat(3, 2)
    encode(tmp_path / "deep.mkv", steps, "libx265", "yuv420p10le", colorspace=1, color_range=1)
    with Footage(tmp_path / "deep.mkv") as footage:
        row = footage.read(0, 1).rgb[0, 1, 16]
    torch.testing.assert_close(row, torch.from_numpy(steps[16, :, 1].astype(np.float32)) / 65535, atol=2e-3, rtol=0)
    assert len(row.unique()) > 10  # 8 bits would tell 4 apart
    for transfer, name in ((16, "PQ"), (18, "HLG")):
        encode(tmp_path / "hdr.mkv", steps, "libx265", "yuv420p10le", colorspace=9, color_trc=transfer)
        with pytest.raises(ClipError, match=f"high dynamic range .{name}.; expected a standard one"):
            Footage(tmp_path / "hdr.mkv")


def test_odd_sizes_grey_and_alpha(tmp_path: Path) -> None:
    grey = np.repeat(np.linspace(0, 255, 33, dtype=np.uint8)[None, :, None], 17, 0).repeat(3, 2)
    encode(tmp_path / "grey.mkv", grey, "ffv1", "gray")
    with Footage(tmp_path / "grey.mkv") as footage:
        assert footage.size == (17, 33)
        rgb = footage.read(0, 1).rgb[0]
    assert torch.equal(rgb[0], rgb[2])
    torch.testing.assert_close(rgb[0, 5], torch.linspace(0, 1, 33), atol=0.01, rtol=0)
    clear = np.concatenate([corners(), np.zeros((24, 40, 1), np.uint8)], -1)
    write_png(tmp_path / "clear.png", clear)
    with Footage(tmp_path / "clear.png") as footage:
        shown = (footage.read(0, 1).rgb[0].permute(1, 2, 0).numpy() * 255).round()
    assert np.array_equal(shown, corners())  # transparency is dropped, colours stay


def test_cut_short_in_every_place_is_an_error_or_the_whole(tmp_path: Path) -> None:
    write_video(tmp_path / "in.mp4", ramp(12), fps=12)
    data = (tmp_path / "in.mp4").read_bytes()
    for share in (0.02, 0.3, 0.6, 0.9, 0.99):
        (tmp_path / "cut.mp4").write_bytes(data[: int(share * len(data))])
        with pytest.raises(ClipError, match=r"cut short|cannot be (opened|read|decoded)|damaged"):
            Footage(tmp_path / "cut.mp4").read(0, 12)
    for suffix in ("png", "jpg", "tif"):
        Image.fromarray(corners()).save(tmp_path / f"a.{suffix}")
        data = (tmp_path / f"a.{suffix}").read_bytes()
        (tmp_path / f"a.{suffix}").write_bytes(data[: len(data) // 2])
        with pytest.raises(ClipError, match=r"cannot be read|cut short|no TIFF header"):
            Footage(tmp_path / f"a.{suffix}").read(0, 1)


def test_what_is_no_footage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "none.mp4").write_bytes(b"")
    gap = write_pictures(tmp_path / "gap", ramp(3))
    (gap / "frame_9.png").unlink()
    for path, said in (
        ("missing.mp4", "nothing is there"),
        ("empty", "holds no pictures"),
        ("text.mp4", "cannot be opened as a video"),
        ("none.mp4", "cannot be opened as a video"),
        ("gap", "frames 9 are missing"),
    ):
        with pytest.raises(ClipError, match=said):
            Footage(tmp_path / path)
    with pytest.raises(ClipError, match="fps is -1"):
        Footage(write_pictures(tmp_path / "good", ramp()), fps=-1)
    write_png(tmp_path / "good" / "frame_11.png", ramp(1, (8, 8))[0])
    with pytest.raises(ClipError, match="expected one size"):
        Footage(tmp_path / "good").read(0, 4)
    with pytest.raises(ClipError, match="frames 2 to 9 were asked for"):
        Footage(tmp_path / "good").read(2, 9)


def with_sound(path: Path, codec: str, *, frames: int = 24, fps: int = 12) -> Path:
    """A video with a tone of the same length."""
    rate = 48000
    tone = (np.sin(np.arange(rate * frames // fps) * 0.06) * 16000).astype(np.int16)
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=fps)
        video.width, video.height, video.pix_fmt = 24, 16, "yuv420p"
        audio = out.add_stream(codec, rate=rate, layout="mono")
        for _ in range(frames):
            out.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((16, 24, 3), np.uint8), format="rgb24")))
        resampler = av.AudioResampler(format=audio.codec_context.format, layout="mono", rate=rate)
        for start in range(0, len(tone), 1024):
            frame = av.AudioFrame.from_ndarray(tone[None, start : start + 1024], format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, start
            for part in resampler.resample(frame):
                out.mux(audio.encode(part))
        out.mux(audio.encode(None))
        out.mux(video.encode(None))
    return path


def sound_of(path: Path) -> tuple[str, float, float]:
    """Codec, seconds, and mean loudness."""
    with av.open(str(path)) as file:
        stream = file.streams.audio[0]
        frames = list(file.decode(stream))
        loudness = np.mean([np.abs(frame.to_ndarray().astype(float)).mean() for frame in frames])
        return stream.codec_context.name, sum(frame.samples for frame in frames) / stream.rate, float(loudness)


@pytest.mark.parametrize(("codec", "name", "kept"), [("aac", "in.mp4", "aac"), ("adpcm_ms", "in.avi", "aac")])
def test_sound_goes_along_as_long_as_the_pictures(tmp_path: Path, codec: str, name: str, kept: str) -> None:
    source, output = with_sound(tmp_path / name, codec), tmp_path / "out.mp4"
    with VideoWriter(output, fps=12, size=(16, 24), sound=source) as video:
        for picture in ramp(18):
            video.append(picture[None])
    found, seconds, loudness = sound_of(output)
    assert found == kept
    assert seconds == pytest.approx(18 / 12, abs=2 * 2048 / 48000)  # whole packets, and the encoder's delay
    assert loudness > 0.1


def test_a_copied_sound_is_the_same_packets(tmp_path: Path) -> None:
    source, output = with_sound(tmp_path / "in.mp4", "aac"), tmp_path / "out.mp4"
    with VideoWriter(output, fps=12, size=(16, 24), sound=source) as video:
        video.append(ramp(24))

    def packets(path: Path) -> list[bytes]:
        with av.open(str(path)) as file:
            return [bytes(packet) for packet in file.demux(file.streams.audio[0]) if packet.size]

    assert packets(output) == packets(source)[: len(packets(output))]
    assert len(packets(output)) > 80


def test_no_sound_is_no_error(tmp_path: Path) -> None:
    write_video(tmp_path / "in.mp4", ramp(), fps=12)
    with VideoWriter(tmp_path / "out.mp4", fps=12, size=(16, 24), sound=tmp_path / "in.mp4") as video:
        video.append(ramp())
    with av.open(str(tmp_path / "out.mp4")) as file:
        assert not file.streams.audio


def test_a_mask_of_pictures(tmp_path: Path) -> None:
    half = np.zeros((1, 8, 12, 3), np.uint8)
    half[:, :, 6:] = 255
    still = PictureMask(Footage(write_pictures(tmp_path / "still", half)))
    still.check(100, (16, 24))
    mask = still.read(40, 43, (16, 24))
    assert mask.shape == (3, 1, 16, 24)
    assert mask[..., :10].max() < 0.05 and mask[..., 14:].min() > 0.95
    moving = PictureMask(Footage(write_pictures(tmp_path / "moving", ramp(3))))
    torch.testing.assert_close(moving.read(1, 2, (16, 24)), torch.full((1, 1, 16, 24), 80 / 255))
    with pytest.raises(ClipError, match="has 3 frames and 4"):
        moving.check(4, (16, 24))
    with pytest.raises(ClipError, match="expected the same shape"):
        moving.check(3, (16, 16))


def test_a_mask_of_instances(tmp_path: Path) -> None:
    ids = torch.zeros(2, 1, 4, 6, dtype=torch.int32)
    ids[0, :, :2], ids[1, :, 2:] = 3, 7
    write_clip(tmp_path / "clip", GBuffer(instance=ids), 24)
    with open_clip(tmp_path / "clip") as clip:
        mask = InstanceMask(clip, (3, 9))
        mask.check(2, (8, 12))
        values = mask.read(0, 2, (8, 12))
        assert values[0, 0, :4].min() == 1 and values[0, 0, 4:].max() == 0 and values[1].max() == 0
        assert mask.unseen() == (9,)
        with pytest.raises(ClipError, match="has 2 frames and 3"):
            mask.check(3, (8, 12))
        with pytest.raises(ClipError, match="no instance ids were given"):
            InstanceMask(clip, ())
    write_clip(tmp_path / "plain", GBuffer(depth=torch.ones(1, 1, 4, 6)), 24)
    with open_clip(tmp_path / "plain") as clip, pytest.raises(ClipError, match="has no instance ids"):
        InstanceMask(clip, (1,))
