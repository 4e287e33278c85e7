"""A dataset's index: `dataset.json`, and the same clips as rows of `index.jsonl` and `index.parquet`.

    path         the clip's folder, below the dataset's
    world, seed  what was recorded: a kind of world and its seed
    camera       which of the world's camera paths, 0 being its own
    split        train, validation or test; a world with all its clips belongs to one of them
    caption      what there is, in words
    look         the family of looks, and look_caption: light and weather in words; null without pictures
    particles    rain, snow, fireflies, bubbles, or null
    reference    direct or paths: how the pictures were made; null without pictures
    frames, fps, height, width, bytes, channels

Rows are in the plan's order. Parquet needs pyarrow (`pip install 'flowshade[data]'`); JSON lines are always written.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from flowshade.errors import FlowshadeError, MissingDependencyError
from flowshade.files import replacing, write_json, write_text

INDEX, LINES, PARQUET = "dataset.json", "index.jsonl", "index.parquet"
FORMAT, VERSION = "flowshade-dataset", 1
Split = Literal["train", "validation", "test"]
_HELD_OUT: dict[Split, int] = {"validation": 5, "test": 5}
"""Worlds in a hundred."""


class DatasetError(FlowshadeError, ValueError):
    """A dataset cannot be planned, continued or read."""


def split_of(world: str, seed: int) -> Split:
    """The split of a world, by a hash of its name: it stays the same however a dataset grows."""
    place = int.from_bytes(hashlib.sha256(f"{world}-{seed}".encode()).digest()[:8], "big") % 100
    for split, share in _HELD_OUT.items():
        if place < share:
            return split
        place -= share
    return "train"


def write_index(folder: Path, header: dict[str, Any], clips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Writes `dataset.json` and `index.jsonl`, each whole or not at all.

    Args:
        folder: made if absent.
        header: what `dataset.json` says besides its clips: the plan, times.
        clips: a row each.

    Returns:
        The content of `dataset.json`.
    """
    index = {
        "format": FORMAT, "version": VERSION, **header, "clips": list(clips),
        "frames": sum(clip["frames"] for clip in clips), "bytes": sum(clip["bytes"] for clip in clips),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / LINES, "".join(json.dumps(clip) + "\n" for clip in clips))
    write_json(folder / INDEX, index)
    return read_index(folder)


def read_index(folder: Path) -> dict[str, Any]:
    """The content of a dataset's `dataset.json`.

    Raises:
        DatasetError: there is none, or it was not written by this version.
    """
    path = folder / INDEX
    if not path.is_file():
        raise DatasetError(f"{folder} has no {INDEX}; expected a dataset. Make one with: flowshade data generate")
    content = json.loads(path.read_text())
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise DatasetError(
            f"{path} is {content.get('format')!r} version {content.get('version')}; expected {FORMAT!r} version "
            f"{VERSION}. Read it with the Flowshade that wrote it."
        )
    return content


def write_parquet(folder: Path) -> Path:
    """Writes a dataset's rows as `index.parquet`, of the same columns whatever is in them.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        DatasetError: the folder holds no dataset.
    """
    pyarrow, parquet = _pyarrow()
    whole, text = pyarrow.int64(), pyarrow.string()
    columns = {
        "path": text, "world": text, "seed": whole, "camera": whole, "split": text, "caption": text, "look": text,
        "look_caption": text, "particles": text, "reference": text, "frames": whole, "fps": pyarrow.float64(),
        "height": whole, "width": whole, "bytes": whole, "channels": pyarrow.list_(text),
    }  # fmt: skip
    table = pyarrow.Table.from_pylist(read_index(folder)["clips"], schema=pyarrow.schema(list(columns.items())))
    with replacing(folder / PARQUET) as temporary:
        parquet.write_table(table, temporary)
    return folder / PARQUET


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError(
            f"{PARQUET} was not written, since pyarrow is not installed ({LINES} holds the same rows). Install it "
            "with: pip install 'flowshade[data]', and run the command again."
        ) from error
