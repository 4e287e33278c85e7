"""The path-traced picture: energy, the white furnace, what each kind of light must do, and how noisy it may be."""

from __future__ import annotations

import dataclasses
import math

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from flowshade.gbuffer import kernels, trace
from flowshade.gbuffer._scene import primitive_triangles
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.trace import Tracer
from flowshade.types import Camera, stream_frame

HEIGHT, WIDTH = 32, 48
BLACK = (0.0, 0.0, 0.0)
WHITE = (1.0, 1.0, 1.0)
FURNACE = Look(zenith=WHITE, horizon=WHITE, ground=WHITE, fog_density=0.0, fog_color=BLACK)
DARK = Look(zenith=BLACK, horizon=BLACK, ground=BLACK, fog_density=0.0, fog_color=BLACK, lamps=1.0)
NOON = dataclasses.replace(LOOKS["sunny"], sun_azimuth=-90.0, sun_elevation=45.0)


def camera_at(x: float, y: float, z: float, pitch: float = 0.0, focal: float = 40.0) -> Camera:
    """Looks along +y, nose up by `pitch` radians."""
    c, s = math.cos(pitch), math.sin(pitch)
    pose = torch.eye(4)
    pose[:3, :3] = torch.tensor([[1.0, 0, 0], [0, -s, -c], [0, c, -s]])
    pose[:3, 3] = torch.tensor([x, y, z])
    return Camera(intrinsics=torch.tensor([[focal, focal, WIDTH / 2, HEIGHT / 2]]), pose=pose[None])


class Scene:
    """A traced world, ready to be shaded by paths."""

    plain = False

    def __init__(self, geoms: str, assets: str = "", camera: Camera | None = None, **options) -> None:
        xml = f"<mujoco><asset>{assets}</asset><worldbody>{geoms}</worldbody></mujoco>"
        model = mujoco.MjModel.from_xml_string(xml)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self.camera = camera or camera_at(0, 0, 3, -0.5)
        self.stream = stream_frame(self.camera.pose[0])
        self.tracer = Tracer(model, size=(HEIGHT, WIDTH), **{"reference": "paths", "plain": self.plain, **options})
        self.tracer.update(data)
        self.gbuffer = self.tracer.gbuffer(self.camera)

    def shade(self, look: Look, seed: int = 0) -> Tensor:
        return self.tracer.shade(look, self.camera, stream=self.stream, seed=seed)[0]

    def radiance(self, look: Look, seed: int = 0) -> Tensor:
        return self.tracer.radiance(look, stream=self.stream, seed=seed)[0]

    def geom(self, index: int) -> Tensor:
        """[H, W] where geom `index` is seen, without its rim."""
        assert self.gbuffer.instance is not None
        mask = (self.gbuffer.instance[0] == index + 1).float()
        return -torch.nn.functional.max_pool2d(-mask, 3, 1, 1)[0] > 0.5


@pytest.fixture(params=[False, True], ids=["waves", "plain"], autouse=True)
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test once with waves of rays, and once with `trace_paths`."""
    monkeypatch.setattr(Scene, "plain", request.param)


def material(name: str, rgba: str, **values: float) -> str:
    return f'<material name="{name}" rgba="{rgba} 1" ' + " ".join(f'{k}="{v}"' for k, v in values.items()) + "/>"


FLOOR = '<geom name="floor" type="plane" size="0 0 1" material="floor"/>'
GREY = material("floor", ".8 .8 .8", roughness=1.0)
GREY_LINEAR = ((0.8 + 0.055) / 1.055) ** 2.4


@pytest.mark.parametrize("metallic", [0.0, 1.0])
@pytest.mark.parametrize("roughness", [0.0, 0.3, 0.7, 1.0])
def test_white_furnace(roughness: float, metallic: float) -> None:
    """A white thing of any roughness under a sky of 1 sends back 1, and cannot be told from the sky."""
    thing = '<geom type="sphere" size="1" pos="0 5 3" material="m"/>'
    scene = Scene(thing, material("m", "1 1 1", roughness=roughness, metallic=metallic), camera_at(0, 0, 3))
    assert scene.geom(0).sum() > 100
    torch.testing.assert_close(scene.radiance(FURNACE), torch.ones(3, HEIGHT, WIDTH), atol=2e-3, rtol=0)


def test_nothing_gives_back_more_than_it_gets() -> None:
    """In a furnace with walls and grey things of all kinds nothing exceeds the sky, and everything loses some."""
    things = '<geom type="box" size="3 .1 3" pos="0 6 3" material="a"/><geom type="box" size=".7 .7 .7" pos="-1 4 .7" material="b"/>'  # noqa: E501
    assets = material("a", ".9 .9 .9", roughness=0.2) + material("b", ".9 .7 .5", roughness=0.1, metallic=0.6)
    scene = Scene(FLOOR + things, GREY + assets)
    rgb = scene.radiance(FURNACE)
    seen = torch.isfinite(scene.gbuffer.depth[0, 0])  # pyright: ignore[reportOptionalSubscript]
    assert rgb.max() < 1.005
    assert rgb[:, seen].min() > 0.1 and rgb[:, seen].max() < 0.95


def test_a_closed_glowing_room_reaches_its_equilibrium() -> None:
    """Walls that emit 1/2 and send back 1/2 are seen at 1: emitters are aimed at, and counted once in every bounce."""
    half = f"{1.055 * 0.5 ** (1 / 2.4) - 0.055:.5f} " * 3
    room = '<geom type="box" size="3 3 3" pos="0 0 0" material="wall"/>'
    scene = Scene(room, material("wall", half, roughness=1.0, emission=1.0), camera_at(0, -1, 0), paths=64, bounces=12)
    assert abs(float(scene.radiance(DARK).mean()) - 1.0166) < 0.03


def test_a_glowing_panel_lights_the_floor_as_the_textbook_says() -> None:
    """Form factor of a square overhead: (4 / pi) a / sqrt(1 + a^2) atan(a / sqrt(1 + a^2)), a = half side / height."""
    panel = '<geom type="box" size="1.5 1.5 .05" pos="0 3 3.05" material="panel"/>'
    camera = camera_at(0, 0, 2, -math.atan2(2, 3), focal=200.0)
    scene = Scene(FLOOR + panel, GREY + material("panel", ".1 .1 .1", emission=10.0), camera, paths=64)
    a = 1.5 / 3.0
    factor = 4 / math.pi * a / math.hypot(1, a) * math.atan(a / math.hypot(1, a))
    glow = 10 * ((0.1 + 0.055) / 1.055) ** 2.4
    got = scene.radiance(DARK)[:, HEIGHT // 2 - 4 : HEIGHT // 2 + 4, WIDTH // 2 - 6 : WIDTH // 2 + 6].mean()
    assert abs(float(got) / (GREY_LINEAR * glow * factor) - 1) < 0.03


def test_paths_and_direct_agree_on_lamps_and_sun() -> None:
    """Direct light is the same in both modes but for the energy that the glossy lobe takes from the diffuse one."""
    lamp = '<geom type="sphere" size=".15" pos="0 5 1.5" material="glow"/>'
    assets = GREY + material("glow", "1 .9 .7", emission=4.0)
    pictures = {}
    for reference in ("direct", "paths"):
        scene = Scene(FLOOR + lamp, assets, reference=reference)
        pictures[reference] = [scene.shade(look)[:, scene.geom(0)].mean() for look in (LOOKS["night"], NOON)]
    for direct, paths in zip(*pictures.values()):
        assert abs(float(direct - paths)) < 0.02


def test_light_bounces_twice() -> None:
    """A floor under a roof, which the sun reaches only by way of the ground outside and the roof."""
    roof = '<geom type="box" size="4 4 .1" pos="0 6 2.6" material="floor"/>'
    look = dataclasses.replace(NOON, zenith=BLACK, horizon=BLACK, ground=BLACK, halo=BLACK, fog_density=0.0)
    camera = camera_at(0, 4, 1.5, -0.7)
    dark, once, more = (
        float(Scene(FLOOR + roof, GREY, camera, bounces=b).radiance(look)[:, -6:].mean()) for b in (1, 2, 5)
    )
    assert dark < 0.25 * once and once < more < 2 * once


def test_a_mirror_shows_what_stands_on_it() -> None:
    assets = material("mirror", "1 1 1", metallic=1.0, roughness=0.0) + material("red", "1 .02 .02")
    red = '<geom type="box" size=".6 .3 1.5" pos="0 6 1.5" material="red"/>'
    scene = Scene('<geom type="plane" size="0 0 1" material="mirror"/>' + red, assets, camera_at(0, 0, 1.5, -0.3))
    rgb = scene.shade(LOOKS["overcast"])
    foot = int(torch.nonzero(scene.geom(1))[:, 0].max())
    below = rgb[:, foot + 4, WIDTH // 2]
    assert below[0] > below[1] + 0.2 and below[0] > below[2] + 0.2


def test_fog_shows_shafts_of_sun() -> None:
    """Behind a wall fog holds no sunlight; beside it it does."""
    wall = '<geom type="box" size="5 .2 20" pos="0 12 0" material="floor"/>'
    look = dataclasses.replace(NOON, sun_azimuth=0.0, sun_elevation=30.0, fog_density=0.05, fog_color=BLACK)
    look = dataclasses.replace(look, zenith=BLACK, horizon=BLACK, ground=BLACK, halo=BLACK)
    scene = Scene(wall, GREY, camera_at(0, 0, 3, focal=24.0))
    rgb = scene.radiance(look).mean(0)
    assert rgb[HEIGHT // 2, -3:].mean() > 5 * rgb[HEIGHT // 2, WIDTH // 2 - 3 : WIDTH // 2 + 3].mean()


def test_lamps_have_halos_in_fog() -> None:
    lamp = '<geom type="sphere" size=".15" pos="0 6 3" material="glow"/>'
    scene = Scene(lamp, material("glow", "1 .9 .7", emission=4.0), camera_at(0, 0, 3), paths=64)
    foggy = dataclasses.replace(DARK, fog_density=0.05, fog_height=10.0)
    rgb = scene.radiance(foggy).mean(0)
    middle, near, far = (float(rgb[HEIGHT // 2, WIDTH // 2 + k]) for k in (0, 5, 22))
    assert middle > near > 2 * far > 0


def test_noise_is_low_and_a_still_scene_is_a_still_picture() -> None:
    box = '<geom type="box" size=".5 .5 .8" pos="0 5 .8" rgba=".3 .5 .4 1"/>'
    lamp = '<geom type="sphere" size=".15" pos="1.5 4 1.5" material="glow"/>'
    scene = Scene(FLOOR + box + lamp, GREY + material("glow", "1 .9 .7", emission=4.0))
    for look in (NOON, LOOKS["overcast"], LOOKS["sunset"], LOOKS["night"]):
        first = scene.shade(look)
        assert torch.equal(first, scene.shade(look))
        other = scene.shade(look, seed=5)
        assert 0 < (first - other).abs().mean() < 8e-3, look.name
        assert (first - other).abs().flatten().quantile(0.99) < 0.06, look.name


def test_more_samples_come_closer_to_the_truth() -> None:
    """Against many samples; and the filter changes the mean hardly at all, so it keeps energy."""
    box = '<geom type="box" size=".5 .5 .8" pos="0 5 .8" rgba=".3 .5 .4 1"/>'
    truth = Scene(FLOOR + box, GREY, paths=1024).radiance(LOOKS["overcast"], seed=3)
    errors = []
    for paths in (4, 64):
        rgb = Scene(FLOOR + box, GREY, paths=paths).radiance(LOOKS["overcast"])
        errors.append(float((rgb - truth).square().mean().sqrt()))
        assert abs(float(rgb.mean() / truth.mean()) - 1) < 0.01
    assert errors[1] < 0.75 * errors[0] and errors[1] < 0.005


def test_one_path_cannot_make_a_firefly() -> None:
    """A tiny sun-bright ball in a mirror's view: what paths bring back is held, and no pixel stands out."""
    assets = (
        GREY + material("hot", "1 1 1", emission=100000.0) + material("steel", ".9 .9 .9", metallic=1.0, roughness=0.3)
    )
    big = '<geom type="sphere" size="1.5" pos="0 40 30" material="hot"/>'
    ball = '<geom type="sphere" size="1" pos="0 5 1" material="steel"/>'
    scene = Scene(FLOOR + ball + big, assets)
    paths = scene.tracer
    scene.radiance(DARK)
    mirror = paths._path_buffers()[1].mirror.numpy()
    held = trace._BRIGHTEST * mirror[:, 3:] * 1.001
    assert (mirror[:, :3] <= held).all() and (mirror[:, :3] > 0.5 * held).any()


def test_threads_and_poison_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(size, -77, dtype=dtype) if dtype == torch.int32 else torch.full(size, float("nan"))

    monkeypatch.setattr(trace.torch, "empty", poisoned)
    lamp = '<geom type="sphere" size=".15" pos="0 5 1.5" material="glow"/>'
    pictures = []
    for threads in (1, 3):
        scene = Scene(FLOOR + lamp, GREY + material("glow", "1 .9 .7", emission=4.0), threads=threads)
        scene.shade(LOOKS["night"])
        pictures.append(scene.shade(LOOKS["night"]))
    assert torch.equal(*pictures)
    assert pictures[0].min() >= 0 and pictures[0].max() <= 1


@pytest.mark.parametrize("kind", [kernels.BOX, kernels.SPHERE, kernels.ELLIPSOID, kernels.CYLINDER, kernels.CAPSULE])
def test_emitters_cover_their_surface_and_face_outwards(kind: int) -> None:
    size = np.array([0.5, 0.7, 0.9])
    triangles = primitive_triangles(kind, size)
    a, b, c = triangles.transpose(1, 0, 2)
    normal = np.cross(b - a, c - a) / 2
    area = np.linalg.norm(normal, axis=1).sum()
    volume = (normal * (a + b + c) / 3).sum() / 3  # the divergence theorem: positive only if all face outwards
    r, h = size[0], size[1]
    p = 1.6075  # Knud Thomsen's formula for ellipsoids, 1.1% at most
    mean = ((0.5 * 0.7) ** p + (0.5 * 0.9) ** p + (0.7 * 0.9) ** p) / 3
    areas = {
        kernels.BOX: 8 * (0.5 * 0.7 + 0.5 * 0.9 + 0.7 * 0.9),
        kernels.SPHERE: 4 * math.pi * r**2,
        kernels.ELLIPSOID: 4 * math.pi * mean ** (1 / p),
        kernels.CYLINDER: 2 * math.pi * r * (2 * h + r),
        kernels.CAPSULE: 2 * math.pi * r * (2 * h + 2 * r),
    }
    volumes = {
        kernels.BOX: 8 * 0.5 * 0.7 * 0.9,
        kernels.SPHERE: 4 / 3 * math.pi * r**3,
        kernels.ELLIPSOID: 4 / 3 * math.pi * 0.5 * 0.7 * 0.9,
        kernels.CYLINDER: 2 * math.pi * r**2 * h,
        kernels.CAPSULE: math.pi * r**2 * (2 * h + 4 / 3 * r),
    }
    assert 0.96 < area / areas[kind] < 1.015 and 0.94 < volume / volumes[kind] < 1.001


def test_errors_say_what_is_expected() -> None:
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ValueError, match="reference='nice'; expected one of direct, paths"):
        Tracer(model, size=(4, 4), reference="nice")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="paths=6"):
        Tracer(model, size=(4, 4), reference="paths", paths=6)
    with pytest.raises(ValueError, match="gbuffer"):
        Tracer(model, size=(4, 4)).radiance(NOON, stream=torch.eye(3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu() -> None:
    box = '<geom type="box" size=".5 .5 .8" pos="0 5 .8" rgba=".3 .5 .4 1"/>'
    pictures = [Scene(FLOOR + box, GREY, device=device).shade(NOON).cpu() for device in ("cpu", "cuda")]
    assert (pictures[0] - pictures[1]).abs().mean() < 4e-3
