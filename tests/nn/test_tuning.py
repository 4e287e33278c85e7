"""Choosing by timing."""

from __future__ import annotations

import pytest
import torch

from flowshade.nn.tuning import Tuner, disagreement


def test_off_a_gpu_the_first_is_taken() -> None:
    tuner = Tuner()
    candidates = {"first": lambda: torch.ones(2), "second": lambda: torch.zeros(2)}
    assert [tuner.run("kind", candidates).tolist() for _ in range(2)] == [[1, 1]] * 2
    assert tuner.choices["kind"].name == "first"


def test_the_fastest_that_agrees_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that says which is fast."""

    def refusing() -> torch.Tensor:
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    candidates = {
        "reference": lambda: torch.ones(2),
        "fast": lambda: torch.full((2,), 1.001),
        "wrong": lambda: torch.full((2,), 2.0),
        "nan": lambda: torch.full((2,), torch.nan),
        "refusing": refusing,
    }
    times = {candidates["reference"]: 2.0, candidates["fast"]: 1.0}
    tuner = Tuner()
    monkeypatch.setattr(tuner, "_time", times.__getitem__)
    choice = tuner._choose(candidates, torch.ones(2))
    assert choice.name == "fast" and choice.milliseconds == {"reference": 2.0, "fast": 1.0}
    assert choice.refused == {
        "wrong": "differs by 1",
        "nan": "differs by nan",
        "refusing": "No available kernel. Aborting execution.",
    }


def test_disagreement() -> None:
    assert disagreement(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])) == 0.75
    assert disagreement(torch.full((2,), torch.nan), torch.ones(2)) != disagreement(torch.ones(2), torch.ones(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu() -> None:
    tuner, x = Tuner(), torch.randn(2048, 2048, device="cuda")
    candidates = {"slow": lambda: (x @ x @ x @ x @ x) * 0 + x, "quick": lambda: x.clone()}
    tuner.run("copy", candidates)
    assert tuner.choices["copy"].name == "quick"
