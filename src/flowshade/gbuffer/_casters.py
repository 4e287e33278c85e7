"""What direct light can meet, as triangles: `ray_kernels.Casters`. Private to `trace.py`."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import warp as wp
from numpy.typing import NDArray

from flowshade.gbuffer import kernels, ray_kernels
from flowshade.gbuffer._scene import CONSTRUCTOR, SceneArrays, is_still, primitive_triangles

Array = NDArray[Any]

LEAF_SIZE = 2
"""Triangles in a leaf of the trees: fewest steps of a warp by count, among 1, 2 and 4."""
_SAG = 0.005
"""Metres that facets may lie below the round surface they stand for, while `_MOST_CELLS` is enough."""
_FEWEST_CELLS, _MOST_CELLS = 4, 20
_FLAT = (kernels.MESH, int(mujoco.mjtGeom.mjGEOM_SDF), kernels.HFIELD, kernels.BOX)


def cells_for(radius: float) -> int:
    """Facets of a quarter of a circle: one of angle a sags by radius (1 - cos(a / 2))."""
    half = math.acos(max(1 - _SAG / max(radius, _SAG), 0.0))
    return min(max(math.ceil(math.pi / 4 / max(half, 1e-6)), _FEWEST_CELLS), _MOST_CELLS)


class CasterMeshes:
    """Three meshes at most: what stands still and casts shadows, what moves and does, and what does not.

    Round things lie in facets that sag less than a pixel shows; everything else is exact. Built at the first use.
    """

    def __init__(self, model: mujoco.MjModel, scene: SceneArrays, device: Any) -> None:
        self.device = device
        self._keep: list[Any] = []
        surfaces = {geom: self._surface(model, scene, geom) for geom in scene.visible if geom not in scene.planes}
        shadowing = [geom for geom in surfaces if model.geom_castshadow[geom]]
        self._still = [geom for geom in shadowing if is_still(model, geom)]
        moving = [geom for geom in shadowing if not is_still(model, geom)]
        others = [geom for geom in surfaces if not model.geom_castshadow[geom]]
        self._still_triangles = [surfaces[geom] for geom in self._still]
        self._still_mesh: Any = None
        self._still_poses: tuple[Array, Array] | None = None
        self._moving = [self._movable(group, surfaces) for group in (moving, others) if group]
        groups = [group for group in (self._still, moving, others) if group]
        self.struct: Any = ray_kernels.Casters()
        self._fill(scene, groups, surfaces)
        self.struct.shadowing = len(groups) - bool(others)

    @staticmethod
    def _surface(model: mujoco.MjModel, scene: SceneArrays, geom: int) -> Array:
        """[E, 3, 3] corners in the geom's frame."""
        kind, size = int(model.geom_type[geom]), model.geom_size[geom]
        if kind in _FLAT:
            return scene.triangles_of(model, geom)
        radius = float(max(size)) if kind == kernels.ELLIPSOID else float(size[0])
        return primitive_triangles(kind, size, cells_for(radius))

    def _movable(self, group: list[int], surfaces: dict[int, Array]) -> dict[str, Any]:
        geom = np.repeat(group, [len(surfaces[each]) for each in group])
        local = np.concatenate([surfaces[each] for each in group]).reshape(-1, 3)
        return {
            "geom": self._upload(geom, np.int32, wp.int32), "local": self._upload(local, np.float32, wp.vec3),
            "points": wp.zeros(len(local), dtype=wp.vec3, device=self.device), "mesh": None,
        }  # fmt: skip

    def _fill(self, scene: SceneArrays, groups: list[list[int]], surfaces: dict[int, Array]) -> None:
        order = {geom: shape for shape, geom in enumerate([*scene.bounded, *scene.planes, *scene.fixed])}
        listed = [geom for group in groups for geom in group]
        counts = np.array([len(surfaces[geom]) for geom in listed], dtype=np.int64)
        shapes = np.array([order[geom] for geom in listed], dtype=np.int64)
        first_face = np.zeros(max(len(order), 1), np.int64)
        first_face[shapes] = np.cumsum([0, *counts])[: len(counts)]
        first = np.cumsum([0, *(sum(len(surfaces[geom]) for geom in group) for group in groups)])
        struct = self.struct
        struct.shape = self._upload(np.repeat(shapes, counts) if len(shapes) else np.zeros(1), np.int32, wp.int32)
        struct.first_face = self._upload(first_face, np.int32, wp.int32)
        struct.first = self._upload(first, np.int32, wp.int32)
        struct.count = len(groups)
        struct.shapes, struct.first_plane, struct.planes = scene.shapes, len(scene.bounded), len(scene.planes)
        struct.meshes = self._upload(np.zeros(max(len(groups), 1)), np.uint64, wp.uint64)

    def place(self, positions: Array, rotations: Array, pos: Any, rot: Any) -> None:
        """Moves the meshes to where the geoms are; what stands still is only joined anew if it was moved after all.

        Args:
            positions: [G, 3] of all geoms, on the host.
            rotations: [G, 9] of all geoms, geom to world, on the host.
            pos: the same on the device.
            rot: the same on the device.
        """
        built = self._join_still(positions, rotations)
        for group in self._moving:
            arrays = [group["geom"], group["local"], group["points"]]
            wp.launch(ray_kernels.move_points, dim=len(group["points"]), inputs=[pos, rot, *arrays], device=self.device)
            if group["mesh"] is None:
                group["mesh"] = self._mesh(group["points"])
                built = True
            else:
                group["mesh"].refit()
        if built:
            meshes = [self._still_mesh] if self._still else []
            meshes += [group["mesh"] for group in self._moving]
            if meshes:
                self.struct.meshes = self._upload(np.array([mesh.id for mesh in meshes]), np.uint64, wp.uint64)

    def _join_still(self, positions: Array, rotations: Array) -> bool:
        """The mesh of what stands still, in the world's frame; whether it is a new one."""
        if not self._still:
            return False
        poses = positions[self._still], rotations[self._still]
        if self._still_poses is not None and all(map(np.array_equal, poses, self._still_poses)):
            return False
        self._still_poses = poses
        corners = [
            triangles.reshape(-1, 3) @ rotation.reshape(3, 3).T + position
            for triangles, position, rotation in zip(self._still_triangles, *poses, strict=True)
        ]
        self._still_mesh = self._mesh(self._new(np.concatenate(corners), np.float32, wp.vec3))
        return True

    def _mesh(self, points: Any) -> Any:
        indices = self._new(np.arange(len(points)), np.int32, wp.int32)
        return wp.Mesh(points=points, indices=indices, bvh_constructor=CONSTRUCTOR, bvh_leaf_size=LEAF_SIZE)

    def _new(self, values: Array, kind: Any, dtype: Any) -> Any:
        return wp.array(np.ascontiguousarray(values, dtype=kind), dtype=dtype, device=self.device)

    def _upload(self, values: Array, kind: Any, dtype: Any) -> Any:
        array = self._new(values, kind, dtype)
        self._keep.append(array)
        return array
