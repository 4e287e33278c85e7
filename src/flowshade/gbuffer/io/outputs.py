"""Where output goes, checked before work begins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av.error

from flowshade import files
from flowshade.errors import reason
from flowshade.files import WriteError, temporary_beside
from flowshade.gbuffer.io.errors import ClipError

MAX_NAME_BYTES = 255
"""Of a file's name, on all usual file systems."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """As `flowshade.files.writing`, for what FFmpeg refuses too. Raises: WriteError."""
    try:
        with files.writing(path):
            yield
    except av.error.FFmpegError as error:
        raise WriteError(path, error.strerror or reason(error)) from error


def check_file(path: Path, suffix: str, what: str = "the output") -> None:
    """Finds what would keep a file from appearing under its name.

    Args:
        path: the file to write.
        suffix: what its name must end in.
        what: what it is, for messages.

    Raises:
        ClipError: another name, a folder, or a place that cannot be written to.
    """
    check_place(path, what)
    if path.is_dir():
        raise ClipError(f"{what} {path} is a folder; give the name of a file, such as {path / f'out{suffix}'}.")
    if path.suffix.lower() != suffix:
        raise ClipError(f"{what} is called {path.name}; expected a name that ends in {suffix}, such as out{suffix}.")


def check_folder(path: Path, what: str = "the output") -> None:
    """Finds what would keep a new folder from appearing under its name. Raises: ClipError."""
    check_place(path, what)
    if os.path.lexists(path) and not path.exists():
        raise ClipError(f"{what} {path} is a link that leads nowhere; remove it, or give another name.")
    if path.exists() and not path.is_dir():
        raise ClipError(f"{what} {path} is a file; expected the name of a folder. Give another name.")


def check_place(path: Path, what: str) -> None:
    """Checks the name of an output, and that files can be made where it will lie. Raises: ClipError."""
    absolute = path.absolute()
    try:
        str(absolute).encode()
    except UnicodeEncodeError as error:
        raise ClipError(f"{what} {str(path)!a} has a name that is not UTF-8; give another name.") from error
    if path.name:
        longest = MAX_NAME_BYTES - len(temporary_beside(path).name.encode()) + len(path.name.encode())
        if len(path.name.encode()) > longest:
            raise ClipError(
                f"{what} has a name of {len(path.name.encode())} bytes ({path.name[:40]}...); expected at most "
                f"{longest}, with what is added to it. Give a shorter name."
            )
    for folder in absolute.parents:
        if os.path.lexists(folder):
            _check_writable(folder, what)
            return
        if len(folder.name.encode()) > MAX_NAME_BYTES:
            raise ClipError(f"{what} lies in a folder whose name is too long ({folder.name[:40]}...); shorten it.")


def _check_writable(folder: Path, what: str) -> None:
    if not folder.exists():
        raise ClipError(f"{what} lies in {folder}, a link that leads nowhere; expected a folder. Choose another.")
    if not folder.is_dir():
        raise ClipError(f"{what} lies in {folder}, which is a file; expected a folder. Choose another.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ClipError(f"cannot write to {folder} ({error.strerror}); choose another folder.") from error


def check_apart(path: Path, clip: Path, what: str = "the output") -> None:
    """Refuses an output that is, lies in or holds the clip it is made from.

    Args:
        path: the file or folder to write.
        clip: the input: a folder, or one file of a clip, whose neighbours named after channels belong to it too.
        what: what is written, for messages.

    Raises:
        ClipError: writing would change the clip.
    """
    from flowshade.gbuffer.io.picture_folder import channel_in_name  # imports pictures, which imports this module

    output, source = Path(os.path.realpath(path)), Path(os.path.realpath(clip))  # a loop of links does not raise
    if output == source or source in output.parents or output in source.parents:
        relation = "holds" if output in source.parents else "is" if output == source else "lies in"
        raise ClipError(
            f"{what} {path} {relation} the clip {clip} that it is made from; expected a place outside it. Give another "
            "name."
        )
    if source.is_file() and output.parent == source.parent and channel_in_name(output.stem) is not None:
        raise ClipError(
            f"{what} {path} lies beside {clip} and is named after a channel, so it would count as part of that clip; "
            "give another name."
        )
