"""`flowshade invert` and `restyle`, end to end at a small size with random debug models; mistakes leave nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from flowshade import invert, load_inverse, load_renderer, restyle
from flowshade.checkpoints.store import default_inverse_weights, save_inverse
from flowshade.cli import main
from flowshade.errors import CheckpointError, FlowshadeError, StyleError
from flowshade.gbuffer.io import VideoReader, open_clip, write_clip, write_video
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.masks import PictureMask
from flowshade.gbuffer.io.pictures import read_png, write_png
from flowshade.inverse.stream import Inverse
from flowshade.presets import debug_inverse
from flowshade.types import CORE_CHANNELS, GBuffer
from tests.gbuffer.io.test_footage import sound_of, with_sound, write_uneven

FRAMES, SIZE = 11, (32, 48)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLOWSHADE_DEBUG", raising=False)
    rows = np.linspace(0, 255, SIZE[0], dtype=np.uint8)[:, None, None]
    pictures = np.stack([np.broadcast_to((rows + 9 * index).astype(np.uint8), (*SIZE, 3)) for index in range(FRAMES)])
    write_video("in.mp4", pictures, fps=12)


@pytest.fixture(scope="session")
def inverse_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inverse") / "debug-inverse.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inverse = Inverse(debug_inverse())
        torch.nn.init.constant_(inverse.network.decoder.out.bias, -0.5)  # no sky, which would have no buffers
    save_inverse(inverse, path)
    return path


def run_invert(model: Path, *more: str, video: str = "in.mp4", output: str = "out") -> int:
    return main(["invert", video, "-o", output, "--model", str(model), "--device", "cpu", *more])


def run_restyle(renderer: Path, inverse: Path, *more: str, video: str = "in.mp4") -> int:
    models = ["--model", str(renderer), "--inverse", str(inverse), "--device", "cpu"]
    return main(["restyle", video, "-o", "out.mp4", *models, *more])


def files() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"in.mp4"}


def test_the_compact_inverse_ships_and_loads_by_name() -> None:
    inverse = load_inverse("compact", device="cpu")
    assert inverse.config.name == "compact-inverse"
    assert len(inverse.fingerprint) == 64
    assert load_inverse(default_inverse_weights(), device="cpu").fingerprint == inverse.fingerprint
    assert not inverse.training


def test_other_names_and_a_renderer_are_refused(debug_model: Path, capsys) -> None:
    with pytest.raises(CheckpointError, match="unknown inverse 'large'; expected 'compact'"):
        load_inverse("large")
    with pytest.raises(CheckpointError, match="no weights at"):
        load_inverse("nowhere.safetensors")
    assert run_invert(debug_model) == 2
    assert "flowshade-inverse-1" in capsys.readouterr().err
    assert files() == set()


def test_invert_writes_a_clip_its_confidences_and_a_comparison(inverse_file: Path, capsys) -> None:
    assert run_invert(inverse_file, "--confidence", "--compare", "side.mp4", "--fov", "60") == 0
    assert files() == {"out", "out.confidence", "side.mp4"}
    expected = list(invert("in.mp4", inverse=load_inverse(inverse_file, device="cpu"), fov=60.0, window=3))
    assert [window.start for window in expected] == [0, 3, 6, 9]
    whole = GBuffer.cat([window.gbuffer for window in expected])
    with open_clip("out") as clip:
        assert (len(clip), clip.info.size, clip.info.fps, clip.info.channels) == (FRAMES, SIZE, 12, CORE_CHANNELS)
        assert clip.info.has_reference
        depth = clip.read().depth
        assert depth is not None and whole.depth is not None
        torch.testing.assert_close(depth, whole.depth, atol=1e-4, rtol=1e-4)
    sure = torch.cat([window.confidence["normal"] for window in expected])
    last = read_png(Path(f"out.confidence/normal/{FRAMES:06d}.png"))
    assert last.dtype == np.uint16
    np.testing.assert_allclose(last / 65535, sure[-1, 0].numpy(), atol=1e-4)
    assert json.loads(Path("out.confidence/confidence.json").read_text())["frames"] == FRAMES
    with VideoReader("side.mp4") as video:
        assert (video.frames, video.size) == (FRAMES, (2 * SIZE[0], 3 * SIZE[1]))
    assert f"{FRAMES} frames in" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["exr", "png", "video", "flash"])
def test_every_format_can_be_read_back(inverse_file: Path, form: str) -> None:
    assert run_invert(inverse_file, "--to", form, "--frames", "3", "--size", "16x24") == 0
    with open_clip("out") as clip:
        assert clip.info.size == (16, 24)
        assert set(clip.info.channels) == set(CORE_CHANNELS)


def test_a_picture_and_a_folder_are_inverted(inverse_file: Path) -> None:
    Path("pictures").mkdir()
    for index in range(2):
        write_png(Path(f"pictures/a_{index}.png"), np.full((*SIZE, 3), 99, np.uint8))
    assert run_invert(inverse_file, "--fps", "5", video="pictures", output="many") == 0
    assert run_invert(inverse_file, video="pictures/a_1.png", output="one") == 0
    with open_clip("many") as many, open_clip("one") as one:
        assert (len(many), many.info.fps, len(one)) == (2, 5, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--frames", "99"], "frames 0 to 99 were asked for, the clip has 11"),
        (["--frames", "0"], "frames 0 to 0 were asked for"),
        (["--fov", "200"], "horizontal field of view in degrees"),
        (["--size", "0x9"], "size '0x9' cannot be read"),
        (["--fps", "0"], "fps is 0"),
        (["--compare", "side.avi"], "ends in .mp4"),
        (["--compare", "in.mp4"], "is the clip in.mp4 that it is made from"),
    ],
)
def test_invert_says_what_is_wrong(inverse_file: Path, options: list[str], said: str, capsys) -> None:
    assert run_invert(inverse_file, *options) == 2
    assert said in capsys.readouterr().err
    assert files() == set()


def test_what_is_there_is_replaced_only_when_asked_and_only_if_ours(inverse_file: Path, capsys) -> None:
    assert run_invert(inverse_file, "--frames", "2", "--confidence") == 0
    assert run_invert(inverse_file, "--frames", "3") == 2
    assert "out exists already" in capsys.readouterr().err
    assert run_invert(inverse_file, "--frames", "3", "--confidence", "--overwrite") == 0
    with open_clip("out") as clip:
        assert len(clip) == 3
    assert len(list(Path("out.confidence/depth").iterdir())) == 3
    Path("mine").mkdir()
    Path("yours.confidence").mkdir()
    assert run_invert(inverse_file, "--overwrite", output="mine") == 2
    assert run_invert(inverse_file, "--overwrite", "--confidence", output="yours") == 2
    assert list(Path("mine").iterdir()) == list(Path("yours.confidence").iterdir()) == []
    assert not Path("yours").exists()


def test_an_interrupted_inversion_leaves_nothing(inverse_file: Path, monkeypatch) -> None:
    original, calls = Inverse.push, []

    def interrupted(self: Inverse, frames):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, frames)

    monkeypatch.setattr(Inverse, "push", interrupted)
    assert run_invert(inverse_file, "--confidence", "--compare", "side.mp4") == 130
    assert len(calls) == 3
    assert files() == set()


def test_restyle_keeps_rate_and_size_and_writes_a_record(debug_model: Path, inverse_file: Path) -> None:
    options = ["--prompt", "a street", "--style", "snowy_winter", "--compare", "--size", "16x24", "--window", "4"]
    assert run_restyle(debug_model, inverse_file, *options) == 0
    assert files() == {"out.mp4", "out.json", "out.compare.mp4"}
    with VideoReader("out.mp4") as video:
        assert (video.frames, video.size, video.fps) == (FRAMES, SIZE, 12)
    with VideoReader("out.compare.mp4") as video:
        assert video.size == (SIZE[0], 2 * SIZE[1])
    record = json.loads(Path("out.json").read_text())
    assert (record["size"], record["worked_at"], record["frames"]) == ([*SIZE], [16, 24], FRAMES)
    assert record["caption"].startswith("A street. Winter")
    assert record["inverse"]["name"] == "debug-inverse" and len(record["inverse"]["fingerprint"]) == 64
    assert run_restyle(debug_model, inverse_file) == 0  # its own record is replaced


def restyled(debug_model: Path, inverse_file: Path, **options) -> torch.Tensor:
    renderer, inverse = load_renderer(debug_model, device="cpu"), load_inverse(inverse_file, device="cpu")
    windows = restyle("in.mp4", "night", renderer=renderer, inverse=inverse, window=4, **options)
    return torch.cat([window.frames.rgb for window in windows])


def test_keep_and_mask_mix_the_original_in(debug_model: Path, inverse_file: Path) -> None:
    with Footage("in.mp4") as video:
        original = video.read(0, FRAMES).rgb
    plain = restyled(debug_model, inverse_file)
    assert plain.shape == (FRAMES, 3, *SIZE)
    assert (plain - original).abs().mean() > 0.02
    torch.testing.assert_close(restyled(debug_model, inverse_file, keep=1.0), original)
    torch.testing.assert_close(restyled(debug_model, inverse_file, keep=0.3), 0.3 * original + 0.7 * plain)
    half = np.zeros((*SIZE, 3), np.uint8)
    half[:, 24:] = 255
    write_png(Path("mask.png"), half)
    masked = restyled(debug_model, inverse_file, mask=PictureMask(Footage("mask.png")), keep=0.5)
    assert torch.equal(masked[..., :24], original[..., :24])
    torch.testing.assert_close(masked[..., 24:], (0.5 * original + 0.5 * plain)[..., 24:])


def test_instances_of_a_clip_are_a_mask(debug_model: Path, inverse_file: Path, capsys) -> None:
    ids = torch.zeros(FRAMES, 1, *SIZE, dtype=torch.int32)
    ids[..., 24:] = 7
    write_clip("ids", GBuffer(instance=ids), 12)
    assert run_restyle(debug_model, inverse_file, "--mask-clip", "ids", "--instances", "7,8") == 0
    assert "instance 8 showed in no frame" in capsys.readouterr().err
    with Footage("in.mp4") as before, Footage("out.mp4") as after:
        change = (after.read(0, FRAMES).rgb - before.read(0, FRAMES).rgb).abs().mean((0, 1, 2))  # [W]
    assert change[:20].mean() < 0.02 < change[28:].mean()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--keep", "0.3"], "expected original:SHARE"),
        (["--keep", "original:2"], "expected original:SHARE"),
        (["--mask", "nowhere.png"], "nowhere.png: nothing is there"),
        (["--mask-clip", "in.mp4"], "without --instances"),
        (["--instances", "3"], "without --mask-clip"),
        (["--mask-clip", "x", "--instances", "a"], "expected ids from 1 up"),
        (["--mask", "a.png", "--mask-clip", "x", "--instances", "1"], "expected one of them"),
        (["--style", "baroque"], "baroque"),
        (["--frames", "12"], "12 frames were asked for, in.mp4 has 11"),
        (["--window", "3"], "expected a multiple of 4"),
        (["--fov", "-4"], "field of view"),
    ],
)
def test_restyle_says_what_is_wrong(debug_model, inverse_file: Path, options: list[str], said: str, capsys) -> None:
    assert run_restyle(debug_model, inverse_file, *options) == 2
    assert said in capsys.readouterr().err
    assert files() == set()


def test_a_video_of_variable_rate_keeps_its_length_and_its_sound(debug_model: Path, inverse_file: Path, capsys) -> None:
    write_uneven(Path("uneven.mp4"), (0, 100, 200, 500, 600, 1100), sound=True)
    assert run_restyle(debug_model, inverse_file, video="uneven.mp4") == 2
    assert "variable frame rate" in capsys.readouterr().err
    assert files() == {"uneven.mp4"}
    assert run_restyle(debug_model, inverse_file, "--fps", "10", video="uneven.mp4") == 0
    with VideoReader("out.mp4") as video:
        assert (video.frames, video.fps, video.variable_rate) == (12, 10, False)
    assert sound_of(Path("out.mp4"))[1] == pytest.approx(1.1, abs=2 * 2048 / 48000)
    with_sound(Path("even.mp4"), "aac")
    assert run_restyle(debug_model, inverse_file, "--fps", "24", video="even.mp4") == 0
    assert "its sound, if it has any, is left out" in capsys.readouterr().err
    with av.open("out.mp4") as out:
        assert not out.streams.audio and out.streams.video[0].average_rate == 24


def test_footage_that_breaks_off_leaves_nothing(debug_model: Path, inverse_file: Path, capsys) -> None:
    data = Path("in.mp4").read_bytes()
    Path("cut.mp4").write_bytes(data[: 2 * len(data) // 3])
    Path("mixed").mkdir()
    for index, size in enumerate([SIZE] * 9 + [(30, 48)]):
        write_png(Path(f"mixed/{index}.png"), np.full((*size, 3), 99, np.uint8))
    there = files()
    for video, said in (("cut.mp4", "cut short|cannot be|damaged"), ("mixed", "expected one size")):
        assert run_invert(inverse_file, "--confidence", "--compare", "side.mp4", video=video) == 2
        assert re.search(said, capsys.readouterr().err)
        assert run_restyle(debug_model, inverse_file, "--compare", video=video) == 2
        assert re.search(said, capsys.readouterr().err)
        assert files() == there


def test_odd_sizes_and_a_single_picture(debug_model: Path, inverse_file: Path) -> None:
    write_png(Path("odd.png"), np.full((33, 47, 3), 99, np.uint8))
    assert run_invert(inverse_file, video="odd.png") == 0
    with open_clip("out") as clip:
        assert (len(clip), clip.info.size) == (1, (33, 47))
    assert run_restyle(debug_model, inverse_file, video="odd.png") == 0
    with VideoReader("out.mp4") as video:
        assert (video.frames, video.size) == (1, (34, 48))  # H.264 pads to even sizes


def test_the_video_itself_is_not_overwritten(debug_model: Path, inverse_file: Path, capsys) -> None:
    before = Path("in.mp4").read_bytes()
    models = ["--model", str(debug_model), "--inverse", str(inverse_file)]
    assert main(["restyle", "in.mp4", "-o", "in.mp4", *models]) == 2
    assert "is the clip in.mp4 that it is made from" in capsys.readouterr().err
    assert main(["restyle", "missing.mp4", "-o", "out.mp4", *models]) == 2
    assert "missing.mp4: nothing is there" in capsys.readouterr().err
    with av.open("sound.wav", "w") as out:
        stream = out.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
    assert main(["restyle", "sound.wav", "-o", "out.mp4", *models]) == 2
    assert "has no picture stream" in capsys.readouterr().err
    assert Path("in.mp4").read_bytes() == before
    assert files() == {"sound.wav"}


def test_numbers_that_cannot_be_are_refused(debug_model: Path, inverse_file: Path) -> None:
    inverse = load_inverse(inverse_file, device="cpu")
    with pytest.raises(FlowshadeError, match="window is 0"):
        invert("in.mp4", inverse=inverse, window=0)
    renderer = load_renderer(debug_model, device="cpu")
    with pytest.raises(FlowshadeError, match="keep is 1.5"):
        restyle("in.mp4", renderer=renderer, inverse=inverse, keep=1.5)
    with pytest.raises(StyleError):
        restyle("in.mp4", style="baroque", renderer=renderer, inverse=inverse)
