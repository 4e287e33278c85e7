"""Renderers on disk: one safetensors file that says what it is and is checked when it is read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from flowshade.checkpoints.files import unreadable
from flowshade.errors import CheckpointError, listed
from flowshade.files import write_tensors
from flowshade.inverse.network import InverseConfig
from flowshade.inverse.stream import Inverse
from flowshade.renderer.renderer import Renderer, RendererConfig

FORMAT = "flowshade-renderer-1"
INVERSE_FORMAT = "flowshade-inverse-1"
"""What our files call themselves; the number changes when older readers would misread them."""

_WEIGHTS = Path(__file__).resolve().parent.parent / "weights"
_OWN_METADATA = ("format", "config", "fingerprint")
T = TypeVar("T")


def default_weights() -> Path:
    """The compact renderer's file inside the installed package."""
    return _WEIGHTS / "compact.safetensors"


def default_inverse_weights() -> Path:
    """The compact inverse's file inside the installed package."""
    return _WEIGHTS / "compact-inverse.safetensors"


def save_renderer(
    renderer: Renderer,
    path: Path | str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    extra: Mapping[str, str] | None = None,
) -> str:
    """Writes a renderer's weights and configuration; atomic.

    Args:
        renderer: what to save; its stream is not saved.
        path: the file, replaced if it exists. Its folder must exist.
        dtype: type of matrices and kernels on disk. Vectors (norms, biases, statistics) stay float32: they are few.
        extra: further metadata, such as the training step.

    Returns:
        The fingerprint of what was written.
    """
    return _save(renderer, FORMAT, path, dtype, extra)


def load_renderer_file(path: Path | str, device: torch.device | str = "cpu") -> Renderer:
    """Reads a file of `save_renderer` into a float32 renderer in evaluation mode.

    Raises:
        CheckpointError: the file is missing, is not safetensors, is not a renderer's, is damaged, or holds other
            tensors than its configuration asks for.
    """
    state, config = _load(path, FORMAT, RendererConfig)
    with torch.random.fork_rng(devices=[]):  # initial weights are thrown away; leave the caller's random state alone
        renderer = Renderer(config)
    load_strictly(renderer, state, what=str(path))
    return renderer.to(device).eval()


def save_inverse(
    inverse: Inverse, path: Path | str, *, dtype: torch.dtype = torch.bfloat16, extra: Mapping[str, str] | None = None
) -> str:
    """What `save_renderer` does, for an inverse."""
    return _save(inverse, INVERSE_FORMAT, path, dtype, extra)


def load_inverse_file(path: Path | str, device: torch.device | str = "cpu") -> Inverse:
    """Reads a file of `save_inverse` into a float32 inverse in evaluation mode; raises as `load_renderer_file` does."""
    state, config = _load(path, INVERSE_FORMAT, InverseConfig)
    with torch.random.fork_rng(devices=[]):
        inverse = Inverse(config)
    load_strictly(inverse, state, what=str(path))
    inverse.fingerprint = fingerprint(state)
    return inverse.to(device).eval()


def _save(
    model: Renderer | Inverse, form: str, path: Path | str, dtype: torch.dtype, extra: Mapping[str, str] | None
) -> str:
    state = {
        name: (value.to(dtype) if value.ndim > 1 else value).detach().cpu().contiguous()
        for name, value in model.state_dict().items()
    }
    clash = set(extra or ()) & set(_OWN_METADATA)
    if clash:
        raise ValueError(f"extra metadata uses the reserved names {sorted(clash)}; choose others.")
    digest = fingerprint(state)
    config = json.dumps(dataclasses.asdict(model.config))
    save_state(state, path, {"format": form, "config": config, "fingerprint": digest, **(extra or {})})
    return digest


def _load(path: Path | str, form: str, config: type[T]) -> tuple[dict[str, Tensor], T]:
    """The tensors of one of our files and its configuration."""
    state, metadata = load_state(path)
    if metadata.get("format") != form:
        raise CheckpointError(
            f"{path} says its format is {metadata.get('format')!r}; expected {form!r}. "
            "It holds another kind of model or was written by another version of Flowshade: give the right file."
        )
    actual = fingerprint(state)
    if actual != metadata.get("fingerprint"):
        raise CheckpointError(
            f"{path} has fingerprint {actual[:16]} and promises {str(metadata.get('fingerprint'))[:16]}; "
            "the file is damaged. Copy or download it again."
        )
    return state, _config(config, metadata, path)


def save_state(state: Mapping[str, Tensor], path: Path | str, metadata: Mapping[str, str]) -> None:
    """Writes tensors to a safetensors file, whole or not at all."""
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot write {path}: the folder {path.parent} does not exist. Make it first.")
    write_tensors(path, state, metadata)


def load_state(path: Path | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads the tensors and the metadata of a safetensors file.

    Raises:
        CheckpointError: no such file, or it is not safetensors.
    """
    with _reading(Path(path)) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def read_metadata(path: Path | str) -> dict[str, str]:
    """What a file says about itself: format, configuration as JSON, fingerprint, and what its writer added.

    Reads the header alone; raises as `load_state` does.
    """
    with _reading(Path(path)) as file:
        return dict(file.metadata() or {})


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise CheckpointError(f"no weights at {path}: found {found}, expected a .safetensors file. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(unreadable(path, "safetensors", error)) from error


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], *, what: str) -> None:
    """Copies tensors into a module that must have exactly these names and shapes.

    Raises:
        CheckpointError: names missing or left over, or shapes that differ; they are listed.
    """
    own = module.state_dict()
    missing = sorted(own.keys() - state.keys())
    unknown = sorted(state.keys() - own.keys())
    shapes = [
        f"{name}: {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
        for name in sorted(own.keys() & state.keys())
        if state[name].shape != own[name].shape
    ]
    problems = [
        f"{title} {len(names)}: {listed(names, 6)}"
        for title, names in (("missing", missing), ("unknown", unknown), ("other shapes", shapes))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"{what} does not fit the model ({'; '.join(problems)}). The weights belong to another configuration "
            "or version: use the file that was saved with this one."
        )
    module.load_state_dict(dict(state), strict=True)


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the tensors' names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def keys_md5(state: Mapping[str, Tensor]) -> str:
    """MD5 over names and shapes alone, as DiffSynth recognises a model's file."""
    parts = list(state)
    parts += [f"{name}:{'_'.join(str(size) for size in value.shape)}" for name, value in state.items()]
    return hashlib.md5(",".join(sorted(parts)).encode(), usedforsecurity=False).hexdigest()


def config_from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """The inverse of `dataclasses.asdict` after a trip through JSON: nested dataclasses and tuples come back.

    Fields that were added later (`nn.fields.ADDED_LATER`) may be missing and take their default.

    Raises:
        ValueError: fields that are unknown or missing.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    expected = {name for name, field in fields.items() if not field.metadata.get("added_later")}
    unknown, missing = sorted(values.keys() - fields.keys()), sorted(expected - values.keys())
    if unknown or missing:
        raise ValueError(f"{kind.__name__} has unknown fields {unknown} and misses {missing}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _restored(hints[name], value) for name, value in values.items()})


def _restored(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return config_from_dict(typing.cast(type, hint), value)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        items = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        return tuple(_restored(item, part) for item, part in zip(items, value))
    if origin in (types.UnionType, typing.Union) and value is not None:
        return _restored(next(item for item in arguments if item is not type(None)), value)
    return value


def _config(kind: type[T], metadata: Mapping[str, str], path: Path | str) -> T:
    try:
        return config_from_dict(kind, json.loads(metadata["config"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the configuration in {path} cannot be used ({error}). The file was written by another version of "
            "Flowshade: use the version that wrote it, or a newer file."
        ) from error
