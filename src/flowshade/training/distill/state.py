"""Training state on disk: a folder with one safetensors file a process, which any number of processes can go on from.

Weights, their averages and the optimiser's moments are split along their first axis as FSDP2 splits them; a file holds
one process's parts. A folder appears whole or not at all.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from flowshade.errors import CheckpointError
from flowshade.files import write_json
from flowshade.training.processes import Processes
from flowshade.training.settings import differing

NAME = re.compile(r"stage(\d+)-update(\d+)")


def local(value: Tensor) -> Tensor:
    """This process's part of a tensor, sharing its memory; a tensor that is not split is all of it."""
    return value.to_local() if isinstance(value, DTensor) else value


def part_of(whole: Tensor, rank: int, count: int) -> Tensor:
    """The part of a whole tensor that FSDP2 gives a process: equal runs of rows, the last ones shorter or empty."""
    rows = -(-whole.shape[0] // count)
    return whole[min(rank * rows, len(whole)) : min((rank + 1) * rows, len(whole))]


def save(folder: Path, stage: int, update: int, tensors: dict[str, Tensor], processes: Processes) -> None:
    """Writes the state after an update and removes older ones. All processes call it together.

    Args:
        folder: the run's `checkpoints`.
        stage: index of the stage.
        update: updates made in it.
        tensors: this process's parts; scalars are the same in each.
        processes: who writes.
    """
    final = folder / f"stage{stage}-update{update:08d}"
    temporary = folder / f".{final.name}.tmp"
    if processes.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    processes.wait()
    contiguous = {name: local(value).detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"stage": str(stage), "update": str(update), "processes": str(processes.count)}
    save_file(contiguous, temporary / f"process-{processes.rank:05d}.safetensors", metadata=metadata)
    processes.wait()
    if processes.first:
        older = [path for path in folder.iterdir() if path != temporary]
        temporary.replace(final)
        for path in older:
            shutil.rmtree(path)
    processes.wait()


class SavedState:
    """A state that was saved; tensors are read when asked for.

    Raises:
        CheckpointError: files that are missing or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            first = safe_open(path / "process-00000.safetensors", framework="pt")
            metadata = first.metadata()
            others = range(1, int(metadata["processes"]))
            rest = [safe_open(path / f"process-{rank:05d}.safetensors", framework="pt") for rank in others]
        except (SafetensorError, OSError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the training state {path} cannot be read ({error}); remove this folder to begin the stage anew."
            ) from error
        self.stage, self.update = int(metadata["stage"]), int(metadata["update"])
        self._files = [first, *rest]
        self.names: list[str] = list(first.keys())

    @staticmethod
    def newest(folder: Path) -> SavedState | None:
        """The latest state in a run's `checkpoints`; None if there is none."""
        found = [(match, path) for path in folder.glob("stage*") if (match := NAME.fullmatch(path.name))]
        newest = max(found, key=lambda item: (int(item[0][1]), int(item[0][2])), default=None)
        return None if newest is None else SavedState(newest[1])

    def part(self, name: str, processes: Processes) -> Tensor:
        """What this process holds of a tensor, whatever number of processes saved it."""
        if name not in self.names:
            raise CheckpointError(f"{self.path} lacks {name}; it is of another model. Give another folder with -o.")
        parts = [file.get_tensor(name) for file in self._files]
        if parts[0].ndim == 0:
            return parts[0]
        return part_of(torch.cat(parts), processes.rank, processes.count)


def settle(path: Path, settings: dict[str, Any]) -> None:
    """Writes down what a folder was made with; a folder made with anything else is refused.

    Raises:
        CheckpointError: other settings; they are listed.
    """
    settings = json.loads(json.dumps(settings))
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
        return
    before = json.loads(path.read_text())
    changed = differing(before, settings)
    if changed:
        raise CheckpointError(
            f"{path.parent} was begun with other settings ({'; '.join(changed)[:400]}); give the same ones to go on, "
            "or another folder."
        )
