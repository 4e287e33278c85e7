# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""Warp kernels that find surfaces and fill the G-buffer: one source for CPU and CUDA.

Rays run in world space with unit directions; each geom is intersected in its own frame, so that a moving geom costs
a pose and a BVH refit. Primitives are intersected exactly, meshes and height fields through a `wp.Mesh`. Planes have
no bounds and are tested one by one. Semantics follow MuJoCo's own rays: planes are seen from above only, everything
else from both sides, a surface behind the origin is not hit.

A pixel is traced once at its centre. Where its 3x3 neighbourhood is one smooth surface, texture filtering does the
anti-aliasing; elsewhere each sample is a ray of its own, against the shapes that the neighbourhood sees.
"""

from __future__ import annotations

import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
"""Geom types, numbered as in MuJoCo's mjtGeom."""

vec9i = wp.types.vector(length=9, dtype=wp.int32)

_PLANE = wp.constant(PLANE)
_HFIELD = wp.constant(HFIELD)
_SPHERE = wp.constant(SPHERE)
_CAPSULE = wp.constant(CAPSULE)
_ELLIPSOID = wp.constant(ELLIPSOID)
_CYLINDER = wp.constant(CYLINDER)
_BOX = wp.constant(BOX)
_MISS = wp.constant(1.0e30)
MAX_LEVELS = 16
"""Most mip levels of a texture."""


@wp.struct
class Geom:
    """What does not change about one geom."""

    type: int
    size: wp.vec3  # MuJoCo's sizes; half extents of the bounding box for meshes
    center: wp.vec3  # of the local bounding box
    mesh: wp.uint64
    corner: int  # where its triangles' corners start in Scene.normals and Scene.uvs
    has_uv: int
    is_lamp: int
    rgb: wp.vec3  # linear
    mean_rgb: wp.vec3  # with its texture averaged
    roughness: float
    metallic: float
    emission: float
    repeat: wp.vec2
    uniform: int  # texture repeats count per metre, not per object
    tex_rgb: int  # indices into Maps.textures, -1 = none
    tex_roughness: int
    tex_metallic: int
    tex_orm: int
    tex_emission: int


@wp.struct
class Texture:
    """One texture; its texels lie in `Maps.texels`, level after level, six faces a level for cubes."""

    cube: int  # 0 = flat, 1 = six faces, 2 = one face that all six sides show
    width: int
    height: int
    levels: int
    first_level: int  # index into Maps.level_starts


@wp.struct
class Maps:
    """The textures of a scene."""

    textures: wp.array(dtype=Texture)
    level_starts: wp.array(dtype=int)
    texels: wp.array(dtype=wp.vec3)


@wp.struct
class Shape:
    """What intersection reads of one geom, together: the hot part of a trace."""

    to_local: wp.mat33  # world to geom
    pos: wp.vec3
    size: wp.vec3
    mesh: wp.uint64
    type: int
    geom: int
    casts_shadow: int
    first_face: int  # of a fixed one, in Solids.fixed


@wp.struct
class Solids:
    """Everything a ray can meet. Functions take structs by value on the CPU, so this one is kept small."""

    bvh: wp.uint64
    bounded: int  # shapes in the BVH: the first of `shapes`
    planes: int  # planes, which follow them; then come those of the fixed mesh
    shapes: wp.array(dtype=Shape)
    fixed: wp.uint64  # triangles, in the world's frame, of what never moves; 0 = none
    fixed_shape: wp.array(dtype=int)  # the shape of each of its faces


@wp.struct
class Scene:
    """The world's surfaces."""

    solids: Solids
    geoms: wp.array(dtype=Geom)
    pos: wp.array(dtype=wp.vec3)
    rot: wp.array(dtype=wp.mat33)  # geom-to-world
    last_pos: wp.array(dtype=wp.vec3)
    last_rot: wp.array(dtype=wp.mat33)
    normals: wp.array(dtype=wp.vec3)
    uvs: wp.array(dtype=wp.vec2)
    maps: Maps


@wp.struct
class View:
    """A pinhole camera and its picture size."""

    pos: wp.vec3
    rot: wp.mat33  # camera-to-world, OpenGL axes
    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int


@wp.struct
class Hit:
    """The nearest surface along a ray."""

    t: float  # distance; _MISS without a hit
    geom: int  # -1 without a hit
    face: int
    shape: int  # index into Solids.shapes


@wp.struct
class Surface:
    """A hit, worked out."""

    p: wp.vec3  # world position
    local: wp.vec3  # position in the geom's frame
    ng_local: wp.vec3  # geometric normal in the geom's frame, towards the ray's origin
    ng: wp.vec3  # geometric normal, world, towards the ray's origin
    n: wp.vec3  # shading normal, world, towards the ray's origin
    raised: wp.vec3  # position on the curved surface that the shading normals describe: where shadow rays start


@wp.struct
class Material:
    """Surface properties at a point."""

    albedo: wp.vec3
    emission: wp.vec3
    roughness: float
    metallic: float


@wp.struct
class Hits:
    """The centre hits of a picture, row by row."""

    geom: wp.array(dtype=int)  # -1 = sky
    shape: wp.array(dtype=int)
    face: wp.array(dtype=int)
    t: wp.array(dtype=float)
    normal: wp.array(dtype=wp.vec3)  # shading normal, world
    point: wp.array(dtype=wp.vec3)  # world position
    edge: wp.array(dtype=int)  # 1 where the pixel needs rays of its own for every sample


# Intersection ---------------------------------------------------------------------------------------------------------


@wp.func
def nearer(t: float, best: float, limit: float) -> float:
    """The smaller of `best` and `t`, if `t` lies in [0, limit)."""
    if t >= 0.0 and t < limit and t < best:
        return t
    return best


@wp.func
def sphere_roots(o: wp.vec3, d: wp.vec3, radius: float) -> wp.vec2:
    """Both distances to an origin-centred sphere, (-1, -1) = missed; precise from far away too."""
    a = wp.dot(d, d)
    middle = -wp.dot(o, d) / a
    closest = o + d * middle
    square = (radius * radius - wp.dot(closest, closest)) / a
    if square < 0.0:
        return wp.vec2(-1.0, -1.0)
    half = wp.sqrt(square)
    return wp.vec2(middle - half, middle + half)


@wp.func
def tube_roots(o: wp.vec3, d: wp.vec3, radius: float) -> wp.vec2:
    """Both distances to an infinite cylinder around z."""
    a = d[0] * d[0] + d[1] * d[1]
    if a < 1.0e-12:
        return wp.vec2(-1.0, -1.0)
    middle = -(o[0] * d[0] + o[1] * d[1]) / a
    x = o[0] + d[0] * middle
    y = o[1] + d[1] * middle
    square = (radius * radius - x * x - y * y) / a
    if square < 0.0:
        return wp.vec2(-1.0, -1.0)
    half = wp.sqrt(square)
    return wp.vec2(middle - half, middle + half)


@wp.func
def hit_plane(size: wp.vec3, o: wp.vec3, d: wp.vec3, limit: float) -> float:
    """Distance to a plane in its own frame, from above, below `limit`; _MISS = none. Sizes of 0 have no end."""
    if d[2] < -1.0e-9:
        t = -o[2] / d[2]
        x = o[0] + t * d[0]
        y = o[1] + t * d[1]
        if (size[0] <= 0.0 or wp.abs(x) <= size[0]) and (size[1] <= 0.0 or wp.abs(y) <= size[1]):
            return nearer(t, _MISS, limit)
    return _MISS


@wp.func
def hit_primitive(kind: int, size: wp.vec3, o: wp.vec3, d: wp.vec3, limit: float) -> float:
    """Distance to a primitive in its own frame, below `limit`; _MISS = none."""
    best = float(_MISS)
    if kind == _PLANE:
        best = hit_plane(size, o, d, limit)
    elif kind == _BOX:
        near = float(-1.0e30)
        far = float(1.0e30)
        for k in range(3):
            if wp.abs(d[k]) > 1.0e-12:
                a = (-size[k] - o[k]) / d[k]
                b = (size[k] - o[k]) / d[k]
                near = wp.max(near, wp.min(a, b))
                far = wp.min(far, wp.max(a, b))
            elif wp.abs(o[k]) > size[k]:
                far = float(-1.0e30)
        if near <= far:
            best = nearer(far, best, limit)
            best = nearer(near, best, limit)
    elif kind == _SPHERE:
        roots = sphere_roots(o, d, size[0])
        best = nearer(roots[1], best, limit)
        best = nearer(roots[0], best, limit)
    elif kind == _ELLIPSOID:
        roots = sphere_roots(wp.cw_div(o, size), wp.cw_div(d, size), 1.0)
        best = nearer(roots[1], best, limit)
        best = nearer(roots[0], best, limit)
    elif kind == _CYLINDER:
        roots = tube_roots(o, d, size[0])
        for k in range(2):
            t = roots[k]
            if wp.abs(o[2] + t * d[2]) <= size[1]:
                best = nearer(t, best, limit)
        if wp.abs(d[2]) > 1.0e-12:
            for k in range(2):
                t = (float(2 * k - 1) * size[1] - o[2]) / d[2]
                x = o[0] + t * d[0]
                y = o[1] + t * d[1]
                if x * x + y * y <= size[0] * size[0]:
                    best = nearer(t, best, limit)
    elif kind == _CAPSULE:
        roots = tube_roots(o, d, size[0])
        for k in range(2):
            t = roots[k]
            if wp.abs(o[2] + t * d[2]) <= size[1]:
                best = nearer(t, best, limit)
        for k in range(2):
            end = float(2 * k - 1)
            roots = sphere_roots(o - wp.vec3(0.0, 0.0, end * size[1]), d, size[0])
            for j in range(2):
                t = roots[j]
                if (o[2] + t * d[2]) * end >= size[1]:
                    best = nearer(t, best, limit)
    return best


@wp.func
def hit_shape(shape: Shape, o: wp.vec3, d: wp.vec3, limit: float) -> Hit:
    """Distance to a shape along a world ray, below `limit`."""
    local_o = shape.to_local * (o - shape.pos)
    local_d = shape.to_local * d
    hit = Hit()
    hit.t = float(_MISS)
    hit.geom = int(-1)
    hit.face = int(0)
    hit.shape = int(-1)
    if shape.mesh != wp.uint64(0):
        query = wp.mesh_query_ray(shape.mesh, local_o, local_d, limit)
        if query.result:
            hit.t = query.t
            hit.geom = shape.geom
            hit.face = query.face
    else:
        t = hit_primitive(shape.type, shape.size, local_o, local_d, limit)
        if t < limit:
            hit.t = t
            hit.geom = shape.geom
    return hit


@wp.func
def blocked(shape: Shape, o: wp.vec3, d: wp.vec3, limit: float) -> bool:
    """Whether a shape lies along a world ray, nearer than `limit`."""
    local_o = shape.to_local * (o - shape.pos)
    local_d = shape.to_local * d
    if shape.mesh != wp.uint64(0):
        return wp.mesh_query_ray_anyhit(shape.mesh, local_o, local_d, limit)
    return hit_primitive(shape.type, shape.size, local_o, local_d, limit) < limit


@wp.func
def fixed_face(solids: Solids, face: int, t: float) -> Hit:
    """The hit of a face of the fixed mesh at distance `t`; none if `face` is -1."""
    hit = Hit()
    hit.t = t
    hit.geom = int(-1)
    hit.face = int(0)
    hit.shape = int(-1)
    if face >= 0:
        hit.shape = solids.fixed_shape[face]
        hit.geom = solids.shapes[hit.shape].geom
        if solids.shapes[hit.shape].mesh != wp.uint64(0):
            hit.face = face - solids.shapes[hit.shape].first_face
    return hit


@wp.func
def fixed_hit(solids: Solids, o: wp.vec3, d: wp.vec3, limit: float) -> Hit:
    """The nearest of the fixed surfaces along a ray, nearer than `limit`."""
    face = int(-1)
    t = limit
    if solids.fixed != wp.uint64(0):
        query = wp.mesh_query_ray(solids.fixed, o, d, limit)
        if query.result:
            face = query.face
            t = query.t
    return fixed_face(solids, face, t)


@wp.func
def nearer_shape(solids: Solids, index: int, o: wp.vec3, d: wp.vec3, best: Hit) -> Hit:
    """The hit of one shape, if it is nearer than `best`, else `best`."""
    hit = hit_shape(solids.shapes[index], o, d, best.t)
    if hit.geom >= 0:
        hit.shape = index
        return hit
    return best


@wp.func
def nearer_plane(solids: Solids, o: wp.vec3, d: wp.vec3, best: Hit) -> Hit:
    """The same for all planes."""
    for k in range(solids.planes):
        best = nearer_shape(solids, solids.bounded + k, o, d, best)
    return best


@wp.func
def nearer_bounded(solids: Solids, o: wp.vec3, d: wp.vec3, best: Hit) -> Hit:
    """The same for all bounded shapes."""
    if solids.bounded > 0:
        query = wp.bvh_query_ray(solids.bvh, o, d)
        item = int(0)
        while wp.bvh_query_next(query, item, best.t):
            best = nearer_shape(solids, item, o, d, best)
    return best


@wp.func
def closest_hit(solids: Solids, o: wp.vec3, d: wp.vec3, limit: float) -> Hit:
    """The nearest surface along a ray of unit direction, nearer than `limit`."""
    best = fixed_hit(solids, o, d, limit)
    best = nearer_plane(solids, o, d, best)
    best = nearer_bounded(solids, o, d, best)
    if best.geom < 0:
        best.t = float(_MISS)
    return best


@wp.func
def closest_of(solids: Solids, candidates: vec9i, o: wp.vec3, d: wp.vec3) -> Hit:
    """The nearest surface among a few shapes; -1 marks the end of the list."""
    best = Hit()
    best.t = float(_MISS)
    best.geom = int(-1)
    best.face = int(0)
    best.shape = int(-1)
    for k in range(9):
        index = candidates[k]
        if index < 0:
            break
        hit = hit_shape(solids.shapes[index], o, d, best.t)
        if hit.geom >= 0:
            best = hit
            best.shape = index
    return best


@wp.func
def occluded(solids: Solids, o: wp.vec3, d: wp.vec3, limit: float, ignored: int) -> bool:
    """Whether anything that casts shadows, other than geom `ignored`, lies along a ray nearer than `limit`."""
    if solids.fixed != wp.uint64(0) and wp.mesh_query_ray_anyhit(solids.fixed, o, d, limit):
        return True
    for k in range(solids.planes):
        shape = solids.shapes[solids.bounded + k]
        if shape.geom != ignored and shape.casts_shadow != 0 and blocked(shape, o, d, limit):
            return True
    if solids.bounded > 0:
        query = wp.bvh_query_ray(solids.bvh, o, d)
        item = int(0)
        while wp.bvh_query_next(query, item, limit):
            shape = solids.shapes[item]
            if shape.geom != ignored and shape.casts_shadow != 0 and blocked(shape, o, d, limit):
                return True
    return False


# Surfaces -------------------------------------------------------------------------------------------------------------


@wp.func
def primitive_normal(kind: int, size: wp.vec3, p: wp.vec3) -> wp.vec3:
    """Outward normal of a primitive at a point on it, both in its frame."""
    if kind == _BOX:
        ax = wp.abs(p[0]) - size[0]
        ay = wp.abs(p[1]) - size[1]
        az = wp.abs(p[2]) - size[2]
        if ax >= ay and ax >= az:
            return wp.vec3(wp.sign(p[0]), 0.0, 0.0)
        if ay >= az:
            return wp.vec3(0.0, wp.sign(p[1]), 0.0)
        return wp.vec3(0.0, 0.0, wp.sign(p[2]))
    if kind == _SPHERE:
        return wp.normalize(p)
    if kind == _ELLIPSOID:
        return wp.normalize(wp.cw_div(p, wp.cw_mul(size, size)))
    if kind == _CYLINDER:
        radius = wp.sqrt(p[0] * p[0] + p[1] * p[1])
        if wp.abs(p[2]) - size[1] > radius - size[0]:
            return wp.vec3(0.0, 0.0, wp.sign(p[2]))
        return wp.normalize(wp.vec3(p[0], p[1], 0.0))
    if kind == _CAPSULE:
        return wp.normalize(p - wp.vec3(0.0, 0.0, wp.clamp(p[2], -size[1], size[1])))
    return wp.vec3(0.0, 0.0, 1.0)


@wp.func
def barycentric(mesh: wp.uint64, face: int, p: wp.vec3) -> wp.vec3:
    """Weights of a triangle's corners at a point of its plane; they extend beyond the triangle."""
    a = wp.mesh_eval_position(mesh, face, 1.0, 0.0)
    b = wp.mesh_eval_position(mesh, face, 0.0, 1.0)
    c = wp.mesh_eval_position(mesh, face, 0.0, 0.0)
    n = wp.cross(b - a, c - a)
    square = wp.dot(n, n)
    if square < 1.0e-30:
        return wp.vec3(1.0, 0.0, 0.0)
    wb = wp.dot(wp.cross(p - a, c - a), n) / square
    wc = wp.dot(wp.cross(b - a, p - a), n) / square
    return wp.vec3(1.0 - wb - wc, wb, wc)


@wp.func
def raise_corner(p: wp.vec3, corner: wp.vec3, n: wp.vec3, side: float) -> wp.vec3:
    """From `p` up to the plane through a triangle's corner across its shading normal, if that lies above."""
    return n * (-side * wp.min(wp.dot(p - corner, n) * side, 0.0))


@wp.func
def surface_at(scene: Scene, hit: Hit, o: wp.vec3, d: wp.vec3) -> Surface:
    """Position and normals of a hit."""
    geom = scene.geoms[hit.geom]
    rot = scene.rot[hit.geom]
    s = Surface()
    s.p = o + d * hit.t
    s.local = wp.transpose(rot) * (s.p - scene.pos[hit.geom])
    ng = wp.vec3(0.0, 0.0, 1.0)
    ns = wp.vec3(0.0, 0.0, 1.0)
    rise = wp.vec3(0.0, 0.0, 0.0)
    if geom.mesh != wp.uint64(0):
        ng = wp.mesh_eval_face_normal(geom.mesh, hit.face)
        w = barycentric(geom.mesh, hit.face, s.local)
        k = geom.corner + 3 * hit.face
        na = scene.normals[k]
        nb = scene.normals[k + 1]
        nc = scene.normals[k + 2]
        ns = wp.normalize(na * w[0] + nb * w[1] + nc * w[2])
        if wp.dot(ns, ng) <= 0.05:
            ns = ng
        side = wp.where(wp.dot(rot * ng, d) > 0.0, -1.0, 1.0)
        rise = raise_corner(s.local, wp.mesh_eval_position(geom.mesh, hit.face, 1.0, 0.0), na, side) * w[0]
        rise += raise_corner(s.local, wp.mesh_eval_position(geom.mesh, hit.face, 0.0, 1.0), nb, side) * w[1]
        rise += raise_corner(s.local, wp.mesh_eval_position(geom.mesh, hit.face, 0.0, 0.0), nc, side) * w[2]
    else:
        ng = primitive_normal(geom.type, geom.size, s.local)
        ns = ng
    world = rot * ng
    smooth = rot * ns
    if wp.dot(world, d) > 0.0:
        ng = -ng
        world = -world
        smooth = -smooth
    if wp.dot(smooth, d) >= 0.0:  # interpolated past the silhouette
        smooth = world
    s.ng_local = ng
    s.ng = world
    s.n = smooth
    s.raised = s.p + rot * rise  # against blocky shadow terminators (Hanika 2021)
    return s


# Textures -------------------------------------------------------------------------------------------------------------


@wp.func
def wrap(i: int, n: int) -> int:
    """i modulo n, in [0, n)."""
    r = i % n
    if r < 0:
        r += n
    return r


@wp.func
def sample_2d(maps: Maps, index: int, uv: wp.vec2, lod: float) -> wp.vec3:
    """Bilinear look-up in the mip level nearest to `lod`; v runs down the picture, both wrap."""
    texture = maps.textures[index]
    level = wp.clamp(int(lod + 0.5), 0, texture.levels - 1)
    width = wp.max(texture.width >> level, 1)
    height = wp.max(texture.height >> level, 1)
    start = maps.level_starts[texture.first_level + level]
    x = (uv[0] - wp.floor(uv[0])) * float(width) - 0.5
    y = (uv[1] - wp.floor(uv[1])) * float(height) - 0.5
    x0 = int(wp.floor(x))
    y0 = int(wp.floor(y))
    fx = x - float(x0)
    fy = y - float(y0)
    xa = wrap(x0, width)
    xb = wrap(x0 + 1, width)
    ya = start + wrap(y0, height) * width
    yb = start + wrap(y0 + 1, height) * width
    top = maps.texels[ya + xa] * (1.0 - fx) + maps.texels[ya + xb] * fx
    bottom = maps.texels[yb + xa] * (1.0 - fx) + maps.texels[yb + xb] * fx
    return top * (1.0 - fy) + bottom * fy


@wp.func
def sample_cube(maps: Maps, index: int, d: wp.vec3, lod: float) -> wp.vec3:
    """Bilinear look-up in a cube map (OpenGL's faces and axes), clamped to a face."""
    texture = maps.textures[index]
    level = wp.clamp(int(lod + 0.5), 0, texture.levels - 1)
    width = wp.max(texture.width >> level, 1)
    ax = wp.abs(d[0])
    ay = wp.abs(d[1])
    az = wp.abs(d[2])
    face = int(0)
    s = float(0.0)
    t = float(0.0)
    m = float(1.0)
    if ax >= ay and ax >= az:
        m = ax
        t = -d[1]
        if d[0] > 0.0:
            face = int(0)
            s = -d[2]
        else:
            face = int(1)
            s = d[2]
    elif ay >= az:
        m = ay
        s = d[0]
        if d[1] > 0.0:
            face = int(2)
            t = d[2]
        else:
            face = int(3)
            t = -d[2]
    else:
        m = az
        t = -d[1]
        if d[2] > 0.0:
            face = int(4)
            s = d[0]
        else:
            face = int(5)
            s = -d[0]
    x = (0.5 * s / m + 0.5) * float(width) - 0.5
    y = (0.5 * t / m + 0.5) * float(width) - 0.5
    x0 = int(wp.floor(x))
    y0 = int(wp.floor(y))
    fx = x - float(x0)
    fy = y - float(y0)
    side = wp.where(texture.cube == 2, 0, face)
    start = maps.level_starts[texture.first_level + level] + side * width * width
    xa = wp.clamp(x0, 0, width - 1)
    xb = wp.clamp(x0 + 1, 0, width - 1)
    ya = start + wp.clamp(y0, 0, width - 1) * width
    yb = start + wp.clamp(y0 + 1, 0, width - 1) * width
    top = maps.texels[ya + xa] * (1.0 - fx) + maps.texels[ya + xb] * fx
    bottom = maps.texels[yb + xa] * (1.0 - fx) + maps.texels[yb + xb] * fx
    return top * (1.0 - fy) + bottom * fy


@wp.func
def scaled(p: float, size: float, repeat: float, uniform: int) -> float:
    """Texture coordinate of a local coordinate: `repeat` times a metre, or across the object's own extent."""
    if uniform != 0:
        return p * repeat
    if size <= 0.0:  # infinite planes have no extent: two metres
        return (0.5 + 0.5 * p) * repeat
    return (0.5 + 0.5 * p / size) * repeat


@wp.func
def density(size: float, repeat: float, uniform: int) -> float:
    """Texture repeats a metre."""
    if uniform != 0:
        return repeat
    if size <= 0.0:
        return 0.5 * repeat
    return 0.5 * repeat / size


@wp.func
def mesh_coordinates(scene: Scene, geom: Geom, face: int, p: wp.vec3) -> wp.vec3:
    """(u, v, repeats a metre) from a mesh's own texture coordinates."""
    w = barycentric(geom.mesh, face, p)
    k = geom.corner + 3 * face
    a = scene.uvs[k]
    b = scene.uvs[k + 1]
    c = scene.uvs[k + 2]
    uv = wp.cw_mul(a * w[0] + b * w[1] + c * w[2], geom.repeat)
    pa = wp.mesh_eval_position(geom.mesh, face, 1.0, 0.0)
    pb = wp.mesh_eval_position(geom.mesh, face, 0.0, 1.0)
    pc = wp.mesh_eval_position(geom.mesh, face, 0.0, 0.0)
    area = wp.length(wp.cross(pb - pa, pc - pa))
    e = b - a
    f = c - a
    covered = wp.abs(e[0] * f[1] - e[1] * f[0]) * geom.repeat[0] * geom.repeat[1]
    return wp.vec3(uv[0], uv[1], wp.sqrt(covered / wp.max(area, 1.0e-12)))


@wp.func
def texture_coordinates(scene: Scene, geom: Geom, face: int, p: wp.vec3, n: wp.vec3) -> wp.vec3:
    """(u, v, repeats a metre) at local point `p` with geometric normal `n`.

    Meshes use their own coordinates if they have any. Cylinders and capsules are wrapped around z; everything else is
    projected along the normal's largest axis, upright (image up = local z) on the sides.
    """
    if geom.mesh != wp.uint64(0) and geom.has_uv != 0:
        return mesh_coordinates(scene, geom, face, p)
    size = geom.size
    q = p - geom.center
    if (geom.type == _CYLINDER or geom.type == _CAPSULE) and wp.abs(n[2]) < 0.7:
        turn = wp.atan2(q[1], q[0]) / (2.0 * wp.pi)
        around = 2.0 * wp.pi * size[0]
        times = geom.repeat[0]
        if geom.uniform != 0:
            times = wp.max(wp.round(around * geom.repeat[0]), 1.0)
        v = scaled(-q[2], size[1], geom.repeat[1], geom.uniform)
        return wp.vec3(turn * times, v, wp.max(times / around, density(size[1], geom.repeat[1], geom.uniform)))
    if geom.type == _SPHERE:
        size = wp.vec3(size[0], size[0], size[0])
    elif geom.type == _CYLINDER or geom.type == _CAPSULE:
        size = wp.vec3(size[0], size[0], size[1])
    ax = wp.abs(n[0])
    ay = wp.abs(n[1])
    az = wp.abs(n[2])
    a = q[0]
    b = q[1]
    sa = size[0]
    sb = size[1]
    if geom.type != _HFIELD and geom.type != _PLANE:
        if ax > ay and ax > az:
            a = q[1] * wp.sign(n[0])
            b = q[2]
            sa = size[1]
            sb = size[2]
        elif ay > az:
            a = -q[0] * wp.sign(n[1])
            b = q[2]
            sa = size[0]
            sb = size[2]
    u = scaled(a, sa, geom.repeat[0], geom.uniform)
    v = scaled(-b, sb, geom.repeat[1], geom.uniform)
    rate = wp.max(density(sa, geom.repeat[0], geom.uniform), density(sb, geom.repeat[1], geom.uniform))
    return wp.vec3(u, v, rate)


@wp.func
def sample_texture(
    maps: Maps, index: int, geom: Geom, uvr: wp.vec3, p: wp.vec3, footprint: float, shift: float
) -> wp.vec3:
    """A texture at local point `p`; `footprint` is the width of the sample in metres, `shift` moves the mip level."""
    texture = maps.textures[index]
    if texture.cube != 0:
        direction = wp.cw_div(p - geom.center, wp.max(geom.size, wp.vec3(1.0e-6, 1.0e-6, 1.0e-6)))
        reach = wp.max(wp.max(geom.size[0], geom.size[1]), geom.size[2])
        if geom.type == _SPHERE or geom.type == _CAPSULE or geom.type == _CYLINDER:
            direction = p
        texels = footprint * float(texture.width) / wp.max(2.0 * reach, 1.0e-6)
        return sample_cube(maps, index, direction, wp.log2(wp.max(texels, 1.0e-6)) + shift)
    texels = footprint * uvr[2] * float(wp.max(texture.width, texture.height))
    return sample_2d(maps, index, wp.vec2(uvr[0], uvr[1]), wp.log2(wp.max(texels, 1.0e-6)) + shift)


@wp.func
def has_texture(geom: Geom) -> bool:
    """Whether the geom's material varies over its surface."""
    return (
        geom.tex_rgb >= 0
        or geom.tex_roughness >= 0
        or geom.tex_metallic >= 0
        or geom.tex_orm >= 0
        or geom.tex_emission >= 0
    )


@wp.func
def material_at(scene: Scene, g: int, face: int, p: wp.vec3, n: wp.vec3, footprint: float, shift: float) -> Material:
    """The material of geom `g` at local point `p` with local geometric normal `n`."""
    geom = scene.geoms[g]
    m = Material()
    m.albedo = geom.rgb
    m.roughness = geom.roughness
    m.metallic = geom.metallic
    m.emission = geom.rgb * geom.emission
    if has_texture(geom):
        uvr = texture_coordinates(scene, geom, face, p, n)
        if geom.tex_rgb >= 0:
            m.albedo = wp.cw_mul(geom.rgb, sample_texture(scene.maps, geom.tex_rgb, geom, uvr, p, footprint, shift))
            m.emission = m.albedo * geom.emission
        if geom.tex_roughness >= 0:
            texel = sample_texture(scene.maps, geom.tex_roughness, geom, uvr, p, footprint, shift)
            m.roughness = geom.roughness * texel[1]
        if geom.tex_metallic >= 0:
            texel = sample_texture(scene.maps, geom.tex_metallic, geom, uvr, p, footprint, shift)
            m.metallic = geom.metallic * texel[2]
        if geom.tex_orm >= 0:
            texel = sample_texture(scene.maps, geom.tex_orm, geom, uvr, p, footprint, shift)
            m.roughness = geom.roughness * texel[1]
            m.metallic = geom.metallic * texel[2]
        if geom.tex_emission >= 0:
            texel = sample_texture(scene.maps, geom.tex_emission, geom, uvr, p, footprint, shift)
            m.emission = texel * wp.max(geom.emission, 0.0)
    return m


# Pixels ---------------------------------------------------------------------------------------------------------------


@wp.func
def camera_ray(view: View, x: float, y: float) -> wp.vec3:
    """World direction through pixel position (x, y), not normalised: its length is ray length over depth."""
    return view.rot * wp.vec3((x - view.cx) / view.fx, -(y - view.cy) / view.fy, -1.0)


@wp.func
def project(view: View, p: wp.vec3) -> wp.vec2:
    """Pixel position of a point in camera space; points at or behind the camera land far outside the picture."""
    z = wp.max(-p[2], 1.0e-3)
    return wp.vec2(view.cx + view.fx * p[0] / z, view.cy - view.fy * p[1] / z)


@wp.func
def keep_centre(
    scene: Scene,
    view: View,
    last: View,
    i: int,
    d: wp.vec3,
    stretch: float,
    hit: Hit,
    hits: Hits,
    depth: wp.array(dtype=float),
    instance: wp.array(dtype=int),
    motion: wp.array(dtype=float),
):
    """Writes down what the ray of direction `d` through a pixel centre met; `stretch` is ray length over depth."""
    count = view.width * view.height
    hits.geom[i] = hit.geom
    hits.shape[i] = hit.shape
    hits.face[i] = hit.face
    hits.t[i] = hit.t
    before = wp.vec3(0.0, 0.0, 0.0)
    if hit.geom >= 0:
        s = surface_at(scene, hit, view.pos, d)
        hits.normal[i] = s.n
        hits.point[i] = s.p
        depth[i] = hit.t / stretch
        instance[i] = hit.geom + 1
        world = scene.last_rot[hit.geom] * s.local + scene.last_pos[hit.geom]
        before = wp.transpose(last.rot) * (world - last.pos)
    else:
        hits.normal[i] = wp.vec3(0.0, 0.0, 0.0)
        depth[i] = wp.inf
        instance[i] = 0
        before = wp.transpose(last.rot) * d  # the sky is infinitely far: only rotation moves it
    was = project(last, before)
    motion[i] = was[0] - (float(i % view.width) + 0.5)
    motion[count + i] = was[1] - (float(i / view.width) + 0.5)


@wp.kernel
def trace_centres(
    scene: Scene,
    view: View,
    last: View,
    start: int,
    hits: Hits,
    depth: wp.array(dtype=float),
    instance: wp.array(dtype=int),
    motion: wp.array(dtype=float),
):
    """One ray through each pixel centre: the hit, and the channels that must not be averaged."""
    i = start + wp.tid()
    along = camera_ray(view, float(i % view.width) + 0.5, float(i / view.width) + 0.5)
    stretch = wp.length(along)
    d = along / stretch
    hit = closest_hit(scene.solids, view.pos, d, float(_MISS))
    keep_centre(scene, view, last, i, d, stretch, hit, hits, depth, instance, motion)


@wp.func
def is_edge(view: View, hits: Hits, i: int) -> bool:
    """Whether pixel i's 3x3 neighbourhood is more than one smooth surface."""
    x = i % view.width
    y = i / view.width
    g = hits.geom[i]
    n = hits.normal[i]
    p = hits.point[i]
    for dy in range(-1, 2):
        for dx in range(-1, 2):
            xx = x + dx
            yy = y + dy
            if (dx != 0 or dy != 0) and xx >= 0 and yy >= 0 and xx < view.width and yy < view.height:
                j = yy * view.width + xx
                if hits.geom[j] != g:
                    return True
                if g >= 0:
                    if wp.dot(n, hits.normal[j]) < 0.9:
                        return True
                    apart = hits.point[j] - p
                    if wp.abs(wp.dot(apart, n)) > 0.35 * wp.length(apart):
                        return True
    return False


@wp.func
def shapes_around(view: View, hits: Hits, i: int) -> vec9i:
    """The distinct shapes that pixel i's 3x3 neighbourhood sees; -1 marks the end."""
    found = vec9i()
    for k in range(9):
        found[k] = -1
    count = int(0)
    x = i % view.width
    y = i / view.width
    for dy in range(-1, 2):
        for dx in range(-1, 2):
            xx = x + dx
            yy = y + dy
            if xx >= 0 and yy >= 0 and xx < view.width and yy < view.height:
                shape = hits.shape[yy * view.width + xx]
                known = bool(shape < 0)
                for k in range(9):
                    if found[k] == shape:
                        known = bool(True)
                if not known:
                    found[count] = shape
                    count += 1
    return found


@wp.func
def centre_hit(hits: Hits, i: int) -> Hit:
    """Pixel i's own hit."""
    hit = Hit()
    hit.t = hits.t[i]
    hit.geom = hits.geom[i]
    hit.face = hits.face[i]
    hit.shape = hits.shape[i]
    return hit


@wp.kernel
def resolve_materials(
    scene: Scene,
    view: View,
    start: int,
    offsets: wp.array(dtype=wp.vec2),
    hits: Hits,
    albedo: wp.array(dtype=float),
    normal: wp.array(dtype=float),
    roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float),
    emission: wp.array(dtype=float),
):
    """The averaged channels: `offsets` are sample positions within a pixel, in [-0.5, 0.5]. Sky counts as zero."""
    i = start + wp.tid()
    samples = offsets.shape[0]
    x = float(i % view.width) + 0.5
    y = float(i / view.width) + 0.5
    count = view.width * view.height
    g = hits.geom[i]
    edge = is_edge(view, hits, i)
    hits.edge[i] = wp.where(edge, 1, 0)

    sum_albedo = wp.vec3(0.0, 0.0, 0.0)
    sum_normal = wp.vec3(0.0, 0.0, 0.0)
    sum_emission = wp.vec3(0.0, 0.0, 0.0)
    sum_roughness = float(0.0)
    sum_metallic = float(0.0)
    share = float(1.0)
    if edge:
        # One ray a sample, against what the neighbourhood sees.
        share = 1.0 / float(samples)
        candidates = shapes_around(view, hits, i)
        for k in range(samples):
            along = camera_ray(view, x + offsets[k][0], y + offsets[k][1])
            d = wp.normalize(along)
            hit = closest_of(scene.solids, candidates, view.pos, d)
            if hit.geom >= 0:
                s = surface_at(scene, hit, view.pos, d)
                facing = wp.max(-wp.dot(d, s.ng), 0.05)
                width = hit.t / (view.fx * wp.length(along)) / wp.sqrt(facing * float(samples))
                m = material_at(scene, hit.geom, hit.face, s.local, s.ng_local, width, 0.0)
                sum_albedo += m.albedo
                sum_normal += s.n
                sum_emission += m.emission
                sum_roughness += m.roughness
                sum_metallic += m.metallic
    elif g >= 0:
        sum_normal = hits.normal[i]
        geom = scene.geoms[g]
        if has_texture(geom):
            # Two look-ups along the long axis of the pixel's footprint, at mip levels half a level apart.
            along = camera_ray(view, x, y)
            d = wp.normalize(along)
            s = surface_at(scene, centre_hit(hits, i), view.pos, d)
            facing = wp.max(-wp.dot(d, s.ng), 0.05)
            width = hits.t[i] / (view.fx * wp.length(along))
            tilt = wp.transpose(scene.rot[g]) * (d + s.ng * facing)
            stretch = wp.min(1.0 / facing, 4.0) * width * 0.25
            step = tilt * (stretch / wp.max(wp.length(tilt), 1.0e-3))
            width = width * 0.8 / wp.sqrt(facing)
            m = material_at(scene, g, hits.face[i], s.local - step, s.ng_local, width, -0.5)
            w = material_at(scene, g, hits.face[i], s.local + step, s.ng_local, width, 0.0)
            sum_albedo = (m.albedo + w.albedo) * 0.5
            sum_emission = (m.emission + w.emission) * 0.5
            sum_roughness = (m.roughness + w.roughness) * 0.5
            sum_metallic = (m.metallic + w.metallic) * 0.5
        else:
            sum_albedo = geom.rgb
            sum_emission = geom.rgb * geom.emission
            sum_roughness = geom.roughness
            sum_metallic = geom.metallic
    facing_camera = wp.transpose(view.rot) * wp.normalize(sum_normal)
    for c in range(3):
        albedo[c * count + i] = wp.clamp(sum_albedo[c] * share, 0.0, 1.0)
        normal[c * count + i] = facing_camera[c]
        emission[c * count + i] = sum_emission[c] * share
    roughness[i] = wp.clamp(sum_roughness * share, 0.0, 1.0)
    metallic[i] = wp.clamp(sum_metallic * share, 0.0, 1.0)


@wp.kernel
def place_shapes(
    pos: wp.array(dtype=wp.vec3),
    rot: wp.array(dtype=wp.mat33),
    centre: wp.array(dtype=wp.vec3),
    half: wp.array(dtype=wp.vec3),
    bounded: int,
    shapes: wp.array(dtype=Shape),
    lower: wp.array(dtype=wp.vec3),
    upper: wp.array(dtype=wp.vec3),
):
    """Moves shapes to their geoms' poses, and the world boxes of the bounded ones with them."""
    i = wp.tid()
    g = shapes[i].geom
    r = rot[g]
    shapes[i].pos = pos[g]
    shapes[i].to_local = wp.transpose(r)
    if i < bounded:
        h = half[i]
        reach = wp.vec3(0.0, 0.0, 0.0)
        for k in range(3):
            reach[k] = wp.abs(r[k, 0]) * h[0] + wp.abs(r[k, 1]) * h[1] + wp.abs(r[k, 2]) * h[2]
        middle = pos[g] + r * centre[i]
        pad = wp.vec3(1.0e-4, 1.0e-4, 1.0e-4)
        lower[i] = middle - reach - pad
        upper[i] = middle + reach + pad
