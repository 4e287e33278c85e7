"""Results on disk: whole or not at all, a file a clip, and never mixed with those of other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flowshade.errors import FlowshadeError
from flowshade.files import plain, replacing, write_json
from flowshade.gbuffer.io.limits import read_json

RESULTS = "results.json"
REPORT = "report.html"


class ResultFolder:
    """An evaluation's folder.

    `settings.json` says what was asked for, `clips/NAME.json` and `clips/NAME.npz` hold a clip's scores and features
    once it is done, beside pictures of it; `results.json` and `report.html` come last.

    Args:
        path: the folder, made if absent.
        settings: what scores depend on.

    Raises:
        FlowshadeError: the folder holds results of other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.clips = path / "clips"
        self._check(plain(settings))
        self.clips.mkdir(parents=True, exist_ok=True)
        write_json(path / "settings.json", settings)

    def _check(self, settings: dict[str, Any]) -> None:
        before = self.path / "settings.json"
        if not before.exists():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise FlowshadeError(
                    f"{self.path} is not empty and holds no evaluation; expected a new folder, or one to go on with. "
                    "Give another --output."
                )
            return
        found = read_json(before)
        other = [name for name in {**found, **settings} if found.get(name) != settings.get(name)]
        if other:
            name = sorted(other)[0]
            raise FlowshadeError(
                f"{self.path} holds results of {name} {found.get(name)!r}, and {settings.get(name)!r} was asked for; "
                "give another --output, or remove the folder."
            )

    def done(self, clip: str) -> bool:
        """Whether a clip's scores are complete."""
        return (self.clips / f"{clip}.json").exists()

    def save(self, clip: str, scores: dict[str, Any], features: dict[str, np.ndarray]) -> None:
        """Writes a clip's scores; the JSON comes last, since it marks the clip as done."""
        write_arrays(self.clips / f"{clip}.npz", features)
        write_json(self.clips / f"{clip}.json", scores)

    def load(self, clip: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What `save` wrote."""
        return read_json(self.clips / f"{clip}.json"), read_arrays(self.clips / f"{clip}.npz")


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Arrays by name as .npz, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def load_results(path: Path) -> dict[str, Any]:
    """What an evaluation wrote, by its folder or its `results.json`.

    Raises:
        FlowshadeError: nothing is there, or another file.
    """
    file = path / RESULTS if path.is_dir() else path
    if not file.is_file():
        raise FlowshadeError(f"{path} holds no {RESULTS}; expected the folder of a finished evaluation.")
    found = read_json(file)
    if not isinstance(found, dict) or not {"suite", "rows", "methods"} <= set(found):
        raise FlowshadeError(f"{file} is no evaluation's {RESULTS}; expected the folder of a finished one.")
    return found
