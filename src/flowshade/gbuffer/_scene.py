"""MjModel to the arrays the kernels read: geoms, meshes, textures, lamps. Private to `trace.py`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
import warp as wp
from numpy.typing import NDArray

from flowshade.color import LUMINANCE, srgb_to_linear
from flowshade.gbuffer import kernels

Array = NDArray[Any]

_ROLE = mujoco.mjtTextureRole
_GREY = (0.5, 0.5, 0.5, 1.0)  # MuJoCo's default geom colour: "no colour given" where there is a material
_LUMINANCE = np.array(LUMINANCE)
CONSTRUCTOR = "sah"  # of the trees over triangles: slower to build than the default on a GPU, faster to search
_LAMP_RADIUS = 1.0  # emissive geoms up to this size (metres) light their surroundings; larger ones only glow


def _linear(srgb: Array) -> Array:
    return srgb_to_linear(torch.from_numpy(srgb)).numpy()


def roughness_of(model: mujoco.MjModel, material: int) -> float:
    """A material's perceptual roughness.

    Unset (negative), it follows from MuJoCo's Phong terms: an exponent e = 128 shininess is a GGX alpha of
    sqrt(2 / (e + 2)), and a weak highlight is a rough one: 1 - specular (1 - sqrt(alpha)).
    """
    given = float(model.mat_roughness[material]) if material >= 0 else -1.0
    if given >= 0:
        return min(given, 1.0)
    specular = float(model.mat_specular[material]) if material >= 0 else 0.5
    shininess = float(model.mat_shininess[material]) if material >= 0 else 0.5
    alpha = (2.0 / (128.0 * max(shininess, 0.0) + 2.0)) ** 0.5
    return float(np.clip(1.0 - specular * (1.0 - alpha**0.5), 0.0, 1.0))


def is_visible(model: mujoco.MjModel, geom: int, groups: frozenset[int]) -> bool:
    """By group, and by alpha as MuJoCo's own rays see it; a geom's own alpha of 0 hides it too."""
    material = model.geom_matid[geom]
    seen = model.geom_rgba[geom, 3] > 0 and (material < 0 or model.mat_rgba[material, 3] > 0)
    return bool(seen) and int(np.clip(model.geom_group[geom], 0, mujoco.mjNGROUP - 1)) in groups


def is_fixed(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom is flat-faced, casts shadows, sends out no light and hangs on no joint."""
    kind, material = model.geom_type[geom], int(model.geom_matid[geom])
    flat = kind in (kernels.MESH, int(mujoco.mjtGeom.mjGEOM_SDF), kernels.HFIELD, kernels.BOX)
    glows = material >= 0 and (
        model.mat_emission[material] > 0 or model.mat_texid[material, int(_ROLE.mjTEXROLE_EMISSIVE)] >= 0
    )
    return bool(flat and is_still(model, geom) and not glows and model.geom_castshadow[geom])


def is_still(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom hangs on no joint and no mocap body."""
    body = int(model.geom_bodyid[geom])
    return bool(model.body_weldid[body] == 0 and model.body_mocapid[model.body_rootid[body]] < 0)


@dataclass
class Lamps:
    """Small emissive geoms, as sphere lights."""

    geom: Array
    """[L] int32."""
    radius: Array
    """[L] metres, of a sphere with the same mean extent."""
    power: Array
    """[L, 3] emission, linear."""


@dataclass
class EmitterTriangles:
    """Glowing surfaces larger than lamps, as triangles in their geoms' frames."""

    corners: Array
    """[3 E, 3] metres, counter-clockwise from outside."""
    geom: Array
    """[E] int32."""
    face: Array
    """[E] int32, of the geom's mesh; 0 for primitives."""
    exact: Array
    """[E] 1 where the triangle is the surface itself, 0 for facets of round things and planes, which shine outwards."""
    power: Array
    """[E] luminance of the emission times area, square metres."""
    area: Array
    """[E] square metres."""


class SceneArrays:
    """The static part of a scene on one device. Poses are written by `Tracer.update`."""

    def __init__(self, model: mujoco.MjModel, device: Any, groups: frozenset[int]) -> None:
        self.device = device
        self._keep: list[Any] = []  # arrays that structs and meshes refer to by address only
        visible = [g for g in range(model.ngeom) if is_visible(model, g, groups)]
        if model.nflex or model.nskin:
            warnings.warn("the tracer draws geoms only; this model's flexes and skins will not be seen.", stacklevel=3)
        self.visible: list[int] = visible
        self.planes = [g for g in visible if model.geom_type[g] == kernels.PLANE]
        self.fixed = [g for g in visible if is_fixed(model, g)]
        self.bounded = [g for g in visible if g not in {*self.planes, *self.fixed}]
        self._used = self._textures_in_use(model)
        self._pack_textures(model)
        self._pack_meshes(model)
        self._pack_geoms(model)
        self._pack_lamps(model)
        self._pack_fixed(model)
        self.struct: Any = kernels.Scene()
        self._fill_struct()

    # Textures -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _role(model: mujoco.MjModel, material: int, *roles: int) -> int:
        """The material's first texture in one of the roles, or -1. Sky boxes are no surface textures."""
        for role in roles:
            texture = int(model.mat_texid[material, role]) if material >= 0 else -1
            if texture >= 0 and model.tex_type[texture] != mujoco.mjtTexture.mjTEXTURE_SKYBOX:
                return texture
        return -1

    def _textures_in_use(self, model: mujoco.MjModel) -> dict[int, bool]:
        """Texture id to whether it holds colours, which are sRGB unless the texture says otherwise."""
        used: dict[int, bool] = {}
        colour = (_ROLE.mjTEXROLE_RGB, _ROLE.mjTEXROLE_RGBA, _ROLE.mjTEXROLE_EMISSIVE)
        data = (_ROLE.mjTEXROLE_ROUGHNESS, _ROLE.mjTEXROLE_METALLIC, _ROLE.mjTEXROLE_ORM)
        for geom in self.visible:
            material = int(model.geom_matid[geom])
            for roles, is_colour in ((colour, True), (data, False)):
                for role in roles:
                    texture = self._role(model, material, int(role))
                    if texture >= 0:
                        used[texture] = used.get(texture, False) or is_colour
        return used

    def _pack_textures(self, model: mujoco.MjModel) -> None:
        """Linear float texels with all their mip levels, level after level."""
        self._slot = {texture: slot for slot, texture in enumerate(self._used)}
        byte = np.arange(256, dtype=np.float32) / 255
        linear_of_byte = _linear(byte)
        rows, starts, chunks, total = [], [], [], 0
        self._mean: dict[int, Array] = {}
        for texture, is_colour in self._used.items():
            width, height, channels = (int(v[texture]) for v in (model.tex_width, model.tex_height, model.tex_nchannel))
            cube = model.tex_type[texture] == mujoco.mjtTexture.mjTEXTURE_CUBE
            first = int(model.tex_adr[texture])
            raw = model.tex_data[first : first + width * height * channels].reshape(height, width, channels)
            raw = np.repeat(raw[..., :1], 3, axis=-1) if channels < 3 else raw[..., :3]
            space = model.tex_colorspace[texture]
            is_srgb = space == mujoco.mjtColorSpace.mjCOLORSPACE_SRGB or (
                space == mujoco.mjtColorSpace.mjCOLORSPACE_AUTO and is_colour
            )
            texels = (linear_of_byte if is_srgb else byte)[raw]
            single = cube and height == width  # MuJoCo keeps one picture where all sides show the same
            faces = texels.reshape(6, height // 6, width, 3) if cube and not single else texels[None]
            self._mean[texture] = faces.mean(axis=(0, 1, 2))
            row = (int(cube) + int(single), width, faces.shape[1], 0, len(starts))
            levels = 0
            while True:
                starts.append(total)
                chunks.append(faces.reshape(-1, 3))
                total += chunks[-1].shape[0]
                levels += 1
                if max(faces.shape[1:3]) == 1 or levels == kernels.MAX_LEVELS:
                    break
                faces = _halve(faces)
            rows.append((*row[:3], levels, row[4]))
        dtype = _dtype_of(kernels.Texture)
        self.textures = self._upload(_structured(rows, dtype), kernels.Texture)
        self.level_starts = self._upload(np.array(starts or [0], np.int32), wp.int32)
        texel_data = np.concatenate(chunks) if chunks else np.zeros((1, 3), np.float32)
        self.texels = self._upload(texel_data.astype(np.float32), wp.vec3)

    # Meshes -------------------------------------------------------------------------------------------------------

    def _pack_meshes(self, model: mujoco.MjModel) -> None:
        """One `wp.Mesh` an asset in use; normals and texture coordinates are stored for each triangle corner."""
        self._mesh: dict[tuple[str, int], tuple[Any, int, bool]] = {}
        normals, uvs, total = [], [], 0
        for geom in [*self.bounded, *self.fixed]:
            kind, asset = self._asset(model, geom)
            if kind == "primitive" or (kind, asset) in self._mesh:
                continue
            build = _mesh_triangles if kind == "mesh" else _hfield_triangles
            points, faces, normal, uv = build(model, asset)
            mesh = wp.Mesh(
                points=wp.array(points.astype(np.float32), dtype=wp.vec3, device=self.device),
                indices=wp.array(faces.reshape(-1).astype(np.int32), dtype=wp.int32, device=self.device),
            )
            self._mesh[kind, asset] = (mesh, total, uv is not None)
            normals.append(normal.reshape(-1, 3))
            uvs.append(np.zeros((faces.size, 2)) if uv is None else uv.reshape(-1, 2))
            total += faces.size
        self.triangles = total // 3
        self.normals = self._upload(np.concatenate(normals or [np.zeros((1, 3))]).astype(np.float32), wp.vec3)
        self.uvs = self._upload(np.concatenate(uvs or [np.zeros((1, 2))]).astype(np.float32), wp.vec2)

    @staticmethod
    def _asset(model: mujoco.MjModel, geom: int) -> tuple[str, int]:
        kind = model.geom_type[geom]
        if kind == kernels.HFIELD:
            return "hfield", int(model.geom_dataid[geom])
        if kind in (kernels.MESH, int(mujoco.mjtGeom.mjGEOM_SDF)):
            return "mesh", int(model.geom_dataid[geom])
        if kind > kernels.MESH:
            raise ValueError(
                f"geom {geom} ({model.geom(geom).name!r}) has type {mujoco.mjtGeom(int(kind)).name}; expected a plane, "
                "height field, sphere, capsule, ellipsoid, cylinder, box or mesh. Remove or hide it."
            )
        return "primitive", -1

    # Geoms --------------------------------------------------------------------------------------------------------

    def _pack_geoms(self, model: mujoco.MjModel) -> None:
        dtype = _dtype_of(kernels.Geom)
        table: Any = np.zeros(max(model.ngeom, 1), dtype)
        shapes: Any = np.zeros(max(len(self.visible), 1), _dtype_of(kernels.Shape))
        boxes = np.zeros((2, max(len(self.bounded), 1), 3), np.float32)  # centres, half extents
        order = {geom: item for item, geom in enumerate([*self.bounded, *self.planes, *self.fixed])}
        for name in ("tex_rgb", "tex_roughness", "tex_metallic", "tex_orm", "tex_emission"):
            table[name] = -1
        for geom in self.visible:
            row = table[geom]
            kind, asset = self._asset(model, geom)
            centre, half = _local_bounds(model, geom)
            row["type"] = int(model.geom_type[geom]) if kind != "mesh" else kernels.MESH
            row["size"] = model.geom_size[geom] if kind == "primitive" else half
            if kind == "hfield":  # texture coordinates span its footprint
                row["size"] = (*model.hfield_size[asset, :2], 1.0)
            row["center"] = centre
            if order[geom] < len(self.bounded):
                boxes[:, order[geom]] = centre, half
            if kind != "primitive":
                mesh, corner, has_uv = self._mesh[kind, asset]
                row["mesh"], row["corner"], row["has_uv"] = mesh.id, corner, int(has_uv)
            self._pack_material(model, geom, row)
            shape = shapes[order[geom]]
            for name in ("size", "mesh", "type"):
                shape[name] = row[name]
            shape["geom"], shape["casts_shadow"] = geom, int(model.geom_castshadow[geom])
        first = len(self.bounded) + len(self.planes)
        shapes["first_face"][first : first + len(self.fixed)] = self._first_faces(model)
        self.shapes = self._upload(shapes, kernels.Shape)
        self.centre, self.half = (self._upload(box, wp.vec3) for box in boxes)
        self.table = table

    def _first_faces(self, model: mujoco.MjModel) -> Array:
        """Where the faces of each fixed geom start in the fixed mesh."""
        counts = [len(self.triangles_of(model, geom)) for geom in self.fixed]
        return np.cumsum([0, *counts])[: len(counts)]

    def _pack_material(self, model: mujoco.MjModel, geom: int, row: Any) -> None:
        material = int(model.geom_matid[geom])
        own = model.geom_rgba[geom]
        rgba = model.mat_rgba[material] if material >= 0 and np.allclose(own, _GREY) else own
        row["rgb"] = _linear(rgba[:3].astype(np.float64))
        row["roughness"] = roughness_of(model, material)
        row["metallic"] = max(float(model.mat_metallic[material]), 0.0) if material >= 0 else 0.0
        row["emission"] = max(float(model.mat_emission[material]), 0.0) if material >= 0 else 0.0
        row["repeat"] = model.mat_texrepeat[material] if material >= 0 else (1.0, 1.0)
        row["uniform"] = int(model.mat_texuniform[material]) if material >= 0 else 0
        roles = {
            "tex_rgb": (_ROLE.mjTEXROLE_RGB, _ROLE.mjTEXROLE_RGBA),
            "tex_roughness": (_ROLE.mjTEXROLE_ROUGHNESS,),
            "tex_metallic": (_ROLE.mjTEXROLE_METALLIC,),
            "tex_orm": (_ROLE.mjTEXROLE_ORM,),
            "tex_emission": (_ROLE.mjTEXROLE_EMISSIVE,),
        }
        for name, role in roles.items():
            row[name] = self._slot.get(self._role(model, material, *(int(r) for r in role)), -1)
        # A texture scales the factor; a factor that was never set must not hide it.
        if material >= 0:
            orm = row["tex_orm"] >= 0
            if (orm or row["tex_roughness"] >= 0) and model.mat_roughness[material] < 0:
                row["roughness"] = 1.0
            if (orm or row["tex_metallic"] >= 0) and model.mat_metallic[material] < 0:
                row["metallic"] = 1.0
            if row["tex_emission"] >= 0 and model.mat_emission[material] <= 0:
                row["emission"] = 1.0
        texture = self._role(model, material, *(int(r) for r in roles["tex_rgb"]))
        row["mean_rgb"] = row["rgb"] * (self._mean[texture] if texture >= 0 else 1.0)

    def _pack_lamps(self, model: mujoco.MjModel) -> None:
        geoms, radii, powers = [], [], []
        for geom in self.bounded:
            row = self.table[geom]
            half = _local_bounds(model, geom)[1]
            if row["emission"] > 0 and row["tex_emission"] < 0 and np.linalg.norm(half) <= _LAMP_RADIUS:
                geoms.append(geom)
                radii.append(float(np.mean(half)))
                powers.append(row["mean_rgb"] * row["emission"])
                self.table[geom]["is_lamp"] = 1
        self.geoms = self._upload(self.table, kernels.Geom)
        self.lamps = Lamps(
            geom=np.array(geoms, np.int32), radius=np.array(radii, np.float32),
            power=np.array(powers, np.float32).reshape(-1, 3),
        )  # fmt: skip

    def emitters(self, model: mujoco.MjModel) -> EmitterTriangles:
        """Every glowing surface that is no lamp; height fields and infinite planes glow but are not aimed at."""
        corners, geoms, faces, powers, exact = [], [], [], [], []
        for geom in self.visible:
            row = self.table[geom]
            if row["emission"] <= 0 or row["is_lamp"] or row["type"] == kernels.HFIELD:
                continue
            triangles = self.triangles_of(model, geom)
            material = int(model.geom_matid[geom])
            texture = self._role(model, material, int(_ROLE.mjTEXROLE_EMISSIVE))
            glow = self._mean[texture] if texture >= 0 else row["mean_rgb"]
            corners.append(triangles)
            geoms.append(np.full(len(triangles), geom))
            faces.append(np.arange(len(triangles)) if row["mesh"] else np.zeros(len(triangles)))
            exact.append(np.full(len(triangles), row["mesh"] != 0 or row["type"] == kernels.BOX))
            powers.append(np.full(len(triangles), float(glow @ _LUMINANCE) * row["emission"]))
        joined = np.concatenate([np.zeros((0, 3, 3)), *corners])
        area = np.linalg.norm(np.cross(joined[:, 1] - joined[:, 0], joined[:, 2] - joined[:, 0]), axis=-1) / 2
        kept = area > 1e-9
        return EmitterTriangles(
            corners=joined[kept].reshape(-1, 3).astype(np.float32),
            geom=np.concatenate([np.zeros(0), *geoms])[kept].astype(np.int32),
            face=np.concatenate([np.zeros(0), *faces])[kept].astype(np.int32),
            exact=np.concatenate([np.zeros(0), *exact])[kept].astype(np.int32),
            power=(np.concatenate([np.zeros(0), *powers]) * area)[kept],
            area=area[kept],
        )

    def triangles_of(self, model: mujoco.MjModel, geom: int) -> Array:
        """[E, 3, 3] corners of a geom's surface in its own frame; none for what has no end."""
        kind, asset = self._asset(model, geom)
        if kind != "primitive":
            build = _mesh_triangles if kind == "mesh" else _hfield_triangles
            points, faces, _, _ = build(model, asset)
            return points[faces].astype(np.float64)
        return primitive_triangles(int(model.geom_type[geom]), model.geom_size[geom])

    # What never moves ---------------------------------------------------------------------------------------------

    def _pack_fixed(self, model: mujoco.MjModel) -> None:
        """Triangles of the fixed geoms, in their own frames, until `place_fixed` joins them."""
        self._fixed_triangles = [self.triangles_of(model, geom) for geom in self.fixed]
        counts = [len(triangles) for triangles in self._fixed_triangles]
        first = len(self.bounded) + len(self.planes)
        shape = np.repeat(np.arange(first, first + len(counts)), counts).astype(np.int32)
        self.fixed_shape = self._upload(shape if len(shape) else np.zeros(1, np.int32), int)
        self._fixed_poses: tuple[Array, Array] | None = None

    def place_fixed(self, positions: Array, rotations: Array) -> None:
        """Joins the fixed geoms to one mesh in the world's frame; does nothing while their poses stay what they were.

        Args:
            positions: [G, 3] of all geoms.
            rotations: [G, 9] of all geoms, geom to world.
        """
        if not self.fixed:
            return
        poses = positions[self.fixed], rotations[self.fixed]
        if self._fixed_poses is not None and all(map(np.array_equal, poses, self._fixed_poses)):
            return
        self._fixed_poses = poses
        corners = np.concatenate(
            [
                triangles.reshape(-1, 3) @ rotation.reshape(3, 3).T + position
                for triangles, position, rotation in zip(self._fixed_triangles, *poses, strict=True)
            ]
        )
        self._fixed_mesh = wp.Mesh(
            points=wp.array(corners.astype(np.float32), dtype=wp.vec3, device=self.device),
            indices=wp.array(np.arange(len(corners), dtype=np.int32), dtype=wp.int32, device=self.device),
            bvh_constructor=CONSTRUCTOR,
        )
        self.solids.fixed = self._fixed_mesh.id
        self.struct.solids = self.solids

    # The struct ---------------------------------------------------------------------------------------------------

    def _fill_struct(self) -> None:
        scene = self.struct
        maps: Any = kernels.Maps()
        maps.textures, maps.level_starts, maps.texels = self.textures, self.level_starts, self.texels
        scene.geoms, scene.normals, scene.uvs, scene.maps = self.geoms, self.normals, self.uvs, maps
        self.solids: Any = kernels.Solids()
        self.solids.shapes = self.shapes
        self.solids.bounded, self.solids.planes = len(self.bounded), len(self.planes)
        self.solids.fixed_shape = self.fixed_shape
        scene.solids = self.solids

    def use_bvh(self, bvh: wp.Bvh) -> None:
        """Points the scene to the tree over its bounded shapes."""
        self.solids.bvh = bvh.id
        self.struct.solids = self.solids

    def _upload(self, value: Array, dtype: Any) -> Any:
        array = wp.array(value, dtype=dtype, device=self.device)
        self._keep.append(array)
        return array


def primitive_triangles(kind: int, size: Array, cells: int = 6) -> Array:
    """[E, 3, 3] a primitive's surface, counter-clockwise from outside.

    Flat pieces are exact, round ones lie in facets: `cells` of them to a quarter of a circle.
    """
    if kind == kernels.PLANE:
        if min(size[:2]) <= 0:
            return np.zeros((0, 3, 3))
        rim = np.array([(-1, -1, 0), (1, -1, 0), (1, 1, 0), (-1, 1, 0)]) * (*size[:2], 0.0)
        return rim[[[0, 1, 2], [0, 2, 3]]]
    if kind == kernels.BOX:
        return _grid_triangles(lambda face, u, v: _cube_point(face, u, v) * size, 6, 1)
    if kind in (kernels.SPHERE, kernels.ELLIPSOID):
        radii = np.full(3, size[0]) if kind == kernels.SPHERE else size

        def ball(face: int, u: Array, v: Array) -> Array:
            point = _cube_point(face, u, v)
            return point / np.linalg.norm(point, axis=-1, keepdims=True) * radii

        return _grid_triangles(ball, 6, cells)
    return _round_bar(size[0], size[1], kind == kernels.CAPSULE, cells)


def _cube_point(face: int, u: Array, v: Array) -> Array:
    """[..., 3] on the cube of half size 1; u, v in [-1, 1] turn counter-clockwise seen from outside."""
    axis, side = face // 2, 1 - 2 * (face % 2)
    point = np.zeros((*np.shape(u), 3))
    point[..., axis], point[..., (axis + 1) % 3], point[..., (axis + 2) % 3] = side, u, v * side
    return point


def _grid_triangles(surface: Callable[[int, Array, Array], Array], faces: int, cells: int) -> Array:
    """Two triangles for each cell of each face of a surface over u, v in [-1, 1]."""
    line = np.linspace(-1, 1, cells + 1)
    u, v = np.meshgrid(line, line, indexing="ij")
    out = []
    for face in range(faces):
        p = surface(face, u, v)
        a, b, c, d = p[:-1, :-1], p[1:, :-1], p[1:, 1:], p[:-1, 1:]
        out += [np.stack([a, b, c], -2).reshape(-1, 3, 3), np.stack([a, c, d], -2).reshape(-1, 3, 3)]
    return np.concatenate(out)


def _round_bar(radius: float, half: float, domed: bool, cells: int) -> Array:
    """A cylinder around z, or a capsule: rings of four times `cells` facets from the lower pole to the upper one."""
    facets = 4 * cells
    if domed:
        tilt = np.linspace(-np.pi / 2, 0, cells + 1)
        low = np.stack([radius * np.cos(tilt), radius * np.sin(tilt) - half], -1)
        profile = np.concatenate([low, low[::-1] * (1, -1)])
    else:
        profile = np.array([(0, -half), (radius, -half), (radius, half), (0, half)])
    turn = np.linspace(0, 2 * np.pi, facets + 1)
    rings = np.stack(
        [profile[:, :1] * np.cos(turn), profile[:, :1] * np.sin(turn), np.repeat(profile[:, 1:], facets + 1, 1)], -1
    )
    a, b, c, d = rings[:-1, :-1], rings[:-1, 1:], rings[1:, 1:], rings[1:, :-1]
    return np.concatenate([np.stack([a, b, c], -2).reshape(-1, 3, 3), np.stack([a, c, d], -2).reshape(-1, 3, 3)])


def _dtype_of(struct: Any) -> Any:
    return np.dtype(struct.numpy_dtype())


def _structured(rows: list[tuple[int, ...]], dtype: Any) -> Array:
    table: Any = np.zeros(max(len(rows), 1), dtype)
    for index, row in enumerate(rows):
        for name, value in zip(("cube", "width", "height", "levels", "first_level"), row):
            table[index][name] = value
    return table


def _halve(faces: Array) -> Array:
    """[F, H, W, 3] averaged to half the size; an odd last row or column is dropped, as `size >> 1` does."""
    for axis in (1, 2):
        size = faces.shape[axis]
        if size > 1:
            faces = np.take(faces, range(size // 2 * 2), axis=axis)
            shape = [*faces.shape[:axis], size // 2, 2, *faces.shape[axis + 1 :]]
            faces = faces.reshape(shape).mean(axis=axis + 1)
    return faces.astype(np.float32)


def _local_bounds(model: mujoco.MjModel, geom: int) -> tuple[Array, Array]:
    """Centre and half extents of a geom in its own frame."""
    size = model.geom_size[geom]
    kind = model.geom_type[geom]
    zero = np.zeros(3)
    if kind == kernels.SPHERE:
        return zero, np.full(3, size[0])
    if kind == kernels.CAPSULE:
        return zero, np.array([size[0], size[0], size[0] + size[1]])
    if kind == kernels.CYLINDER:
        return zero, np.array([size[0], size[0], size[1]])
    if kind in (kernels.BOX, kernels.ELLIPSOID, kernels.PLANE):
        return zero, size.copy()
    if kind == kernels.HFIELD:
        x, y, top, base = model.hfield_size[model.geom_dataid[geom]]
        return np.array([0.0, 0.0, (top - base) / 2]), np.array([x, y, (top + base) / 2])
    asset = int(model.geom_dataid[geom])
    first, count = int(model.mesh_vertadr[asset]), int(model.mesh_vertnum[asset])
    points = model.mesh_vert[first : first + count].astype(np.float64)
    low, high = points.min(0), points.max(0)
    return (low + high) / 2, (high - low) / 2


def _mesh_triangles(model: mujoco.MjModel, asset: int) -> tuple[Array, Array, Array, Array | None]:
    """Points [V, 3], faces [F, 3], corner normals [F, 3, 3], corner texture coordinates [F, 3, 2] or None."""
    points = model.mesh_vert[model.mesh_vertadr[asset] :][: model.mesh_vertnum[asset]]
    faces_at = slice(model.mesh_faceadr[asset], model.mesh_faceadr[asset] + model.mesh_facenum[asset])
    faces = model.mesh_face[faces_at]
    normals = model.mesh_normal[model.mesh_normaladr[asset] :][: model.mesh_normalnum[asset]]
    normals = normals[model.mesh_facenormal[faces_at]]
    uv = None
    if model.mesh_texcoordadr[asset] >= 0 and model.mesh_texcoordnum[asset] > 0:
        coordinates = model.mesh_texcoord[model.mesh_texcoordadr[asset] :][: model.mesh_texcoordnum[asset]]
        uv = coordinates[model.mesh_facetexcoord[faces_at]]
    return points, faces, normals, uv


def _hfield_triangles(model: mujoco.MjModel, asset: int) -> tuple[Array, Array, Array, None]:
    """A height field as MuJoCo triangulates it, with its vertical sides and its base."""
    rows, columns = int(model.hfield_nrow[asset]), int(model.hfield_ncol[asset])
    half_x, half_y, top, base = model.hfield_size[asset]
    first = int(model.hfield_adr[asset])
    height = model.hfield_data[first : first + rows * columns].reshape(rows, columns).astype(np.float64) * top
    x, y = np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows)
    grid = np.stack([*np.meshgrid(x, y), height], -1)  # [R, C, 3]

    corner = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]
    faces = np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])
    slope_y, slope_x = np.gradient(height, y, x)
    smooth = np.stack([-slope_x, -slope_y, np.ones_like(height)], -1).reshape(-1, 3)
    smooth /= np.linalg.norm(smooth, axis=-1, keepdims=True)
    normals = smooth[faces]

    # Walls from the rim down to the base, counter-clockwise seen from outside, and the base itself.
    rim = np.concatenate([corner[0], corner[1:, -1], corner[-1, -2::-1], corner[-2::-1, 0]])  # closed
    points = np.concatenate([grid.reshape(-1, 3), grid.reshape(-1, 3)[rim] * (1, 1, 0) - (0, 0, base)])
    low = rows * columns + np.arange(len(rim))
    walls = np.concatenate([np.stack([low[:-1], low[1:], rim[1:]], -1), np.stack([low[:-1], rim[1:], rim[:-1]], -1)])
    floor_at = len(points)
    points = np.concatenate([points, [[-half_x, -half_y, -base], [half_x, -half_y, -base], [half_x, half_y, -base], [-half_x, half_y, -base]]])  # fmt: skip # noqa: E501
    floor = np.array([[0, 2, 1], [0, 3, 2]]) + floor_at
    extra = np.concatenate([walls, floor])
    edges = points[extra]
    flat = np.cross(edges[:, 1] - edges[:, 0], edges[:, 2] - edges[:, 0])
    flat /= np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), 1e-12)
    normals = np.concatenate([normals, np.repeat(flat[:, None], 3, axis=1)])
    return points, np.concatenate([faces, extra]), normals, None
