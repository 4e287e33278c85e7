"""Finding, examining and loading the parts of a catalogued model; what is wrong is a sentence with what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from flowshade.checkpoints import catalogue, keymaps
from flowshade.checkpoints.catalogue import FINGERPRINTS, FLOAT_TYPES, Model, Part
from flowshade.checkpoints.files import TensorFile, TensorInfo, open_tensors
from flowshade.checkpoints.keymaps import KeyMap, clean_name
from flowshade.checkpoints.store import keys_md5
from flowshade.errors import CheckpointError, listed


@dataclass
class Examined:
    """A file of weights held against what a part should be."""

    part: Part
    path: Path
    file: TensorFile
    names: dict[str, str] = field(default_factory=dict)
    """Our names to the file's."""
    fingerprint: str = ""
    problems: list[str] = field(default_factory=list)
    """Why it cannot be loaded, a sentence each."""
    notes: list[str] = field(default_factory=list)
    """What is unusual and does no harm."""

    @property
    def info(self) -> dict[str, TensorInfo]:
        """What the file says of its tensors, under our names."""
        return {ours: self.file.info[theirs] for ours, theirs in self.names.items()}


def models_folder() -> Path:
    """Where pulled models lie: $FLOWSHADE_MODELS, else flowshade/models in the user's data folder."""
    if folder := os.environ.get("FLOWSHADE_MODELS"):
        return Path(folder)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "flowshade" / "models"


def find_part(model: Model, part: Part, folder: Path | None = None) -> Path | None:
    """Where a part lies below a folder (by default where `models pull` puts it); None if it is not there."""
    folder = models_folder() / model.name if folder is None else folder
    return next((folder / path for path in part.paths if (folder / path).exists()), None)


def find_parts(model: Model, given: Path | None = None) -> dict[str, Path]:
    """Every part's path, for a folder or the path of the model's first part (the transformer).

    Parts that do not lie beside what was given are looked for where `models pull` puts them.

    Raises:
        CheckpointError: parts that are nowhere; they are listed with what to do.
    """
    found: dict[str, Path] = {}
    first = model.parts[0]
    is_part = given is not None and given.is_file()
    folders = [given.parent if is_part else given] if given is not None else []
    for part in model.parts:
        places = [find_part(model, part, folder) for folder in [*folders, None]]
        path = given if is_part and part is first else next((place for place in places if place is not None), None)
        if path is not None:
            found[part.role] = path
    missing = [part for part in model.parts if part.role not in found and not part.optional]
    if missing:
        raise CheckpointError(
            f"{model.name} lacks {'; '.join(missing_sentence(model, part, given) for part in missing)}"
        )
    return found


def missing_sentence(model: Model, part: Part, given: Path | None = None) -> str:
    """That a part is not there, where it was looked for, and what to do."""
    folder = models_folder() / model.name if given is None else given
    where = f"pull it with: flowshade models pull {model.name}" if part.sources else "copy it there"
    return f"its {part.role} ({part.about}): no {' or '.join(part.paths[:2])} in {folder}; {where}"


def examine(part: Part, path: Path) -> Examined:
    """Holds a file against what a part should be, by names, shapes and types; no tensor is read.

    Raises:
        CheckpointError: the file cannot be read at all.
    """
    file = open_tensors(path)
    result = Examined(part=part, path=path, file=file)
    cleaned = {clean_name(name): name for name in file.info}
    result.fingerprint = keys_md5({name: file.info[raw] for name, raw in cleaned.items()})  # pyright: ignore[reportArgumentType]
    naming = _naming(part.keymaps, cleaned)
    unknown = naming.unknown(cleaned)
    if len(unknown) > len(cleaned) / 2:
        result.problems.append(f"{path} is {_what(cleaned, result)}; expected {part.about}. Give the right file.")
        return result
    result.names = {ours: cleaned[theirs] for ours, theirs in naming.mapping(cleaned).items()}
    if unknown:
        result.problems.append(
            f"{path} holds {len(unknown)} tensors that {part.about} does not have ({listed(unknown)}). It is another "
            "version: use a newer Flowshade, or report these names."
        )
    elif dropped := {name for name in cleaned if naming.rename(name)[1] is None}:
        kept = {name: file.info[raw] for name, raw in cleaned.items() if name not in dropped}
        result.fingerprint = keys_md5(kept)  # pyright: ignore[reportArgumentType]
    _check_types(result)
    if part.build is not None:
        _check_shapes(result, part.build)
    if part.fingerprint not in (None, result.fingerprint) and not result.problems:
        result.notes.append(f"{path.name} has other names than the released file, but all it needs.")
    return result


def load_part(
    part: Part,
    path: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    overlays: tuple[tuple[Part, Path], ...] = (),
) -> nn.Module:
    """Loads a part's network, strictly, one tensor at a time: the host never holds a second copy.

    Args:
        part: what it should be.
        path: its file or folder.
        device: where it goes.
        dtype: type of its weights; None keeps the file's, memory-mapped on a CPU.
        overlays: further parts whose tensors replace this one's.

    Raises:
        CheckpointError: the file is not what it should be.
    """
    assert part.build is not None
    examined = examine(part, path)
    raise_problems(examined)
    others = [examine_overlay(other, where, examined) for other, where in overlays]
    with torch.device("meta"):
        network = part.build(examined.info)
    sources = {ours: (examined.file, theirs) for ours, theirs in examined.names.items()}
    for other in others:
        sources |= {ours: (other.file, theirs) for ours, theirs in other.names.items()}
    for name, (file, theirs) in sources.items():
        _assign(network, name, file.get(theirs).to(device=device, dtype=dtype))
    left = [name for name, value in [*network.named_parameters(), *network.named_buffers()] if value.is_meta]
    assert not left, left
    return network.to(device).eval().requires_grad_(False)  # what no file holds, such as a fixed filter, moves here


def examine_overlay(part: Part, path: Path, base: Examined) -> Examined:
    """Examines a part that replaces some of another's tensors; it may hold no others, in no other shape."""
    result = examine(part, path)
    raise_problems(result)
    extra = sorted(result.names.keys() - base.names.keys())
    wrong = [
        f"{name}: {info.shape} over {base.info[name].shape}"
        for name, info in result.info.items()
        if name in base.info and info.shape != base.info[name].shape
    ]
    if extra or wrong:
        raise CheckpointError(
            f"{path} does not fit {base.path}: {listed([*wrong, *(f'{name} is not there' for name in extra)])}. "
            "The two files are of different versions: get both from one place."
        )
    return result


def raise_problems(examined: Examined) -> None:
    """Raises the first problem, if there is any."""
    if examined.problems:
        raise CheckpointError(examined.problems[0])


def recognise(names: Mapping[str, str], examined: Examined) -> str | None:
    """What a file holds, if it is any file that is known."""
    if examined.fingerprint in FINGERPRINTS:
        return FINGERPRINTS[examined.fingerprint]
    kinds: list[tuple[str, tuple[KeyMap, ...]]] = [
        ("a Wan transformer", (keymaps.WAN_TRANSFORMER, keymaps.WAN_TRANSFORMER_DIFFUSERS)),
        ("a transformer with memory (Helios)", (keymaps.HELIOS,)),
        ("a Wan VAE", (keymaps.WAN_VAE, keymaps.WAN_VAE_DIFFUSERS)),
        ("a umt5 text encoder", (keymaps.UMT5, keymaps.UMT5_TRANSFORMERS)),
        ("a tiny video decoder (TAEHV)", (keymaps.TAEHV, catalogue.TINY_DECODER)),
        ("a transformer of Cosmos DiffusionRenderer", (keymaps.COSMOS_INVERSE,)),
        ("the encoder of Cosmos' tokenizer", (keymaps.COSMOS_ENCODER,)),
        ("the decoder of Cosmos' tokenizer", (keymaps.COSMOS_DECODER,)),
        ("the statistics of latents", (keymaps.COSMOS_STATISTICS,)),
    ]
    for kind, maps in kinds:
        if any(not naming.unknown(names) for naming in maps):
            return kind
    return None


def _what(names: Mapping[str, str], examined: Examined) -> str:
    known = recognise(names, examined)
    return known or f"something unknown ({len(names)} tensors: {listed(list(names))})"


def _naming(maps: tuple[KeyMap, ...], names: Mapping[str, str]) -> KeyMap:
    """The naming that knows the most of these names."""
    return min(maps, key=lambda naming: len(naming.unknown(names)))


def _check_types(result: Examined) -> None:
    counts: dict[torch.dtype, int] = {}
    for info in result.info.values():
        counts[info.dtype] = counts.get(info.dtype, 0) + torch.Size(info.shape).numel()
    wrong = [dtype for dtype in counts if dtype not in FLOAT_TYPES]
    if wrong:
        result.problems.append(
            f"{result.path} holds {_type_names(wrong)} values; expected {_type_names(FLOAT_TYPES)}. It was quantised "
            "or converted by another tool: use the released file."
        )
        return
    main = max(counts, key=lambda dtype: counts[dtype], default=result.part.dtype)
    if main != result.part.dtype:
        result.notes.append(
            f"{result.path.name} is {_type_names([main])}; released as {_type_names([result.part.dtype])}, as far as "
            "is known."
        )


def _check_shapes(result: Examined, build: Callable[[Mapping[str, TensorInfo]], nn.Module]) -> None:
    with torch.device("meta"):
        own = {name: tuple(value.shape) for name, value in build(result.info).state_dict().items()}
    info = result.info
    wrong = {name: info[name].shape for name in own if name in info and info[name].shape != own[name]}
    missing, extra = sorted(own.keys() - info.keys()), sorted(info.keys() - own.keys())
    patch = "patch_embedding.weight"
    found = _what({clean_name(name): name for name in result.file.info}, result)
    layers = [_layers(names) for names in (info, own)]
    if patch in wrong and len(wrong) == 1 and not missing and not extra:
        result.problems.append(
            f"{result.path} is {found}, whose patch_embedding takes {wrong[patch][1]} channels; expected the "
            f"{own[patch][1]}-channel fine-tune ({result.part.about}). Give the fine-tune's own file."
        )
    elif layers[0] != layers[1]:
        result.problems.append(
            f"{result.path} has {layers[0]} layers; expected {layers[1]} ({result.part.about}). It is a model of "
            "another size, or was cut: give the right file."
        )
    elif wrong or missing or extra:
        parts = [f"{name} is {shape} instead of {own[name]}" for name, shape in wrong.items()]
        parts += [f"{name} is missing" for name in missing] + [f"{name} is unknown" for name in extra]
        result.problems.append(
            f"{result.path} does not fit {result.part.about}: {listed(parts)}. Use the released file, or a newer "
            "Flowshade."
        )


def _type_names(types: Iterable[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in types)


_LAYER = r"(?:encoder\.|transformer\.transformer_)?blocks?\.(\d+)\."


def _layers(names: Mapping[str, object]) -> int:
    """Transformer layers that names speak of."""
    found = {int(match[1]) for name in names if (match := re.match(_LAYER, name))}
    return len(found)


def _assign(network: nn.Module, name: str, value: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    module = network.get_submodule(owner)
    if leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[leaf] = value
