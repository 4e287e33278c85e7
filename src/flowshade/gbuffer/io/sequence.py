"""Numbered files as frames: ordered by number, with gaps and doubles reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from flowshade.gbuffer.io.errors import ClipError

SHOWN = 8
"""Missing frames that a message names."""
MAX_DIGITS = 12
"""Longer runs of digits are no frame numbers (dates with times are, barely)."""


def frame_number(path: Path) -> int | None:
    """The last run of digits in a file's stem: `frame_10.exr` -> 10."""
    digits = re.findall(r"\d+", path.stem)
    return int(digits[-1]) if digits and len(digits[-1]) <= MAX_DIGITS else None


def numbered(
    paths: Iterable[Path], what: str, number_of: Callable[[Path], int | None] = frame_number
) -> dict[int, Path]:
    """Files by frame number, in order.

    Args:
        paths: the files of one sequence.
        what: what they are, for error messages.
        number_of: how a name tells its frame.

    Raises:
        ClipError: no file, one without a number, two with the same one, or a gap.
    """
    by_number: dict[int, Path] = {}
    for path in sorted(paths):
        number = number_of(path)
        if number is None:
            raise ClipError(
                f"{path} has no frame number; expected names such as {path.stem}_0001{path.suffix}. Rename it or "
                "move it away."
            )
        if number in by_number:
            raise ClipError(
                f"{path.parent}: {by_number[number].name} and {path.name} are both frame {number}; expected one "
                "sequence of files a folder. Give each sequence its own folder."
            )
        by_number[number] = path
    if not by_number:
        raise ClipError(f"{what}: there is no such file; expected one a frame. Check the path, or the format's name.")
    check_no_gap(sorted(by_number), what)
    return dict(sorted(by_number.items()))


def check_no_gap(numbers: list[int], what: str) -> None:
    """Raises a ClipError that names the numbers missing from a sorted list."""
    if numbers[-1] - numbers[0] + 1 != len(numbers):
        missing = [number for low, high in pairwise(numbers) for number in range(low + 1, min(high, low + 2 + SHOWN))]
        listed = ", ".join(map(str, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
        raise ClipError(
            f"{what}: frames {listed} are missing between {numbers[0]} and {numbers[-1]}; expected every frame. "
            "Render or copy the missing ones, or move the rest to another folder."
        )
