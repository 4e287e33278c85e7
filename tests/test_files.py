"""Files appear whole or not at all, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from flowshade import files
from flowshade.files import WriteError

WRITERS: dict[str, Callable[[Path], None]] = {
    "bytes": lambda path: files.write_bytes(path, b"new"),
    "text": lambda path: files.write_text(path, "new"),
    "json": lambda path: files.write_json(path, {"new": 1}),
    "tensors": lambda path: files.write_tensors(path, {"new": torch.ones(2)}, {}),
    "image": lambda path: files.write_image(path, Image.new("RGB", (2, 2))),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_file_is_replaced_and_nothing_else_is_left(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write(path)
    assert path.read_bytes() != b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_place_that_cannot_be_written_is_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(WriteError, match=r"nowhere/file cannot be written \(.+\); nothing of it was kept"):
        write(path)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_midway_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_values_that_json_lacks(tmp_path: Path) -> None:
    value = {"a": float("nan"), 2: (np.float32(0.5), np.int64(3), Path("x/y")), "b": [float("inf"), "ä", None, True]}
    files.write_json(tmp_path / "file", value)
    assert json.loads((tmp_path / "file").read_text(encoding="utf-8")) == {
        "a": None,
        "2": [0.5, 3, "x/y"],
        "b": [None, "ä", None, True],
    }


def test_tensors_come_back(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "file", {"a": torch.arange(3)}, {"of": "test"})
    assert load_file(tmp_path / "file")["a"].tolist() == [0, 1, 2]
