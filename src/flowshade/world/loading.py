"""Worlds from MJCF and URDF files."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np

from flowshade.world.camera import CameraPath
from flowshade.world.errors import WorldError
from flowshade.world.motion import Floats
from flowshade.world.world import LONGEST_SUBSTEP, World

Extend = Callable[[mujoco.MjSpec], None]
"""Adds bodies of the caller's own, such as a player's, to what a file holds."""


def load_mjcf(path: str | Path, *, fps: float = 30.0, extend: Extend | None = None) -> World:
    """Loads a MuJoCo model file; a camera circles what moves in it, or all of it if nothing does.

    Bodies that have shapes of their own for contact (group 0, colliding) and for the eye (group 1 or 2, not colliding)
    show the latter only.

    Raises:
        WorldError: the file is missing, is not MJCF, or MuJoCo cannot compile it.
    """
    path = _existing(path, "MJCF", ".xml")
    root = _parse(path)
    if root.tag == "robot":
        raise WorldError(f"{path.name} is a URDF file (root <robot>); expected MJCF (root <mujoco>). Use load_urdf.")
    if root.tag != "mujoco":
        raise WorldError(f"{path.name} has root <{root.tag}>; expected MJCF (root <mujoco>). Give a MuJoCo model file.")
    return _world(path, lambda: mujoco.MjSpec.from_file(str(path)), fps, extend)


def load_urdf(path: str | Path, *, fps: float = 30.0, extend: Extend | None = None) -> World:
    """Loads a URDF file with its visual meshes; a camera circles it slowly from outside.

    MuJoCo's parser drops visuals unless the file says otherwise, so that is said for it. Meshes are looked for at the
    paths that the file gives; `package://name/` is the nearest folder of that name at or above the file's own, or the
    file's own. For a mesh that MuJoCo does not read (Collada) one of the same name that it does is taken.

    Raises:
        WorldError: the file is missing, is not URDF, needs meshes in formats that are not read, or MuJoCo cannot
            compile it.
    """
    path = _existing(path, "URDF", ".urdf")
    root = _parse(path)
    if root.tag == "mujoco":
        raise WorldError(f"{path.name} is an MJCF file (root <mujoco>); expected URDF (root <robot>). Use load_mjcf.")
    if root.tag != "robot":
        raise WorldError(f"{path.name} has root <{root.tag}>; expected URDF (root <robot>). Give a robot description.")
    keep_visuals(root, path.parent)
    text = ElementTree.tostring(root, encoding="unicode")
    return _world(path, lambda: mujoco.MjSpec.from_string(text), fps, extend)


def keep_visuals(root: ElementTree.Element, folder: Path) -> None:
    """Edits a URDF tree in place: keeps visual geometry and resolves mesh paths against `folder`."""
    extension = root.find("mujoco")
    if extension is None:
        extension = ElementTree.SubElement(root, "mujoco")
    compiler = extension.find("compiler")
    if compiler is None:
        compiler = ElementTree.SubElement(extension, "compiler")
    compiler.set("discardvisual", "false")
    compiler.set("strippath", "false")
    meshdir = compiler.attrib.pop("meshdir", "")
    for mesh in root.iter("mesh"):
        name = mesh.get("filename", "")
        start = folder / meshdir
        if name.startswith("package://"):
            package, _, name = name.removeprefix("package://").partition("/")
            start = next((parent for parent in (folder, *folder.absolute().parents) if parent.name == package), start)
        mesh.set("filename", str(_readable_mesh((start / name.removeprefix("file://")).resolve())))


MESH_SUFFIXES = (".obj", ".stl", ".msh")
"""Mesh files that MuJoCo reads."""


def _readable_mesh(path: Path) -> Path:
    """The file, or its neighbour of the same name in a format that is read. Raises: WorldError."""
    if path.suffix.lower() in MESH_SUFFIXES:
        return path
    neighbours = [path.with_suffix(suffix) for suffix in MESH_SUFFIXES]
    found = next((neighbour for neighbour in neighbours if neighbour.is_file()), None)
    if found is None:
        raise WorldError(
            f"{path} is a {path.suffix} mesh; expected one of {', '.join(MESH_SUFFIXES)}, there or beside it under the "
            "same name. Convert it, for example in Blender."
        )
    return found


def _existing(path: str | Path, kind: str, suffix: str) -> Path:
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise WorldError(f"found {found} at {path}; expected a {kind} file ({suffix}). Check the path.")
    return path


def _parse(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        raise WorldError(
            f"{path.name} is not well-formed XML ({error}); expected a model file. Mend it first."
        ) from error


def _world(path: Path, parse: Callable[[], mujoco.MjSpec], fps: float, extend: Extend | None) -> World:
    try:
        spec = parse()
        model = spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise WorldError(
            f"MuJoCo cannot load {path.name}: {str(error).strip()}. Expected a model that compiles with MuJoCo "
            f"{mujoco.__version__}. Mend what it names; meshes and textures must lie where the file says."
        ) from error
    if not model.ngeom:
        raise WorldError(f"{path.name} has no geoms; expected something to see. Add a geom, or a visual in URDF.")
    _hide_contact_shapes(model)
    path_around = orbit(model)
    name = path.stem
    if extend is not None:
        extend(spec)
        model = spec.compile()
    _hide_contact_shapes(model)
    return World(
        name=name, seed=0, description=f"a scene with {name.replace('_', ' ').replace('-', ' ')}", model=model,
        camera_path=path_around, fps=fps, longest_substep=min(LONGEST_SUBSTEP, float(model.opt.timestep)),
    )  # fmt: skip


_CONTACT_GROUP = 3
"""Of geoms that are not seen, as MuJoCo's own viewer has it."""


def _hide_contact_shapes(model: mujoco.MjModel) -> None:
    """Moves shapes that are for contact only out of sight, in bodies that have others to be seen."""
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    seen = ~collides & np.isin(model.geom_group, (1, 2)) & (model.geom_rgba[:, 3] > 0)
    dressed = np.isin(model.geom_bodyid, model.geom_bodyid[seen]) & (model.geom_bodyid != 0)
    model.geom_group[dressed & collides & (model.geom_group == 0)] = _CONTACT_GROUP


def orbit(model: mujoco.MjModel, period: float = 40.0, fov_y: float = 45.0) -> CameraPath:
    """A slow circle around what moves in a model, or around all of it if nothing does, looking at its middle."""
    centre, radius = _bounds(model)
    distance = 1.2 * radius / np.sin(np.radians(fov_y) / 2)
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    rise = np.radians(18)
    position = centre + distance * np.stack(
        [np.cos(angle) * np.cos(rise), np.sin(angle) * np.cos(rise), np.full(64, np.sin(rise))], -1
    )
    control = np.column_stack([position, angle + np.pi, np.full(64, -rise)])
    return CameraPath(control, period, fov_y, 2 * np.pi)


def _bounds(model: mujoco.MjModel) -> tuple[Floats, float]:
    """Centre [3] and radius of a sphere around the seen, bounded geoms that can move, or around all, metres."""
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    chosen = (model.geom_rbound > 0) & (model.geom_group < _CONTACT_GROUP)
    moving = chosen & (model.body_weldid[model.geom_bodyid] != 0)
    chosen = moving if moving.any() else chosen
    if not chosen.any():
        return np.zeros(3), 3.0
    signs = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    local = model.geom_aabb[chosen, None, :3] + signs * model.geom_aabb[chosen, None, 3:]  # [G, 8, 3]
    rotation = data.geom_xmat[chosen].reshape(-1, 3, 3)
    corners = data.geom_xpos[chosen][:, None] + np.einsum("gij,gkj->gki", rotation, local)
    low, high = corners.min((0, 1)), corners.max((0, 1))
    return (low + high) / 2, float(max(np.linalg.norm(high - low) / 2, 0.05))
