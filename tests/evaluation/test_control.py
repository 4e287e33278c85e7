"""Recognising looks, measuring fog, and frames until a change shows, on pictures whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from flowshade.color import linear_to_srgb
from flowshade.evaluation.control import (
    LookPictures,
    accuracy,
    fog_extinction,
    frames_until,
    is_monotone,
    look_features,
    mean_radiance,
    recognise,
)
from flowshade.types import GBuffer


def pictures(brightness: float, seed: int) -> torch.Tensor:
    return brightness + 0.1 * torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def entry(world: str, look: str, method: str, brightness: float, seed: int) -> LookPictures:
    return LookPictures(world=world, look=look, method=method, features=look_features(pictures(brightness, seed)))


def test_looks_are_recognised_by_a_classifier_that_saw_other_worlds() -> None:
    found = recognise(
        [
            entry(world, look, method, brightness, seed)
            for seed, world in enumerate(("a", "b", "c"))
            for look, brightness in (("night", 0.1), ("sunny", 0.7))
            for method, brightness in (("reference", brightness), ("always dark", 0.1))
        ],
        ("night", "sunny"),
    )
    assert found["reference"] == [[12, 0], [0, 12]]
    assert found["always dark"] == [[12, 0], [12, 0]]
    assert (accuracy(found["reference"]), accuracy(found["always dark"])) == (1, 0.5)


def test_pictures_of_further_worlds_train_and_are_not_counted() -> None:
    training = [entry("other", look, "reference", level, 7) for look, level in (("night", 0.1), ("sunny", 0.7))]
    found = recognise([entry("a", "sunny", "reference", 0.7, 0)], ("night", "sunny"), training)
    assert found == {"reference": [[0, 0], [0, 4]]}


def test_features_do_not_depend_on_the_size_of_pictures() -> None:
    small = torch.rand(1, 3, 48, 80, generator=torch.Generator().manual_seed(0))
    large = small.repeat_interleave(3, 2).repeat_interleave(3, 3)
    torch.testing.assert_close(look_features(small), look_features(large), atol=1e-5, rtol=0)


def test_one_world_is_not_enough_to_tell_looks() -> None:
    with pytest.raises(ValueError, match="two or more"):
        recognise([entry("a", "night", "reference", 0.1, 0)], ("night",))


@pytest.mark.parametrize("extinction", [0.0, 0.02, 0.06])
def test_fog_of_known_extinction_is_measured(extinction: float) -> None:
    generator = torch.Generator().manual_seed(0)
    albedo = torch.rand(1, 1, 96, 96, generator=generator).expand(1, 3, -1, -1).contiguous()
    depth = torch.linspace(4, 60, 96)[None, None, :, None].expand(1, 1, 96, 96).contiguous()
    kept = torch.exp(-extinction * depth)
    picture = linear_to_srgb(albedo * kept + 0.5 * (1 - kept))
    measured = fog_extinction(picture, GBuffer(albedo=albedo, depth=depth))
    assert measured == pytest.approx(extinction, abs=0.003)


def test_fog_cannot_be_measured_on_a_blank_wall() -> None:
    blank = GBuffer(albedo=torch.full((1, 3, 32, 32), 0.5), depth=torch.full((1, 1, 32, 32), 9.0))
    assert math.isnan(fog_extinction(torch.full((1, 3, 32, 32), 0.5), blank))


def test_mean_radiance_is_linear() -> None:
    assert mean_radiance(linear_to_srgb(torch.full((1, 3, 4, 4), 0.3))) == pytest.approx(0.3, rel=1e-4)


def test_monotone_means_every_step_up() -> None:
    assert is_monotone([0.1, 0.2, 0.3]) and not is_monotone([0.1, 0.3, 0.3])


def test_frames_until_a_change_shows() -> None:
    before, after = torch.zeros(8, 3, 4, 4), torch.ones(8, 3, 4, 4)
    share = torch.tensor([0, 0, 0, 0, 0.2, 0.6, 1, 1])[:, None, None, None]
    changed = before + share * after
    assert frames_until(changed, before, after, 4) == 1
    assert frames_until(changed, before, after, 4, share=0.9) == 2
    assert frames_until(before, before, after, 4) is None
