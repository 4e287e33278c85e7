"""Triangle meshes built with NumPy: walls with openings, swept ribbons, extrusions, blobs.

Metres, +Z up. Every mesh carries texture coordinates (in tiles) and unit vertex normals, so nothing depends
on how a loader would smooth or project them. Faces wind counter-clockwise seen from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Mesh:
    """Triangles with a normal and a texture coordinate a vertex."""

    vertices: Floats
    """[V, 3] metres."""
    normals: Floats
    """[V, 3] unit."""
    uv: Floats
    """[V, 2] in tiles; beyond [0, 1] repeats."""
    faces: NDArray[np.int32]
    """[F, 3] vertex indices."""

    def moved(self, position: Sequence[float] = (0, 0, 0), yaw: float = 0.0) -> Mesh:
        """Turned about +Z by `yaw` radians, then shifted by `position`."""
        turn = rotation_z(yaw)
        return Mesh(self.vertices @ turn.T + np.asarray(position), self.normals @ turn.T, self.uv, self.faces)

    def scaled(self, factor: float) -> Mesh:
        """Larger by a factor about the origin."""
        return Mesh(self.vertices * factor, self.normals, self.uv, self.faces)


def rotation_z(yaw: float) -> Floats:
    """[3, 3] turn about +Z by `yaw` radians."""
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def _unit(v: Floats) -> Floats:
    return v / np.maximum(np.sqrt(np.einsum("...i,...i->...", v, v)), 1e-12)[..., None]


def _cross(a: Floats, b: Floats) -> Floats:
    """`np.cross` for [N, 3], without its overhead for small arrays."""
    out = np.empty_like(a)
    out[:, 0] = a[:, 1] * b[:, 2] - a[:, 2] * b[:, 1]
    out[:, 1] = a[:, 2] * b[:, 0] - a[:, 0] * b[:, 2]
    out[:, 2] = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    return out


def join(meshes: Sequence[Mesh]) -> Mesh:
    """One mesh of several."""
    offsets = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    return Mesh(
        np.concatenate([mesh.vertices for mesh in meshes]),
        np.concatenate([mesh.normals for mesh in meshes]),
        np.concatenate([mesh.uv for mesh in meshes]),
        np.concatenate([m.faces + start for m, start in zip(meshes, offsets[:-1], strict=True)]).astype(np.int32),
    )


def quads(corners: Floats, uv: Floats | None = None, tile: float = 1.0) -> Mesh:
    """Flat quads [N, 4, 3], corners counter-clockwise; without `uv` [N, 4, 2] the edges give it in metres / tile."""
    normals = _unit(_cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]))
    if uv is None:
        sides = corners[:, [1, 3]] - corners[:, :1]  # [N, 2, 3]: across, up
        lengths = np.sqrt(np.einsum("nki,nki->nk", sides, sides)) / tile
        uv = np.zeros((len(corners), 4, 2))
        uv[:, 1:3, 0] = lengths[:, :1]
        uv[:, 2:, 1] = lengths[:, 1:]
    first = 4 * np.arange(len(corners))[:, None]
    faces = (first + np.array([[0, 1, 2, 0, 2, 3]])).reshape(-1, 3).astype(np.int32)
    return Mesh(corners.reshape(-1, 3), np.repeat(normals, 4, 0), uv.reshape(-1, 2), faces)


# The six faces of the unit cube [-1, 1]^3, each counter-clockwise from outside, upright where it can be.
_CUBE = np.array(
    [
        [[-1, -1, -1], [1, -1, -1], [1, -1, 1], [-1, -1, 1]],
        [[1, -1, -1], [1, 1, -1], [1, 1, 1], [1, -1, 1]],
        [[1, 1, -1], [-1, 1, -1], [-1, 1, 1], [1, 1, 1]],
        [[-1, 1, -1], [-1, -1, -1], [-1, -1, 1], [-1, 1, 1]],
        [[-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]],
        [[-1, 1, -1], [1, 1, -1], [1, -1, -1], [-1, -1, -1]],
    ],
    float,
)


def boxes(centres: Floats, sizes: Floats, tile: float = 1.0) -> Mesh:
    """Axis-aligned boxes from centres [N, 3] and full sizes [N, 3]."""
    centres, sizes = np.broadcast_arrays(np.atleast_2d(centres), np.atleast_2d(sizes))
    corners = centres[:, None, None] + 0.5 * sizes[:, None, None] * _CUBE  # [N, 6, 4, 3]
    return quads(corners.reshape(-1, 4, 3), tile=tile)


def wall_with_openings(x: Floats, z: Floats, depth: float, tile: float) -> tuple[Mesh | None, Floats]:
    """A wall in the plane y = 0, facing -Y, with set-back openings.

    Args:
        x: increasing breaks [2c + 2]: wall, opening, wall, ..., wall.
        z: the same upwards.
        depth: how far openings are set back, metres towards +Y.
        tile: metres a texture tile covers.

    Returns:
        The wall with the openings' reveals (None when nothing is left), and the panes [n, 4, 3] at the back.
    """
    rows, columns = len(z) // 2 - 1, len(x) // 2 - 1
    low, high = z[1:-1:2], z[2:-1:2]  # of each row of openings

    def row_by_row(left: Floats, right: Floats, y: float) -> Floats:
        count = len(left)
        return _wall_quads(np.tile(left, rows), np.tile(right, rows), y, np.repeat(low, count), np.repeat(high, count))

    whole = np.ones(rows + 1)
    bands = _wall_quads(x[0] * whole, x[-1] * whole, 0.0, z[0::2], z[1::2])  # between the rows
    piers = row_by_row(x[0::2], x[1::2], 0.0)
    panes = row_by_row(x[1:-1:2], x[2:-1:2], depth) if columns else np.zeros((0, 4, 3))
    solid = np.concatenate([bands, piers])
    size = solid[:, 2] - solid[:, 0]
    solid = solid[(size[:, 0] > 1e-6) & (size[:, 2] > 1e-6)]
    if not len(solid):
        return None, panes
    front, back = panes - [0, depth, 0], panes
    reveals = np.concatenate(
        [np.stack([front[:, a], front[:, b], back[:, b], back[:, a]], 1) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))]
    )
    corners = np.concatenate([solid, reveals])
    # Across the front the pattern runs on; into a reveal it turns by the depth.
    uv = (corners[..., [0, 2]] + corners[..., [1, 1]]) / tile
    return quads(corners, uv), panes


def _wall_quads(x0: Floats, x1: Floats, y: float, z0: Floats, z1: Floats) -> Floats:
    """[N, 4, 3] rectangles in a plane of constant y, facing -Y."""
    level = np.full(len(x0), y)
    return np.array([[x0, x1, x1, x0], [level] * 4, [z0, z0, z1, z1]]).transpose(2, 1, 0)


def ribbon(centre: Floats, left: float, right: float, z: float | Floats, tile: float, side: float = 0.0) -> Mesh:
    """A strip swept along a horizontal curve, from `right` to `left` metres left of it.

    Args:
        centre: [N, 2] the curve; consecutive points must differ.
        z: height of the strip, one for all or [N, 2] for right and left edges.
        side: depth of vertical sides (kerbs); 0 for none.
    """
    tangent = _unit(np.gradient(centre, axis=0))
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], -1)
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(centre, axis=0), axis=1))]) / tile
    heights = np.broadcast_to(np.asarray(z, float), (len(centre), 2))
    edges = [np.column_stack([centre + normal * offset, heights[:, e]]) for e, offset in enumerate((right, left))]
    parts = [_strip(edges[0], edges[1], along, right / tile, left / tile)]
    if side > 0:
        down = np.array([0, 0, side])
        parts.append(_strip(edges[1], edges[1] - down, along, 0, side / tile))
        parts.append(_strip(edges[0] - down, edges[0], along, 0, side / tile))
    return join(parts)


def _strip(a: Floats, b: Floats, along: Floats, va: float, vb: float) -> Mesh:
    corners = np.stack([a[:-1], a[1:], b[1:], b[:-1]], 1)
    u0, u1 = along[:-1], along[1:]
    ones = np.ones_like(u0)
    uv = np.stack([np.stack(p, -1) for p in ((u0, va * ones), (u1, va * ones), (u1, vb * ones), (u0, vb * ones))], 1)
    return quads(corners, uv)


def bars(start: Floats, end: Floats, wide: float, normal: Sequence[float] = (0, -1, 0)) -> Mesh:
    """Flat strips from points [N, 3] to points [N, 3], `wide` metres across, facing `normal`."""
    side = _unit(_cross(end - start, np.broadcast_to(np.asarray(normal, float), start.shape))) * wide / 2
    return quads(np.stack([start + side, end + side, end - side, start - side], 1)[:, ::-1])


def disc(radius: float, tile: float, segments: int = 24) -> Mesh:
    """A horizontal disc at z = 0 facing up."""
    angle = np.linspace(0, 2 * np.pi, segments, endpoint=False)
    rim = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(segments)])
    vertices = np.concatenate([np.zeros((1, 3)), rim])
    index = np.arange(segments)
    faces = np.column_stack([np.zeros(segments, int), 1 + index, 1 + (index + 1) % segments]).astype(np.int32)
    normals = np.broadcast_to([0.0, 0.0, 1.0], vertices.shape)
    return Mesh(vertices, normals, vertices[:, :2] / tile, faces)


def extrude(profile: Floats, width: float | Floats, tile: float = 1.0) -> Mesh:
    """A convex or gently concave outline [P, 2] in (x, z), clockwise seen from -Y, swept across y.

    Args:
        width: full width, or one a profile point [P] (a car's roof is narrower than its sills).
    """
    half = np.broadcast_to(np.asarray(width, float) / 2, len(profile))
    near = np.column_stack([profile[:, 0], -half, profile[:, 1]])
    far = near * [1, -1, 1]
    after = np.roll(np.arange(len(profile)), -1)
    skin = quads(np.stack([near, near[after], far[after], far], 1), tile=tile)
    return join([skin, _cap(near, profile / tile, False), _cap(far, profile / tile, True)])


def _cap(points: Floats, uv: Floats, flip: bool) -> Mesh:
    centre = points.mean(0, keepdims=True)
    index = np.arange(len(points))
    after = np.roll(index, -1)
    corners = np.stack([np.broadcast_to(centre, points.shape), points[after], points], 1)  # [P, 3, 3]
    flat = np.stack([np.broadcast_to(uv.mean(0), uv.shape), uv[after], uv], 1)
    if flip:
        corners, flat = corners[:, ::-1], flat[:, ::-1]
    normals = _unit(_cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]))
    faces = np.arange(3 * len(points)).reshape(-1, 3).astype(np.int32)
    return Mesh(corners.reshape(-1, 3), np.repeat(normals, 3, 0), flat.reshape(-1, 2), faces)


def gable(width: float, depth: float, height: float, overhang: float, tile: float) -> tuple[Mesh, Mesh]:
    """A pitched roof with its ridge along x, eaves at z = 0 and y = +-depth / 2: the slopes, and the end walls."""
    w, d = width / 2 + overhang, depth / 2 + overhang
    drop = -overhang * height / (depth / 2)
    slopes = np.array(
        [
            [[-w, -d, drop], [w, -d, drop], [w, 0, height], [-w, 0, height]],
            [[w, d, drop], [-w, d, drop], [-w, 0, height], [w, 0, height]],
            [[-w, -d, drop], [-w, 0, height], [w, 0, height], [w, -d, drop]],
            [[w, d, drop], [w, 0, height], [-w, 0, height], [-w, d, drop]],
        ]
    )
    slopes[2:, :, 2] -= 0.08
    x, y = width / 2, depth / 2
    ends = np.array(
        [
            [[x, -y, 0], [x, y, 0], [x, 0, height], [x, 0, height]],
            [[-x, y, 0], [-x, -y, 0], [-x, 0, height], [-x, 0, height]],
        ],
        float,
    )
    ends_uv = np.stack([ends[..., 1], ends[..., 2]], -1) / tile
    return quads(slopes, tile=tile), quads(ends, ends_uv)


@lru_cache(maxsize=4)
def _icosphere(subdivisions: int) -> tuple[Floats, NDArray[np.int32]]:
    t = (1 + 5**0.5) / 2
    vertices = [(-1, t, 0), (1, t, 0), (-1, -t, 0), (1, -t, 0), (0, -1, t), (0, 1, t)]
    vertices += [(0, -1, -t), (0, 1, -t), (t, 0, -1), (t, 0, 1), (-t, 0, -1), (-t, 0, 1)]
    faces = np.array(
        [
            [0, 11, 5], [0, 5, 1], [0, 1, 7], [0, 7, 10], [0, 10, 11], [1, 5, 9], [5, 11, 4], [11, 10, 2], [10, 7, 6],
            [7, 1, 8], [3, 9, 4], [3, 4, 2], [3, 2, 6], [3, 6, 8], [3, 8, 9], [4, 9, 5], [2, 4, 11], [6, 2, 10],
            [8, 6, 7], [9, 8, 1],
        ],
        np.int32,
    )  # fmt: skip
    points = _unit(np.array(vertices, float))
    for _ in range(subdivisions):
        edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
        unique, inverse = np.unique(edges, axis=0, return_inverse=True)
        middle = (len(points) + inverse.reshape(3, -1)).astype(np.int32)  # [3, F]: ab, bc, ca
        points = np.concatenate([points, _unit(points[unique[:, 0]] + points[unique[:, 1]])])
        a, b, c = faces.T
        ab, bc, ca = middle
        faces = np.concatenate([np.stack(f, -1) for f in ((a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca))])
    return points, faces.astype(np.int32)


def vertex_normals(vertices: Floats, faces: NDArray[np.int32]) -> Floats:
    """Area-weighted smooth normals [V, 3]."""
    corner = vertices[faces]
    face_normals = _cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    total = [np.bincount(faces.ravel(), np.repeat(axis, 3), len(vertices)) for axis in face_normals.T]
    return _unit(np.stack(total, -1).astype(float, copy=False))


def blob(
    rng: np.random.Generator,
    size: Sequence[float] | Floats,
    bumps: float = 0.2,
    frequency: float = 2.5,
    detail: int = 2,
    tiles: float = 2.0,
    flat: bool = False,
) -> Mesh:
    """A bumpy ellipsoid: tree crowns (smooth) and rocks (`flat` facets).

    Args:
        size: semi-axes, metres.
        bumps: relative height of the bumps.
        detail: subdivisions of the icosahedron; 2 gives 320 triangles, 3 gives 1280.
    """
    points, faces = _icosphere(detail)
    waves = rng.normal(0, frequency, (10, 3))
    height = np.sin(points @ waves.T + rng.uniform(0, 2 * np.pi, 10)).sum(1) / 10**0.5
    vertices = points * (1 + bumps * height)[:, None] * np.asarray(size)
    # A cubic-ish projection keeps the texture free of the pinched poles a spherical one has.
    uv = (points[:, :2] + points[:, 2:] * [0.7, 0.4]) * tiles / 2
    if not flat:
        return Mesh(vertices, vertex_normals(vertices, faces), uv, faces)
    corner = vertices[faces]
    normals = _unit(_cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]))
    index = np.arange(3 * len(faces)).reshape(-1, 3).astype(np.int32)
    return Mesh(corner.reshape(-1, 3), np.repeat(normals, 3, 0), uv[faces].reshape(-1, 2), index)


def cone(radius: float, height: float, rng: np.random.Generator | None = None, segments: int = 18) -> Mesh:
    """A cone standing on z = 0; with a generator its rim is ragged like a fir's skirt."""
    angle = np.linspace(0, 2 * np.pi, segments, endpoint=False)
    wobble = np.ones(segments) if rng is None else 1 + rng.uniform(-0.16, 0.12, segments)
    droop = np.zeros(segments) if rng is None else rng.uniform(-0.06, 0.06, segments) * height
    rim = np.column_stack([radius * wobble * np.cos(angle), radius * wobble * np.sin(angle), droop])
    after = np.roll(rim, -1, 0)
    apex = np.broadcast_to([0.0, 0.0, height], rim.shape)
    base = np.broadcast_to([0.0, 0.0, 0.08 * height], rim.shape)
    corners = np.concatenate([np.stack([rim, after, apex], 1), np.stack([after, rim, base], 1)])  # [2S, 3, 3]
    slope = _unit(np.column_stack([np.cos(angle) * height, np.sin(angle) * height, np.full(segments, radius)]))
    sides = np.stack([slope, np.roll(slope, -1, 0), _unit(slope + np.roll(slope, -1, 0))], 1)
    under = np.broadcast_to([0.0, 0.0, -1.0], sides.shape)
    u = np.arange(segments) / segments * 4
    side_uv = np.stack([np.column_stack([u, 0 * u]), np.column_stack([u + 4 / segments, 0 * u]),
                        np.column_stack([u + 2 / segments, 0 * u + height / 2])], 1)  # fmt: skip
    faces = np.arange(6 * segments).reshape(-1, 3).astype(np.int32)
    uv = np.concatenate([side_uv, side_uv]).reshape(-1, 2)
    return Mesh(corners.reshape(-1, 3), np.concatenate([sides, under]).reshape(-1, 3), uv, faces)


def drum(radius: float, width: float, segments: int = 20) -> Mesh:
    """A cylinder about the y axis (wheels), centred on the origin."""
    angle = -np.linspace(0, 2 * np.pi, segments, endpoint=False)
    return extrude(radius * np.column_stack([np.cos(angle), np.sin(angle)]), width)


def tufts(rng: np.random.Generator, roots: Floats, height: float, blades: int = 6) -> Mesh:
    """Grass: narrow triangles that lean out of each root [N, 3]."""
    base = np.repeat(roots, blades, 0)
    angle = rng.uniform(0, 2 * np.pi, len(base))
    out = np.column_stack([np.cos(angle), np.sin(angle), np.zeros(len(base))])
    side = np.column_stack([-out[:, 1], out[:, 0], out[:, 2]]) * rng.uniform(0.02, 0.045, (len(base), 1))
    tip = base + out * rng.uniform(0.05, 0.3, (len(base), 1))
    tip[:, 2] += height * rng.uniform(0.5, 1.2, len(base))
    base = base + 0.08 * out - [0, 0, 0.05]
    corners = np.stack([base - side, base + side, tip], 1)  # [N, 3, 3]
    normals = _unit(out + np.array([0, 0, 0.5]))
    uv = np.broadcast_to([[0.0, 0.0], [0.1, 0.0], [0.05, 1.0]], (len(base), 3, 2)) + rng.random((len(base), 1, 2))
    faces = np.arange(3 * len(base)).reshape(-1, 3).astype(np.int32)
    return Mesh(corners.reshape(-1, 3), np.repeat(normals, 3, 0), uv.reshape(-1, 2), faces)


def tube(start: Sequence[float], end: Sequence[float], radius: float, segments: int = 10) -> Mesh:
    """A round bar from point to point, open-ended, with smooth sides."""
    a, b = np.asarray(start, float), np.asarray(end, float)
    axis = (b - a) / np.linalg.norm(b - a)
    first = _unit(np.cross(axis, [0.0, 1.0, 0.0] if abs(axis[1]) < 0.9 else [1.0, 0.0, 0.0]))
    angle = np.linspace(0, 2 * np.pi, segments, endpoint=False)[:, None]
    out = np.cos(angle) * first + np.sin(angle) * np.cross(axis, first)  # [S, 3]
    near, far = a + radius * out, b + radius * out
    corners = np.stack([near, np.roll(near, -1, 0), np.roll(far, -1, 0), far], 1)
    flat = quads(corners)
    around = np.stack([out, np.roll(out, -1, 0), np.roll(out, -1, 0), out], 1)
    return Mesh(flat.vertices, around.reshape(-1, 3), flat.uv, flat.faces)
