"""Other people's weights on disk, read without running anything: safetensors, sharded or not, `.pth` and TorchScript.

Files are memory-mapped. Nothing is read but names, types and shapes until a tensor is asked for.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flowshade.errors import CheckpointError, listed, reason

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".jit")
INDEX = ".index.json"
NESTED = ("generator_ema", "generator", "model", "state_dict", "module")
"""Where trainers put the state inside a `.pt` file, the preferred first."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """What a file says of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class TensorFile(ABC):
    """Tensors by name."""

    path: Path
    info: dict[str, TensorInfo]

    @abstractmethod
    def get(self, name: str) -> Tensor:
        """A tensor on the CPU, memory-mapped where the format allows it."""

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return [self.path]

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    @property
    def values(self) -> int:
        """Numbers in all tensors together."""
        return sum(torch.Size(info.shape).numel() for info in self.info.values())


def open_tensors(path: Path | str) -> TensorFile:
    """Opens weights: a `.safetensors` file, an `.index.json` with its shards, a folder that holds either, or a `.pth`.

    Raises:
        CheckpointError: nothing there, an unknown kind, a file that is cut short, a shard that is missing, or a
            pickle that holds anything but tensors. A TorchScript archive's tensors are read, its program is not run.
    """
    path = Path(path)
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}: nothing is there. Check the path, or see: flowshade models list.")
    if path.name.endswith(INDEX):
        return _Shards(path)
    if path.suffix == ".safetensors":
        return _Safetensors(path)
    if path.suffix in PICKLES:
        return _Pickle(path)
    raise CheckpointError(f"{path} is of an unknown kind; expected .safetensors, {INDEX}, {', '.join(PICKLES)}.")


class _Safetensors(TensorFile):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(path, framework="pt")
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise CheckpointError(unreadable(path, "safetensors", error)) from error
        self.info = {
            name: TensorInfo(tuple(part.get_shape()), DTYPES[part.get_dtype()]) for name, part in slices.items()
        }

    def get(self, name: str) -> Tensor:
        return self._file.get_tensor(name)


class _Shards(TensorFile):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            places: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is not an index of shards ({type(error).__name__}: {error}); expected JSON with a "
                "'weight_map'. Copy or download it again."
            ) from error
        names = sorted(set(places.values()))
        missing = [name for name in names if not (path.parent / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{path} lists {len(names)} shards and {len(missing)} are not beside it: {', '.join(missing)}. "
                "Copy or download them too."
            )
        self._shards = {name: open_tensors(path.parent / name) for name in names}
        self._home = {name: shard for shard in self._shards.values() for name in shard.info}
        absent = sorted(places.keys() - self._home.keys())
        if absent:
            raise CheckpointError(
                f"{path} promises {len(absent)} tensors that its shards lack, {absent[0]} the first. The files are of "
                "different versions: download all of them again."
            )
        self.info = {name: self._home[name].info[name] for name in places}

    def get(self, name: str) -> Tensor:
        return self._home[name].get(name)

    @property
    def files(self) -> list[Path]:
        return [shard.path for shard in self._shards.values()]


class _Pickle(TensorFile):
    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = _load_torchscript(path) if _is_torchscript(path) else _unwrap(_load_pickle(path), path)
        self.info = {name: TensorInfo(tuple(value.shape), value.dtype) for name, value in self._state.items()}

    def get(self, name: str) -> Tensor:
        return self._state[name]


def _load_pickle(path: Path) -> Any:
    try:
        # Transformer Engine's layers leave bytes in a buffer beside their tensors; nothing reads them.
        with torch.serialization.safe_globals([io.BytesIO]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error).lower() and "unsupported" not in str(error).lower():
            raise CheckpointError(unreadable(path, "PyTorch", error)) from error
        reason = str(error).split("WeightsUnpickler error:")[-1].strip().splitlines()[0]
        raise CheckpointError(
            f"{path} holds more than tensors ({reason}) and was refused: such a file can run code when it is opened. "
            "Get a .safetensors file, or one that was saved from a plain state dict."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(unreadable(path, "PyTorch", error)) from error


def _is_torchscript(path: Path) -> bool:
    """Whether a file is an archive of TorchScript, whatever it is called: those hold a program beside the tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:  # an older kind of pickle, or a damaged file, which its reader then tells
        return False


def _load_torchscript(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the format is old, and so are the released files
            module = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise CheckpointError(unreadable(path, "TorchScript", error)) from error
    return dict(module.state_dict())


def _unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The state inside what a trainer saved; tensors of a sequence are called by their number."""
    if isinstance(loaded, (list, tuple)) and all(isinstance(value, Tensor) for value in loaded):
        loaded = {str(index): value for index, value in enumerate(loaded)}
    while isinstance(loaded, dict) and not any(isinstance(value, Tensor) for value in loaded.values()):
        inner = next((loaded[name] for name in NESTED if isinstance(loaded.get(name), dict)), None)
        if inner is None:
            break
        loaded = inner
    if not isinstance(loaded, dict) or not any(isinstance(value, Tensor) for value in loaded.values()):
        found = f"a dict of {listed(loaded)}" if isinstance(loaded, dict) else f"a {type(loaded).__name__}"
        raise CheckpointError(f"{path} holds {found}; expected a state dict, or one under {', '.join(NESTED)}.")
    return {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}


def _in_folder(folder: Path) -> Path:
    for pattern in (f"*{INDEX}", "*.safetensors", *(f"*{suffix}" for suffix in PICKLES)):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise CheckpointError(
                f"{folder} holds {len(found)} files of weights ({listed(path.name for path in found)}); expected one, "
                f"or one {INDEX}. Name the file."
            )
    raise CheckpointError(f"{folder} holds no weights; expected a .safetensors file or its {INDEX}. Check the path.")


def unreadable(path: Path, kind: str, error: Exception) -> str:
    """The sentence for a file of weights that its library cannot read."""
    return (
        f"{path} ({path.stat().st_size} bytes) is not a readable {kind} file ({reason(error)[:160]}). "
        "It may be cut short or of another format: copy or download it again."
    )
