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
from flowshade.world.world import World

Extend = Callable[[mujoco.MjSpec], None]
"""Adds bodies of the caller's own, such as a player's, to what a file holds."""


def load_mjcf(path: str | Path, *, fps: float = 30.0, extend: Extend | None = None) -> World:
    """Loads a MuJoCo model file; a camera circles it slowly from outside.

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

    MuJoCo's parser drops visuals unless the file says otherwise, so that is said for it; meshes are looked for
    beside the file, at the paths it gives (`package://name/` is read as the folder that holds the file).

    Raises:
        WorldError: the file is missing, is not URDF, or MuJoCo cannot compile it.
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
        if name.startswith("package://"):
            name = name.removeprefix("package://").partition("/")[2]
        name = name.removeprefix("file://")
        mesh.set("filename", str((folder / meshdir / name).resolve()))


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
    name, path_around = path.stem, orbit(model)
    if extend is not None:
        extend(spec)
        model = spec.compile()
    return World(
        name=name, seed=0, description=f"a scene with {name.replace('_', ' ').replace('-', ' ')}", model=model,
        camera_path=path_around, fps=fps,
    )  # fmt: skip


def orbit(model: mujoco.MjModel, period: float = 40.0, fov_y: float = 45.0) -> CameraPath:
    """A slow circle around everything bounded in a model, outside of it all, looking at its middle."""
    centre, radius = _bounds(model)
    distance = 1.35 * radius / np.sin(np.radians(fov_y) / 2)
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    rise = np.radians(18)
    position = centre + distance * np.stack(
        [np.cos(angle) * np.cos(rise), np.sin(angle) * np.cos(rise), np.full(64, np.sin(rise))], -1
    )
    control = np.column_stack([position, angle + np.pi, np.full(64, -rise)])
    return CameraPath(control, period, fov_y, 2 * np.pi)


def _bounds(model: mujoco.MjModel) -> tuple[Floats, float]:
    """Centre [3] and radius of a sphere around all bounded geoms at the model's initial state, metres."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    bounded = model.geom_rbound > 0
    if not bounded.any():
        return np.zeros(3), 3.0
    low = (data.geom_xpos[bounded] - model.geom_rbound[bounded, None]).min(0)
    high = (data.geom_xpos[bounded] + model.geom_rbound[bounded, None]).max(0)
    return (low + high) / 2, float(max(np.linalg.norm(high - low) / 2, 0.05))
