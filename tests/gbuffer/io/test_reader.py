import weakref

import pytest
import torch

from flowshade.gbuffer.io import ClipError, open_clip, read_clip, write_clip


def test_windows_hold_one_window_at_a_time(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(9), 24.0)
    seen: list[weakref.ref] = []
    for window in open_clip(tmp_path / "c").windows(2):
        assert sum(ref() is not None for ref in seen) <= 1  # the loop variable's predecessor at most
        seen.append(weakref.ref(window.depth))
    del window
    assert len(seen) == 5 and all(ref() is None for ref in seen)


def test_windows_decode_only_what_is_asked_for(tmp_path, make_clip, monkeypatch):
    write_clip(tmp_path / "c", make_clip(9), 24.0)
    reader = open_clip(tmp_path / "c")
    decoded: list[int] = []
    original = reader._read_frame
    monkeypatch.setattr(reader, "_read_frame", lambda index: decoded.append(index) or original(index))
    next(reader.windows(3, start=4))
    assert decoded == [4, 5, 6]


def test_windows_agree_with_read(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(7), 24.0)
    reader = open_clip(tmp_path / "c")
    parts = list(reader.windows(3, start=1, stop=6))
    assert [part.frames for part in parts] == [3, 2]
    assert torch.equal(torch.cat([part.depth for part in parts]), reader.read(1, 6).depth)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (0, 6), (5, None)])
def test_frames_outside_the_clip(tmp_path, make_clip, start, stop):
    write_clip(tmp_path / "c", make_clip(5), 24.0)
    with pytest.raises(ClipError, match="the clip has 5"):
        open_clip(tmp_path / "c").read(start, stop)


def test_errors_say_found_expected_and_what_to_do(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(1), 24.0)
    with pytest.raises(ClipError, match="nothing is there"):
        open_clip(tmp_path / "absent")
    (tmp_path / "odd").mkdir()
    with pytest.raises(ClipError, match="is empty; expected one of: a folder with clip.json"):
        open_clip(tmp_path / "odd")
    (tmp_path / "odd" / "mesh.obj").write_text("v 0 0 0")
    with pytest.raises(ClipError, match=r"holds \.obj; expected one of"):
        open_clip(tmp_path / "odd")
    with pytest.raises(ClipError, match=r"is a single \.obj file"):
        open_clip(tmp_path / "odd" / "mesh.obj")
    with pytest.raises(ClipError, match="format 'abc' is unknown; expected one of clip, flash, mosaic"):
        open_clip(tmp_path / "c", format="abc")
    with pytest.raises(ClipError, match="option 'depth_code' is not one of format 'clip'"):
        open_clip(tmp_path / "c", depth_code="inverse:10")
    with pytest.raises(ClipError, match="a window of 0 frames"):
        open_clip(tmp_path / "c").windows(0)
    with pytest.raises(ClipError, match="fps is -1"):
        open_clip(tmp_path / "c", fps=-1)
    with pytest.raises(ClipError, match="holds no 8-bit planes"):
        open_clip(tmp_path / "c").coded()


def test_reading_whole_clips(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(3), 24.0)
    assert read_clip(tmp_path / "c").frames == 3
    assert open_clip(tmp_path / "c").reference() is None
