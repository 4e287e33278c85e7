"""Does the path-traced reference agree with an independent renderer? One simple scene in Flowshade and in Cycles.

    python benchmarks/agreement.py ours --out out/cycles        # where Flowshade is installed
    PYTHON benchmarks/agreement.py cycles --out out/cycles      # a Python with: pip install bpy==5.0.1 "numpy<2"
    python benchmarks/agreement.py compare --out out/cycles     # errors of linear radiance, and a picture of both

The scene: a floor, a coloured box, a rough and a smooth dielectric ball, a brushed and a polished metal ball, under a
soft sun and an even sky. Same geometry, materials, camera, sun; Cycles takes them as a Principled BSDF of IOR 1.5 (f0 =
0.04). Both pictures are linear, before any tone curve, and neither is denoised by the other's means: ours has its own
filter, as in every reference picture, Cycles has many samples. Edges are where the two filter a pixel differently: they
are left out of the second row (a 3x3 neighbourhood of one object and of nearly one normal).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

SIZE = (120, 200)
FOCAL = 190.0
SKY = (0.45, 0.58, 0.80)
SUN = (3.2, 2.9, 2.4)
"""Irradiance on a surface that faces it."""
SUN_RADIUS = 2.0
"""Degrees."""
SUN_AZIMUTH, SUN_ELEVATION = -50.0, 40.0
"""Degrees; 0 = along +y, 90 = along +x."""
CAMERA, PITCH = (0.0, -7.0, 2.6), -0.22
BOUNCES = 6

# name, kind, position, size, linear base colour, roughness, metallic
THINGS: tuple[tuple[str, str, tuple, tuple, tuple, float, float], ...] = (
    ("floor", "box", (0, 0, -0.5), (30, 30, 0.5), (0.55, 0.50, 0.44), 1.0, 0.0),
    ("box", "box", (-2.1, 1.2, 0.9), (0.7, 0.7, 0.9), (0.65, 0.08, 0.06), 0.8, 0.0),
    ("wall", "box", (0.0, 4.0, 1.3), (4.5, 0.15, 1.3), (0.25, 0.45, 0.60), 0.9, 0.0),
    ("rough", "sphere", (-0.5, -0.2, 0.7), (0.7, 0, 0), (0.75, 0.72, 0.65), 0.7, 0.0),
    ("smooth", "sphere", (1.1, -0.9, 0.55), (0.55, 0, 0), (0.10, 0.35, 0.12), 0.15, 0.0),
    ("brushed", "sphere", (2.5, 0.8, 0.85), (0.85, 0, 0), (0.90, 0.70, 0.35), 0.4, 1.0),
    ("polished", "sphere", (0.7, 1.6, 0.7), (0.7, 0, 0), (0.85, 0.86, 0.88), 0.1, 1.0),
)


def pose() -> np.ndarray:
    """[4, 4] camera to world, OpenGL axes: looks along +y, nose up by PITCH."""
    c, s = math.cos(PITCH), math.sin(PITCH)
    matrix = np.eye(4)
    matrix[:3, :3] = np.array([[1, 0, 0], [0, -s, -c], [0, c, -s]])
    matrix[:3, 3] = CAMERA
    return matrix


def towards_sun() -> np.ndarray:
    azimuth, elevation = math.radians(SUN_AZIMUTH), math.radians(SUN_ELEVATION)
    flat = math.cos(elevation)
    return np.array([math.sin(azimuth) * flat, math.cos(azimuth) * flat, math.sin(elevation)])


def srgb(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055


def ours(out: Path, paths: int) -> None:
    """Writes ours.npy [H, W, 3] and inner.npy [H, W]."""
    import mujoco
    import torch

    from flowshade.gbuffer.look import Look
    from flowshade.gbuffer.trace import Tracer
    from flowshade.types import Camera, stream_frame

    assets, geoms = "", ""
    for name, kind, at, size, colour, roughness, metallic in THINGS:
        rgba = " ".join(f"{srgb(c):.6f}" for c in colour)
        assets += f'<material name="{name}" rgba="{rgba} 1" roughness="{roughness}" metallic="{metallic}"/>'
        place = " ".join(map(str, at))
        extent = " ".join(map(str, size if kind == "box" else size[:1]))
        geoms += f'<geom name="{name}" type="{kind}" pos="{place}" size="{extent}" material="{name}"/>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><asset>{assets}</asset><worldbody>{geoms}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    height, width = SIZE
    camera = Camera(
        intrinsics=torch.tensor([[FOCAL, FOCAL, width / 2, height / 2]]), pose=torch.from_numpy(pose()).float()[None]
    )
    look = Look(
        zenith=SKY, horizon=SKY, ground=SKY, fog_density=0.0, sun=SUN, sun_radius=SUN_RADIUS, sun_azimuth=SUN_AZIMUTH,
        sun_elevation=SUN_ELEVATION,
    )  # fmt: skip
    tracer = Tracer(model, size=SIZE, samples=16, reference="paths", paths=paths, bounces=BOUNCES)
    tracer.update(data)
    gbuffer = tracer.gbuffer(camera)
    radiance = tracer.radiance(look, stream=stream_frame(camera.pose[0]))[0]
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "ours.npy", radiance.permute(1, 2, 0).numpy())
    assert gbuffer.instance is not None and gbuffer.normal is not None
    ids = gbuffer.instance[0].float()[None]
    largest, least = (torch.nn.functional.max_pool2d(s * ids, 3, 1, 1)[0, 0] * s for s in (1, -1))
    normal = gbuffer.normal[0]
    step = max_turn(normal.numpy())
    np.save(out / "inner.npy", (largest == least).numpy() & (largest > 0).numpy() & (step < 0.15))


def max_turn(normal: np.ndarray) -> np.ndarray:
    """[H, W] largest difference of a normal [3, H, W] from its four neighbours."""
    out = np.zeros(normal.shape[1:])
    for axis in (1, 2):
        for shift in (-1, 1):
            out = np.maximum(out, np.linalg.norm(normal - np.roll(normal, shift, axis), axis=0))
    return out


def cycles(out: Path, samples: int) -> None:
    """Writes cycles.npy [H, W, 3]."""
    import bpy  # pyright: ignore[reportMissingImports]
    import mathutils  # pyright: ignore[reportMissingImports]

    bpy.ops.wm.read_factory_settings(use_empty=True)
    scene: Any = bpy.context.scene
    for name, kind, at, size, colour, roughness, metallic in THINGS:
        if kind == "box":
            bpy.ops.mesh.primitive_cube_add(size=2.0, location=at, scale=size)
        else:
            bpy.ops.mesh.primitive_uv_sphere_add(radius=size[0], location=at, segments=192, ring_count=96)
            bpy.ops.object.shade_smooth()
        material = bpy.data.materials.new(name)
        material.use_nodes = True
        surface = material.node_tree.nodes["Principled BSDF"]
        for key, value in {
            "Base Color": (*colour, 1),
            "Roughness": roughness,
            "Metallic": metallic,
            "IOR": 1.5,
        }.items():
            surface.inputs[key].default_value = value
        bpy.context.object.data.materials.append(material)
    world = bpy.data.worlds.new("sky")
    scene.world = world
    world.use_nodes = True
    background = world.node_tree.nodes.get("Background") or world.node_tree.nodes.new("ShaderNodeBackground")
    background.inputs["Color"].default_value = (*SKY, 1)
    light = bpy.data.lights.new("sun", "SUN")
    light.color, light.energy, light.angle = SUN, 1.0, 2 * math.radians(SUN_RADIUS)
    sun = bpy.data.objects.new("sun", light)
    sun.rotation_euler = mathutils.Vector(towards_sun()).to_track_quat("Z", "Y").to_euler()
    scene.collection.objects.link(sun)
    lens = bpy.data.cameras.new("camera")
    lens.sensor_fit, lens.sensor_width, lens.lens = "HORIZONTAL", 36.0, 36.0 * FOCAL / SIZE[1]
    camera = bpy.data.objects.new("camera", lens)
    camera.matrix_world = mathutils.Matrix(pose().tolist())
    scene.collection.objects.link(camera)
    scene.camera = camera
    scene.render.engine = "CYCLES"
    scene.cycles.samples, scene.cycles.use_denoising, scene.cycles.use_adaptive_sampling = samples, False, False
    scene.cycles.max_bounces = scene.cycles.diffuse_bounces = scene.cycles.glossy_bounces = BOUNCES
    scene.cycles.sample_clamp_indirect = 0.0
    scene.cycles.pixel_filter_type = "BOX"
    scene.render.resolution_y, scene.render.resolution_x = SIZE
    scene.render.image_settings.file_format = "OPEN_EXR"
    scene.render.image_settings.color_depth = "32"
    out.mkdir(parents=True, exist_ok=True)
    scene.render.filepath = str((out / "cycles.exr").resolve())
    bpy.ops.render.render(write_still=True)
    image = bpy.data.images.load(scene.render.filepath)
    pixels = np.array(image.pixels[:], np.float32).reshape(*SIZE, -1)[::-1, :, :3]
    np.save(out / "cycles.npy", pixels)


def compare(out: Path) -> None:
    """Prints errors by region and writes both.png: Cycles above, ours below."""
    from PIL import Image

    theirs, mine, inner = (np.load(out / f"{name}.npy") for name in ("cycles", "ours", "inner"))
    print("| pixels | mean ours / Cycles (R, G, B) | mean abs error / mean | median relative error | 95th percentile |")
    print("|---|---|---|---|---|")
    for name, mask in (("all", np.ones_like(inner)), ("away from edges", inner)):
        a, b = mine[mask], theirs[mask]
        relative = np.abs(a - b).mean(-1) / b.mean(-1)
        ratio = ", ".join(f"{r:.3f}" for r in a.mean(0) / b.mean(0))
        print(
            f"| {name} ({mask.mean():.0%}) | {ratio} | {np.abs(a - b).mean() / b.mean():.3f} | "
            f"{np.median(relative):.3f} | {np.percentile(relative, 95):.3f} |"
        )
    both = np.concatenate([theirs, mine])
    display = np.where(both <= 0.0031308, 12.92 * both, 1.055 * np.maximum(both, 1e-6) ** (1 / 2.4) - 0.055)
    Image.fromarray((display.clip(0, 1) * 255).round().astype(np.uint8)).save(out / "both.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ours", "cycles", "compare"))
    parser.add_argument("--out", type=Path, default=Path("out/cycles"))
    parser.add_argument("--samples", type=int, default=512, help="of Cycles, a pixel")
    parser.add_argument("--paths", type=int, default=64, help="of ours, a pixel")
    args = parser.parse_args()
    if args.what == "ours":
        ours(args.out, args.paths)
    elif args.what == "cycles":
        cycles(args.out, args.samples)
    else:
        compare(args.out)


if __name__ == "__main__":
    main()
