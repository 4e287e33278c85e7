"""What is wrong on this machine, in sentences, each with the command that mends it."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from flowshade.checkpoints.catalogue import COMPACT, COMPACT_INVERSE, FINGERPRINTS, Model, Part
from flowshade.checkpoints.files import TensorFile
from flowshade.checkpoints.inverse import DIFFUSION_INVERSES, check_memory, default_dtype
from flowshade.checkpoints.loading import examine, find_part, missing_sentence, models_folder
from flowshade.checkpoints.store import (
    default_inverse_weights,
    default_weights,
    load_inverse_file,
    load_renderer_file,
)
from flowshade.device import choose_device, free_memory
from flowshade.errors import CheckpointError, FlowshadeError
from flowshade.files import free_space

OLDEST_TORCH = (2, 11)
TOKENIZER_FILES = ("tokenizer.json", "spiece.model")
"""Either makes a tokenizer's folder usable."""


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis."""

    level: Literal["good", "note", "bad"]
    what: str
    text: str


def diagnose(model: Model | None, folder: Path | None = None) -> Iterator[Finding]:
    """Looks at the machine and, if one is named, at a model's files. Nothing is loaded but names and shapes.

    Args:
        model: which model; None looks at the machine and the compact models that ship.
        folder: where the model's files lie; None looks where `models pull` puts them.
    """
    yield from _machine(folder)
    if model is None or not model.parts:
        yield from (_shipped(name) for name in _SHIPPED if model is None or model.name == name)
        return
    lacking = [requirement for requirement in model.requires if importlib.util.find_spec(requirement[0]) is None]
    for package, extra in lacking:
        text = f"not installed, and {model.name} needs it; mend it: pip install 'flowshade[{extra}]', then look again"
        yield Finding("bad", package, text)
    for part in model.parts if not lacking else ():  # without it the files cannot be held against their networks
        yield from _part(model, part, folder)
    if model.name in DIFFUSION_INVERSES and not lacking:
        yield _room(model)
    for unknown in model.unknown:
        yield Finding("note", model.name, f"not published: {unknown}")


def _room(model: Model) -> Finding:
    """Whether a 7B inverse's weights fit where they would go."""
    device = choose_device(None)
    dtype = default_dtype(device)
    try:
        check_memory(model, device, dtype, dtype, offload=False)
    except FlowshadeError as error:
        return Finding("note", "room", str(error))
    return Finding("good", "room", f"its weights fit on {device} in {str(dtype).removeprefix('torch.')}")


def _machine(folder: Path | None) -> Iterator[Finding]:
    version = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
    good = version >= OLDEST_TORCH
    text = torch.__version__ if good else f"{torch.__version__} is older than 2.11; mend it: pip install -U torch"
    yield Finding("good" if good else "bad", "torch", text)
    yield _gpu()
    available = free_memory(torch.device("cpu"))
    if available is not None:
        yield Finding("good", "memory", f"{available / 2**30:.1f} GiB available")
    place = folder or models_folder()
    free = free_space(place) / 2**30
    yield Finding("good" if free > 20 else "note", "disk", f"{free:.0f} GiB free for {place}")


def _gpu() -> Finding:
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gigabytes = properties.total_memory / 2**30
        return Finding("good", "GPU", f"{properties.name}, {gigabytes:.0f} GiB, CUDA {torch.version.cuda}")
    if torch.version.cuda is None:
        text = "this torch was built without CUDA; with an NVIDIA GPU, install torch from its CUDA index"
    else:
        text = f"torch has CUDA {torch.version.cuda} but no GPU can be used; look at: nvidia-smi"
    return Finding("note", "GPU", text)


_SHIPPED = {
    COMPACT.name: (default_weights, load_renderer_file),
    COMPACT_INVERSE.name: (default_inverse_weights, load_inverse_file),
}
"""Models inside the package: where the file lies, and what loads it."""


def _shipped(name: str) -> Finding:
    weights, load = _SHIPPED[name]
    try:
        model = load(weights())
    except CheckpointError as error:
        return Finding("bad", name, f"{error} Mend it: pip install --force-reinstall --no-deps flowshade")
    return Finding("good", name, f"{weights()} is right ({model.config.name})")


def _part(model: Model, part: Part, folder: Path | None) -> Iterator[Finding]:
    path = find_part(model, part, folder)
    if path is None:
        level = "note" if part.optional else "bad"
        yield Finding(level, part.role, f"{model.name} lacks {missing_sentence(model, part, folder)}")
        return
    if not part.keymaps:
        good = any((path / name).is_file() for name in TOKENIZER_FILES)
        text = f"{path}" if good else f"{path} holds none of {', '.join(TOKENIZER_FILES)}; copy or download it again"
        yield Finding("good" if good else "bad", part.role, text)
        return
    try:
        examined = examine(part, path)
    except CheckpointError as error:
        yield Finding("bad", part.role, str(error))
        return
    for problem in examined.problems:
        yield Finding("bad", part.role, problem)
    if not examined.problems:
        file = examined.file
        known = f"fingerprint {examined.fingerprint[:12]}"
        if part.fingerprint == examined.fingerprint:
            known = "as released" if examined.fingerprint in FINGERPRINTS else "names and shapes of the published code"
        text = f"{path}: {len(file.info)} tensors, {file.values / 1e6:.1f}M values, {file.bytes / 1e9:.2f} GB, {known}"
        yield Finding("good", part.role, text)
    for note in examined.notes:
        yield Finding("note", part.role, note)


@dataclass(frozen=True, kw_only=True)
class PartCheck:
    """What identifies a file of weights, to compare with somebody else's."""

    role: str
    path: Path
    sha256: str
    fingerprint: str
    tensors: int
    values: int
    mean: float
    std: float
    largest: float
    """Largest absolute value."""
    broken: int
    """Values that are infinite or no number."""


def check_part(part: Part, path: Path) -> PartCheck:
    """Hashes a part's files and takes statistics over all its tensors, one in memory at a time.

    Raises:
        CheckpointError: the file cannot be read.
    """
    examined = examine(part, path)
    count, total, squares, largest, broken = 0, 0.0, 0.0, 0.0, 0
    for name in examined.file.info:
        values = examined.file.get(name).double()
        finite = values.isfinite()
        broken += int((~finite).sum())
        values = values[finite]
        count += values.numel()
        total += float(values.sum())
        squares += float(values.square().sum())
        largest = max(largest, float(values.abs().max())) if values.numel() else largest
    mean = total / max(count, 1)
    return PartCheck(
        role=part.role,
        path=path,
        sha256=hash_files(examined.file),
        fingerprint=examined.fingerprint,
        tensors=len(examined.file.info),
        values=examined.file.values,
        mean=mean,
        std=max(squares / max(count, 1) - mean**2, 0.0) ** 0.5,
        largest=largest,
        broken=broken,
    )


def hash_files(file: TensorFile) -> str:
    """SHA-256 of a file, or over those of its shards in the order of names."""
    digests = []
    for path in sorted(file.files):
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
