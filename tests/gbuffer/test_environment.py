"""Skies from pictures: what is aimed at, energy, agreement of the two references, files, and words."""

from __future__ import annotations

import base64
import dataclasses
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from flowshade.gbuffer import environment
from flowshade.gbuffer.environment import (
    FOLDERS_VARIABLE,
    SkyError,
    environment_of,
    find_hdri,
    hdri_look,
    installed_hdris,
    load_environment,
    look_named,
    look_up,
    with_sun,
)
from flowshade.gbuffer.io.exr import write_exr
from flowshade.gbuffer.look import LOOKS, Look, mix_looks
from flowshade.gbuffer.record import record_clip
from flowshade.gbuffer.shade import shade_without_rays
from flowshade.world import make_world
from tests.gbuffer.test_paths import DARK, FLOOR, GREY, HEIGHT, WIDTH, Scene, camera_at, material

ROWS = 64


def directions(rows: int = ROWS) -> np.ndarray:
    """[H, 2H, 3] through the middles of texels: x right, y ahead, z up."""
    angle = (np.arange(rows) + 0.5) / rows * np.pi
    longitude = ((np.arange(2 * rows) + 0.5) / (2 * rows) - 0.5) * 2 * np.pi
    flat = np.sin(angle)[:, None]
    up = np.broadcast_to(np.cos(angle)[:, None], (rows, 2 * rows))
    return np.stack([flat * np.sin(longitude), flat * np.cos(longitude), up], -1)


def solid_angles(rows: int = ROWS) -> np.ndarray:
    angle = (np.arange(rows) + 0.5) / rows * np.pi
    return np.broadcast_to(np.sin(angle)[:, None] * 2 * np.pi**2 / (2 * rows**2), (rows, 2 * rows))


def lobe(toward: tuple[float, float, float], sharpness: float, peak: float, base: float = 0.2) -> np.ndarray:
    """A sky that is brightest in one direction."""
    cosine = directions() @ (np.array(toward) / np.linalg.norm(toward))
    return np.repeat((base + peak * np.exp(sharpness * (cosine - 1)))[..., None], 3, -1).astype(np.float32)


def saved(folder: Path, picture: np.ndarray, name: str = "sky.exr") -> Path:
    write_exr(folder / name, {plane: picture[..., k].astype(np.float32) for k, plane in enumerate("RGB")})
    return folder / name


def sky(path: Path, **options) -> Look:
    """A look that is a picture and nothing else, at exposure 1."""
    return hdri_look(path, **{"exposure": 1.0, **options})


def test_what_is_aimed_at_is_a_distribution() -> None:
    found = environment_of(lobe((1, 1, 1), 30.0, 50.0))
    density = found.share / np.sin((np.arange(ROWS) + 0.5) * np.pi / ROWS)[:, None]
    assert (density * solid_angles()).sum() == pytest.approx(1, abs=1e-4)
    brightest = directions().reshape(-1, 3)[density.argmax()]
    np.testing.assert_allclose(brightest, np.full(3, 3**-0.5), atol=0.05)
    assert found.rows[-1] == pytest.approx(1, abs=1e-5)
    assert (density == 0).mean() > 0.5  # below the mean nothing is aimed at
    assert not environment_of(np.ones((16, 32, 3))).share.any()


def test_large_pictures_shrink_without_losing_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MOST_ROWS", 256)
    picture = np.random.default_rng(0).random((550, 1100, 3)).astype(np.float32)
    found = environment_of(picture)
    assert found.radiance.shape == (183, 366, 3)
    assert found.radiance.mean() == pytest.approx(picture.mean(), rel=1e-3)
    assert found.soft.mean() == pytest.approx(0.5, rel=1e-2)


def test_look_up_is_exact_at_texels_and_turns_to_the_right() -> None:
    picture = np.random.default_rng(1).random((ROWS, 2 * ROWS, 3)).astype(np.float32)
    d = torch.from_numpy(np.moveaxis(directions(), -1, 0).copy())
    torch.testing.assert_close(
        look_up(picture, d, 0.0), torch.from_numpy(np.moveaxis(picture, -1, 0)).double(), atol=1e-5, rtol=0
    )
    ahead, right = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    spot = lobe((0, 1, 0), 100.0, 100.0, base=0.0)
    assert look_up(spot, ahead, 0.0)[0] > 90 > 1e-3 > look_up(spot, right, 0.0)[0]
    assert look_up(spot, right, 90.0)[0] > 90 > 1e-3 > look_up(spot, ahead, 90.0)[0]


@pytest.mark.parametrize("metallic", [0.0, 1.0])
@pytest.mark.parametrize("roughness", [0.0, 0.3, 1.0])
def test_white_furnace(tmp_path: Path, roughness: float, metallic: float) -> None:
    """In an even picture a white thing of any kind cannot be told from the sky."""
    look = sky(saved(tmp_path, np.ones((16, 32, 3))))
    thing = '<geom type="sphere" size="1" pos="0 5 3" material="m"/>'
    scene = Scene(thing, material("m", "1 1 1", roughness=roughness, metallic=metallic), camera_at(0, 0, 3))
    torch.testing.assert_close(scene.radiance(look), torch.ones(3, HEIGHT, WIDTH), atol=2e-3, rtol=0)


def test_nothing_gives_back_more_than_it_gets(tmp_path: Path) -> None:
    """Under a bright half of the sky every surface stays below the brightest radiance, in both references."""
    picture = np.where(directions()[..., :1] > 0, 1.0, 0.1).repeat(3, -1)
    things = '<geom type="box" size="3 .1 3" pos="0 6 3" material="a"/><geom type="box" size=".7 .7 .7" pos="-1 4 .7" material="b"/>'  # noqa: E501
    assets = material("a", ".9 .9 .9", roughness=0.2) + material("b", ".9 .7 .5", roughness=0.1, metallic=0.6)
    rgb = Scene(FLOOR + things, GREY + assets, paths=64).radiance(sky(saved(tmp_path, picture)))
    assert rgb.min() > 0.02 and rgb.max() < 1.02


def test_a_small_sun_in_a_picture_lights_like_a_sun(tmp_path: Path) -> None:
    """A disc in the picture against the look's own sun of the same irradiance, shadows included."""
    toward = np.array([-1.0, 0.0, 1.0]) / math.sqrt(2)
    rows = 256
    inside = directions(rows) @ toward > math.cos(math.radians(2.5))
    irradiance = 3.0
    level = irradiance / solid_angles(rows)[inside].sum()
    picture = np.repeat(np.where(inside, level, 0.0)[..., None], 3, -1)
    pole = '<geom type="box" size=".4 .4 1.5" pos="0 5 1.5" material="floor"/>'
    scene = Scene(FLOOR + pole, GREY, paths=64)
    found = scene.radiance(sky(saved(tmp_path, picture)))
    look = dataclasses.replace(
        DARK, lamps=0.0, sun=(irradiance,) * 3, sun_azimuth=-90.0, sun_elevation=45.0, sun_radius=2.5
    )  # fmt: skip
    expected = scene.radiance(look)
    ground = scene.geom(0)
    assert float(found[:, ground].mean()) == pytest.approx(float(expected[:, ground].mean()), rel=0.02)
    lit = ground & (expected[0] > 0.6 * expected[0][ground].max())
    assert lit.sum() > 100
    off = (found / expected - 1)[:, lit].abs()  # largest in the penumbra, which both sample
    assert off.median() < 0.02 and off.mean() < 0.04
    dark = ground & (expected[0] < 0.1 * expected[0][ground].max())
    assert dark.sum() > 10
    assert found[:, dark].mean() < 0.2 * found[:, lit].mean()


@pytest.mark.parametrize("thing", [{"roughness": 1.0}, {"roughness": 0.3, "metallic": 1.0}, {"roughness": 0.5}])
def test_aiming_changes_the_noise_and_not_the_mean(
    tmp_path: Path, thing: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same picture without aiming, at many more samples. The tolerance is four times the noise that is left."""
    path = saved(tmp_path, lobe((-1, 0.3, 0.7), 25.0, 12.0))
    body = '<geom type="sphere" size="1" pos="0 5 3" material="m"/>'
    assets = material("m", ".8 .8 .8", **thing)
    aimed = Scene(body, assets, camera_at(0, 0, 3), paths=64)
    blind = Scene(body, assets, camera_at(0, 0, 3), paths=1024)
    one = aimed.radiance(sky(path))
    real = load_environment(path)
    monkeypatch.setattr(
        "flowshade.gbuffer.trace.load_environment", lambda _: dataclasses.replace(real, share=real.share * 0)
    )
    other = blind.radiance(sky(path))
    ball = aimed.geom(0)
    assert float(one[:, ball].mean()) == pytest.approx(float(other[:, ball].mean()), rel=0.015)
    assert (one - other)[:, ball].abs().mean() < 0.04 * float(other[:, ball].mean())


def test_where_nothing_occludes_both_direct_shaders_agree(tmp_path: Path) -> None:
    look = sky(saved(tmp_path, lobe((1, 0.5, 0.6), 4.0, 3.0)), turn=30.0)
    floor = material("floor", ".8 .6 .4", roughness=0.4, metallic=0.3)
    scene = Scene(FLOOR, floor, camera_at(0, 0, 3, -0.2), reference="direct")
    plain = shade_without_rays(scene.gbuffer, look, stream=scene.stream)[0]
    shown = scene.shade(look)
    inner = scene.geom(0) | (torch.arange(HEIGHT)[:, None] < 6)
    assert (shown - plain)[:, inner].abs().max() < 6e-3
    assert shown.std() > 0.02


def test_a_sun_in_a_picture_is_a_sun_for_the_direct_reference(tmp_path: Path) -> None:
    """Both references have its shadow, where they have it; the sun and the rest hold all of the picture's light."""
    picture = lobe((-1, 0, 1), 3000.0, 4000.0)
    look = sky(saved(tmp_path, picture), exposure=0.5)
    found = load_environment(look.hdri)
    rest = np.minimum(picture, found.peak) * solid_angles()[..., None]
    np.testing.assert_allclose(
        rest.sum((0, 1)) + found.sun, (picture * solid_angles()[..., None]).sum((0, 1)), rtol=1e-4
    )
    np.testing.assert_allclose(found.toward, [-(0.5**0.5), 0, 0.5**0.5], atol=0.02)
    lit = with_sun(dataclasses.replace(look, hdri_turn=30.0))
    assert (lit.sun_azimuth, lit.sun_elevation) == (pytest.approx(-60, abs=1), pytest.approx(45, abs=1))
    assert with_sun(LOOKS["fog"]) is LOOKS["fog"]
    pole = '<geom type="box" size=".4 .4 1.5" pos="0 5 1.5" material="floor"/>'
    one, other = (Scene(FLOOR + pole, GREY, reference=kind, paths=64) for kind in ("direct", "paths"))
    a, b = one.shade(look), other.shade(look)
    ground = one.geom(0)
    assert (a - b)[:, ground].abs().median() < 0.02
    dark = ground & (b[0] < 0.7 * b[0][ground].median())
    assert dark.sum() > 10 and (a[0][dark] < 0.8 * a[0][ground].median()).float().mean() > 0.8


def test_spread_lamps_are_no_sun() -> None:
    two = lobe((1, 0, 0.5), 3000.0, 4000.0) + lobe((-1, 0, 0.5), 3000.0, 4000.0)
    assert environment_of(two).peak == math.inf and not environment_of(two).sun.any()


def test_files_of_all_kinds_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = lobe((1, 1, 1), 20.0, 30.0)
    exr = saved(tmp_path, picture)
    np.testing.assert_allclose(load_environment(exr).radiance, picture, rtol=1e-6)
    assert cv2.imwrite(str(tmp_path / "b.hdr"), np.float32(picture[..., ::-1] * (1.0, 0.5, 0.25)))
    found = load_environment(tmp_path / "b.hdr").radiance
    assert (np.abs(found - picture * (0.25, 0.5, 1.0)) <= picture / 128).all()  # 8 bits share the largest's exponent
    data = base64.b64encode(exr.read_bytes()).decode()
    (tmp_path / "packed.exr.js").write_text(f"export default 'data:application/exr;base64,{data}'\n")
    np.testing.assert_array_equal(load_environment(tmp_path / "packed.exr.js").radiance, load_environment(exr).radiance)
    monkeypatch.setenv(FOLDERS_VARIABLE, str(tmp_path))
    assert {"sky", "b", "packed"} <= set(installed_hdris())
    assert look_named("hdri:sky") == hdri_look(exr)
    assert look_named(str(exr), turn=45.0).hdri_turn == 45.0
    assert look_named("rain") is LOOKS["rain"]


def test_pictures_that_cannot_be_a_sky_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    square = saved(tmp_path, np.ones((32, 32, 3)), "square.exr")
    nan = saved(tmp_path, np.full((16, 32, 3), np.nan), "nan.exr")
    (tmp_path / "a.hdr").write_bytes(b"#?RADIANCE cut")
    (tmp_path / "c.exr.js").write_text("export default 3")
    write_exr(tmp_path / "grey.exr", {"Y": np.ones((16, 32), np.float32)})
    for path, message in (
        (square, r"square.exr: .*\[32, 32, 3\]; expected .*twice as wide"),
        (nan, "nan.exr: .*NaN"),
        (tmp_path / "a.hdr", "a.hdr: .*cannot be read as a Radiance picture"),
        (tmp_path / "c.exr.js", "without a base64 string"),
        (tmp_path / "grey.exr", "channels Y; expected R, G and B"),
        (tmp_path / "none.hdr", "found no file at .*Check the path"),
        (tmp_path, "found no file"),
    ):
        with pytest.raises(SkyError, match=message):
            load_environment(path)
    monkeypatch.setenv(FOLDERS_VARIABLE, str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkyError, match=r"no HDRI named 'park' is installed \(found: none\).*npm install"):
        find_hdri("park")
    with pytest.raises(ValueError, match="unknown look 'mars'; expected one of sunny"):
        look_named("mars")


def test_captions_say_where_the_light_comes_from(tmp_path: Path) -> None:
    picture = lobe((1, 0, 0.6), 60.0, 200.0)
    look = hdri_look(saved(tmp_path, picture))
    assert look.caption() == "Bright light from the right, halfway up the sky."
    assert hdri_look(look.hdri, turn=90.0, snow=1.0).caption() == (
        "Bright light from behind, halfway up the sky, deep snow."
    )
    warm = saved(tmp_path, np.ones((16, 32, 3)) * (1.0, 0.7, 0.5), "warm.exr")
    assert hdri_look(warm).caption() == "Soft warm light from all around."
    assert mix_looks(look, LOOKS["fog"], 0.3).hdri == look.hdri


def test_exposure_fits_the_picture(tmp_path: Path) -> None:
    """A picture a thousand times as bright gives the same look."""
    dim, bright = (saved(tmp_path, lobe((0, 1, 1), 5.0, 2.0) * gain, f"{gain}.exr") for gain in (1, 1000))
    scene = Scene(FLOOR, GREY)
    one, other = scene.shade(hdri_look(dim)), scene.shade(hdri_look(bright))
    torch.testing.assert_close(one, other, atol=2e-3, rtol=0)
    assert 0.3 < one.mean() < 0.95


def test_a_clip_is_recorded_under_a_picture(tmp_path: Path) -> None:
    path = saved(tmp_path, lobe((0, 1, 1), 60.0, 200.0))
    clip = record_clip(make_world("yard", 1), tmp_path / "clip", frames=1, size=(16, 24), look=str(path))
    assert "light from straight ahead" in (clip / "clip.json").read_text()
