"""How far long work has come, on stderr: a bar, or lines where that is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is in all."""

LINE_SECONDS = 10.0
"""Between two lines."""


@contextmanager
def progress_bar(task: str, unit: str = "frames", *, shown: bool = True) -> Iterator[Progress]:
    """A bar with rate and time left on stderr (a line now and then where that is no terminal).

    Args:
        task: what is done, such as "rendering".
        unit: what is counted.
        shown: false shows nothing, for processes of which one speaks for all.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Bars(*columns, console=console, disable=not (shown and console.is_terminal), transient=True) as bars:
        row = bars.add_task(task, total=None, rate="")
        lines = _Lines(task, unit)

        def progress(done: int, total: int) -> None:
            speed = bars.tasks[0].speed
            bars.update(row, completed=done, total=total, rate="" if speed is None else f"{speed:.3g} {unit}/s")
            if shown and not console.is_terminal:
                lines.show(done, total)

        yield progress


class _Lines:
    """Progress as a line every `LINE_SECONDS`."""

    def __init__(self, task: str, unit: str) -> None:
        self._task, self._unit = task, unit
        self._began = self._shown = time.monotonic()

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown < LINE_SECONDS or not 0 < done < total:
            return
        self._shown = now
        rate = done / (now - self._began)
        left = (total - done) / rate
        print(f"{self._task} {done}/{total}, {rate:.3g} {self._unit}/s, {left:.0f} s left", file=sys.stderr, flush=True)
