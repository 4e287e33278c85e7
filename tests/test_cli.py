"""The command line, end to end at a small size with a random debug model; mistakes are one sentence and status 2."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade.cli import main
from flowshade.gbuffer.io import VideoReader, open_clip, write_clip
from flowshade.gbuffer.io.pictures import write_png
from flowshade.renderer.renderer import Renderer


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLOWSHADE_DEBUG", raising=False)


def render(clip: Path, model: Path, *more: str, output: str = "out.mp4") -> int:
    return main(["render", str(clip), "-o", output, "--model", str(model), "--device", "cpu", *more])


def files() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_render_writes_a_video_and_its_record(small_clip: Path, debug_model: Path, capsys) -> None:
    assert render(small_clip, debug_model, "--prompt", "a quiet street", "--style", "snowy_winter", "--seed", "7") == 0
    assert files() == {"out.mp4", "out.json"}
    with VideoReader("out.mp4") as video:
        assert (video.frames, video.size, video.fps) == (14, (40, 64), 24)
    record = json.loads(Path("out.json").read_text())
    assert record["caption"].startswith("A quiet street. Winter, pale sun")
    assert (record["seed"], record["steps"], record["frames"], record["size"]) == (7, 2, 14, [40, 64])
    assert record["model"]["name"] == "debug"
    assert len(record["model"]["fingerprint"]) == 64
    assert {"torch", "python", "hardware", "flowshade"} <= set(record["versions"])
    assert {"read", "encode", "history", "transformer", "decode", "write"} <= set(record["seconds_by_stage"])
    assert record["frames_per_second"] > 0
    assert "out.mp4" in capsys.readouterr().out


def test_compare_and_sheet(small_clip: Path, debug_model: Path) -> None:
    from PIL import Image

    assert render(small_clip, debug_model, "--compare", "--sheet", "--frames", "6", "--start", "2") == 0
    assert files() == {"out.mp4", "out.json", "out.compare.mp4", "out.sheet.png"}
    with VideoReader("out.compare.mp4") as video:
        assert (video.frames, video.size[0]) == (6, 40)
        assert video.size[1] >= 64 + 2 * (64 // 3)
    with Image.open("out.sheet.png") as sheet:
        assert sheet.size[0] > 6 * 64  # five buffers and the result
        assert sheet.size[1] > 4 * 40


def test_options_reach_the_record(small_clip: Path, debug_model: Path) -> None:
    options = ["--steps", "1", "--window", "4", "--size", "32x48", "--fps", "12", "--dtype", "float32"]
    assert render(small_clip, debug_model, *options, "--prompt-at", "8:deep night", "--prompt-at", "4:rain: heavy") == 0
    record = json.loads(Path("out.json").read_text())
    assert (record["steps"], record["window"], record["size"], record["fps"]) == (1, 4, [32, 48], 12)
    assert [(key["frame"], key["prompt"]) for key in record["keyframes"]] == [(4, "rain: heavy"), (8, "deep night")]
    with VideoReader("out.mp4") as video:
        assert (video.size, video.fps) == ((32, 48), 12)


def test_warnings_and_missing_buffers_are_said(debug_model: Path, capsys) -> None:
    Path("clip").mkdir()
    for name in ("albedo", "depth"):
        for frame in range(4):
            write_png(Path(f"clip/{name}_{frame:04d}.png"), np.full((24, 40, 3), 128, np.uint8))
    with open_clip("clip") as clip:
        warnings = clip.info.warnings
    assert warnings
    assert render(Path("clip"), debug_model) == 0
    error = capsys.readouterr().err
    lacks = "the clip has no normal, depth, roughness, metallic; the model goes by the other buffers."
    for text in (*warnings, lacks):
        assert f"warning: {text}\n" in error
    record = json.loads(Path("out.json").read_text())
    assert (record["missing"], record["warnings"]) == (["normal", "depth", "roughness", "metallic"], list(warnings))


def test_same_seed_same_file(small_clip: Path, debug_model: Path) -> None:
    for output, seed in (("a.mp4", "1"), ("b.mp4", "1"), ("c.mp4", "2")):
        assert render(small_clip, debug_model, "--seed", seed, output=output) == 0
    first, second, other = (Path(name).read_bytes() for name in ("a.mp4", "b.mp4", "c.mp4"))
    assert first == second
    assert first != other


def test_an_interrupt_leaves_nothing(small_clip: Path, debug_model: Path, monkeypatch, capsys) -> None:
    original, calls = Renderer.push, []

    def interrupted(self: Renderer, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Renderer, "push", interrupted)
    assert render(small_clip, debug_model, "--window", "4", "--compare", "--sheet") == 130
    assert len(calls) == 2
    assert files() == set()
    assert "stopped" in capsys.readouterr().err


def test_a_failed_render_keeps_the_old_video(small_clip: Path, debug_model: Path, monkeypatch) -> None:
    Path("out.mp4").write_bytes(b"old")

    def failing(self: Renderer, *args, **kwargs):
        raise ValueError("the model broke")

    monkeypatch.setattr(Renderer, "push", failing)
    assert render(small_clip, debug_model) == 2
    assert files() == {"out.mp4"}
    assert Path("out.mp4").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--style", "sunshine"], "unknown style 'sunshine'; expected one of original,"),
        (["--size", "240"], "size '240' cannot be read; expected HxW in pixels"),
        (["--window", "5"], "window is 5 frames; expected a multiple of 4"),
        (["--steps", "0"], "steps is 0; expected 1 to 1000"),
        (["--prompt-at", "snow"], "--prompt-at got 'snow'; expected FRAME:TEXT"),
        (["--prompt-at", "4:a", "--prompt-at", "4:b"], "--prompt-at names frame 4 twice"),
        (["--prompt-at", "99:a"], "for frame 99; expected 0 to 13"),
        (["--frames", "99"], "frames 0 to 99 were asked for, the clip has 14"),
        (["--output", "out.avi"], "expected a name that ends in .mp4"),
        (["--styles", "none.toml"], "cannot read the styles file none.toml"),
        (["--format", "nonsense"], "format 'nonsense' is unknown"),
        (["--device", "gpu"], "device 'gpu' is unknown"),
        (["--steps", "100000"], "steps is 100000; expected 1 to 1000"),
        (["--fps", "nan"], "fps is nan; expected a positive number"),
        (["--fps", "inf"], "fps is inf; expected a positive number"),
        (["--fps", "1e-9"], "fps is 1e-09; expected a positive number"),
        (["--size", "100000x100000"], "size is 100000x100000; expected 1 to 32768 pixels a side"),
        (["--size", f"{'9' * 5000}x4"], "cannot be read; expected HxW in pixels"),
        (["--prompt-at", f"{'9' * 5000}:a"], "expected FRAME:TEXT"),
        (["--output", f"{'a' * 236}.mp4", "--compare"], "expected at most"),
        (["--output", ".mp4"], "the output is called .mp4; expected a name that ends in .mp4, such as out.mp4"),
        (["--output", "caf\udce9.mp4"], "has a name that is not UTF-8"),
        (["--frames", "9" * 30], "the clip has 14"),
    ],
)
def test_mistakes_are_sentences(small_clip: Path, debug_model: Path, options: list[str], message: str, capsys) -> None:
    assert render(small_clip, debug_model, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert error.count("\n") == 1
    assert files() == set()


def test_outputs_that_cannot_be_written_are_told_first(small_clip: Path, debug_model: Path, capsys) -> None:
    for folder in ("a.mp4", "b.json", "c.compare.mp4", "d.sheet.png"):
        Path(folder).mkdir()
    Path("file").touch()
    before = files()
    for output, what in (
        ("a.mp4", "the output a.mp4 is a folder"),
        ("b.mp4", "the output b.json is a folder"),
        ("c.mp4", "the output c.compare.mp4 is a folder"),
        ("d.mp4", "the output d.sheet.png is a folder"),
        ("file/e.mp4", "which is a file; expected a folder"),
        ("/proc/f.mp4", "cannot write to /proc"),
    ):
        assert render(small_clip, debug_model, "--compare", "--sheet", output=output) == 2
        error = capsys.readouterr().err
        assert what in error
        assert error.count("\n") == 1
        assert files() == before


def test_styles_that_are_no_text(capsys) -> None:
    Path("mine.toml").write_bytes(b"\xff\xfe\x00")
    assert main(["styles", "--styles", "mine.toml"]) == 2
    assert "mine.toml is not a TOML file (it is not UTF-8 text)" in capsys.readouterr().err


def test_missing_things_are_sentences(small_clip: Path, debug_model: Path, capsys) -> None:
    assert render(Path("nowhere"), debug_model) == 2
    assert "nowhere: nothing is there" in capsys.readouterr().err
    assert render(small_clip, Path("compcat")) == 2
    assert "unknown model 'compcat'" in capsys.readouterr().err


def test_debug_shows_the_traceback(small_clip: Path, debug_model: Path, monkeypatch) -> None:
    monkeypatch.setenv("FLOWSHADE_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown style"):
        render(small_clip, debug_model, "--style", "sunshine")


def test_usage_mistakes_exit_with_2(capsys) -> None:
    for args in (["render"], ["nonsense"], []):
        with pytest.raises(SystemExit) as stopped:
            main(args)
        assert stopped.value.code == 2


@pytest.mark.parametrize(
    "verb", ["inspect", "convert", "render", "styles", "world list", "world record", "train", "version"]
)
def test_every_verb_explains_itself(verb: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*verb.split(), "--help"])
    assert stopped.value.code == 0
    assert f"usage: flowshade {verb}" in capsys.readouterr().out


def test_inspect(small_clip: Path, capsys) -> None:
    assert main(["inspect", str(small_clip), "--sheet", "sheet.png"]) == 0
    out = capsys.readouterr().out
    assert "40x64" in out
    assert "14 (0.58 s at 24 fps)" in out
    assert "25.0% sky" in out
    assert files() == {"sheet.png"}


def test_convert_and_back(small_clip: Path, capsys) -> None:
    assert main(["convert", str(small_clip), "png", "--to", "png", "--frames", "5", "--start", "2"]) == 0
    assert "wrote png: 5 frames of albedo, normal, depth, roughness, metallic as png" in capsys.readouterr().out
    with open_clip("png") as back, open_clip(small_clip) as original:
        assert len(back) == 5
        before, after = original.read(2, 7).channels(), back.read().channels()
    torch.testing.assert_close(after["roughness"], before["roughness"], atol=1e-3, rtol=0)
    assert main(["convert", str(small_clip), "png"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_styles_and_version(capsys) -> None:
    Path("mine.toml").write_text('[rainy_noir]\ncaption = "Rain at night, wet ground."\n')
    assert main(["styles", "--styles", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert "snowy_winter" in out
    assert "rainy_noir" in out
    assert main(["version"]) == 0
    assert f"torch          {torch.__version__}" in capsys.readouterr().out


def test_world_list(capsys) -> None:
    assert main(["world", "list"]) == 0
    out = capsys.readouterr().out
    assert {"street", "hills", "sunset", "snow"} <= {line.split()[0] for line in out.splitlines() if line}


def test_world_record_then_render(debug_model: Path, capsys) -> None:
    record = ["world", "record", "hills", "-o", "clip", "--seconds", "0.25", "--fps", "16", "--size", "24x40"]
    assert main([*record, "--look", "sunny", "--device", "cpu"]) == 0
    with open_clip("clip") as clip:
        assert (len(clip), clip.info.size, clip.info.fps) == (4, (24, 40), 16)
        assert clip.info.has_camera
        assert clip.info.has_reference
        assert not clip.info.missing
        assert clip.info.caption
    assert render(Path("clip"), debug_model, "--prompt", "hills") == 0
    assert main([*record, "--look", "sunyn"]) == 2
    assert "unknown look 'sunyn'; expected one of sunny" in capsys.readouterr().err
    assert main(["world", "record", "city", "-o", "c"]) == 2
    assert "unknown world 'city'; expected one of street, hills," in capsys.readouterr().err
    assert files() == {"clip", "out.mp4", "out.json"}


def test_render_takes_reader_flags_and_records_them(small_clip: Path, debug_model: Path, capsys) -> None:
    command = ["render", str(small_clip), "-o", "out.mp4", "--model", str(debug_model), "--device", "cpu"]
    assert main([*command, "--unit", "cm"]) == 2
    assert "'unit' is not one of format" in capsys.readouterr().err
    assert not Path("out.mp4").exists()
    assert main(["convert", str(small_clip), "png", "--to", "png", "--frames", "4"]) == 0
    command[1] = "png"
    assert main([*command, "--normal-axes", "directx", "--depth-code", "far:100"]) == 0
    record = json.loads(Path("out.json").read_text())
    assert record["conventions"] == {"normal_axes": "directx", "depth_code": "far:100"}


def test_values_that_are_not_finite_are_said_once(small_clip: Path, debug_model: Path, capsys) -> None:
    with open_clip(small_clip) as clip:
        gbuffer = clip.read(0, 8)
    assert gbuffer.roughness is not None
    gbuffer.roughness[5, 0, 2, 3] = float("nan")
    write_clip("spoilt", gbuffer, fps=24)
    assert render(Path("spoilt"), debug_model, "--window", "4") == 0
    said = capsys.readouterr().err
    assert said.count("roughness holds 1 values that are not finite, the first in frame 5") == 1


def test_a_terminated_render_leaves_nothing(small_clip: Path, debug_model: Path, monkeypatch) -> None:
    push, count = Renderer.push, 0

    def terminated(self, *arguments, **options):
        nonlocal count
        count += 1
        if count == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return push(self, *arguments, **options)

    monkeypatch.setattr(Renderer, "push", terminated)
    before = signal.getsignal(signal.SIGTERM)
    assert render(small_clip, debug_model, "--window", "4", "--compare") == 130
    assert files() == set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_render_that_cannot_be_is_refused_before_the_model_is_loaded(small_clip: Path, capsys) -> None:
    assert render(small_clip, Path("absent.safetensors"), output="out.avi") == 2
    assert "ends in .mp4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fps", "1e-9", "--frames", "2"], "fps is 1e-09; expected 0.1 to 1000"),
        (["--size", "100000x100000"], "pixels"),
    ],
)
def test_impossible_recordings_are_sentences(options: list[str], message: str, capsys) -> None:
    assert main(["world", "record", "street", "-o", "clip", *options]) == 2
    assert message in capsys.readouterr().err
    assert files() == set()
