"""Renders any .blend file into a G-buffer clip that Flowshade reads. Runs in Blender 4.x and 5.x, or with bpy.

    blender -b scene.blend -P blender_export.py -- --out clip
    python blender_export.py scene.blend --out clip --frames 1 48 --size 480x832

Switches on the passes Depth, Normal, Vector, Object Index and Emission, adds AOVs basecolor, roughness and metallic to
every material (from its Principled BSDF), numbers the objects, renders multilayer EXR files and writes `cameras.json`.
The .blend file itself is not changed. Then: flowshade inspect clip
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

AOVS = {"basecolor": ("Base Color", "COLOR"), "roughness": ("Roughness", "VALUE"), "metallic": ("Metallic", "VALUE")}
"""AOV name -> the Principled BSDF's input, and the AOV's type."""
PASSES = (
    "use_pass_z",
    "use_pass_normal",
    "use_pass_vector",
    "use_pass_object_index",
    "use_pass_emit",
    "use_pass_combined",
)
WITHOUT_SHADER = {"basecolor": (0.8, 0.8, 0.8, 1.0), "roughness": 1.0, "metallic": 0.0}
"""What a surface without any material looks like: Blender's own white, taken as rough."""


def main() -> None:
    arguments = parse(sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else sys.argv[1:])
    import bpy  # pyright: ignore[reportMissingImports]: Blender brings it

    if arguments.blend is not None:
        bpy.ops.wm.open_mainfile(filepath=str(arguments.blend))
    scene = bpy.context.scene
    if scene.camera is None:
        raise SystemExit("the scene has no active camera; expected one. Choose it in the scene's properties.")
    start, end = arguments.frames or (scene.frame_start, scene.frame_end)
    set_up_passes(scene)
    for line in [
        *set_up_materials(bpy.data.materials, bpy.data.objects, bpy.data.meshes),
        *number_objects(scene.objects),
    ]:
        print(line)
    set_up_output(scene, arguments.out, arguments.size, arguments.samples)
    scene.frame_start, scene.frame_end, scene.frame_step = start, end, 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_cameras(scene, start, end, arguments.out / "cameras.json")
    if not arguments.cameras_only:
        bpy.ops.render.render(animation=True)
    print(f"wrote {arguments.out}: frames {start} to {end}. Look at it with: flowshade inspect {arguments.out}")


def parse(words: list[str]) -> argparse.Namespace:
    def size(text: str) -> tuple[int, int]:
        height, _, width = text.partition("x")
        return int(height), int(width)

    parser = argparse.ArgumentParser(prog="blender_export.py", description=__doc__.splitlines()[0])  # pyright: ignore
    parser.add_argument("blend", type=Path, nargs="?", help="the .blend file; by default what Blender has open")
    parser.add_argument("--out", type=Path, required=True, help="the clip's folder")
    parser.add_argument("--frames", type=int, nargs=2, metavar=("FIRST", "LAST"), help="by default the scene's")
    parser.add_argument("--size", type=size, metavar="HxW", help="by default the scene's")
    parser.add_argument("--samples", type=int, help="Cycles samples a pixel; by default the scene's")
    parser.add_argument("--cameras-only", action="store_true", help="only write cameras.json")
    return parser.parse_args(words)


def set_up_passes(scene: Any) -> None:
    """Switches on what the reader looks for, on the scene's first view layer only: it expects one."""
    first, *others = scene.view_layers
    for layer in others:
        layer.use = False
    first.use = True
    for name in PASSES:
        setattr(first, name, True)
    for name, (_, kind) in AOVS.items():
        if name not in first.aovs:
            aov = first.aovs.add()
            aov.name, aov.type = name, kind


def set_up_materials(materials: Any, objects: Any, meshes: Any) -> list[str]:
    """Adds AOV outputs to every material; gives what could not be done, as lines to print."""
    said = []
    for material in materials:
        if material.library is not None or getattr(material, "is_grease_pencil", False):
            continue
        if not material.use_nodes:
            material.use_nodes = True
        shaders = add_aovs(material.node_tree)
        if shaders == 0:
            said.append(
                f"note: material {material.name!r} has no Principled BSDF; its buffers are those of no material."
            )
        elif shaders > 1:
            said.append(f"note: material {material.name!r} mixes {shaders} Principled BSDFs; the last one counts.")
    bare = [thing.name for thing in objects if thing.type == "MESH" and not any(thing.material_slots)]
    if bare:
        said.append(f"note: {', '.join(bare[:6])}{', ...' if len(bare) > 6 else ''}: no material, so no AOVs.")
    return said


def add_aovs(tree: Any) -> int:
    """Adds outputs beside the Principled BSDFs of a tree and of the groups in it; gives how many those are."""
    shaders = [node for node in tree.nodes if node.type == "BSDF_PRINCIPLED"]
    groups = [node.node_tree for node in tree.nodes if node.type == "GROUP" and node.node_tree is not None]
    found = len(shaders) + sum(add_aovs(group) for group in groups if group.library is None)
    for node in [node for node in tree.nodes if node.type == "OUTPUT_AOV" and node.aov_name in AOVS]:
        tree.nodes.remove(node)
    if shaders:
        for name, (socket, _) in AOVS.items():
            add_aov(tree, name, shaders[-1].inputs[socket])
    elif found == 0 and any(node.type == "OUTPUT_MATERIAL" for node in tree.nodes):
        for name, value in WITHOUT_SHADER.items():
            aov_input(tree, name).default_value = value
    return found


def add_aov(tree: Any, name: str, source: Any) -> None:
    """An AOV output that takes whatever the shader's input takes: its link, or its own value."""
    target = aov_input(tree, name)
    if source.is_linked:
        tree.links.new(source.links[0].from_socket, target)
    else:
        target.default_value = source.default_value


def aov_input(tree: Any, name: str) -> Any:
    node = tree.nodes.new("ShaderNodeOutputAOV")
    node.aov_name = name
    return node.inputs["Color" if AOVS[name][1] == "COLOR" else "Value"]


def number_objects(objects: Any) -> list[str]:
    """Gives every object without a pass index one of its own, from 1 on; two of one index stay one instance."""
    taken = {thing.pass_index for thing in objects}
    free = (number for number in range(1, 2**15) if number not in taken)
    for thing in sorted(objects, key=lambda thing: thing.name):
        if thing.pass_index == 0:
            thing.pass_index = next(free, 0)
    return [f"{len({thing.pass_index for thing in objects})} instances among {len(objects)} objects"]


def set_up_output(scene: Any, folder: Path, size: tuple[int, int] | None, samples: int | None) -> None:
    """32-bit multilayer EXR, whole frames, no compositing, no blur."""
    render = scene.render
    if size is not None:
        render.resolution_y, render.resolution_x, render.resolution_percentage = *size, 100
    render.pixel_aspect_x = render.pixel_aspect_y = 1
    render.use_border = render.use_compositing = render.use_sequencer = render.use_motion_blur = False
    render.use_file_extension, render.use_overwrite = True, True
    settings = render.image_settings
    if hasattr(settings, "media_type"):  # Blender 5
        settings.media_type = "MULTI_LAYER_IMAGE"
    settings.file_format, settings.color_depth, settings.exr_codec = "OPEN_EXR_MULTILAYER", "32", "ZIP"
    render.filepath = str(folder.absolute() / f"{folder.name}_####")
    if samples is not None and render.engine == "CYCLES":
        scene.cycles.samples = samples


def write_cameras(scene: Any, start: int, end: int, path: Path) -> None:
    """`cameras.json`: intrinsics in pixels and camera-to-world matrices in metres, for every frame."""
    render = scene.render
    share = render.resolution_percentage / 100
    width, height = int(render.resolution_x * share), int(render.resolution_y * share)
    metres = scene.unit_settings.scale_length if scene.unit_settings.system != "NONE" else 1.0
    cameras = []
    for frame in range(start, end + 1):
        scene.frame_set(frame)
        camera = scene.camera
        if camera.data.type != "PERSP":
            raise SystemExit(
                f"camera {camera.name!r} is {camera.data.type} in frame {frame}; expected a perspective one."
            )
        location, rotation, _ = camera.matrix_world.decompose()
        pose = rotation.to_matrix().to_4x4()
        pose.translation = location * metres
        lens = {name: getattr(camera.data, name) for name in ("lens", "sensor_width", "sensor_height", "sensor_fit")}
        shift = (camera.data.shift_x, camera.data.shift_y)
        found = {"frame": frame, **intrinsics(width, height, shift=shift, **lens)}
        cameras.append({**found, "camera_to_world": [list(row) for row in pose]})
    header = {"width": width, "height": height, "fps": render.fps / render.fps_base}
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps({**header, "cameras": cameras}, indent=1) + "\n")
    temporary.replace(path)
    if metres != 1:
        (path.parent / "gbuffer.json").write_text(json.dumps({"unit": str(metres)}) + "\n")


def intrinsics(
    width: int,
    height: int,
    *,
    lens: float,
    sensor_width: float,
    sensor_height: float,
    sensor_fit: str,
    shift: tuple[float, float],
) -> dict[str, float]:
    """fx, fy, cx, cy in pixels of a camera with square pixels; lens and sensor in millimetres, as Blender has them."""
    horizontal = width >= height if sensor_fit == "AUTO" else sensor_fit == "HORIZONTAL"
    side = width if horizontal else height
    sensor = sensor_height if sensor_fit == "VERTICAL" else sensor_width
    focal = lens / sensor * side
    return {"fx": focal, "fy": focal, "cx": width / 2 - shift[0] * side, "cy": height / 2 + shift[1] * side}


if __name__ == "__main__":
    main()
