"""The 7B inverse behind `invert` and `restyle`, end to end with tiny random networks in upstream's files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade import invert, load_inverse
from flowshade.checkpoints import inverse as loading
from flowshade.checkpoints.catalogue import MODELS
from flowshade.cli import main
from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import VideoReader, open_clip, write_video
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.pictures import read_png
from flowshade.inverse.diffusion import DiffusionConfig, DiffusionInverse, parse_depth
from flowshade.inversion import InvertedClip
from flowshade.types import GBuffer
from flowshade.upstream import coded_planes
from flowshade.videos import InvertJob, invert_to_files
from tests.checkpoints.originals import small_inverse, write_inverse

FRAMES, SIZE = 30, (20, 34)
OPTIONS = ("--steps", "2", "--chunk", "17", "--overlap", "9", "--work-at", "16x32", "--device", "cpu")
SMALL = DiffusionConfig(steps=2, chunk=17, overlap=9, size=(16, 32))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    with torch.random.fork_rng():
        write_inverse(folder)
    return folder


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWSHADE_MODELS", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLOWSHADE_DEBUG", raising=False)
    monkeypatch.setitem(MODELS, "alaya-inverse", small_inverse())
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (FRAMES, 5, 9, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    write_video("in.mp4", pictures[:, :, : SIZE[1]], fps=12)


def run(files: Path, *more: str, output: str = "out") -> int:
    return main(
        ["invert", "in.mp4", "-o", output, "--model", "alaya-inverse", "--checkpoint", str(files), *OPTIONS, *more]
    )


def load(files: Path, config: DiffusionConfig = SMALL) -> DiffusionInverse:
    inverse = load_inverse("alaya-inverse", checkpoint=files, device="cpu", config=config)
    assert isinstance(inverse, DiffusionInverse)
    return inverse


def test_a_video_of_any_length_becomes_a_clip_and_a_relative_depth_beside_it(files: Path, capsys) -> None:
    assert run(files, "--compare", "side.mp4") == 0
    assert "30 frames in" in capsys.readouterr().out
    windows = list(invert("in.mp4", inverse=load(files), window=7))
    assert [(window.start, window.stop) for window in windows] == [(0, 7), (7, 14), (14, 21), (21, 28), (28, 30)]
    whole = GBuffer.cat([window.gbuffer for window in windows])
    assert not windows[0].confidence and set(windows[0].codes) == {"albedo", "normal", "depth", "roughness", "metallic"}
    with open_clip("out") as clip:
        assert (len(clip), clip.info.size, clip.info.fps) == (FRAMES, SIZE, 12)
        assert clip.info.channels == ("albedo", "normal", "roughness", "metallic") and clip.info.has_reference
        normal = clip.read().normal
    assert normal is not None and whole.normal is not None
    torch.testing.assert_close(normal, whole.normal, atol=1e-5, rtol=0)
    code = read_png(Path("out.depth-code/depth/000030.png"))
    assert code.dtype == np.uint16
    np.testing.assert_allclose(code / 65535, windows[-1].codes["depth"][-1].mean(0), atol=1e-4)
    assert "relative" in json.loads(Path("out.depth-code/depth-code.json").read_text())["values"]
    meta = json.loads(Path("out/clip.json").read_text())["meta"]
    assert (meta["inverse"], meta["steps"], meta["chunk"], meta["overlap"], meta["seed"]) == (
        "alaya-inverse", 2, 17, 9, 0,
    )  # fmt: skip
    assert "neither its scale nor its direction is published" in meta["depth"]


def test_the_same_frames_come_in_any_windows_and_the_stream_holds_a_chunk_at_most(files: Path) -> None:
    inverse = load(files)
    runs = [list(invert("in.mp4", inverse=inverse, window=window)) for window in (1, 30)]
    for name in ("albedo", "metallic"):
        one, other = (torch.cat([window.gbuffer.channels()[name] for window in made]) for made in runs)
        assert torch.equal(one, other)
    first = next(iter(invert("in.mp4", inverse=inverse, frames=5)))
    assert first.frames.frames == 5 and inverse._chunks == 1  # no chunk beyond what was asked for


@pytest.mark.parametrize("form", ["exr", "png", "video", "upstream", "flash"])
def test_every_format_takes_it_once_its_depth_is_stated(files: Path, form: str) -> None:
    assert run(files, "--to", form, "--frames", "3", "--depth-code", "inverse:5") == 0
    assert not Path("out.depth-code").exists()
    place = Path("out/clip_0001") if form == "upstream" else Path("out")
    about = json.loads((place / "about.json").read_text())
    assert about["inverse"] == "alaya-inverse" and "s = 5 m" in about["depth"]
    with open_clip(place) as clip:
        assert "depth" in clip.info.channels and clip.info.size == SIZE


def test_the_seed_is_the_noise_s(files: Path) -> None:
    made = []
    for seed in ("3", "3", "4"):
        assert run(files, "--frames", "3", "--seed", seed, "--overwrite") == 0
        with open_clip("out") as clip:
            made.append(clip.read().albedo)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_restyle_takes_it_too_and_says_so(files: Path, debug_model: Path) -> None:
    prefixed = [f"--inverse.{text[2:]}" if text.startswith("--") and "device" not in text else text for text in OPTIONS]
    arguments = ["restyle", "in.mp4", "-o", "out.mp4", "--model", str(debug_model), "--inverse", "alaya-inverse"]
    assert main([*arguments, "--inverse.checkpoint", str(files), *prefixed, "--style", "night", "--frames", "20"]) == 0
    with VideoReader("out.mp4") as video:
        assert (video.frames, video.size, video.fps) == (20, SIZE, 12)
    record = json.loads(Path("out.json").read_text())["inverse"]
    assert (record["name"], record["steps"], record["chunk"]) == ("alaya-inverse", 2, 17)


def test_progress_moves_within_a_chunk_and_never_back(files: Path) -> None:
    seen: list[tuple[int, int]] = []
    job = InvertJob(video=Path("in.mp4"), output=Path("out"))
    invert_to_files(job, load(files), lambda done, total: seen.append((done, total)))
    done = [count for count, _ in seen]
    assert done == sorted(done) and done[-1] == FRAMES and {total for _, total in seen} == {FRAMES}
    assert any(0 < count < 8 for count in done)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--confidence"], "does not say how sure it is"),
        (["--steps", "0"], "steps and a scale above 0"),
        (["--chunk", "16"], "expected 8 n + 1"),
        (["--depth-code", "far:3"], "expected none, inverse:METRES or linear:METRES"),
        (["--work-at", "20x30"], "multiples of 16"),
        (["--checkpoint", "nowhere"], "alaya-inverse lacks its transformer"),
        (["--seed", "-1"], "the seed is -1"),
        (["--to", "flash"], "has no depth"),
        (["--model", "compact"], "go with alaya-inverse or cosmos-inverse"),
        (["--model", "large"], "go with alaya-inverse or cosmos-inverse"),
    ],
)
def test_mistakes_are_sentences_and_leave_nothing(files: Path, options: list[str], said: str, capsys) -> None:
    assert run(files, *options) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["in.mp4"]


def test_a_missing_package_and_too_little_memory_are_sentences(files: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert run(files) == 2
    assert "pip install 'flowshade[cosmos]'" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(loading, "free_memory", lambda device: 1000)
        assert run(files) == 2
    said = capsys.readouterr().err
    assert "and cpu has 0.0 GiB free" in said and "flowshade budget --model alaya-inverse" in said


def test_depth_codes() -> None:
    assert parse_depth("none") == ("none", 10.0) and parse_depth("inverse") == ("inverse", 10.0)
    assert parse_depth("linear:2.5") == ("linear", 2.5)
    for text in ("", "none:1", "linear:x", "inverse:0", "linear:inf", "ray:1"):
        with pytest.raises(ValueError, match="cannot be read"):
            parse_depth(text)


def test_options_of_the_7b_are_refused_for_others() -> None:
    with pytest.raises(FlowshadeError, match="go with alaya-inverse"):
        load_inverse("compact", config=SMALL)


def test_a_renderer_of_upstream_s_gets_the_planes_as_they_are(files: Path) -> None:
    with Footage("in.mp4") as footage:
        clip = InvertedClip(footage, load(files), frames=20)
        planes = coded_planes(clip, 8, 12)
        codes = clip.estimate(8, 12).codes
    assert set(planes) == set(codes)
    for name, value in codes.items():
        assert planes[name].dtype == torch.uint8
        assert torch.equal(planes[name], (value * 255).round().to(torch.uint8))
