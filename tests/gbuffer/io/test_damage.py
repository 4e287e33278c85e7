"""Damaged files of every format: an answer or a sentence, in time, in little memory, with nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import open_clip
from flowshade.gbuffer.io.cameras import load_cameras
from flowshade.gbuffer.io.mosaic import MosaicLayout
from flowshade.gbuffer.io.pictures import SUFFIXES, read_picture
from flowshade.gbuffer.io.upstream import METADATA, caption_of
from tests.gbuffer.io import damage

BYTES_A_CASE = 2**28


def run_all(folder: Path) -> dict[int, dict]:
    """Every case's record; a process that dies or hangs is started again after the case it was at."""
    found: dict[int, dict] = {}
    first = 0
    while first < len(damage.cases()):
        command = [sys.executable, str(Path(damage.__file__)), str(folder), str(first)]
        done = subprocess.run(command, capture_output=True, check=False)
        output, ending = done.stdout, f"ended with {done.returncode}: {done.stderr[-2000:].decode(errors='replace')}"
        records = [json.loads(line) for line in output.decode(errors="replace").splitlines() if line.startswith('{"')]
        begun = [record["begin"] for record in records if "begin" in record]
        found |= {record["case"]: record for record in records if "case" in record}
        assert begun, ending
        if begun[-1] not in found:
            found[begun[-1]] = {"result": f"the process {ending}", "digest": "", "seconds": 0, "grown": 0}
        first = begun[-1] + 1
    return found


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[int, dict]:
    return run_all(tmp_path_factory.mktemp("damage"))


@pytest.mark.parametrize("name", damage.FORMATS)
def test_damaged_clips_are_read_or_refused(records, name):
    of_format = {
        damage.cases()[index][1]: record for index, record in records.items() if damage.cases()[index][0] == name
    }
    assert len(of_format) == damage.CASES_A_FORMAT
    wrong = {number: r["result"] for number, r in of_format.items() if r["result"] not in ("read", "ClipError")}
    assert not wrong, "\n".join(f"case {number}: {text}" for number, text in wrong.items())
    assert sum(record["result"] == "ClipError" for record in of_format.values()) >= 3  # the damage is no mere dent
    assert max(record["grown"] for record in of_format.values()) < BYTES_A_CASE


def test_there_are_enough_distinct_files(records):
    assert len({record["digest"] for record in records.values()}) >= 300
    assert len({name for name, _ in damage.cases()}) >= 15


def test_a_crash_is_a_result_and_not_the_end(tmp_path, monkeypatch):
    (tmp_path / "crashes.py").write_text(
        "import json, os, sys\n"
        "for case in range(int(sys.argv[2]), 3):\n"
        "    print(json.dumps({'begin': case}), flush=True)\n"
        "    if case == 1: os.abort()\n"
        "    print(json.dumps({'case': case, 'result': 'read'}), flush=True)\n"
    )
    monkeypatch.setattr(damage, "__file__", str(tmp_path / "crashes.py"))
    monkeypatch.setattr(damage, "cases", lambda: [("any", number) for number in range(3)])
    found = run_all(tmp_path)
    assert [found[case]["result"][:17] for case in range(3)] == ["read", "the process ended", "read"]


def test_cases_are_the_same_in_every_run(tmp_path):
    damage.FORMATS["png"](tmp_path / "png")
    first, second = (damage.make_case(tmp_path, tmp_path, "png", 5)[1] for _ in range(2))
    assert first == second != damage.make_case(tmp_path, tmp_path, "png", 7)[1]


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("originals")
    found = {}
    for suffix in ("png", "tiff", "jpg", "npy", "exr"):
        damage.pictures(suffix)(folder / suffix)
        found[suffix] = next((folder / suffix).glob("albedo_1.*")).read_bytes()
    return found


@settings(deadline=None, max_examples=60, derandomize=True)
@given(suffix=st.sampled_from(["png", "tiff", "jpg", "npy", "exr"]), edits=st.data())
def test_single_pictures_with_any_bytes_changed(tmp_path_factory, originals, suffix, edits):
    data = bytearray(originals[suffix])
    for _ in range(edits.draw(st.integers(1, 4))):
        at = edits.draw(st.integers(0, len(data) - 1))
        piece = edits.draw(st.binary(min_size=0, max_size=8))
        data[at : at + edits.draw(st.integers(0, 8))] = piece
        if not data:
            break
    path = tmp_path_factory.getbasetemp() / f"changed.{suffix}"
    path.write_bytes(data)
    try:
        values = read_picture(path)
    except FlowshadeError as error:
        assert "changed" in str(error)
    else:
        assert values.ndim in (2, 3) and values.size and isinstance(values, np.ndarray)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def described(*names: str) -> st.SearchStrategy:
    """Anything JSON can hold, and more often tables of the names that a file should have."""
    return JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(values=described("format", "fps", "unit", "normals", "up", "cameras", "fov", "bits", "depth_code", "evidence"))
def test_sidecars_of_any_content(tmp_path_factory, originals, values):
    folder = tmp_path_factory.getbasetemp() / "sidecar"
    folder.mkdir(exist_ok=True)
    (folder / "albedo_1.png").write_bytes(originals["png"])
    (folder / "gbuffer.json").write_text(json.dumps(values))
    try:
        assert open_clip(folder).info.frames == 1
    except FlowshadeError as error:
        assert len(str(error)) > 20


CAMERA = st.fixed_dictionaries({}, optional=dict.fromkeys(("frame", "fx", "fy", "cx", "cy", "camera_to_world"), JSON))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    values=described("cameras", "width", "height", "fps")
    | st.fixed_dictionaries({"cameras": st.lists(CAMERA, max_size=2)})
)
def test_cameras_of_any_content(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "cameras.json"
    path.write_text(json.dumps(values))
    try:
        assert load_cameras(path, None, 1, (4, 4)).camera.frames == 1
    except FlowshadeError as error:
        assert "cameras" in str(error)


TILE = st.fixed_dictionaries({}, optional=dict.fromkeys(("left", "top", "width", "height", "video"), JSON))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    values=described("videos", "tiles", "check")
    | st.fixed_dictionaries({"videos": JSON, "tiles": st.dictionaries(st.sampled_from(["albedo", "rgb", "x"]), TILE)})
)
def test_mosaic_layouts_of_any_content(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "mosaic.json"
    path.write_text(json.dumps(values))
    try:
        assert min(MosaicLayout.load(path).size) > 0
    except FlowshadeError as error:
        assert "mosaic.json" in str(error)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    data=st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: f"video,prompt\n{text}".encode(errors="replace"))
)
def test_tables_of_any_content(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("table") / METADATA
    path.write_bytes(data)
    try:
        assert isinstance(caption_of(path.parent / "clip_0001", path), str)
    except FlowshadeError as error:
        assert METADATA in str(error)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0" * 4096, b"\xff" * 4096, b"text\n" * 50], ids=["empty", "one", "zeros", "ones", "text"]
)
def test_files_that_are_something_else(tmp_path, suffix, data):
    (tmp_path / f"a{suffix}").write_bytes(data)
    with pytest.raises(FlowshadeError, match=r"a\."):
        read_picture(tmp_path / f"a{suffix}")
