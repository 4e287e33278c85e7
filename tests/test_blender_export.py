"""The Blender export: its arithmetic here, and the whole of it where FLOWSHADE_BPY names a Python that has bpy."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

from flowshade.gbuffer.io import convert, open_clip, write_clip
from flowshade.types import CHANNELS, GBuffer

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "blender_export.py"
BPY = os.environ.get("FLOWSHADE_BPY")
SCENE = """
import math, sys, bpy
bpy.ops.wm.read_factory_settings(use_empty=True)
scene = bpy.context.scene
bpy.ops.mesh.primitive_plane_add(size=100)
ground = bpy.context.object
material = bpy.data.materials.new("ground")
material.use_nodes = True
shader = material.node_tree.nodes["Principled BSDF"]
shader.inputs["Base Color"].default_value = (0.2, 0.4, 0.6, 1)
shader.inputs["Metallic"].default_value = 1
value = material.node_tree.nodes.new("ShaderNodeValue")
value.outputs[0].default_value = 0.3
material.node_tree.links.new(value.outputs[0], shader.inputs["Roughness"])
ground.data.materials.append(material)
bpy.ops.object.camera_add(location=(0, 0, 5), rotation=(math.radians(80), 0, 0))
scene.camera = bpy.context.object
scene.camera.data.lens, scene.camera.data.shift_x = 30, 0.1
scene.camera.keyframe_insert("location", frame=1)
scene.camera.location.x = 2
scene.camera.keyframe_insert("location", frame=3)
scene.render.engine = "CYCLES"
bpy.ops.wm.save_as_mainfile(filepath=sys.argv[1])
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blender_export", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_intrinsics(script):
    sensor = {"lens": 50.0, "sensor_width": 36.0, "sensor_height": 24.0, "shift": (0.0, 0.0)}
    wide = script.intrinsics(320, 180, sensor_fit="AUTO", **sensor)
    assert wide == pytest.approx({"fx": 320 * 50 / 36, "fy": 320 * 50 / 36, "cx": 160, "cy": 90})
    assert math.degrees(2 * math.atan(160 / wide["fx"])) == pytest.approx(39.6, abs=0.01)  # Blender's own figure
    tall = script.intrinsics(180, 320, sensor_fit="AUTO", **sensor)
    assert tall["fx"] == pytest.approx(wide["fx"]) and (tall["cx"], tall["cy"]) == (90, 160)
    assert script.intrinsics(320, 180, sensor_fit="VERTICAL", **sensor)["fx"] == pytest.approx(180 * 50 / 24)
    assert script.intrinsics(180, 320, sensor_fit="HORIZONTAL", **sensor)["fx"] == pytest.approx(180 * 50 / 36)
    moved = script.intrinsics(320, 180, sensor_fit="AUTO", **{**sensor, "shift": (0.1, 0.2)})
    assert (moved["cx"], moved["cy"]) == pytest.approx((160 - 32, 90 + 64))


def test_arguments(script):
    given = script.parse(["a.blend", "--out", "clip", "--frames", "3", "9", "--size", "240x416"])
    assert (given.blend, given.out, given.frames, given.size) == (Path("a.blend"), Path("clip"), [3, 9], (240, 416))
    with pytest.raises(SystemExit):
        script.parse(["a.blend"])


@pytest.mark.skipif(BPY is None, reason="FLOWSHADE_BPY names no Python with bpy")
def test_a_scene_becomes_a_clip(tmp_path):
    assert BPY is not None
    (tmp_path / "make.py").write_text(SCENE)
    subprocess.run([BPY, tmp_path / "make.py", tmp_path / "a.blend"], check=True, capture_output=True)
    words = ["--out", tmp_path / "clip", "--frames", "1", "3", "--size", "48x80", "--samples", "4"]
    subprocess.run([BPY, SCRIPT, tmp_path / "a.blend", *words], check=True, capture_output=True)
    clip = open_clip(tmp_path / "clip")
    found = clip.read()
    assert clip.info.format == "blender" and clip.info.missing == () and clip.info.frames == 3
    ground = found.depth.isfinite()
    assert ground[:, :, 24:].all() and not ground[:, :, 0].any()
    for name, value in (("roughness", 0.3), ("metallic", 1.0)):
        assert torch.allclose(found.channels()[name][:, :, 24:], torch.tensor(value), atol=1e-3), name
    expected = torch.tensor([0.2, 0.4, 0.6])[:, None, None].expand(3, 24, 80)
    assert torch.allclose(found.albedo[0, :, 24:], expected, atol=1e-3)
    rays = found.camera.rays(48, 80)
    along = torch.einsum("ti,tihw->thw", -found.camera.pose[:, :3, 2], rays)[:, None]
    height = found.camera.pose[:, 2, 3, None, None] + (rays * found.depth / along)[:, 2]
    assert height[ground[:, 0]].abs().max() < 0.01
    up = torch.einsum("tij,tjhw->tihw", found.camera.pose[:, :3, :3], found.normal)[:, 2]
    assert (up[:, 24:] > 0.999).all()
    assert found.camera.pose[2, 0, 3] == pytest.approx(2)
    assert found.motion[1, 0, 24:].abs().max() > 0.01 and set(found.instance.unique().tolist()) == {0, 2}


LAYERS = """
import sys, bpy
tree = bpy.data.node_groups.new("look", "CompositorNodeTree")
node = tree.nodes.new("CompositorNodeImage")
node.image = bpy.data.images.load(sys.argv[1])
print("layers:", *sorted(output.name for output in node.outputs))
"""


@pytest.mark.skipif(BPY is None, reason="FLOWSHADE_BPY names no Python with bpy")
def test_blender_opens_the_exr_files_that_are_written(tmp_path):
    assert BPY is not None
    shapes = {name: torch.rand(1, planes, 12, 18) for name, planes in CHANNELS.items()}
    clip = GBuffer(**{**shapes, "instance": torch.ones(1, 1, 12, 18, dtype=torch.int32)})
    write_clip(tmp_path / "c", clip, 24.0, rgb=torch.rand(1, 3, 12, 18))
    done = convert(tmp_path / "c", tmp_path / "e", format="exr")
    (tmp_path / "look.py").write_text(LAYERS)
    command = [BPY, tmp_path / "look.py", tmp_path / "e" / "e_000001.exr"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"layers: {' '.join(sorted((*done.channels, 'beauty')))}" in shown
