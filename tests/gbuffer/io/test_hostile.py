"""What a hostile user tries: every case is one sentence, raised before anything is written, and leaves nothing."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade.cli import Reading, main
from flowshade.gbuffer.io import (
    FORMATS,
    ClipConventions,
    ClipError,
    VideoReader,
    VideoWriter,
    convert,
    inspect_clip,
    open_clip,
    read_clip,
    write_clip,
)
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.io.writers import SINKS
from flowshade.types import GBuffer

SOURCES = Path(__file__).parents[3] / "src" / "flowshade"


@pytest.fixture
def clip(tmp_path, make_clip, monkeypatch) -> Path:
    """A small clip folder called `c` in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_clip("c", make_clip(3, core=True), 24.0, rgb=torch.rand(3, 3, 12, 18))
    return Path("c")


def everything(folder: Path = Path()) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(capsys, *args: str) -> str:
    """Runs a command that must fail with one sentence; gives the sentence."""
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert ".tmp" not in captured.err
    return captured.err


@pytest.mark.parametrize("output", ["c/clip.mp4", "c/frames/o.mp4", "link/o.mp4", "c/coding.mp4"])
def test_renders_do_not_write_into_their_clip(clip, debug_model, capsys, output):
    Path("link").symlink_to("c")
    before = everything()
    said = refused(capsys, "render", "c", "-o", output, "--model", str(debug_model), "--device", "cpu")
    assert "lies in the clip c that it is made from" in said
    assert everything() == before


def test_renders_do_not_replace_the_videos_of_their_clip(clip, debug_model, capsys):
    convert("c", "v", format="video")
    before = everything()
    command = ["--model", str(debug_model), "--device", "cpu"]
    assert "lies in the clip" in refused(capsys, "render", "v", "-o", "v/v_albedo.mp4", *command)
    assert "is the clip" in refused(capsys, "render", "v/v_depth.mp4", "-o", "v/v_depth.mp4", *command)
    assert "named after a channel" in refused(capsys, "render", "v/v_depth.mp4", "-o", "v/v_albedo.mp4", *command)
    assert "no" in refused(capsys, "render", "v/v_depth.mp4", "-o", "v/coding.mp4", *command)
    assert everything() == before


def test_only_records_of_renders_are_replaced(clip, debug_model, capsys):
    command = ["-o", "out.mp4", "--model", str(debug_model), "--device", "cpu"]
    Path("out.json").write_text('{"mine": 1}')
    assert "out.json is not the record of an earlier render" in refused(capsys, "render", "c", *command)
    assert Path("out.json").read_text() == '{"mine": 1}' and not Path("out.mp4").exists()
    Path("out.json").unlink()
    assert main(["render", "c", *command]) == main(["render", "c", *command]) == 0


@pytest.mark.parametrize("target", ["c", "c/frames/out", "."])
@pytest.mark.parametrize("format", list(SINKS))
def test_conversions_do_not_write_into_their_clip(clip, target, format):
    before = everything()
    with pytest.raises(ClipError, match="(is|lies in|holds) the clip c that it is made from"):
        convert("c", target, format=format, overwrite=True)
    assert everything() == before


@pytest.mark.parametrize("span", [("--frames", "0"), ("--frames", "-3"), ("--start", "100"), ("--start", "-1")])
@pytest.mark.parametrize("to", ["png", "flash", "video", "upstream", "exr", "clip"])
def test_empty_ranges_are_refused(clip, capsys, span, to):
    convert("c", "out", format=to)
    before = everything()
    assert "were asked for, the clip has 3" in refused(capsys, "convert", "c", "out", "--to", to, "--overwrite", *span)
    assert everything() == before


@pytest.mark.parametrize(
    ("channel", "value", "said"),
    [
        ("depth", torch.nan, "depth is nan in frame 17"),
        ("depth", -10.0, "depth is -10 in frame 17"),
        ("depth", -20.0, "depth is -20 in frame 17"),
        ("instance", -3, "instance is -3 in frame 17"),
        ("instance", 70000, "instance is 70000 in frame 17"),
        ("albedo", torch.nan, "albedo is nan in frame 17"),
        ("normal", torch.nan, "normal is nan in frame 17"),
    ],
)
def test_values_that_integers_cannot_hold_are_refused(tmp_path, channel, value, said):
    values = {
        "albedo": torch.rand(18, 3, 4, 6),
        "normal": torch.zeros(18, 3, 4, 6),
        "depth": torch.ones(18, 1, 4, 6),
        "instance": torch.zeros(18, 1, 4, 6, dtype=torch.int32),
    }
    values[channel][17, 0, 2, 1] = value
    write_clip(tmp_path / "c", GBuffer(**values), 24.0)
    with pytest.raises(ClipError, match=rf"{said} \(row 2, column 1\)"):
        convert(tmp_path / "c", tmp_path / "out", format="png", start=1)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("fps", ["nan", "inf", "1e9", "1e-9", "0", "-1"])
def test_frame_rates_that_cannot_be(clip, capsys, fps):
    before = everything()
    for command in (["inspect", "c"], ["convert", "c", "o"], ["convert", "c", "o", "--to", "video"]):
        assert "expected a positive number of frames per second" in refused(capsys, *command, "--fps", fps)
    with pytest.raises(ClipError, match="fps is"):
        write_clip("o", read_clip("c"), float(fps))
    with pytest.raises(ClipError, match="fps is"):
        VideoWriter("o.mp4", fps=float(fps), size=(4, 4))
    assert everything() == before


CLIP_DAMAGE = {
    "fps": ["24", [24], None, True, float("nan"), 1e9],
    "frames": [3.0, "3", None, 0],
    "size": [None, [12], [12, "18"], [12, 10**9], "12x18"],
    "channels": [None, [], {"colour": "float16"}, "albedo"],
    "camera": [None, 1],
    "caption": [None, 3],
    "meta": [None, []],
    "version": ["1", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in CLIP_DAMAGE.items() for value in some])
def test_wrong_types_in_the_manifest(clip, name, value):
    values = json.loads((clip / "clip.json").read_text())
    (clip / "clip.json").write_text(json.dumps({**values, name: value}))
    with pytest.raises(ClipError, match=rf"c/clip.json: '{name}' is .*; expected "):
        open_clip(clip)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fps", "24"),
        ("fps", [1]),
        ("fps", float("inf")),
        ("frames", 3.0),
        ("caption", None),
        ("depth_code", 5),
        ("albedo_code", ["srgb"]),
        ("colour", 1),
    ],
)
def test_wrong_types_in_the_coding_file(clip, name, value):
    convert("c", "p", format="png")
    values = json.loads(Path("p/coding.json").read_text())
    Path("p/coding.json").write_text(json.dumps({**values, name: value}))
    with pytest.raises(ClipError, match=rf"p/coding.json: .*{name}"):
        open_clip("p")


IDENTITY = np.eye(4).tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fx": "100"}, "frame 2: 'fx' is '100'"),
        ({"fx": None}, "frame 2: 'fx' is None"),
        ({"fx": float("nan")}, "frame 2: 'fx' is nan"),
        ({"fx": 0}, "frame 2 has fx = 0"),
        ({"fy": -5}, "frame 2 has fx = .* and fy = -5"),
        ({"camera_to_world": None}, "frame 2: 'camera_to_world' is None"),
        ({"camera_to_world": IDENTITY[:3]}, "frame 2: 'camera_to_world' is a list of 3"),
        ({"camera_to_world": [[float("nan")] * 4] * 4}, "frame 2: 'camera_to_world' .*finite"),
        ({"camera_to_world": [["1"] * 4] * 4}, "frame 2: 'camera_to_world'"),
        ({"frame": 2.5}, "entry 1 of the cameras: 'frame' is 2.5"),
    ],
)
def test_wrong_cameras(clip, change, said):
    convert("c", "p", format="png")
    values = json.loads(Path("p/cameras.json").read_text())
    values["cameras"][1] |= change
    Path("p/cameras.json").write_text(json.dumps(values))
    with pytest.raises(ClipError, match=rf"p/cameras.json: .*{said}"):
        open_clip("p")


def test_a_camera_of_a_clip_folder_that_is_not_finite(tmp_path, make_clip):
    clip = make_clip(3, core=True)
    assert clip.camera is not None
    clip.camera.pose[1, 0, 3] = torch.nan
    write_clip(tmp_path / "c", clip, 24.0)
    with pytest.raises(ClipError, match="frames: the camera of frame 1 has a number that is missing or not finite"):
        read_clip(tmp_path / "c")


@pytest.mark.parametrize("file", ["clip.json", "coding.json", "cameras.json", "gbuffer.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", '"x"', "null", "", "9" * 5000])
def test_other_json(clip, file, text):
    folder = clip
    if file != "clip.json":
        convert("c", "p", format="png")
        folder = Path("p")
    (folder / file).write_text(text)
    with pytest.raises(ClipError, match=file):
        open_clip(folder)


@pytest.mark.parametrize("format", list(FORMATS))
def test_formats_named_for_paths_without_them(tmp_path, format):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    for path in ("empty", "file.txt"):
        with pytest.raises(ClipError, match="expected") as told:
            open_clip(tmp_path / path, format=format)
        assert path in str(told.value) or str(tmp_path) in str(told.value)


def test_pictures_of_mixed_planes(tmp_path):
    colour, grey = np.zeros((4, 6, 3), np.uint8), np.zeros((4, 6), np.uint8)
    for frame, picture in enumerate((colour, grey)):
        write_png(tmp_path / f"albedo_{frame}.png", picture)
    with pytest.raises(ClipError, match=r"albedo_1.png has 1 planes and the first albedo file 3; expected as many"):
        read_clip(tmp_path)


def test_reference_pictures_are_read_and_checked(clip):
    path = clip / "rgb" / "000001.png"
    good = path.read_bytes()
    for wrong in (np.zeros((12, 18), np.uint8), np.zeros((6, 18, 3), np.uint8), np.zeros((12, 18, 3), np.uint16)):
        write_png(path, wrong)
        with pytest.raises(ClipError, match=r"000001.png is uint\d+ .*; expected uint8 \[12, 18, 3\]"):
            inspect_clip(clip)
    path.write_bytes(good[:-20])
    with pytest.raises(ClipError, match="cut short"):
        inspect_clip(clip)


def test_flash_windows_without_height(tmp_path):
    np.save(tmp_path / "window-00.npy", np.zeros((16, 5, 0, 8, 3), np.uint8))
    with pytest.raises(ClipError, match="window-00.npy holds no array of numbers"):
        open_clip(tmp_path)


def test_a_video_damaged_within_its_packets(tmp_path):
    path = tmp_path / "albedo.mp4"
    with VideoWriter(path, fps=24, size=(64, 64)) as video:
        video.append(np.random.default_rng(0).integers(0, 255, (30, 64, 64, 3), np.uint8))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20_000] = bytes(20_000)
    path.write_bytes(bytes(data))
    with pytest.raises(ClipError, match=r"albedo.mp4 .*(frame|frames).*write it again"), VideoReader(path) as video:
        video.read()


def test_damaged_exr_files_print_nothing_else(clip, capfd):
    path = clip / "frames" / "000001.exr"
    path.write_bytes(path.read_bytes()[:1500])
    assert main(["inspect", "c"]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "000001.exr" in captured.err


@pytest.mark.parametrize("name", ["fog:night.mp4", "concat:x.mp4", "http:x.mp4"])
def test_names_that_look_like_protocols(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with VideoWriter(name, fps=24, size=(16, 16)) as video:
        video.append(np.zeros((2, 16, 16, 3), np.uint8))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with VideoReader(name) as video:
        assert video.frames == 2


@pytest.mark.parametrize(
    ("sheet", "said"),
    [
        ("nodir/x.png", "the sheet lies in nodir, which is not there"),
        ("", "the sheet . is a folder"),
        ("x.txt", "the sheet is called x.txt; expected a name that ends in .png"),
        ("folder.png", "the sheet folder.png is a folder"),
        ("c/rgb/000001.png", "the sheet c/rgb/000001.png lies in the clip c"),
        ("a" * 250 + ".png", "expected at most"),
    ],
)
def test_sheets_are_checked_before_the_clip_is_read(clip, capsys, monkeypatch, sheet, said):
    Path("folder.png").mkdir()
    before = everything()
    monkeypatch.setattr("flowshade.gbuffer.io.inspect_clip", lambda *a, **k: pytest.fail("the clip was read"))
    assert said in refused(capsys, "inspect", "c", "--sheet", sheet)
    assert everything() == before


@pytest.mark.parametrize("to", ["clip", "png", "video", "exr"])
def test_links_that_lead_nowhere(clip, capsys, to):
    Path("dangling").symlink_to("nothing")
    Path("loop").symlink_to("loop")
    for target in ("dangling", "loop", "dangling/x", "loop/x"):
        assert "link that leads nowhere" in refused(capsys, "convert", "c", target, "--to", to, "--overwrite")
    assert sorted(path.name for path in Path().iterdir()) == ["c", "dangling", "loop"]


def test_videos_below_links_that_lead_nowhere(clip, debug_model, capsys):
    Path("dangling").symlink_to("nothing")
    said = refused(capsys, "render", "c", "-o", "dangling/x.mp4", "--model", str(debug_model), "--device", "cpu")
    assert "a link that leads nowhere; expected a folder" in said


@contextmanager
def limited(kib: int) -> Iterator[None]:
    """Files may have so many KiB meanwhile: what a full disk looks like."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@pytest.mark.parametrize(
    "command",
    [
        ["render", "c", "-o", "o.mp4", "--compare", "--sheet", "--device", "cpu"],
        *(["convert", "c", "o", "--to", to] for to in ("clip", "png", "flash", "video", "exr")),
        ["convert", "c", "o.mp4", "--to", "side-by-side"],
        ["inspect", "c", "--sheet", "o.png"],
    ],
    ids=lambda command: " ".join(command[::4]),
)
def test_a_full_disk_leaves_nothing(clip, make_clip, debug_model, command, capsys):
    shutil.rmtree("c")
    write_clip("c", make_clip(4, size=(48, 64), core=True), 24.0)
    model = ["--model", str(debug_model)] if command[0] == "render" else []
    with limited(1):
        status = main([*command, *model])
    said = capsys.readouterr().err.splitlines()
    assert status == 2, said
    assert len([line for line in said if not line.startswith("warning:")]) == 1
    assert "cannot be written" in said[-1] and ".tmp" not in said[-1] and re.search(r" o(\.\w+)*", said[-1])
    assert [path.name for path in Path().iterdir()] == ["c"]


def test_advice_can_be_followed():
    """Every `name=` in a message is a convention, hence a key of gbuffer.json, or is marked as Python."""
    known = {field.name for field in fields(ClipConventions)}
    flags = {field.name for field in fields(Reading)} | {"format", "fps"}
    assert known <= flags
    python_only = {"overwrite", "channels"}
    for path in (SOURCES / "gbuffer" / "io").glob("*.py"):
        for text in re.findall(r'^\s+f?"(.*)"$', path.read_text(), re.MULTILINE):
            for name in re.findall(r"(?:[Gg]ive|or|and) ([a-z_]+)=", text):
                assert name in known | python_only, (path.name, text)
            assert "flowshade inverse" not in text
            assert "overwrite=True" not in text or "--overwrite" in text
