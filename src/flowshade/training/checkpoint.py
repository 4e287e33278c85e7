"""Training state in one safetensors file: weights, their averages, the optimiser, and where the run stands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from flowshade.checkpoints.store import (
    FORMAT,
    INVERSE_FORMAT,
    load_inverse_file,
    load_renderer_file,
    read_metadata,
)
from flowshade.errors import CheckpointError


@dataclass(kw_only=True)
class Progress:
    """Where a run stands."""

    stage: int = 0
    """Index of the stage in the configuration."""
    step: int = 0
    """Updates made in this stage."""
    seconds: float = 0.0
    """Time spent in this stage."""


def save_checkpoint(
    path: Path, models: nn.Module, average: dict[str, Tensor], optimiser: torch.optim.Optimizer | None, at: Progress
) -> None:
    """Writes the whole state, or nothing."""
    tensors = {f"model.{name}": value for name, value in models.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.items()}
    if optimiser is not None:
        for index, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    temporary = path.with_name(path.name + ".tmp")
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    save_file(contiguous, temporary, metadata={"progress": json.dumps(asdict(at))})
    temporary.replace(path)


@dataclass(kw_only=True)
class Checkpoint:
    """A state as it was read back."""

    model: dict[str, Tensor]
    average: dict[str, Tensor]
    optimiser: dict[int, dict[str, Tensor]]
    progress: Progress


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads what `save_checkpoint` wrote.

    Raises:
        CheckpointError: no such file, or another kind of file.
    """
    if not path.is_file():
        raise CheckpointError(f"no training checkpoint at {path}; give the checkpoint.safetensors of a run.")
    try:
        return _read_checkpoint(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}); give one from a run.") from error


def load_start(path: Path) -> Checkpoint | nn.Module:
    """What a run may begin from: a run's checkpoint, or the renderer or inverse in a file of weights.

    Raises:
        CheckpointError: no such file, or one of another kind.
    """
    if not path.is_file():
        raise CheckpointError(
            f"no training checkpoint at {path}; give the checkpoint.safetensors of a run, or a file of weights."
        )
    form = read_metadata(path).get("format")
    if form == FORMAT:
        return load_renderer_file(path)
    return load_inverse_file(path) if form == INVERSE_FORMAT else load_checkpoint(path)


def _read_checkpoint(path: Path) -> Checkpoint:
    checkpoint = Checkpoint(model={}, average={}, optimiser={}, progress=Progress())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if "progress" not in metadata:
            raise CheckpointError(
                f"{path} is no training checkpoint: its metadata has no 'progress'. Give one from a run."
            )
        checkpoint.progress = Progress(**json.loads(metadata["progress"]))
        for key in file.keys():  # noqa: SIM118 - not a mapping
            part, name = key.split(".", 1)
            value = file.get_tensor(key)
            if part == "optimiser":
                index, field = name.split(".", 1)
                checkpoint.optimiser.setdefault(int(index), {})[field] = value
            else:
                getattr(checkpoint, part)[name] = value
    return checkpoint


def restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[int, dict[str, Tensor]]) -> None:
    """Puts moments and step counts back; parameter groups are those of the optimiser."""
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
