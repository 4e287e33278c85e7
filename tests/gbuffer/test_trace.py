"""The tracer against analytic scenes, against MuJoCo's own rays, and against its own G-buffers."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from flowshade.color import srgb_to_linear
from flowshade.gbuffer import packet_kernels, trace
from flowshade.gbuffer._scene import roughness_of
from flowshade.gbuffer.trace import Tracer, sample_offsets
from flowshade.types import CHANNELS, Camera, GBuffer

HEIGHT, WIDTH = 48, 64


def camera_at(
    position: tuple[float, float, float] = (0, 0, 0), yaw: float = 0.0, pitch: float = 0.0, focal: float = 50.0
) -> Camera:
    """A camera that looks along +Y at yaw 0; yaw turns left, pitch up, both in radians."""
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    turn = torch.tensor([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    tilt = torch.tensor([[1.0, 0, 0], [0, cp, -sp], [0, sp, cp]])
    base = torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # right, up, back as columns
    pose = torch.eye(4)
    pose[:3, :3] = turn @ tilt @ base
    pose[:3, 3] = torch.tensor(position)
    return Camera(intrinsics=torch.tensor([[focal, focal * 1.1, WIDTH / 2 + 0.3, HEIGHT / 2]]), pose=pose[None])


def build(geoms: str, assets: str = "") -> tuple[mujoco.MjModel, mujoco.MjData]:
    xml = f"<mujoco><asset>{assets}</asset><worldbody>{geoms}</worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def traced(geoms: str, assets: str = "", camera: Camera | None = None, **options) -> GBuffer:
    model, data = build(geoms, assets)
    tracer = Tracer(model, size=(HEIGHT, WIDTH), **options)
    tracer.update(data)
    return tracer.gbuffer(camera or camera_at())


def value(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


TETRAHEDRON = '<mesh name="tetra" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>'
EVERYTHING = """
<geom name="floor" type="plane" size="0 0 1" pos="0 0 -1.5"/>
<geom name="table" type="plane" size="1 .7 1" pos="-2 5 -1" euler="10 5 0"/>
<geom name="box" type="box" size=".7 .5 .8" pos="-1.2 5 .2" euler="20 30 10"/>
<geom name="ball" type="sphere" size=".6" pos="1 4 .5"/>
<geom name="pill" type="capsule" size=".3 .5" pos="2.4 6 .3" euler="50 20 0"/>
<geom name="egg" type="ellipsoid" size=".3 .8 .5" pos="0 6 1.4" euler="0 40 30"/>
<geom name="can" type="cylinder" size=".5 .4" pos="-2.4 4 1" euler="60 0 20"/>
<geom name="tetra" type="mesh" mesh="tetra" pos=".5 3 -1" euler="15 0 40"/>
<geom name="land" type="hfield" hfield="land" pos="1 14 -1.2" euler="0 0 25"/>
"""
LAND = '<hfield name="land" nrow="9" ncol="13" size="6 5 2 .4"/>'


@pytest.fixture(scope="module")
def everything() -> tuple[mujoco.MjModel, mujoco.MjData]:
    model, data = build(EVERYTHING, TETRAHEDRON + LAND)
    model.hfield_data[:] = np.random.default_rng(1).random(model.hfield_data.size)
    return model, data


def mujoco_rays(model: mujoco.MjModel, data: mujoco.MjData, camera: Camera) -> tuple[Tensor, Tensor, Tensor]:
    """Geom ids [H, W], distances [H, W] and normals [H, W, 3] of MuJoCo's own rays through the pixel centres."""
    rays = camera.rays(HEIGHT, WIDTH)[0].permute(1, 2, 0).double().numpy().reshape(-1)
    count = HEIGHT * WIDTH
    ids, distances, normals = np.zeros(count, np.int32), np.zeros(count), np.zeros(3 * count)
    origin = camera.pose[0, :3, 3].double().numpy()
    mujoco.mj_multiRay(model, data, origin, rays, None, True, -1, ids, distances, normals, count, 1e9)
    shape = (HEIGHT, WIDTH)
    return (
        torch.from_numpy(ids).view(shape),
        torch.from_numpy(distances).view(shape),
        torch.from_numpy(normals).view(*shape, 3),
    )


def inner(ids: Tensor) -> Tensor:
    """Pixels whose 3x3 neighbourhood is one geom."""
    padded = torch.nn.functional.pad(ids[None, None].float(), (1, 1, 1, 1), mode="replicate")
    window = padded.unfold(2, 3, 1).unfold(3, 3, 1).reshape(*ids.shape, 9)
    return (window == ids[..., None]).all(-1)


CAMERAS = [
    camera_at((0, 0, 0.4)),
    camera_at((4, 1, 3), yaw=0.6, pitch=-0.4),
    camera_at((-3, 12, 2), yaw=3.6, pitch=-0.2),
]


def tiled_and_plain(model: mujoco.MjModel, data: mujoco.MjData, camera: Camera, size: tuple[int, int]) -> list[GBuffer]:
    """Rays by tiles, into arrays of nonsense, and one by one."""
    found = []
    for plain in (False, True):
        tracer = Tracer(model, size=size, plain=plain)
        tracer.update(data)
        seen = [] if tracer._seen is None else [getattr(tracer._seen, name) for name in packet_kernels.Seen.vars]
        for array in (*tracer._hit_arrays.values(), *seen):
            array.fill_(7)
        found.append(tracer.gbuffer(camera))
    return found


def assert_same(tiled: GBuffer, plain: GBuffer) -> None:
    """Both are the same arithmetic but for the compiler's choice of fused multiplications: 1e-5, and none at edges."""
    assert torch.equal(value(tiled.instance), value(plain.instance))
    for name in CHANNELS:
        torch.testing.assert_close(value(getattr(tiled, name)), value(getattr(plain, name)), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (45, 63), (1, 3)])
@pytest.mark.parametrize("view", range(len(CAMERAS)))
def test_tiles_see_what_single_rays_see(everything, view: int, size: tuple[int, int]) -> None:
    assert_same(*tiled_and_plain(*everything, CAMERAS[view], size))


def test_an_unknown_warp_is_given_single_rays(everything, monkeypatch: pytest.MonkeyPatch) -> None:
    tiled, plain = tiled_and_plain(*everything, CAMERAS[0], (HEIGHT, WIDTH))
    monkeypatch.setattr(packet_kernels, "VERSIONS", ("0.0.",))
    monkeypatch.setattr(Tracer, "_launch_tiles", None)
    single, _ = tiled_and_plain(*everything, CAMERAS[0], (HEIGHT, WIDTH))
    assert torch.equal(single.depth, plain.depth) and torch.equal(single.albedo, plain.albedo)
    assert_same(tiled, single)


@pytest.mark.parametrize("yaw", [0.0, math.pi / 4, 2.5])
def test_tiles_across_the_planes_between_axes(everything, yaw: float) -> None:
    """Where rays of one tile have different largest components they are traced one by one."""
    assert_same(*tiled_and_plain(*everything, camera_at((1, 8, 0.7), yaw=yaw, focal=20.0), (HEIGHT, WIDTH)))


@pytest.mark.parametrize("balls", [3, 200])
def test_tiles_that_see_few_or_very_many_shapes(balls: int) -> None:
    """A tile lists at most `LISTED` shapes; beyond, its rays search the tree."""
    places = np.random.default_rng(0).normal(size=(balls, 3)) * (1.5, 1.0, 1.0) + (0, 9, 0)
    geoms = "".join(f'<geom type="sphere" size=".3" pos="{x:.3f} {y:.3f} {z:.3f}"/>' for x, y, z in places)
    assert_same(*tiled_and_plain(*build(geoms), camera_at(), (HEIGHT, WIDTH)))


@pytest.mark.parametrize("view", range(len(CAMERAS)))
def test_hits_are_mujocos_own(everything, view: int) -> None:
    model, data = everything
    camera = CAMERAS[view]
    tracer = Tracer(model, size=(HEIGHT, WIDTH))
    tracer.update(data)
    gbuffer = tracer.gbuffer(camera)
    ids, distances, normals = mujoco_rays(model, data, camera)
    assert len(ids.unique()) >= 5

    instance = value(gbuffer.instance)[0, 0]
    same = inner(ids)
    assert same.float().mean() > 0.6
    assert torch.equal(instance[same] - 1, ids[same])
    assert ((instance - 1) != ids).float().mean() < 0.004  # rays that graze an edge

    hit = same & (ids >= 0)
    rays = camera.rays(HEIGHT, WIDTH)[0]
    along = torch.einsum("c,chw->hw", -camera.pose[0, :3, 2], rays)
    length = value(gbuffer.depth)[0, 0] / along
    error = (length - distances).abs()[hit]
    assert error.max() < 1e-4 * distances[hit].max().clamp(min=1)
    assert torch.isinf(value(gbuffer.depth)[0, 0][ids < 0]).all()

    # Normals of everything but meshes and height fields, whose shading is smooth; turned to the viewer as ours are.
    world = torch.einsum("ij,jhw->hwi", camera.pose[0, :3, :3], value(gbuffer.normal)[0]).double()
    facing = normals * -torch.sign((normals * rays.permute(1, 2, 0)).sum(-1, keepdim=True))
    smooth = (int(mujoco.mjtGeom.mjGEOM_HFIELD), int(mujoco.mjtGeom.mjGEOM_MESH))
    flat = hit & ~torch.isin(torch.tensor(model.geom_type)[ids.clamp(min=0)], torch.tensor(smooth))
    one = tracer_normals_at_centre(model, data, camera)
    agree = (torch.einsum("ij,jhw->hwi", camera.pose[0, :3, :3], one).double() * facing).sum(-1)
    assert agree[flat].min() > 0.9999
    assert (world * facing).sum(-1)[flat].mean() > 0.99  # averaged over the pixel


def tracer_normals_at_centre(model: mujoco.MjModel, data: mujoco.MjData, camera: Camera) -> Tensor:
    tracer = Tracer(model, size=(HEIGHT, WIDTH), samples=1, channels=["normal"])
    tracer.update(data)
    return value(tracer.gbuffer(camera).normal)[0]


def test_rays_from_inside_hit_the_far_side() -> None:
    """Origins inside solids see their inner walls, as MuJoCo's rays do."""
    for geom in (
        'type="box" size="2 3 1"',
        'type="sphere" size="2"',
        'type="capsule" size="1 2"',
        'type="ellipsoid" size="2 3 1"',
        'type="cylinder" size="2 1"',
    ):
        model, data = build(f"<geom {geom}/>")
        tracer = Tracer(model, size=(HEIGHT, WIDTH))
        tracer.update(data)
        camera = camera_at((0.1, 0.2, 0.1), yaw=0.5, pitch=0.3)
        _, distances, _ = mujoco_rays(model, data, camera)
        along = torch.einsum("c,chw->hw", -camera.pose[0, :3, 2], camera.rays(HEIGHT, WIDTH)[0])
        torch.testing.assert_close(
            (value(tracer.gbuffer(camera).depth)[0, 0] / along).double(), distances, atol=1e-5, rtol=1e-5
        )


def test_sphere_exactly() -> None:
    gbuffer = traced('<geom type="sphere" size="1" pos=".2 5 0"/>', samples=1)
    rays = camera_at().rays(HEIGHT, WIDTH)[0].double()
    centre = torch.tensor([0.2, 5.0, 0.0], dtype=torch.float64)
    middle = torch.einsum("chw,c->hw", rays, centre)
    square = 1 - (centre @ centre - middle**2)
    inside = square > 1e-3
    length = middle - square.clamp(min=0).sqrt()
    depth = value(gbuffer.depth)[0, 0].double()
    torch.testing.assert_close(depth[inside], (length * rays[1])[inside], atol=3e-5, rtol=1e-6)
    assert torch.isinf(depth[square < 0]).all()
    world = rays * length - centre[:, None, None]
    normal = torch.stack([world[0], world[2], -world[1]])  # camera axes of a camera looking along +Y
    torch.testing.assert_close(value(gbuffer.normal)[0].double()[:, inside], normal[:, inside], atol=1e-4, rtol=0)


def test_planar_depth_of_a_facing_wall_is_constant() -> None:
    gbuffer = traced('<geom type="box" size="9 .5 9" pos="0 4.5 0"/>')
    torch.testing.assert_close(value(gbuffer.depth), torch.full((1, 1, HEIGHT, WIDTH), 4.0))
    expected = torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1).expand(1, 3, HEIGHT, WIDTH)
    torch.testing.assert_close(value(gbuffer.normal), expected, atol=1e-6, rtol=0)


def test_normals_follow_the_depth(everything) -> None:
    """On flat surfaces the normal is the one that finite differences of the depth give."""
    model, data = everything
    camera = CAMERAS[0]
    tracer = Tracer(model, size=(HEIGHT, WIDTH), samples=1)
    tracer.update(data)
    gbuffer = tracer.gbuffer(camera)
    points = camera_points(value(gbuffer.depth)[0, 0], camera)
    across = points[:, 1:-1, 2:] - points[:, 1:-1, :-2]
    down = points[:, 2:, 1:-1] - points[:, :-2, 1:-1]
    from_depth = torch.nn.functional.normalize(torch.linalg.cross(down, across, dim=0), dim=0)
    ids = value(gbuffer.instance)[0, 0].long() - 1
    flat = {model.geom(name).id for name in ("floor", "table", "box")}
    inner_flat = inner(ids)[1:-1, 1:-1] & torch.tensor([[int(i) in flat for i in row] for row in ids[1:-1, 1:-1]])
    agree = (value(gbuffer.normal)[0][:, 1:-1, 1:-1] * from_depth).sum(0)[inner_flat]
    assert inner_flat.sum() > 200
    assert (agree > 0.999).float().mean() > 0.93  # the rest straddle an edge of the box


def camera_points(depth: Tensor, camera: Camera) -> Tensor:
    """[3, H, W] camera-space points of a depth map."""
    fx, fy, cx, cy = camera.intrinsics[0]
    x = (torch.arange(WIDTH) + 0.5 - cx) / fx
    y = (torch.arange(HEIGHT)[:, None] + 0.5 - cy) / fy
    return torch.stack([x * depth, -y * depth, -depth])


def reprojected(points: Tensor, camera: Camera) -> Tensor:
    """[2, H, W] pixel positions of world points [3, H, W]."""
    rotation, position = camera.pose[0, :3, :3], camera.pose[0, :3, 3]
    local = torch.einsum("ji,jhw->ihw", rotation, points - position[:, None, None])
    fx, fy, cx, cy = camera.intrinsics[0]
    return torch.stack([cx - fx * local[0] / local[2], cy + fy * local[1] / local[2]])


def pixel_grid() -> Tensor:
    x, y = torch.arange(WIDTH) + 0.5, torch.arange(HEIGHT) + 0.5
    return torch.stack([x.expand(HEIGHT, WIDTH), y[:, None].expand(HEIGHT, WIDTH)])


def test_camera_motion_is_reprojection(everything) -> None:
    model, data = everything
    tracer = Tracer(model, size=(HEIGHT, WIDTH))
    tracer.update(data)
    before, now = camera_at((0, 0, 0.4)), camera_at((0.1, 0.05, 0.45), yaw=0.03, pitch=-0.02)
    gbuffer = tracer.gbuffer(now, previous=before)
    depth = value(gbuffer.depth)[0, 0]
    seen = torch.isfinite(depth)
    local = camera_points(depth.nan_to_num(posinf=1.0), now)
    world = torch.einsum("ij,jhw->ihw", now.pose[0, :3, :3], local) + now.pose[0, :3, 3, None, None]
    expected = reprojected(world, before) - pixel_grid()
    motion = value(gbuffer.motion)[0]
    torch.testing.assert_close(motion[:, seen], expected[:, seen], atol=2e-3, rtol=1e-4)
    assert motion.abs().max() > 1

    far = before.pose[0, :3, 3, None, None] + now.rays(HEIGHT, WIDTH)[0] * 1e6  # the sky turns, and nothing more
    expected = reprojected(far, before) - pixel_grid()
    assert (~seen).sum() > 100
    torch.testing.assert_close(motion[:, ~seen], expected[:, ~seen], atol=2e-2, rtol=1e-3)


def test_object_motion_and_refit() -> None:
    """A mocap ball moves right and away: hits, depth and motion follow; the wall behind it stays."""
    xml = '<body name="b" mocap="true" pos="0 5 0"><geom type="sphere" size=".5"/></body>'
    xml += '<geom type="box" size="9 .1 9" pos="0 9 0"/>'
    model, data = build(xml)
    tracer = Tracer(model, size=(HEIGHT, WIDTH))
    camera = camera_at()
    tracer.update(data)
    first = tracer.gbuffer(camera)
    assert value(first.motion).abs().max() < 1e-4, "nothing has moved before the second update"

    shift = torch.tensor([0.4, 0.5, 0.1])
    data.mocap_pos[0] += shift.double().numpy()
    mujoco.mj_forward(model, data)
    tracer.update(data)
    second = tracer.gbuffer(camera)
    ball = value(second.instance)[0, 0] == model.body("b").geomadr[0] + 1
    assert ball.sum() > 20
    depth = value(second.depth)[0, 0]
    torch.testing.assert_close(depth[ball].min(), torch.tensor(5.0), atol=2e-2, rtol=0)
    world = torch.einsum("ij,jhw->ihw", camera.pose[0, :3, :3], camera_points(depth, camera))
    expected = reprojected(world - shift[:, None, None], camera) - pixel_grid()
    torch.testing.assert_close(value(second.motion)[0][:, ball], expected[:, ball], atol=1e-3, rtol=0)
    assert value(second.motion)[0][0][ball].max() < 0, "it came from the left"
    assert value(second.motion)[0][:, ~ball].abs().max() < 1e-4

    tracer.update(data)
    assert value(tracer.gbuffer(camera).motion).abs().max() < 1e-4, "it has stopped"
    data.mocap_pos[0] += 1
    mujoco.mj_forward(model, data)
    tracer.reset()
    tracer.update(data)
    assert value(tracer.gbuffer(camera).motion).abs().max() < 1e-4, "a reset forgets where things were"


def test_threads_do_not_matter(everything) -> None:
    model, data = everything
    results = []
    for threads in (1, 3):
        tracer = Tracer(model, size=(HEIGHT, WIDTH), threads=threads)
        tracer.update(data)
        tracer.gbuffer(CAMERAS[1])  # the first launch of a kernel is not threaded
        results.append(tracer.gbuffer(CAMERAS[0], previous=CAMERAS[1]).channels())
    for name in CHANNELS:
        assert torch.equal(results[0][name], results[1][name]), name


def test_every_value_is_written(everything, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = everything

    def poisoned(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(size, -77, dtype=dtype) if dtype == torch.int32 else torch.full(size, float("nan"))

    monkeypatch.setattr(trace.torch, "empty", poisoned)
    tracer = Tracer(model, size=(HEIGHT, WIDTH))
    tracer.update(data)
    gbuffer = tracer.gbuffer(CAMERAS[0], previous=CAMERAS[1])
    for name, channel in gbuffer.channels().items():
        assert channel.dtype == (torch.int32 if name == "instance" else torch.float32)
        assert not torch.isnan(channel.float()).any(), name
    assert value(gbuffer.instance).min() >= 0
    for name in ("albedo", "roughness", "metallic"):
        channel = getattr(gbuffer, name)
        assert channel.min() >= 0 and channel.max() <= 1
    length = value(gbuffer.normal).norm(dim=1)
    assert (((length - 1).abs() < 1e-4) | (length == 0)).all()


def test_results_are_the_callers_to_keep(everything) -> None:
    model, data = everything
    tracer = Tracer(model, size=(HEIGHT, WIDTH))
    tracer.update(data)
    first = tracer.gbuffer(CAMERAS[0])
    copy = value(first.albedo).clone()
    tracer.gbuffer(CAMERAS[1])
    assert torch.equal(value(first.albedo), copy)


def test_an_empty_world_is_sky() -> None:
    gbuffer = traced('<geom type="box" size="1 1 1" rgba="1 1 1 0" pos="0 4 0"/>')
    assert torch.isinf(value(gbuffer.depth)).all()
    for name in ("albedo", "normal", "roughness", "metallic", "emission", "instance"):
        assert (getattr(gbuffer, name) == 0).all()


def test_groups_and_alpha_hide() -> None:
    xml = '<geom type="box" size=".4 .1 9" pos="-1 4 0" group="4"/>'
    xml += '<geom type="box" size=".4 .1 9" pos="1 4 0" group="1"/>'
    assert set(value(traced(xml).instance).unique().tolist()) == {0, 2}
    assert set(value(traced(xml, groups=(4,)).instance).unique().tolist()) == {0, 1}


def test_colours_are_srgb_and_a_geoms_own_wins() -> None:
    assets = '<material name="m" rgba=".2 .4 .6 1" metallic=".7" roughness=".3" emission="2"/>'
    wall = '<geom type="box" size="9 .5 9" pos="0 5 0" material="m" {}/>'
    gbuffer = traced(wall.format(""), assets)
    expected = srgb_to_linear(torch.tensor([0.2, 0.4, 0.6]))
    torch.testing.assert_close(value(gbuffer.albedo)[0, :, 5, 5], expected)
    torch.testing.assert_close(value(gbuffer.emission)[0, :, 5, 5], 2 * expected)
    assert value(gbuffer.metallic)[0, 0, 5, 5] == pytest.approx(0.7)
    assert value(gbuffer.roughness)[0, 0, 5, 5] == pytest.approx(0.3)
    own = traced(wall.format('rgba="1 0 0 1"'), assets)
    torch.testing.assert_close(value(own.albedo)[0, :, 5, 5], torch.tensor([1.0, 0, 0]))


def test_roughness_fallback() -> None:
    assets = '<material name="dull" specular="0"/><material name="shiny" specular="1" shininess="1"/>'
    assets += '<material name="set" roughness="0"/>'
    model, _ = build('<geom type="sphere" size="1"/>', assets)
    dull, shiny, given = (roughness_of(model, model.material(name).id) for name in ("dull", "shiny", "set"))
    assert dull == 1.0 and given == 0.0
    assert shiny == pytest.approx((2 / 130) ** 0.25)
    assert shiny < roughness_of(model, -1) < dull


def halves(**options) -> GBuffer:
    """A wall whose texture is black above and white below, one tile over the wall."""
    image = np.zeros((16, 16, 3), np.uint8)
    image[8:] = 255
    spec = mujoco.MjSpec()
    texture = spec.add_texture(name="t", type=mujoco.mjtTexture.mjTEXTURE_2D, width=16, height=16, nchannel=3)
    texture.data = image.tobytes()
    material = spec.add_material(name="m")
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "t"
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[2, 0.1, 2], pos=[0, 6, 0], material="m")
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    tracer = Tracer(model, size=(HEIGHT, WIDTH), **options)
    tracer.update(data)
    return tracer.gbuffer(camera_at())


def test_textures_stand_upright_on_walls() -> None:
    albedo = value(halves().albedo)[0, 0]
    assert albedo[14, 20:44].max() < 0.05 and albedo[34, 20:44].min() > 0.9


def test_materials_are_antialiased_and_geometry_is_not() -> None:
    rough = traced('<geom type="sphere" size="1" pos=".2 5 0" rgba="1 1 1 1"/>', samples=1)
    fine = traced('<geom type="sphere" size="1" pos=".2 5 0" rgba="1 1 1 1"/>', samples=16)
    assert set(value(rough.albedo).unique().tolist()) == {0.0, 1.0}
    assert len(value(fine.albedo).unique()) > 8
    assert torch.equal(value(rough.depth), value(fine.depth)) and torch.equal(
        value(rough.instance), value(fine.instance)
    )
    assert (value(fine.albedo).mean() - value(rough.albedo).mean()).abs() < 0.01


def test_far_textures_fade_to_their_mean() -> None:
    assets = '<texture name="t" type="2d" builtin="checker" rgb1="0 0 0" rgb2="1 1 1" width="64" height="64"/>'
    assets += '<material name="m" texture="t" texrepeat="20 20" texuniform="true"/>'
    albedo = value(traced('<geom type="box" size="9 .1 9" pos="0 8 0" material="m"/>', assets).albedo)
    assert (albedo - 0.5).abs().max() < 0.06


def test_cube_texture_faces() -> None:
    """A six-coloured cube map seen from its sides."""
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [255, 0, 255], [0, 255, 255]], np.uint8)
    spec = mujoco.MjSpec()
    texture = spec.add_texture(name="t", type=mujoco.mjtTexture.mjTEXTURE_CUBE, width=4, height=24, nchannel=3)
    texture.data = np.repeat(colours, 16, axis=0).tobytes()
    material = spec.add_material(name="m")
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "t"
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[1, 1, 1], pos=[0, 0, 0], material="m")
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    tracer = Tracer(model, size=(HEIGHT, WIDTH))
    tracer.update(data)
    centre = (0, slice(None), HEIGHT // 2, WIDTH // 2)
    for position, yaw, face in (
        ((0, -4, 0), 0, 3),
        ((0, 4, 0), math.pi, 2),
        ((-4, 0, 0), -math.pi / 2, 1),
        ((4, 0, 0), math.pi / 2, 0),
    ):
        seen = value(tracer.gbuffer(camera_at(position, yaw=yaw)).albedo)[centre]
        torch.testing.assert_close(seen, torch.from_numpy(colours[face] / 255).float(), atol=1e-3, rtol=0)


def test_a_cube_texture_of_one_picture_shows_it_on_every_side(tmp_path: Path) -> None:
    """Its left half is red: so is one half of each side, however the box is turned."""
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[:, :32, 0] = picture[:, 32:, 2] = 255
    Image.fromarray(picture).save(tmp_path / "half.png")
    assets = f'<texture name="t" type="cube" file="{tmp_path}/half.png"/><material name="m" texture="t"/>'
    box = '<geom type="box" size="1 1 1" pos="0 {} 0" material="m" euler="0 0 {}"/>'
    for distance, turn in ((4, 0), (4, 90), (4, 180), (4, 270), (9, 0)):
        gbuffer = traced(box.format(distance, turn), assets)
        ids = value(gbuffer.instance)[0, 0]
        seen = value(gbuffer.albedo)[0][:, inner(ids) & (ids == 1)]
        red, blue = (seen[0] > 0.9).float().mean(), (seen[2] > 0.9).float().mean()
        assert red == pytest.approx(0.5, abs=0.12) and blue == pytest.approx(0.5, abs=0.12)


def test_mesh_texture_coordinates() -> None:
    """A square of two triangles, and one behind it, that use the left half of a red and blue texture only."""
    spec = mujoco.MjSpec()
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, :4, 0] = 255
    image[:, 4:, 2] = 255
    texture = spec.add_texture(name="t", type=mujoco.mjtTexture.mjTEXTURE_2D, width=8, height=8, nchannel=3)
    texture.data = image.tobytes()
    material = spec.add_material(name="m")
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "t"
    mesh = spec.add_mesh(
        name="q", uservert=[-2, 0, -2, 2, 0, -2, 2, 0, 2, -2, 0, 2, 0, 1, 0], userface=[0, 1, 2, 0, 2, 3, 1, 0, 4],
        usertexcoord=[0.1, 0, 0.4, 0, 0.4, 1, 0.1, 1], userfacetexcoord=[0, 1, 2, 0, 2, 3, 0, 1, 2],
    )  # fmt: skip
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="q", pos=[0, 5, 0], material="m")
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    tracer = Tracer(model, size=(HEIGHT, WIDTH), samples=1)
    tracer.update(data)
    gbuffer = tracer.gbuffer(camera_at())
    seen = value(gbuffer.instance)[0, 0] > 0
    assert seen.sum() > 500
    albedo = value(gbuffer.albedo)[0][:, seen]
    assert albedo[0].min() > 0.8 and albedo[2].max() < 0.2


def test_channels_can_be_chosen(everything) -> None:
    model, data = everything
    tracer = Tracer(model, size=(HEIGHT, WIDTH), channels=["depth", "albedo"])
    tracer.update(data)
    assert list(tracer.gbuffer(CAMERAS[0]).channels()) == ["albedo", "depth"]


def test_sample_offsets_stay_in_the_pixel() -> None:
    for samples in (1, 2, 4, 5, 16, 64):
        offsets = sample_offsets(samples)
        assert offsets.shape == (samples, 2) and np.abs(offsets).max() <= 0.5
        assert np.abs(offsets.mean(0)).max() <= 0.6 / samples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (0, 4)}, "size"),
        ({"size": (4, 4), "samples": 0}, "samples=0"),
        ({"size": (4, 4), "channels": ["colour"]}, "expected some of albedo"),
    ],
)
def test_bad_arguments(everything, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tracer(everything[0], **options)


def test_calls_in_the_wrong_order(everything) -> None:
    tracer = Tracer(everything[0], size=(4, 4))
    with pytest.raises(ValueError, match="update"):
        tracer.gbuffer(CAMERAS[0])
    tracer.update(everything[1])
    with pytest.raises(ValueError, match="one"):
        tracer.gbuffer(Camera.cat([CAMERAS[0], CAMERAS[1]]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu(everything) -> None:
    model, data = everything
    results = []
    for device in ("cpu", "cuda"):
        tracer = Tracer(model, size=(HEIGHT, WIDTH), device=device)
        tracer.update(data)
        gbuffer = tracer.gbuffer(CAMERAS[0], previous=CAMERAS[1])
        assert gbuffer.device.type == device
        results.append({name: channel.cpu() for name, channel in gbuffer.channels().items()})
    same = results[0]["instance"] == results[1]["instance"]
    assert same.float().mean() > 0.995
    for name in ("albedo", "depth", "normal", "motion"):
        difference = (results[0][name] - results[1][name]).nan_to_num(0, 0, 0).abs()
        assert (difference * same).flatten().quantile(0.99) < 1e-3, name


def test_what_never_moves_looks_the_same_as_what_could() -> None:
    """Fixed boxes lie in one mesh of triangles, loose ones are met analytically: same surfaces, to single precision."""
    boxes = "".join(
        f'<body pos="{2 * i} 1 {0.3 * i}" euler="20 {30 * i} 10">{{joint}}<geom type="box" size=".5 .3 .4"/></body>'
        for i in range(3)
    )
    pictures = []
    for joint in ("", "<freejoint/>"):
        model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{boxes.format(joint=joint)}</worldbody></mujoco>")
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        tracer = Tracer(model, size=(24, 40), samples=1, threads=1)
        tracer.update(data)
        pose = torch.tensor([[[1.0, 0, 0, 2], [0, 0, -1, -5], [0, 1, 0, 0.5], [0, 0, 0, 1]]])
        camera = Camera(intrinsics=torch.tensor([[30.0, 30, 20, 12]]), pose=pose)
        pictures.append(tracer.gbuffer(camera))
    fixed, loose = pictures
    assert (fixed.instance > 0).sum() > 50
    assert torch.equal(fixed.instance, loose.instance)
    seen = fixed.instance > 0
    torch.testing.assert_close(fixed.depth[seen], loose.depth[seen], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fixed.normal, loose.normal, rtol=0, atol=1e-5)
