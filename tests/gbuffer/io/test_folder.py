import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowshade.gbuffer.io import ClipError, ClipWriter, open_clip, read_clip, write_clip
from flowshade.types import GBuffer


def assert_same(found: GBuffer, expected: GBuffer) -> None:
    assert list(found.channels()) == list(expected.channels())
    for name, value in expected.channels().items():
        assert found.channels()[name].dtype == value.dtype, name
        assert torch.equal(found.channels()[name], value), name


def test_float32_clip_is_bit_exact_in_every_channel(tmp_path, make_clip):
    clip = make_clip()
    write_clip(tmp_path / "c", clip, 24.0, precision="float32")
    found = read_clip(tmp_path / "c")
    assert_same(found, clip)
    assert torch.equal(found.camera.pose, clip.camera.pose)
    assert torch.equal(found.camera.intrinsics, clip.camera.intrinsics)


def test_mixed_clip_rounds_materials_to_half_and_nothing_else(tmp_path, make_clip):
    clip = make_clip()
    write_clip(tmp_path / "c", clip, 24.0)
    halves = {name: clip.channels()[name].half().float() for name in ("albedo", "roughness", "metallic")}
    assert_same(read_clip(tmp_path / "c"), clip.replace(**halves))
    stored = json.loads((tmp_path / "c" / "clip.json").read_text())["channels"]
    assert stored["depth"] == stored["normal"] == "float32"
    assert stored["albedo"] == "float16"


def test_special_values_survive(tmp_path):
    depth = torch.tensor([torch.inf, 0.0, -0.0, 1e-40, 3e38, torch.nan]).reshape(1, 1, 2, 3)
    write_clip(tmp_path / "c", GBuffer(depth=depth), 24.0)
    found = read_clip(tmp_path / "c").depth
    assert torch.equal(found.view(torch.int32), depth.view(torch.int32))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.integers(1, 7), run=st.integers(1, 4), window=st.integers(1, 8), height=st.integers(1, 9))
def test_any_runs_written_read_back_in_any_windows(tmp_path, make_clip, frames, run, window, height):
    clip = make_clip(frames, (height, 7), core=True)
    with ClipWriter(tmp_path / "c", size=clip.size, fps=30, precision="float32", overwrite=True) as writer:
        for part in clip.windows(run):
            writer.append(part)
    with open_clip(tmp_path / "c") as reader:
        assert len(reader) == frames
        assert_same(GBuffer.cat(list(reader.windows(window))), clip)


def test_info_caption_meta_and_pictures(tmp_path, make_clip):
    clip = make_clip()
    rgb = torch.rand(clip.frames, 3, *clip.size)
    write_clip(tmp_path / "c", clip, 29.97, rgb=rgb, caption="a street", meta={"seed": 3, "look": [1, 2]})
    reader = open_clip(tmp_path / "c")
    info = reader.info
    assert (info.format, info.frames, info.size, info.fps) == ("clip", 5, (12, 18), 29.97)
    assert info.caption == "a street" and info.missing == () and info.has_camera and info.has_reference
    assert reader.meta == {"seed": 3, "look": [1, 2]}
    assert (reader.reference(1, 3) - rgb[1:3]).abs().max() <= 0.5 / 255 + 1e-6
    assert open_clip(tmp_path / "c", fps=12).info.fps == 12


def test_chosen_channels_only(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(), 24.0, channels=("depth", "normal"))
    reader = open_clip(tmp_path / "c")
    assert reader.info.channels == ("normal", "depth")
    assert reader.info.missing == ("albedo", "roughness", "metallic")


def test_folder_appears_only_when_closed(tmp_path, make_clip):
    clip = make_clip()
    writer = ClipWriter(tmp_path / "c", size=clip.size, fps=24)
    writer.append(clip)
    assert not (tmp_path / "c").exists()
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_an_exception_leaves_nothing_behind(tmp_path, make_clip):
    clip = make_clip()
    with pytest.raises(KeyError), ClipWriter(tmp_path / "c", size=clip.size, fps=24) as writer:
        writer.append(clip)
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_clips_and_refuses_other_folders(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(2), 24.0)
    with pytest.raises(ClipError, match="exists already"):
        write_clip(tmp_path / "c", make_clip(3), 24.0)
    write_clip(tmp_path / "c", make_clip(3), 24.0, overwrite=True)
    assert len(open_clip(tmp_path / "c")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    (tmp_path / "photos").mkdir()
    with pytest.raises(ClipError, match="not a Flowshade clip"):
        write_clip(tmp_path / "photos", make_clip(1), 24.0, overwrite=True)


def test_a_failed_overwrite_keeps_the_old_clip(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(2), 24.0)
    with pytest.raises(RuntimeError), ClipWriter(tmp_path / "c", size=(12, 18), fps=24, overwrite=True) as writer:
        writer.append(make_clip(4))
        raise RuntimeError
    assert len(open_clip(tmp_path / "c")) == 2


def test_every_run_must_repeat_the_first(tmp_path, make_clip):
    clip = make_clip()
    rgb = torch.zeros(clip.frames, 3, *clip.size)
    cases = [
        (clip, None, clip.replace(normal=None), None, "expected also normal"),
        (clip, None, clip.replace(camera=None), None, "a camera"),
        (clip, None, clip, rgb, "reference pictures"),
        (clip, rgb, clip, rgb[:, :, :-1], r"got rgb \[5, 3, 11, 18\]"),
        (clip, None, make_clip(2, (12, 20)), None, r"got frames of \(12, 20\)"),
    ]
    for index, (first, first_rgb, second, second_rgb, sentence) in enumerate(cases):
        with (
            pytest.raises(ClipError, match=sentence),
            ClipWriter(tmp_path / f"c{index}", size=(12, 18), fps=24) as writer,
        ):
            writer.append(first, first_rgb)
            writer.append(second, second_rgb)
    assert list(tmp_path.iterdir()) == []


def test_requests_that_make_no_sense(tmp_path, make_clip):
    with pytest.raises(ClipError, match="expected some of albedo"):
        ClipWriter(tmp_path / "c", size=(4, 4), fps=24, channels=("colour",))
    with pytest.raises(ClipError, match="fps is 0"):
        ClipWriter(tmp_path / "c", size=(4, 4), fps=0)
    with pytest.raises(ClipError, match="got no frames"), ClipWriter(tmp_path / "c", size=(4, 4), fps=24):
        pass
    writer = ClipWriter(tmp_path / "c", size=(12, 18), fps=24)
    writer.append(make_clip(1))
    writer.close()
    with pytest.raises(ClipError, match="is closed"):
        writer.append(make_clip(1))


def test_damaged_clips_are_reported(tmp_path, make_clip):
    write_clip(tmp_path / "good", make_clip(), 24.0)

    def damaged(name: str):
        shutil.copytree(tmp_path / "good", tmp_path / name)
        return tmp_path / name

    (damaged("lost") / "frames" / "000002.exr").unlink()
    with pytest.raises(ClipError, match="holds 4 files and clip.json says 5"):
        open_clip(tmp_path / "lost")
    (damaged("json") / "clip.json").write_text("{")
    with pytest.raises(ClipError, match="clip.json is not JSON"):
        open_clip(tmp_path / "json")
    manifest = damaged("newer") / "clip.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 9}))
    with pytest.raises(ClipError, match="version 9; expected 'flowshade-clip' version 1"):
        open_clip(tmp_path / "newer")
    frame = damaged("cut") / "frames" / "000001.exr"
    frame.write_bytes(frame.read_bytes()[: frame.stat().st_size // 2])
    with pytest.raises(ClipError, match="cut short"):
        open_clip(tmp_path / "cut").read()
    frame = damaged("empty") / "frames" / "000001.exr"
    frame.write_bytes(b"")
    with pytest.raises(ClipError, match="does not begin like an EXR"):
        open_clip(tmp_path / "empty").read()
