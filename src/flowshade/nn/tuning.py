"""Choosing among implementations by timing them on the device, once for every kind of input."""

from __future__ import annotations

import logging
import statistics
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger(__name__)

DISAGREEMENT = 0.03
"""Largest relative difference from the first candidate; rounding of bfloat16 stays well below."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for a kind of input, and why."""

    name: str
    milliseconds: Mapping[str, float]
    """Of every candidate that ran and agreed."""
    refused: Mapping[str, str]
    """Why others were not taken."""


class Tuner:
    """Runs every candidate a few times when an input of a new kind comes, and the fastest from then on.

    The first candidate is the reference: others must agree with it. Off a GPU it is taken without timing.
    """

    def __init__(self, runs: int = 5) -> None:
        self.runs = runs
        self.choices: dict[Hashable, Choice] = {}

    def run(self, kind: Hashable, candidates: Mapping[str, Callable[[], Tensor]]) -> Tensor:
        """The result of the fastest candidate.

        Args:
            kind: everything that the speed depends on, shapes and types above all.
            candidates: implementations of one function, by name.
        """
        choice = self.choices.get(kind)
        if choice is not None:
            return candidates[choice.name]()
        reference_name, reference = next(iter(candidates.items()))
        result = reference()
        if len(candidates) == 1 or result.device.type != "cuda":
            self.choices[kind] = Choice(name=reference_name, milliseconds={}, refused={})
            return result
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{kind} was first seen while a graph was captured; run it once before.")
        self.choices[kind] = self._choose(candidates, result)
        log.info("%s: %s", kind, self.choices[kind])
        return result

    def _choose(self, candidates: Mapping[str, Callable[[], Tensor]], expected: Tensor) -> Choice:
        milliseconds, refused = {}, {}
        for name, candidate in candidates.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch tells of every kernel that does not take the input
                    difference = disagreement(candidate(), expected)
                if not difference <= DISAGREEMENT:
                    refused[name] = f"differs by {difference:.2g}"
                    continue
                milliseconds[name] = self._time(candidate)
            except RuntimeError as error:  # what PyTorch raises for inputs that a kernel does not take
                refused[name] = str(error).strip().splitlines()[0]
        return Choice(name=min(milliseconds, key=milliseconds.__getitem__), milliseconds=milliseconds, refused=refused)

    def _time(self, candidate: Callable[[], Tensor]) -> float:
        """Median milliseconds of a run."""
        times = []
        for _ in range(self.runs):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            candidate()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def disagreement(actual: Tensor, expected: Tensor) -> float:
    """|actual - expected| / |expected|; NaN where either holds one."""
    expected = expected.float()
    return float((actual.float() - expected).norm() / expected.norm().clamp(min=1e-30))
