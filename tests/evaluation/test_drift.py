"""Drift of statistics that are known, and pairs of frames that show one place."""

from __future__ import annotations

import pytest
import torch

from flowshade.evaluation.drift import STATISTICS, Sample, drift, picture_statistics, revisit_pairs


def test_statistics_of_a_known_picture() -> None:
    picture = torch.zeros(1, 3, 16, 16)
    picture[:, 0] = 0.25
    picture[:, :, :, 8:] += 0.5
    (found,) = picture_statistics(picture)
    assert (found["red"], found["green"]) == pytest.approx((0.5, 0.25))
    assert found["contrast"] == pytest.approx(0.25, rel=0.01)
    assert found["sharpness"] == pytest.approx(0.25 * 2 / 16, rel=1e-4)  # two columns see half a step of 0.5


def samples(frames: int, change) -> list[Sample]:
    """The scene itself brightens; the output differs from it by `change(frame)`."""
    made = []
    for frame in range(frames):
        scene = dict.fromkeys(STATISTICS, 0.2 + 0.5 * frame / frames)
        output = {name: value + change(frame) for name, value in scene.items()}
        made.append(Sample(frame=frame, output=output, reference=scene))
    return made


def test_what_the_scene_does_is_no_drift_and_a_constant_error_is_none() -> None:
    assert all(value == pytest.approx(0, abs=1e-9) for value in drift(samples(100, lambda _: 0.1), 100).values())


def test_an_error_that_grows_is_drift() -> None:
    found = drift(samples(100, lambda frame: 0.001 * frame), 100)
    assert found["red"] == pytest.approx(0.085)  # parts are centred on frames 7 and 92
    assert found["contrast"] == pytest.approx(0.085 / 0.4475, rel=1e-3)


def test_a_part_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="Sample more often"):
        drift(samples(10, lambda _: 0.0), 100)


def test_there_and_back_pairs_the_outermost_frames_first() -> None:
    assert revisit_pairs(20) == [(0, 19), (1, 18), (2, 17)]
