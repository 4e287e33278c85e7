"""A small layer over `mujoco.MjSpec`: materials with everything a tracer needs, meshes, and moving things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mujoco
import numpy as np
from numpy.typing import NDArray

from flowshade.world.camera import DETAIL_GROUP, KeepOut, Rail
from flowshade.world.meshes import Mesh, join
from flowshade.world.motion import Kick, Mover, Route, quaternion
from flowshade.world.textures import Colour, Image

COLLISION_GROUP = 3
"""Geoms in this group collide and are not seen (MuJoCo draws groups 0 to 2)."""

_GEOM = mujoco.mjtGeom
_RGB = mujoco.mjtTextureRole.mjTEXROLE_RGB
_PRIMITIVES = {
    "sphere": _GEOM.mjGEOM_SPHERE,
    "capsule": _GEOM.mjGEOM_CAPSULE,
    "ellipsoid": _GEOM.mjGEOM_ELLIPSOID,
    "cylinder": _GEOM.mjGEOM_CYLINDER,
    "box": _GEOM.mjGEOM_BOX,
}


@dataclass
class Place:
    """Where a prop stands: a body, static unless made otherwise."""

    body: mujoco.MjsBody
    name: str


@dataclass
class Scene:
    """Collects a world while it is being built. All randomness comes from `rng`."""

    rng: np.random.Generator
    spec: mujoco.MjSpec = field(default_factory=mujoco.MjSpec)
    movers: list[Mover] = field(default_factory=list)
    kicks: list[Kick] = field(default_factory=list)
    rails: list[Rail] = field(default_factory=list)
    keep_out: list[KeepOut] = field(default_factory=list)
    _batches: dict[str, list[Mesh]] = field(default_factory=dict)
    _materials: dict[tuple, str] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        self.spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        self.spec.option.timestep = 1 / 240
        self.spec.compiler.degree = False
        self.spec.visual.map.zfar = 1000.0

    def compile(self) -> mujoco.MjModel:
        """Compiles what has been added."""
        for material, parts in self._batches.items():
            self.shape(self.place("detail"), join(parts), material, group=DETAIL_GROUP)
        self._batches.clear()
        return self.spec.compile()

    def name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def pick(self, options: Sequence):
        """One of the options, drawn evenly."""
        return options[int(self.rng.integers(len(options)))]

    # Materials -------------------------------------------------------------------------------------------------

    def texture(self, image: Image, cube: bool = False) -> str:
        """Adds an sRGB texture: flat, or the same picture on all six sides of a cube."""
        name = self.name("texture")
        height, width = image.shape[:2]
        kind = mujoco.mjtTexture.mjTEXTURE_CUBE if cube else mujoco.mjtTexture.mjTEXTURE_2D
        texture = self.spec.add_texture(
            name=name, type=kind, width=width, height=height * (6 if cube else 1), nchannel=3,
            colorspace=mujoco.mjtColorSpace.mjCOLORSPACE_SRGB,
        )  # fmt: skip
        texture.data = np.ascontiguousarray(image).tobytes() * (6 if cube else 1)
        return name

    def material(
        self,
        colour: Colour | None = None,
        *,
        roughness: float = 0.8,
        metallic: float = 0.0,
        emission: float = 0.0,
        texture: Image | str | None = None,
        repeat: tuple[float, float] = (1.0, 1.0),
        cube: bool = False,
    ) -> str:
        """Adds a material and gives its name. Without a colour the texture's own is used unchanged.

        Args:
            colour: sRGB; multiplies the texture.
            emission: times the base colour, how much light the surface gives off.
            texture: a picture, or a name from `texture`.
            repeat: for planes and height fields, tiles over the whole surface; meshes bring coordinates in tiles.
        """
        rgb = (1.0, 1.0, 1.0) if colour is None else tuple(float(np.clip(c, 0.01, 1)) for c in colour)
        if texture is not None and not isinstance(texture, str):
            texture = self.texture(texture, cube)
        key = (rgb, roughness, metallic, emission, texture, repeat)
        if key not in self._materials:
            name = self.name("material")
            material = self.spec.add_material(
                name=name, rgba=[*rgb, 1.0], roughness=roughness, metallic=metallic, emission=emission,
                specular=0.5, shininess=1 - roughness, texrepeat=list(repeat), texuniform=False,
            )  # fmt: skip
            if texture is not None:
                material.textures[_RGB] = texture
            self._materials[key] = name
        return self._materials[key]

    def vary(self, colour: Colour, amount: float = 0.06) -> Colour:
        """A colour near the given one."""
        light = self.rng.normal(0, amount)
        r, g, b = (float(np.clip(c + light + self.rng.normal(0, amount / 2), 0.02, 0.97)) for c in colour)
        return r, g, b

    # Things ----------------------------------------------------------------------------------------------------

    def mesh(self, mesh: Mesh) -> str:
        """Adds a mesh asset."""
        name = self.name("mesh")
        faces = mesh.faces.ravel()
        asset = self.spec.add_mesh(
            name=name, uservert=mesh.vertices.ravel(), usernormal=mesh.normals.ravel(), usertexcoord=mesh.uv.ravel(),
            userface=faces, userfacenormal=faces, userfacetexcoord=faces,
        )  # fmt: skip
        asset.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        return name

    def place(
        self, kind: str, position: Sequence[float] = (0, 0, 0), yaw: float = 0.0, *, free: bool = False,
        mocap: bool = False,
    ) -> Place:  # fmt: skip
        """Adds a body standing at `position`."""
        name = self.name(kind)
        body = self.spec.worldbody.add_body(
            name=name, pos=[float(p) for p in position], quat=quaternion(yaw), mocap=mocap
        )
        if free:
            body.add_freejoint(name=f"{name}-joint")
        return Place(body, name)

    def solid(
        self, place: Place, shape: str, size: Sequence[float] | NDArray, position: Sequence[float] | NDArray,
        material: str | None, *,
        quat: Sequence[float] = (1, 0, 0, 0), collide: bool = False, mass: float | None = None, hidden: bool = False,
        roll: float = 0.0001,
    ) -> None:  # fmt: skip
        """Adds a primitive in MuJoCo's sizes (half lengths and radii)."""
        geom = place.body.add_geom(
            type=_PRIMITIVES[shape], size=[*size, *[0.0] * (3 - len(size))], pos=[float(p) for p in position],
            quat=[float(q) for q in quat], contype=int(collide), conaffinity=int(collide),
            group=COLLISION_GROUP if hidden else 0, condim=6 if collide else 3, friction=[0.7, 0.005, roll],
        )  # fmt: skip
        if material is not None:
            geom.material = material
        geom.mass = 0.0 if mass is None else mass

    def rod(self, place: Place, shape: str, radius: float, start: Sequence[float] | NDArray,
            end: Sequence[float] | NDArray, material: str) -> None:  # fmt: skip
        """Adds a cylinder, capsule or box between two points."""
        place.body.add_geom(
            type=_PRIMITIVES[shape], size=[radius, radius, 0.0], fromto=[*map(float, start), *map(float, end)],
            contype=0, conaffinity=0, mass=0.0, material=material,
        )  # fmt: skip

    def shape(self, place: Place, mesh: Mesh | str, material: str, position: Sequence[float] | NDArray = (0, 0, 0),
              yaw: float = 0.0, group: int = 0) -> None:  # fmt: skip
        """Adds a mesh that is seen and does not collide."""
        name = mesh if isinstance(mesh, str) else self.mesh(mesh)
        place.body.add_geom(
            type=_GEOM.mjGEOM_MESH, meshname=name, pos=[float(p) for p in position], quat=quaternion(yaw),
            contype=0, conaffinity=0, mass=0.0, material=material, group=group,
        )  # fmt: skip

    def detail(self, mesh: Mesh, material: str) -> None:
        """Adds standing detail in world coordinates; all of one material becomes one geom when compiled."""
        self._batches.setdefault(material, []).append(mesh)

    def ground(self, half: float, height: float, material: str) -> None:
        """A level floor that collides."""
        self.spec.worldbody.add_geom(
            name="ground", type=_GEOM.mjGEOM_PLANE, size=[half, half, 1.0], pos=[0, 0, height], material=material,
            condim=6,
        )  # fmt: skip

    def terrain(self, heights: NDArray[np.floating], half: float, material: str) -> None:
        """A height field that collides: `heights` [rows, columns] in metres, row 0 at y = -half."""
        low, high = float(heights.min()), float(heights.max())
        scaled = (heights - low) / max(high - low, 1e-6)
        self.spec.add_hfield(
            name="terrain", nrow=heights.shape[0], ncol=heights.shape[1],
            size=[half, half, max(high - low, 1e-3), 5.0], userdata=scaled.astype(np.float32).ravel(),
        )  # fmt: skip
        self.spec.worldbody.add_geom(
            name="terrain", type=_GEOM.mjGEOM_HFIELD, hfieldname="terrain", pos=[0, 0, low], material=material,
            condim=6,
        )  # fmt: skip

    def follow(self, place: Place, route: Route, speed: float, phase: float, **options) -> None:
        """Makes a mocap body follow a route; options as in `Mover`."""
        self.movers.append(Mover(body=place.name, route=route, speed=speed, phase=phase, **options))
