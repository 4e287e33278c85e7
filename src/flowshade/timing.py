"""Timings taken from outside: the code that is measured knows nothing of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


class StageTimer:
    """Adds up how long named stages take.

    On a GPU a stage is timed by events in the stream, so that measuring does not wait for the device; on a CPU by the
    wall clock. Stages may nest; each is counted in full.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._cuda = torch.device(device).type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._restore: list[Callable[[], None]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the enclosed block."""
        if not self._cuda:
            begin = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - begin
            return
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._pending.append((name, start, end))
        if len(self._pending) > 4096:
            self._collect()

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Times every call of `owner.method` as stage `name`, until `release`."""
        original = getattr(owner, method)

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return original(*args, **kwargs)

        owner.__dict__[method] = timed
        self._restore.append(lambda: owner.__dict__.pop(method))

    def release(self) -> None:
        """Takes the watched methods' wrappers off again."""
        while self._restore:
            self._restore.pop()()

    def reset(self) -> None:
        """Forgets what was added up."""
        self._collect()
        self._seconds.clear()

    def totals(self) -> dict[str, float]:
        """Seconds by stage, in the order in which stages first ended."""
        self._collect()
        return dict(self._seconds)

    def _collect(self) -> None:
        if self._pending:
            self._pending[-1][2].synchronize()
        for name, start, end in self._pending:
            self._seconds[name] += start.elapsed_time(end) / 1000
        self._pending.clear()


@contextmanager
def watching(timer: StageTimer, renderer: Any) -> Iterator[None]:
    """Has `timer` told how long a `Renderer`'s stages take: encode, history, transformer, decode.

    Of a renderer that runs CUDA graphs, history and transformer are one graph: stage `transformer`.
    """
    if renderer.graphs is not None:
        timer.watch(renderer, "encode", "encode")
        timer.watch(renderer, "roll", "transformer")
        timer.watch(renderer, "decode", "decode")
    else:
        timer.watch(renderer.encoder, "forward", "encode")
        timer.watch(renderer.transformer, "encode_history", "history")
        timer.watch(renderer.transformer, "forward", "transformer")
        timer.watch(renderer.decoder, "step", "decode")
    try:
        yield
    finally:
        timer.release()
