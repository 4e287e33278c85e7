"""The reference picture: what it must show, and that it agrees with shading from the buffers where nothing occludes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import mujoco
import pytest
import torch
import warp as wp
from torch import Tensor

from flowshade.gbuffer import light_kernels, shade, trace
from flowshade.gbuffer.look import LOOKS, Look
from flowshade.gbuffer.shade import ambient_coefficients, full_sky, shade_without_rays, smooth_sky, tone_curve
from flowshade.gbuffer.trace import Tracer
from flowshade.types import Camera, GBuffer, stream_frame

HEIGHT, WIDTH = 48, 64
NOON = dataclasses.replace(LOOKS["sunny"], sun_azimuth=-90.0, sun_elevation=45.0)
BOX = '<geom name="box" type="box" size=".5 .5 .8" pos="0 5 .8" rgba=".3 .5 .4 1"/>'
FLOOR = '<geom name="floor" type="plane" size="0 0 1" rgba=".7 .6 .5 1" {}/>'


def looking_down(height: float = 3.0, pitch: float = -0.5, yaw: float = 0.0) -> Camera:
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    turn = torch.tensor([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    tilt = torch.tensor([[1.0, 0, 0], [0, cp, -sp], [0, sp, cp]])
    pose = torch.eye(4)
    pose[:3, :3] = turn @ tilt @ torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    pose[2, 3] = height
    return Camera(intrinsics=torch.tensor([[50.0, 50.0, WIDTH / 2, HEIGHT / 2]]), pose=pose[None])


class Scene:
    """A traced world, ready to be shaded."""

    def __init__(self, geoms: str, assets: str = "", camera: Camera | None = None, **options) -> None:
        model = mujoco.MjModel.from_xml_string(
            f"<mujoco><asset>{assets}</asset><worldbody>{geoms}</worldbody></mujoco>"
        )
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self.camera = camera or looking_down()
        self.stream = stream_frame(self.camera.pose[0])
        self.tracer = Tracer(model, size=(HEIGHT, WIDTH), **options)
        self.tracer.update(data)
        self.gbuffer: GBuffer = self.tracer.gbuffer(self.camera)

    def shade(self, look: Look, seed: int = 0) -> Tensor:
        return self.tracer.shade(look, self.camera, stream=self.stream, seed=seed)[0].clone()

    def baseline(self, look: Look) -> Tensor:
        return shade_without_rays(self.gbuffer, look, stream=self.stream)[0]

    def geom(self, index: int) -> Tensor:
        """[H, W] where geom `index` is seen, without its rim."""
        assert self.gbuffer.instance is not None
        mask = (self.gbuffer.instance[0] == index + 1).float()
        return -torch.nn.functional.max_pool2d(-mask, 3, 1, 1)[0] > 0.5


@pytest.fixture(scope="module")
def box_on_floor() -> Scene:
    return Scene(FLOOR.format("") + BOX)


@pytest.mark.parametrize("name", list(LOOKS))
def test_where_nothing_occludes_both_shaders_agree(name: str) -> None:
    """A textured, glossy, partly metallic floor under the sky; sky included."""
    assets = '<texture name="t" type="2d" builtin="gradient" rgb1=".9 .2 .1" rgb2=".1 .3 .8" width="64" height="64"/>'
    assets += '<material name="m" texture="t" texrepeat=".2 .2" texuniform="true" roughness=".45" metallic=".3"/>'
    scene = Scene(FLOOR.format('material="m"'), assets, camera=looking_down(pitch=-0.2, yaw=0.7))
    error = (scene.shade(LOOKS[name]) - scene.baseline(LOOKS[name])).abs()
    inner = scene.geom(0) | (torch.isinf(scene.gbuffer.depth[0, 0]) & (torch.arange(HEIGHT)[:, None] < 8))  # pyright: ignore[reportOptionalSubscript]
    assert inner.float().mean() > 0.6
    assert error[:, inner].max() < 4e-3


def test_they_agree_on_the_lit_side_of_a_ball() -> None:
    scene = Scene('<geom type="sphere" size="1" pos="0 5 3" rgba=".8 .3 .2 1"/>', camera=looking_down(pitch=0.0))
    error = (scene.shade(NOON) - scene.baseline(NOON)).abs().amax(0)
    lit = scene.geom(0)
    lit[:, WIDTH // 2 - 2 :] = False  # the sun stands on the left
    assert lit.sum() > 80
    assert error[lit].max() < 0.03 and error[lit].mean() < 2e-3


def test_a_box_throws_a_shadow_away_from_the_sun(box_on_floor: Scene) -> None:
    rays, plain = box_on_floor.shade(NOON), box_on_floor.baseline(NOON)
    darker = (plain - rays).mean(0) > 0.1
    floor = box_on_floor.geom(0)
    columns = torch.nonzero(darker & floor)[:, 1].float()
    assert len(columns) > 30
    assert columns.median() > WIDTH / 2, "the sun is on the left, so the shadow is on the right"
    mirrored = box_on_floor.shade(dataclasses.replace(NOON, sun_azimuth=90.0))
    other = torch.nonzero(((plain - mirrored).mean(0) > 0.1) & floor)[:, 1].float()
    assert other.median() < WIDTH / 2


def test_ambient_occlusion_darkens_the_corner(box_on_floor: Scene) -> None:
    look = LOOKS["overcast"]
    loss = (box_on_floor.baseline(look) - box_on_floor.shade(look)).mean(0)
    floor = box_on_floor.geom(0)
    box_rows = torch.nonzero(box_on_floor.geom(1))
    foot = int(box_rows[:, 0].max())
    near = loss[foot + 3 : foot + 5, WIDTH // 2 - 3 : WIDTH // 2 + 3].mean()
    far = loss[floor & (torch.arange(WIDTH) < 8)].mean()
    assert near > far + 0.02
    assert abs(float(far)) < 0.02


def test_light_bounces_off_coloured_walls() -> None:
    """A floor beside a sunlit red wall turns redder than the same floor without it."""
    red = '<geom type="box" size=".1 3 2" pos="1.5 5 2" rgba="1 .05 .05 1"/>'
    grey = FLOOR.replace(".7 .6 .5", ".6 .6 .6").format("")
    pictures = [Scene(grey + wall).shade(NOON)[:, 36, 40] for wall in (red, "")]
    assert pictures[0][0] / pictures[0][2] > 1.03 * pictures[1][0] / pictures[1][2]


def test_a_mirror_shows_what_stands_on_it() -> None:
    mirror = '<material name="mirror" rgba="1 1 1 1" metallic="1" roughness="0"/>'
    red = '<geom type="box" size=".6 .3 1.5" pos="0 6 1.5" rgba="1 .02 .02 1"/>'
    scene = Scene('<geom type="plane" size="0 0 1" material="mirror"/>' + red, mirror, camera=looking_down(1.5, -0.3))
    rgb = scene.shade(LOOKS["overcast"])
    foot = int(torch.nonzero(scene.geom(1))[:, 0].max())
    below = rgb[:, foot + 6, WIDTH // 2]
    assert below[0] > below[1] + 0.2 and below[0] > below[2] + 0.2


def test_snow_whitens_what_faces_up_only(box_on_floor: Scene) -> None:
    scene = Scene('<geom type="box" size="1 1 1" pos="0 5 1" rgba=".3 .1 .1 1"/>', camera=looking_down(4.0, -0.6))
    look = dataclasses.replace(LOOKS["snow"], snow=0.0)
    bare, snowy = scene.shade(look), scene.shade(LOOKS["snow"])
    up = torch.einsum("j,jhw->hw", scene.camera.pose[0, 2, :3], scene.gbuffer.normal[0])  # pyright: ignore[reportOptionalSubscript]
    top, side = scene.geom(0) & (up > 0.9), scene.geom(0) & (up < 0.1)
    assert top.sum() > 30 and side.sum() > 30
    assert snowy[:, top].min() > 0.6 and (snowy - bare)[1:, top].min() > 0.2
    torch.testing.assert_close(snowy[:, side], bare[:, side], atol=0.02, rtol=0)


def test_fog_takes_the_distance_away() -> None:
    scene = Scene(FLOOR.format(""), camera=looking_down(1.5, -0.02))
    look = dataclasses.replace(LOOKS["fog"], fog_density=0.2)
    rgb = scene.shade(look)
    horizon = int(torch.nonzero(torch.isfinite(scene.gbuffer.depth[0, 0, :, 0]))[0])  # pyright: ignore[reportOptionalSubscript]
    fog = tone_curve(torch.tensor(look.fog_color) * look.exposure)
    torch.testing.assert_close(rgb[:, horizon + 1], fog[:, None].expand(3, WIDTH), atol=5e-3, rtol=0)
    torch.testing.assert_close(rgb[:, horizon - 3], fog[:, None].expand(3, WIDTH), atol=5e-3, rtol=0)
    assert (rgb[:, -1] - fog[:, None]).abs().max() > 0.05


def test_wetness_darkens_the_ground_and_reflects() -> None:
    scene = Scene(FLOOR.format("") + '<geom type="box" size="3 .2 3" pos="0 9 3" rgba="1 1 1 1"/>')
    dry, wet = (scene.shade(dataclasses.replace(LOOKS["overcast"], wetness=w)) for w in (0.0, 1.0))
    near = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    near[-8:, :6] = True
    assert (wet[:, near] < dry[:, near]).all()


def test_autumn_turns_greens_only() -> None:
    two = '<geom type="sphere" size=".7" pos="-1 5 1" rgba=".2 .6 .15 1"/>'
    two += '<geom type="sphere" size=".7" pos="1 5 1" rgba=".2 .3 .7 1"/>'
    scene = Scene(two)
    look = dataclasses.replace(LOOKS["autumn"], autumn=0.0)
    before, after = scene.shade(look), scene.shade(LOOKS["autumn"])
    green, blue = scene.geom(0), scene.geom(1)
    assert (before[1] > before[0])[green].all() and (after[0] > after[1])[green].all()
    torch.testing.assert_close(before[:, blue], after[:, blue], atol=5e-3, rtol=0)


LAMP = '<material name="glow" rgba="1 .9 .7 1" emission="4"/>'
LAMP_SCENE = FLOOR + '<geom type="sphere" size=".15" pos="0 5 1.5" material="glow"/>'


def test_lamps_light_the_ground_around_them() -> None:
    lamp = '<geom type="sphere" size=".15" pos="0 5 1.5" material="glow"/>'
    plate = '<geom type="box" size=".5 .5 .02" pos="0 5 1.0"/>'
    night = LOOKS["night"]
    scene = Scene(FLOOR.format("") + lamp, LAMP)
    assert scene.gbuffer.instance is not None
    bulb = scene.gbuffer.instance[0, 0] == 2
    off, on = scene.shade(dataclasses.replace(night, lamps=0.0)), scene.shade(night)
    gain = (on - off).mean(0)
    floor = scene.geom(0)
    foot = int(torch.nonzero(bulb)[:, 0].max()) + 6
    assert gain[foot, WIDTH // 2] > 0.15
    assert gain[floor][0] < 0.5 * gain[foot, WIDTH // 2]
    assert on[:, bulb].mean() > 0.5, "the lamp itself glows"
    covered = Scene(FLOOR.format("") + lamp + plate, LAMP)
    shaded = covered.shade(night) - covered.shade(dataclasses.replace(night, lamps=0.0))
    below = covered.geom(0) & scene.geom(0)
    assert (shaded.mean(0)[below] < gain[below] - 0.05).sum() > 40, "the plate throws the lamp's shadow"


def test_noise_is_low_and_a_still_scene_is_a_still_picture(box_on_floor: Scene) -> None:
    for look in (NOON, LOOKS["overcast"], LOOKS["sunset"]):
        first = box_on_floor.shade(look)
        assert torch.equal(first, box_on_floor.shade(look))
        other = box_on_floor.shade(look, seed=5)
        assert 0 < (first - other).abs().mean() < 4e-3
        assert (first - other).abs().flatten().quantile(0.99) < 0.03


def test_noise_stays_low_while_the_camera_moves() -> None:
    """Floor points keep their brightness when the camera is shifted by a fraction of the sample pattern's tile."""
    geoms = FLOOR.format("") + '<geom name="box" type="box" size=".5 .5 .8" pos="0 5 .8" rgba=".3 .5 .4 1"/>'
    base = looking_down()
    a = Scene(geoms, camera=base)
    shifted = dataclasses.replace(base, intrinsics=base.intrinsics + torch.tensor([[0.0, 0.0, 1.0, 0.0]]))
    b = Scene(geoms, camera=shifted)
    difference = (a.shade(LOOKS["overcast"])[:, :, :-1] - b.shade(LOOKS["overcast"])[:, :, 1:]).abs()
    assert difference.mean() < 4e-3 and difference.flatten().quantile(0.99) < 0.02


def test_threads_and_poison_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(size, -77, dtype=dtype) if dtype == torch.int32 else torch.full(size, float("nan"))

    monkeypatch.setattr(trace.torch, "empty", poisoned)
    pictures = []
    for threads in (1, 3):
        scene = Scene(LAMP_SCENE.format(""), LAMP, threads=threads)
        scene.shade(LOOKS["night"])
        pictures.append(scene.shade(LOOKS["night"]))
    assert torch.equal(*pictures)
    assert pictures[0].min() >= 0 and pictures[0].max() <= 1


def test_silhouettes_are_antialiased() -> None:
    scene = Scene(
        '<geom type="sphere" size="1" pos="0 5 3" rgba="0 0 0 1"/>', camera=looking_down(pitch=0.0), samples=16
    )
    rgb = scene.shade(LOOKS["fog"])
    inside, outside = rgb[:, HEIGHT // 2, WIDTH // 2].mean(), rgb[:, HEIGHT // 2, 2].mean()
    between = ((rgb.mean(0) - inside) / (outside - inside)).flatten()
    assert ((between > 0.2) & (between < 0.8)).sum() > 15


def test_looks_are_plainly_different(box_on_floor: Scene) -> None:
    pictures = {name: box_on_floor.shade(look) for name, look in LOOKS.items()}
    for a, b in itertools.combinations(pictures, 2):
        assert (pictures[a] - pictures[b]).abs().mean() > 0.03, (a, b)
    for name, picture in pictures.items():
        assert (picture > 0.99).float().mean() < 0.05 and (picture < 0.01).float().mean() < 0.2, name


def test_the_stream_turns_the_sun(box_on_floor: Scene) -> None:
    """A sun on the left in the stream frame stays where it is in the world when the camera turns later on."""
    turned = box_on_floor.tracer.shade(
        NOON, stream=stream_frame(looking_down(yaw=math.pi / 2).pose[0])
    )[0]  # fmt: skip
    left_of_that = box_on_floor.shade(dataclasses.replace(NOON, sun_azimuth=180.0))
    torch.testing.assert_close(turned[:, -20:], left_of_that[:, -20:], atol=0.02, rtol=0)


def test_ambient_is_the_hemisphere_mean_of_the_sky() -> None:
    generator = torch.Generator().manual_seed(0)
    d = torch.nn.functional.normalize(torch.randn(3, 60_000, generator=generator, dtype=torch.float64), dim=0)
    for name, bound in (("sunny", 0.02), ("overcast", 0.03), ("neon", 0.04), ("night", 0.01)):
        look = LOOKS[name]
        sky = smooth_sky(look, d)
        for n in ((0, 0, 1), (1, 0, 0), (-0.6, 0, 0.8), (0, 0.8, -0.6)):
            weight = (torch.tensor(n, dtype=torch.float64) @ d).clamp(min=0)
            expected = (sky * weight).sum(1) / weight.sum()
            got = shade._harmonics(torch.tensor(n, dtype=torch.float64)) @ ambient_coefficients(look).double()
            assert (got - expected).abs().max() < bound, (name, n, got, expected)


def test_tone_curve() -> None:
    x = torch.linspace(0, 20, 400)
    y = tone_curve(x)
    assert y[0] == 0 and (y.diff() >= 0).all() and y.max() <= 1
    assert 0.3 < tone_curve(torch.tensor(0.18)) < 0.6
    assert tone_curve(torch.tensor(-1.0)) == 0


def test_sky_has_a_sun_where_it_should() -> None:
    look = LOOKS["sunny"]
    sun = look.sun_vector()
    d = torch.nn.functional.normalize(sun + torch.tensor([0.3, 0, 0]), dim=0)
    assert full_sky(look, sun[:, None]).mean() > 3 * full_sky(look, d[:, None]).mean()


def test_baseline_says_what_it_misses() -> None:
    depth = torch.ones(1, 1, 4, 4)
    with pytest.raises(ValueError, match=r"misses albedo, normal, roughness, metallic"):
        shade_without_rays(GBuffer(depth=depth, camera=looking_down()), NOON, stream=torch.eye(3))


def test_shade_wants_the_gbuffers_camera(box_on_floor: Scene) -> None:
    with pytest.raises(ValueError, match="another camera"):
        box_on_floor.tracer.shade(NOON, looking_down(9.0), stream=torch.eye(3))
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ValueError, match="gbuffer"):
        Tracer(model, size=(4, 4)).shade(NOON, stream=torch.eye(3))


def test_threads_are_dealt_each_pixel_and_lane_once() -> None:
    rows, width, lanes = 21, 45, 3
    threads = lanes * 512 * -(-width // 32) * -(-rows // 16)
    where = wp.zeros(threads, dtype=wp.vec3i, device="cpu")
    wp.launch(deal, dim=threads, inputs=[rows, width, where], device="cpu")
    kept = [tuple(each) for each in where.numpy().tolist() if each[2] >= 0]
    assert len(kept) == len(set(kept)) == rows * width * lanes
    assert set(kept) == set(itertools.product(range(width), range(rows), range(lanes)))
    warp = where.numpy()[:32]
    places = set(itertools.product(range(0, 32, 4), range(0, 16, 4)))
    assert set(map(tuple, warp[:, :2].tolist())) == places, "neighbours are the same place of the tiles of one block"


@wp.kernel
def deal(rows: int, width: int, where: wp.array(dtype=wp.vec3i)):  # pyright: ignore[reportInvalidTypeForm]
    where[wp.tid()] = light_kernels.dealt(wp.tid(), rows, width)


def test_how_many_rays_are_followed_together_does_not_matter(
    box_on_floor: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    expected = box_on_floor.shade(NOON)
    for lanes in (1, 5):
        monkeypatch.setattr(trace, "_RAYS_AT_ONCE", lanes * HEIGHT * WIDTH)
        scene = Scene(FLOOR.format("") + BOX)
        assert (scene.shade(NOON) - expected).abs().max() < 1e-5


EVERY_KIND = (
    FLOOR.format("")
    + """
    <geom type="box" size=".4 .4 .6" pos="-1.6 5 .6" rgba=".9 .1 .1 1" euler="0 0 30"/>
    <geom type="sphere" size=".5" pos="0 4.5 .5" rgba=".2 .3 .7 1"/>
    <geom type="ellipsoid" size=".3 .5 .7" pos="1.2 5 .7" rgba=".7 .7 .2 1"/>
    <geom type="cylinder" size=".3 .6" pos="-.8 6 .6" rgba=".3 .8 .3 1"/>
    <geom type="sphere" size=".1" pos="-.4 4 1.6" material="glow"/>
    <geom type="mesh" mesh="cone" pos=".6 3.6 0" rgba=".9 .5 .2 1"/>
    <body pos="2.2 6 1"><freejoint/><geom type="capsule" size=".3 .5" rgba=".6 .2 .6 1"/>
    <geom type="mesh" mesh="cone" pos="0 0 .9" rgba=".2 .9 .9 1"/></body>
    <geom type="hfield" hfield="hill" pos="-3 8 0" rgba=".4 .5 .3 1"/>
    <body mocap="true" pos="1.6 3.6 1.4"><geom type="box" size=".2 .2 .05" rgba="1 1 1 1"/></body>
"""
)
ASSETS = (
    LAMP
    + '<mesh name="cone" vertex=".4 .4 0 -.4 .4 0 -.4 -.4 0 .4 -.4 0 0 0 1.2"/>'
    + '<hfield name="hill" nrow="3" ncol="3" size="1.5 1.5 1 .1" elevation="0 1 0 1 2 1 0 1 0"/>'
)


@pytest.mark.parametrize("name", ["sunny", "night", "overcast"])
def test_rays_against_triangles_agree_with_rays_against_geoms(name: str) -> None:
    """Shapes of every kind, still, moving and held. Round ones lie in facets: rims of shadows may differ, by less than
    a hundredth nearly everywhere (lamps at night throw the sharpest)."""
    scenes = [Scene(EVERY_KIND, ASSETS, plain=plain) for plain in (False, True)]
    fast, plain = (scene.shade(LOOKS[name]) for scene in scenes)
    error = (fast - plain).abs()
    assert error.mean() < 4e-4 and error.flatten().quantile(0.99) < 0.01 and error.max() < 0.15
    shadows = (scenes[1].baseline(LOOKS[name]) - plain).abs()
    assert shadows.mean() > 20 * error.mean(), "what rays add is much more than what facets change"


def test_rays_against_boxes_agree_exactly() -> None:
    """Without round shapes both see the same surfaces."""
    fast, plain = (Scene(FLOOR.format("") + BOX, plain=plain).shade(NOON) for plain in (False, True))
    assert (fast - plain).abs().max() < 1e-4


def test_light_follows_what_moves_and_what_was_moved() -> None:
    """A body on a joint, a mocap body, and a still geom that another reset has put elsewhere: as if built there."""
    xml = f"""<mujoco><worldbody>{FLOOR.format("")}<body name="joint" pos="-1 5 .6"><freejoint/>
        <geom type="box" size=".4 .4 .6"/></body><body name="mocap" mocap="true" pos="1 5 .5">
        <geom type="sphere" size=".5"/></body><geom name="still" type="cylinder" size=".2 .8" pos="0 6 .8"/>
        </worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = looking_down()
    stream = stream_frame(camera.pose[0])
    moved, fresh = Tracer(model, size=(HEIGHT, WIDTH)), Tracer(model, size=(HEIGHT, WIDTH))
    moved.update(data)
    moved.gbuffer(camera)
    before = moved.shade(NOON, stream=stream)
    data.qpos[0] += 0.5
    data.mocap_pos[0, 1] += 0.7
    model.geom("still").pos[0] += 0.4
    mujoco.mj_forward(model, data)
    for tracer in (moved, fresh):
        tracer.update(data)
        tracer.gbuffer(camera)
    after = moved.shade(NOON, stream=stream)
    assert (after - before).abs().mean() > 0.01
    torch.testing.assert_close(after, fresh.shade(NOON, stream=stream), atol=2e-5, rtol=0)


def test_what_casts_no_shadow_is_seen_by_light_and_lets_it_pass() -> None:
    wall = '<geom type="box" size=".1 3 2" pos="1.5 5 2" rgba="1 .05 .05 1" {}/>'
    grey = FLOOR.replace(".7 .6 .5", ".6 .6 .6").format("")
    scenes = [
        Scene(grey + wall.format(flag), plain=plain) for flag in ("", 'castshadow="false"') for plain in (False, True)
    ]
    casts, _, passes, plain = (scene.shade(dataclasses.replace(NOON, sun_azimuth=90.0)) for scene in scenes)
    assert (passes - plain).abs().max() < 1e-3
    lit = (passes - casts).mean(0)[:, : WIDTH // 2]
    assert lit.max() > 0.1, "the sun shines through"
    bare = Scene(grey).shade(dataclasses.replace(NOON, sun_azimuth=90.0))
    assert (bare - passes).mean(0)[36, 40] > 0.005, "but the wall still hides some of the sky"


def test_kernel_tables_have_the_sizes_the_kernels_assume() -> None:
    assert shade.noise_map().shape == (shade.NOISE_SIZE,) * 2 == (int(light_kernels._NOISE),) * 2
    assert shade.star_map().shape == (shade.STARS_SIZE,) * 2 == (int(light_kernels._STARS),) * 2
    noise = shade.noise_map()
    assert noise.min() == 0 and noise.max() == 1 and abs(float(noise.mean()) - 0.5) < 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu() -> None:
    pictures = []
    for device in ("cpu", "cuda"):
        scene = Scene(LAMP_SCENE.format(""), LAMP, device=device)
        pictures.append(scene.shade(LOOKS["night"]).cpu())
    assert (pictures[0] - pictures[1]).abs().mean() < 2e-3
