"""What a new run begins from: a run's checkpoint, or weights that are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from flowshade.checkpoints.store import FORMAT, INVERSE_FORMAT, load_state, load_strictly, read_metadata
from flowshade.errors import CheckpointError
from flowshade.training.checkpoint import load_average

PREFIXES = {FORMAT: "renderer.", INVERSE_FORMAT: "inverse."}
"""Format of a file of weights -> where its model stands among those that are trained."""


def check_start(path: Path, expected: str) -> None:
    """Whether a run can begin from a file of this kind; reads none of its tensors.

    Args:
        path: of the file.
        expected: the format of the weights that the run trains, a key of `PREFIXES`.

    Raises:
        CheckpointError: no such file, neither a run's checkpoint nor weights, or weights of another kind.
    """
    found, own = _prefix(path), PREFIXES[expected]
    if found not in (None, own):
        raise CheckpointError(
            f"{path} holds weights of the {found.rstrip('.')} and this run trains the {own.rstrip('.')}; give weights "
            "of that, or the preset that trains these."
        )


def load_start(path: Path) -> dict[str, Tensor]:
    """The tensors of a run's `checkpoint.safetensors` (its averages), or of a renderer's or an inverse's weights.

    Raises:
        CheckpointError: no such file, or neither a run's checkpoint nor weights.
    """
    prefix = _prefix(path)
    if prefix is None:
        return load_average(path)
    return {f"{prefix}{name}": value.float() for name, value in load_state(path)[0].items()}


def _prefix(path: Path) -> str | None:
    """What stands before the names of a file of weights among what is trained; None for a run's checkpoint."""
    if not path.is_file():
        raise CheckpointError(
            f"nothing to begin from at {path}; expected a run's checkpoint.safetensors or a file of weights. Check it."
        )
    metadata = read_metadata(path)
    if "progress" in metadata:
        return None
    prefix = PREFIXES.get(metadata.get("format", ""))
    if prefix is None:
        raise CheckpointError(
            f"{path} is neither a run's checkpoint nor weights of Flowshade's (metadata {json.dumps(metadata)[:80]}); "
            "give the checkpoint.safetensors of a run, or a file that `flowshade train` or the package brings."
        )
    return prefix


def begin_from(models: nn.Module, state: Mapping[str, Tensor], *, what: str, lacking: str | None = None) -> list[str]:
    """Copies tensors into models. Layers that the file knows nothing of may stay as they are if they begin as nothing.

    Args:
        models: with fresh weights.
        state: of all their tensors but those.
        what: where it came from, for messages.
        lacking: a module that may be missing too.

    Returns:
        Names that stay as they are.

    Raises:
        CheckpointError: other names or shapes; they are listed.
    """
    missing = sorted(models.state_dict().keys() - state.keys())
    nothing = _beginning_as_nothing(models)
    fresh = [name for name in missing if name in nothing or (lacking and name.startswith(f"{lacking}."))]
    own = models.state_dict()
    load_strictly(models, {**state, **{name: own[name] for name in fresh}}, what=what)
    return fresh


def _beginning_as_nothing(models: nn.Module) -> set[str]:
    """Names of tensors of modules that change nothing while they are fresh."""
    return {
        f"{place}.{name}"
        for place, module in models.named_modules()
        if getattr(module, "begins_as_nothing", False)
        for name in module.state_dict()
    }
