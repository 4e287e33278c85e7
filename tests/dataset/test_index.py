"""The index of a dataset as JSON lines and Parquet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flowshade.dataset.index import LINES, PARQUET, read_index, split_of, write_index, write_parquet
from flowshade.errors import MissingDependencyError

ROW: dict[str, Any] = {
    "path": "street-000004", "world": "street", "seed": 4, "camera": 0, "split": "train", "caption": "a road",
    "look": "rain", "look_caption": "Rain.", "particles": "rain", "reference": "paths", "frames": 300, "fps": 30.0,
    "height": 720, "width": 1280, "bytes": 2**33, "channels": ["albedo", "depth"],
}  # fmt: skip
BARE = {**ROW, "path": "hills-000005", **dict.fromkeys(["look", "look_caption", "particles", "reference"])}


def test_lines_hold_what_the_index_holds(tmp_path: Path) -> None:
    index = write_index(tmp_path / "set", {"plan": {"clips": 2}}, [ROW, BARE])
    assert index == read_index(tmp_path / "set")
    assert index["frames"] == 600 and index["bytes"] == 2**34
    lines = (tmp_path / "set" / LINES).read_text().splitlines()
    assert [json.loads(line) for line in lines] == index["clips"] == [ROW, BARE]
    assert not list((tmp_path / "set").glob("*.tmp"))


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_index(tmp_path, {}, [ROW, BARE])
    table = parquet.read_table(write_parquet(tmp_path))
    assert table.to_pylist() == [ROW, BARE]
    assert table.column_names == list(ROW)


def test_parquet_has_its_columns_without_any_clip(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_index(tmp_path, {}, [])
    table = parquet.read_table(write_parquet(tmp_path))
    assert table.num_rows == 0 and table.column_names == list(ROW)


def test_without_pyarrow_the_lines_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    write_index(tmp_path, {}, [ROW])
    with pytest.raises(MissingDependencyError, match=rf"{PARQUET} was not written.*{LINES}.*flowshade\[data\]"):
        write_parquet(tmp_path)
    assert not (tmp_path / PARQUET).exists()


def test_splits_go_by_world_and_never_change() -> None:
    splits = [split_of("street", seed) for seed in range(4000)]
    for split, share in (("validation", 0.05), ("test", 0.05), ("train", 0.9)):
        assert splits.count(split) / len(splits) == pytest.approx(share, abs=0.015)  # four standard deviations
    known = {14: "validation", 20: "test", 26: "validation", 29: "validation"}
    assert splits[:30] == [known.get(seed, "train") for seed in range(30)]
    assert split_of("hills", 14) == "test"
