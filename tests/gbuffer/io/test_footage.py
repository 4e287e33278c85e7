"""Videos, folders and single pictures as frames; masks from pictures and from instance ids; sound that goes along."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch

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
