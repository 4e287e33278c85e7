"""Clips are found in folders of clips; nothing that looks like one is left out quietly."""

from pathlib import Path

import numpy as np
import pytest

from flowshade.gbuffer.io import ClipError, find_clips, open_clip, write_clip
from flowshade.gbuffer.io.pictures import write_png


@pytest.fixture
def folder(tmp_path: Path, make_clip) -> Path:
    """Two clips at different depths, a hidden one, and pictures that are no buffers."""
    write_clip(tmp_path / "near", make_clip(1), 24.0)
    for place in ("below/deep", ".hidden"):
        (tmp_path / place).mkdir(parents=True)
        write_clip(tmp_path / place / "clip", make_clip(1), 24.0)
    (tmp_path / "holiday").mkdir()
    write_png(tmp_path / "holiday" / "beach.png", np.zeros((4, 4, 3), np.uint8))
    return tmp_path


def test_clips_below_a_folder_and_a_clip_itself(folder: Path):
    assert find_clips(folder) == [folder / "below" / "deep" / "clip", folder / "near"]
    assert find_clips(folder / "near") == [folder / "near"]


@pytest.mark.parametrize(
    ("place", "message"), [("absent", "nothing is there"), ("holiday", "beach"), (".hidden/empty", "is empty")]
)
def test_where_no_clip_is_the_reader_says_why(folder: Path, place: str, message: str):
    (folder / ".hidden" / "empty").mkdir()
    with pytest.raises(ClipError, match=f"no clip was found in .*{place}: .*{message}"):
        find_clips(folder / place)


def test_a_damaged_clip_is_found_and_a_damaged_sidecar_is_named(folder: Path):
    (folder / "near" / "clip.json").write_text("{")
    assert folder / "near" in find_clips(folder)
    with pytest.raises(ClipError):
        open_clip(folder / "near")
    (folder / "holiday" / "gbuffer.json").write_text("[]")
    with pytest.raises(ClipError, match=r"holiday.gbuffer\.json"):
        find_clips(folder)


def test_a_dataset_of_alayarenderer_is_its_clips(tmp_path: Path):
    for clip in ("clip_0001", "clip_0002"):
        (tmp_path / "session" / clip).mkdir(parents=True)
        (tmp_path / "session" / clip / f"{clip}_albedo.mp4").touch()
    (tmp_path / "metadata_with_captions.csv").write_text("video,prompt\n")
    assert [clip.name for clip in find_clips(tmp_path)] == ["clip_0001", "clip_0002"]
