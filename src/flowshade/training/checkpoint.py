"""Training state in one safetensors file: all that an update depends on, so that a run goes on as if never stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from flowshade.errors import CheckpointError
from flowshade.files import write_tensors

NAME = "checkpoint.safetensors"
"""In a run's folder."""

FORMAT = "flowshade-training-2"
"""Of the file's layout; others are refused."""

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter beside the number of its steps, which is one number."""


@dataclass(kw_only=True)
class Progress:
    """Where a run stands."""

    stage: str | None
    """The stage that is under way, by name; None = all are over."""
    step: int = 0
    """Updates made in this stage."""
    seconds: float = 0.0
    """Time spent in this stage."""
    logged: int = 0
    """Updates that stand in the log."""
    log_bytes: int = 0
    """Length of the log; what stands behind it is of updates that are made again."""


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What a process of a run holds for itself."""

    own: dict[str, Any]
    """NumPy's generator of its batches."""
    shared: dict[str, Any]
    """The one that draws the same in all processes."""
    begun: int
    """Clips that its producers began: the place of their next seed."""
    random: dict[str, Tensor]
    """PyTorch's generators by kind of device, bytes."""

    @staticmethod
    def random_of(device: torch.device) -> dict[str, Tensor]:
        """PyTorch's generators of the CPU and of a device."""
        states = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
        return states

    def restore(self, own: np.random.Generator, shared: np.random.Generator, device: torch.device) -> None:
        """Sets all generators."""
        own.bit_generator.state, shared.bit_generator.state = self.own, self.shared
        torch.set_rng_state(self.random["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(self.random["cuda"], device)


@dataclass(kw_only=True)
class Checkpoint:
    """The whole state of a run."""

    model: dict[str, Tensor]
    average: dict[str, Tensor]
    optimiser: dict[str, dict[str, Tensor]]
    """AdamW's state by name of the parameter; empty between stages."""
    sums: dict[str, Tensor]
    """What is to be logged, since the last line."""
    progress: Progress
    settings: dict[str, Any]
    """What the run was begun with, as JSON knows it."""
    processes: list[ProcessState] = field(repr=False)
    """By rank."""

    def check(self, models: nn.Module, trained: Iterable[str], *, what: str) -> None:
        """Looks at every tensor before any is used.

        Args:
            models: what the state is for.
            trained: names of the parameters that the stage under way trains.
            what: where the state came from, for messages.

        Raises:
            CheckpointError: tensors that are missing, left over or of other shapes; the first are listed.
        """
        own = {name: tuple(value.shape) for name, value in models.state_dict().items()}
        moments = {f"{name}.{moment}": own[name] for name in trained for moment in MOMENTS}
        moments |= {f"{name}.step": () for name in trained}
        saved = {f"{name}.{key}": value for name, state in self.optimiser.items() for key, value in state.items()}
        problems = [f"model.{line}" for line in _unlike(self.model, own)]
        problems += [f"average.{line}" for line in _unlike(self.average, own)]
        problems += [f"optimiser.{line}" for line in _unlike(saved, moments if self.progress.step else {})]
        if problems:
            raise CheckpointError(
                f"{what} does not fit the models ({len(problems)} tensors: {'; '.join(problems[:4])}). It belongs to "
                "another version: begin a new run in another folder."
            )


def _unlike(found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    lines = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{name} is unknown" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(found.keys() & expected.keys()):
        if tuple(found[name].shape) != expected[name]:
            lines.append(f"{name} is {tuple(found[name].shape)} instead of {expected[name]}")
    return lines


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Writes the whole state, or nothing."""
    tensors = {f"model.{name}": value for name, value in state.model.items()}
    tensors |= {f"average.{name}": value for name, value in state.average.items()}
    tensors |= {f"sums.{name}": value for name, value in state.sums.items()}
    for name, values in state.optimiser.items():
        tensors |= {f"optimiser.{name}.{key}": torch.as_tensor(value) for key, value in values.items()}
    for rank, process in enumerate(state.processes):
        tensors |= {f"random.{rank}.{kind}": value for kind, value in process.random.items()}
    processes = [{"own": one.own, "shared": one.shared, "begun": one.begun} for one in state.processes]
    metadata = {
        "format": FORMAT,
        "progress": json.dumps(asdict(state.progress)),
        "settings": json.dumps(state.settings),
        "processes": json.dumps(processes),
    }
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_tensors(path, contiguous, metadata)


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads what `save_checkpoint` wrote.

    Raises:
        CheckpointError: no such file, another kind of file, or one of another version.
    """
    metadata, tensors = _read(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of Flowshade ({metadata.get('format', 'no format stated')}; "
            f"expected {FORMAT}) and cannot be gone on from. Begin a new run in another folder with --start {path}, "
            "which takes its averaged weights."
        )
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in ("model", "average", "optimiser", "sums", "random")}
    try:
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        optimiser: dict[str, dict[str, Tensor]] = {}
        for key, value in parts["optimiser"].items():
            name, field_name = key.rsplit(".", 1)
            optimiser.setdefault(name, {})[field_name] = value
        processes = [
            ProcessState(**values, random=_of_rank(parts["random"], rank))
            for rank, values in enumerate(json.loads(metadata["processes"]))
        ]
        progress, settings = Progress(**json.loads(metadata["progress"])), json.loads(metadata["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is a damaged training checkpoint ({error!r}); restore it from a copy, or begin a new run."
        ) from error
    return Checkpoint(
        model=parts["model"],
        average=parts["average"],
        optimiser=optimiser,
        sums=parts["sums"],
        progress=progress,
        settings=settings,
        processes=processes,
    )


def load_average(path: Path) -> dict[str, Tensor]:
    """The averaged weights of a run, of this version or an older one.

    Raises:
        CheckpointError: no such file, or another kind of file.
    """
    _, tensors = _read(path, "average.")
    return {name.removeprefix("average."): value for name, value in tensors.items()}


def _of_rank(random: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    prefix = f"{rank}."
    states = {name.removeprefix(prefix): value for name, value in random.items() if name.startswith(prefix)}
    if "cpu" not in states:
        raise KeyError(f"random.{rank}.cpu")
    return states


def _read(path: Path, prefix: str = "") -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata, and the tensors whose names begin so."""
    if not path.is_file():
        raise CheckpointError(f"no training checkpoint at {path}; give the checkpoint.safetensors of a run.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if "progress" not in metadata:
                raise CheckpointError(
                    f"{path} is no training checkpoint: its metadata has no 'progress'. Give one from a run."
                )
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return dict(metadata), {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}); give one from a run.") from error
