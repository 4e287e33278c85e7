from __future__ import annotations

import dataclasses
import hashlib
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowshade.gbuffer.look import (
    AZIMUTHS,
    ELEVATIONS,
    FOGS,
    LAMPS,
    LOOKS,
    SNOWS,
    WETNESSES,
    Look,
    mix_looks,
    mixture_caption,
    sample_look,
)

NAMES = tuple(LOOKS)


def test_the_looks_that_prompts_rely_on_exist() -> None:
    assert set(NAMES) >= {"sunny", "overcast", "sunset", "night", "fog", "snow", "autumn", "neon", "underwater"}
    for name, look in LOOKS.items():
        assert look.name == name


@pytest.mark.parametrize(
    ("azimuth", "elevation", "expected"),
    [(0, 0, (0, 1, 0)), (90, 0, (1, 0, 0)), (-90, 0, (-1, 0, 0)), (180, 0, (0, -1, 0)), (37, 90, (0, 0, 1))],
)
def test_sun_vector_axes(azimuth: float, elevation: float, expected: tuple[float, ...]) -> None:
    vector = Look(sun_azimuth=azimuth, sun_elevation=elevation).sun_vector()
    torch.testing.assert_close(vector, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)


def test_has_sun() -> None:
    assert LOOKS["sunny"].has_sun
    assert LOOKS["night"].has_sun and LOOKS["night"].moon
    assert not LOOKS["overcast"].has_sun
    assert not LOOKS["fog"].has_sun


def test_looks_are_frozen_and_hashable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LOOKS["sunny"].exposure = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert len({*LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("name", NAMES)
def test_canonical_captions_define_the_look(name: str) -> None:
    """Within a family, two different looks never share their canonical caption."""
    rng = random.Random(3)
    seen: dict[str, Look] = {}
    for _ in range(300):
        look = sample_look(rng, name)
        caption = look.caption()
        assert seen.setdefault(caption, look) == look
        assert caption[0].isupper() and caption.endswith(".") and "{" not in caption
    assert len(seen) > 3


def test_canonical_captions_differ_between_families() -> None:
    assert len({look.caption() for look in LOOKS.values()}) == len(LOOKS)


def test_canonical_caption_names_direction_and_height() -> None:
    look = dataclasses.replace(LOOKS["sunny"], sun_azimuth=-45.0, sun_elevation=60.0)
    assert look.caption() == "Bright sun from the front left, high in the sky, a clear sky, clear air, dry ground."
    turned = dataclasses.replace(look, sun_azimuth=318.0)  # nearest grid direction, whole turns apart
    assert turned.caption() == look.caption()


@pytest.mark.parametrize("name", NAMES)
def test_many_wordings(name: str) -> None:
    rng = random.Random(0)
    wordings = {LOOKS[name].caption(rng) for _ in range(600)}
    assert len(wordings) >= 30
    assert name in wordings, "the plain name is one of the wordings"
    assert any(len(wording.split()) <= 3 for wording in wordings)
    assert all(wording.strip() == wording and "{" not in wording and "  " not in wording for wording in wordings)


def test_full_wordings_keep_every_clause() -> None:
    """With `rng` half of the captions still say everything; direction words agree with the look."""
    look = dataclasses.replace(LOOKS["night"], sun_azimuth=90.0)
    rng = random.Random(1)
    captions = [look.caption(rng) for _ in range(200)]
    full = [caption for caption in captions if caption.count(",") >= 4]
    assert len(full) > 60
    assert all("right" in caption and "left" not in caption for caption in full)


@given(st.integers(0, 10**6), st.sampled_from(NAMES))
def test_samples_lie_on_the_grid(seed: int, name: str) -> None:
    look = sample_look(random.Random(seed), name)
    assert look.name == name
    assert look.snow in SNOWS and look.wetness in WETNESSES and look.lamps in LAMPS
    if look.has_sun:
        assert look.sun_azimuth in AZIMUTHS and look.sun_elevation in ELEVATIONS
    if name not in ("snow", "underwater"):
        assert look.fog_density in FOGS
    for value in dataclasses.astuple(look):
        if isinstance(value, tuple):
            assert all(component >= 0 for component in value)


def test_sampling_is_seeded_and_covers_all_families() -> None:
    a = [sample_look(random.Random(i)) for i in range(40)]
    assert a == [sample_look(random.Random(i)) for i in range(40)]
    rng = np.random.default_rng(0)  # any source with .random() will do
    assert {sample_look(rng).name for _ in range(300)} == set(NAMES)


def test_unknown_family() -> None:
    with pytest.raises(ValueError, match=r"'summer'.*expected one of sunny"):
        sample_look(random.Random(0), "summer")


def test_a_custom_look_has_a_caption() -> None:
    look = Look(sun=(1.0, 1.0, 1.0), sun_azimuth=90.0, snow=1.0)
    assert "right" in look.caption() and "deep snow" in look.caption()
    assert look.caption(random.Random(0))


def test_mixtures_are_between_their_ends() -> None:
    a, b = LOOKS["sunny"], LOOKS["fog"]
    assert mix_looks(a, b, 0) == a and mix_looks(a, b, 1) == b
    steps = [mix_looks(a, b, t) for t in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for name in ("fog_density", "wetness", "cloudiness"):
        values = [getattr(look, name) for look in steps]
        assert values == sorted(values) and len(set(values)) == 5
    assert steps[2].zenith[0] == pytest.approx((a.zenith[0] + b.zenith[0]) / 2)
    assert (steps[1].name, steps[3].name) == ("sunny", "fog")
    assert all(look.sun_azimuth == pytest.approx(a.sun_azimuth) for look in steps[:4]), "fog has no sun to turn to"


def test_mixed_suns_turn_the_short_way() -> None:
    a, b = (dataclasses.replace(LOOKS["sunny"], sun_azimuth=azimuth) for azimuth in (170.0, -170.0))
    assert abs(mix_looks(a, b, 0.5).sun_azimuth) == pytest.approx(180.0)
    assert mix_looks(a, b, 0.25).sun_azimuth == pytest.approx(175.0)


def test_mixtures_have_words() -> None:
    a, b = LOOKS["rain"], LOOKS["sunset"]
    captions = [mixture_caption(a, b, t) for t in (0.0, 0.2, 0.4, 0.5, 0.8, 1.0)]
    assert captions[0] == a.caption() and captions[-1] == b.caption()
    assert len(set(captions)) == 6
    assert captions[1].startswith("Rain") and "a little sunset" in captions[1]
    assert captions[3].startswith("Half rain") and ", half sunset" in captions[3]
    assert captions[4].startswith("Sunset") and "a little rain" in captions[4]
    assert len({mixture_caption(a, b, 0.5, random.Random(k)) for k in range(40)}) > 30
    with pytest.raises(ValueError, match="share=1.5"):
        mix_looks(a, b, 1.5)


def test_the_looks_of_shipped_weights_stay_as_they_are() -> None:
    """Scores and weights rest on these numbers: add looks, never change these."""
    shipped = ("sunny", "overcast", "sunset", "night", "fog", "snow", "autumn", "neon", "underwater")
    assert tuple(LOOKS)[: len(shipped)] == shipped
    later = {"puddles": 0.0, "hdri": "", "hdri_turn": 0.0, "words": ""}
    values = [dataclasses.asdict(LOOKS[name]) for name in shipped]
    kept = [{key: value for key, value in look.items() if key not in later} for look in values]
    assert all(look[key] == value for look in values for key, value in later.items())
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    assert digest[:16] == "f4415d74956d2f63"
