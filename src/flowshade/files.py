"""Files that appear whole or not at all: written under a temporary name beside their own, then renamed."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowshade.errors import FlowshadeError, reason

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


class WriteError(FlowshadeError):
    """A file or folder that cannot be written: a full disk, mostly."""

    def __init__(self, path: Path, said: str) -> None:
        self.said = said
        super().__init__(
            f"{path} cannot be written ({said}); nothing of it was kept. Free space on the disk, or choose another "
            "place."
        )


def temporary_beside(path: Path) -> Path:
    """The hidden neighbour under whose name an output is written until it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says what the system refuses about `path`, not about the temporary file that is being written.

    Raises:
        WriteError: the block failed to write.
    """
    try:
        yield
    except WriteError as error:  # of a file within what is written
        raise WriteError(path, error.said) from error
    except OSError as error:
        raise WriteError(path, error.strerror or reason(error)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary neighbour to write; it becomes `path` when the block ends well, and is removed if not.

    Raises:
        WriteError: it cannot be written.
    """
    temporary = temporary_beside(path)
    with writing(path):
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file. Raises: WriteError."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, UTF-8. Raises: WriteError."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Writes JSON that every reader takes: numbers that are not finite become null. Raises: WriteError."""
    write_text(path, json.dumps(plain(value), indent=indent, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file of contiguous tensors. Raises: WriteError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata=dict(metadata))
        except SafetensorError as error:
            raise WriteError(path, reason(error)) from error


def write_image(path: Path, image: Image) -> None:
    """Writes a PNG of Pillow's, for code that needs no more than that. Raises: WriteError."""
    with replacing(path) as temporary:
        image.save(temporary, format="PNG")


def free_space(folder: Path) -> int:
    """Bytes that the disk of a folder has left; the folder need not be there yet."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def plain(value: Any) -> Any:
    """The same in the types of JSON; numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
