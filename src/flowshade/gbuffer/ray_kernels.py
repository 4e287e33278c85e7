# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""Warp kernels that trace direct light's rays: one ray a thread, and no more beside it than has to be.

What limits a GPU here is the registers of a kernel: with shapes of every kind, surfaces, materials and rays in one, it
needs all 255, and an eighth of the threads fits that should hide each other's waiting. So

    everything that light meets is triangles (`Casters`, filled by `_casters.py`): one mesh that stands still, one that
    moves, one that is seen without casting shadows. Only planes, which may have no end, stay as they are;
    kernels that trace do not shade (`trace_sun`, `trace_bounces`, `trace_shadows`), and those that shade do not trace
    (`start_rays`, `bounce_sky`, `bounce_mirror`, `pool_sun`, `pool_bounces`). Between them lie `Rays`.

A pixel's rays are dealt out over lanes: its rays around the hemisphere, and one in the mirror direction after them.
"""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import Hit, Hits, Scene, Shape, View, camera_ray, centre_hit, hit_plane, surface_at
from flowshade.gbuffer.light_kernels import (
    Light,
    Lit,
    base_reflectance,
    bounced,
    dealt,
    fog_in,
    lamp_ray,
    lift,
    mirror_ray,
    pixel_width,
    reflected_sky,
    sequence,
    sky_ray,
    smooth_sky,
    specular,
    sun_offset,
    sun_ray,
    tile_index,
    weathered_pixel,
)

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

_MISS = wp.constant(1.0e30)
_NOTHING = wp.constant(-1)  # in Rays.what; planes are -2, -3, ...
_STEP = wp.constant(1.0e-4)  # metres from one surface to what lies behind it


@wp.struct
class Casters:
    """Everything that light can meet, as few meshes in the world's frame, and planes."""

    meshes: wp.array(dtype=wp.uint64)
    first: wp.array(dtype=int)  # where each mesh's faces start in `shape`
    shape: wp.array(dtype=int)  # the shape of each face
    first_face: wp.array(dtype=int)  # where each shape's faces start in `shape`
    shapes: wp.array(dtype=Shape)
    count: int  # meshes
    shadowing: int  # those, from the first, that cast shadows
    first_plane: int  # index into `shapes`
    planes: int


@wp.struct
class Rays:
    """What rays meet, lane after lane, row by row."""

    t: wp.array(dtype=float)  # distance, _MISS without a hit, 0 without a ray; of rays to the sun 1 = it is seen
    what: wp.array(dtype=int)  # index into Casters.shape, planes and _NOTHING below zero
    start: wp.array(dtype=wp.vec3)  # of the ray from there to the sun
    sun: wp.array(dtype=wp.vec3)  # what it adds; black = there is no such ray
    found: wp.array(dtype=wp.vec3)  # the rest


@wp.struct
class Meeting:
    """The first of `Casters` along a ray."""

    t: float
    what: int


# Tracing --------------------------------------------------------------------------------------------------------------


@wp.func
def plane_distance(shape: Shape, o: wp.vec3, d: wp.vec3, limit: float) -> float:
    return hit_plane(shape.size, shape.to_local * (o - shape.pos), shape.to_local * d, limit)


@wp.func
def nearest(casters: Casters, o: wp.vec3, d: wp.vec3, limit: float) -> Meeting:
    """The first surface along a ray of unit direction, nearer than `limit`."""
    met = Meeting()
    met.t = limit
    met.what = _NOTHING
    for k in range(casters.count):
        query = wp.mesh_query_ray(casters.meshes[k], o, d, met.t)
        if query.result:
            met.t = query.t
            met.what = casters.first[k] + query.face
    for k in range(casters.planes):
        t = plane_distance(casters.shapes[casters.first_plane + k], o, d, met.t)
        if t < met.t:
            met.t = t
            met.what = -2 - k
    return met


@wp.func
def blocked(casters: Casters, o: wp.vec3, d: wp.vec3, limit: float) -> bool:
    """Whether anything that casts shadows lies along a ray nearer than `limit`."""
    for k in range(casters.shadowing):
        if wp.mesh_query_ray_anyhit(casters.meshes[k], o, d, limit):
            return True
    for k in range(casters.planes):
        shape = casters.shapes[casters.first_plane + k]
        if shape.casts_shadow != 0 and plane_distance(shape, o, d, limit) < limit:
            return True
    return False


@wp.func
def shape_of(casters: Casters, what: int) -> int:
    """The shape that a ray has met."""
    if what < 0:
        return casters.first_plane - 2 - what
    return casters.shape[what]


@wp.func
def blocked_before(casters: Casters, o: wp.vec3, d: wp.vec3, limit: float, ignored: int) -> bool:
    """Whether anything that casts shadows, other than geom `ignored`, lies along a ray nearer than `limit`."""
    from_here = o
    left = float(limit)
    while left > 0.0:
        met = nearest(casters, from_here, d, left)
        if met.what == _NOTHING:
            return False
        shape = shape_of(casters, met.what)
        if casters.shapes[shape].geom != ignored and casters.shapes[shape].casts_shadow != 0:
            return True
        from_here += d * (met.t + _STEP)
        left -= met.t + _STEP
    return False


@wp.kernel
def trace_sun(
    casters: Casters, view: View, light: Light, first_row: int, rows: int, first: int, sun_rays: int, seed: int,
    hits: Hits, lit: Lit, rays: Rays,
):  # fmt: skip
    """Whether rays, spread over the sun's disc and on smooth ground over the pixel, meet the sun; `first` lane on."""
    where = dealt(wp.tid(), rows, view.width)
    column = where[0]
    row = first_row + where[1]
    lane = where[2]
    if lane < 0:
        return
    i = row * view.width + column
    seen = float(0.0)
    if hits.geom[i] >= 0 and wp.dot(hits.normal[i], light.sun_dir) > 0.0:
        index = (tile_index(column, row) >> 2) * sun_rays + first + lane
        origin = lit.origin[i]
        ng = lit.ng[i]
        if hits.edge[i] == 0:
            pixel = pixel_width(view, column, row, hits.t[i])
            # Spread-out origins must stay above curved ground.
            origin = origin + ng * (0.1 * pixel) + sun_offset(ng, pixel, index, seed)
        if not blocked(casters, origin, sun_ray(light, index, seed), float(_MISS)):
            seen = 1.0
    rays.t[lane * view.width * view.height + i] = seen


@wp.func
def bounce_ray(view: View, hits: Hits, lit: Lit, column: int, row: int, lane: int, sky_rays: int, seed: int) -> wp.vec3:
    """The direction of a pixel's ray of a lane; zero = there is none."""
    i = row * view.width + column
    none = wp.vec3(0.0, 0.0, 0.0)
    if hits.geom[i] < 0:
        return none
    n = hits.normal[i]
    toward = none
    if lane < sky_rays:
        toward = sky_ray(n, tile_index(column, row) * sky_rays + lane, seed)
    elif lit.roughness[i] < 0.9:
        d = wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
        toward = mirror_ray(d, n, lit.ng[i], lit.roughness[i], tile_index(column, row), seed)
    if wp.dot(toward, lit.ng[i]) <= 0.0:
        return none
    return toward


@wp.kernel(launch_bounds=(256, 4))  # 68 registers without, and three blocks of 256 threads instead of four
def trace_bounces(
    casters: Casters, view: View, first_row: int, rows: int, first: int, sky_rays: int, seed: int, hits: Hits, lit: Lit,
    rays: Rays,
):  # fmt: skip
    """What the rays of lanes from `first` on meet."""
    where = dealt(wp.tid(), rows, view.width)
    row = first_row + where[1]
    lane = where[2]
    if lane < 0:
        return
    i = row * view.width + where[0]
    slot = lane * view.width * view.height + i
    toward = bounce_ray(view, hits, lit, where[0], row, first + lane, sky_rays, seed)
    if wp.dot(toward, toward) == 0.0:
        rays.t[slot] = 0.0
        rays.what[slot] = _NOTHING
        return
    met = nearest(casters, lit.origin[i], toward, _MISS)
    rays.t[slot] = met.t
    rays.what[slot] = met.what


@wp.kernel
def trace_shadows(casters: Casters, view: View, light: Light, first_row: int, rows: int, rays: Rays):
    """Adds the sun to what it reaches."""
    where = dealt(wp.tid(), rows, view.width)
    if where[2] < 0:
        return
    slot = (where[2] * view.height + first_row + where[1]) * view.width + where[0]
    sun = rays.sun[slot]
    if sun[0] + sun[1] + sun[2] > 0.0 and not blocked(casters, rays.start[slot], light.sun_dir, float(_MISS)):
        rays.found[slot] = rays.found[slot] + sun


# Shading --------------------------------------------------------------------------------------------------------------


@wp.kernel
def start_rays(
    scene: Scene, view: View, light: Light, start: int, hits: Hits, albedo: wp.array(dtype=float),
    roughness: wp.array(dtype=float), metallic: wp.array(dtype=float), lit: Lit,
):  # fmt: skip
    """Where a pixel's rays start; clears its light."""
    i = start + wp.tid()
    black = wp.vec3(0.0, 0.0, 0.0)
    lit.sun[i] = 0.0
    lit.indirect[i] = black
    lit.mirror[i] = black
    lit.gloss[i] = black
    if hits.geom[i] >= 0:
        d = wp.normalize(camera_ray(view, float(i % view.width) + 0.5, float(i / view.width) + 0.5))
        s = surface_at(scene, centre_hit(hits, i), view.pos, d)
        lit.origin[i] = lift(s.raised, s.ng, hits.t[i])
        lit.ng[i] = s.ng
        m = weathered_pixel(light, hits, i, view.width * view.height, albedo, roughness, metallic)
        lit.roughness[i] = m.roughness


@wp.kernel
def gather_lamps(
    casters: Casters, scene: Scene, view: View, light: Light, start: int, seed: int, hits: Hits,
    albedo: wp.array(dtype=float), roughness: wp.array(dtype=float), metallic: wp.array(dtype=float), lit: Lit,
):  # fmt: skip
    """Light of lamps, with one shadow ray each."""
    i = start + wp.tid()
    g = hits.geom[i]
    if g < 0:
        return
    column = i % view.width
    row = i / view.width
    n = hits.normal[i]
    m = weathered_pixel(light, hits, i, view.width * view.height, albedo, roughness, metallic)
    v = -wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
    tile = tile_index(column, row)
    indirect = wp.vec3(0.0, 0.0, 0.0)
    gloss = wp.vec3(0.0, 0.0, 0.0)
    for k in range(light.lamp_count):
        if light.lamp_geom[k] != g:
            ray = lamp_ray(scene, light, k, hits.point[i], n, lit.ng[i], sequence(tile, seed + 11 + k))
            lamp = light.lamp_geom[k]
            if ray.free >= 0.0 and not blocked_before(casters, lit.origin[i], ray.aim, ray.free, lamp):
                indirect += ray.arrives * (ray.cosine / wp.pi)
                shine = specular(base_reflectance(m), m.roughness, n, v, ray.toward, ray.radius)
                gloss += wp.cw_mul(ray.arrives, shine)
    lit.indirect[i] = indirect
    lit.gloss[i] = gloss


@wp.func
def hit_of(casters: Casters, t: float, what: int) -> Hit:
    """What a ray has met, as `kernels` describe it."""
    hit = Hit()
    hit.t = t
    hit.shape = shape_of(casters, what)
    hit.geom = casters.shapes[hit.shape].geom
    hit.face = int(0)
    if what >= 0 and casters.shapes[hit.shape].mesh != wp.uint64(0):
        hit.face = what - casters.first_face[hit.shape]
    return hit


@wp.kernel
def bounce_sky(
    casters: Casters, scene: Scene, view: View, light: Light, first_row: int, rows: int, first: int, sky_rays: int,
    seed: int, hits: Hits, lit: Lit, rays: Rays,
):  # fmt: skip
    """What cosine-weighted rays bring back, less the sky that they would have seen."""
    where = dealt(wp.tid(), rows, view.width)
    row = first_row + where[1]
    lane = where[2]
    if lane < 0:
        return
    i = row * view.width + where[0]
    slot = lane * view.width * view.height + i
    black = wp.vec3(0.0, 0.0, 0.0)
    rays.sun[slot] = black
    rays.found[slot] = black
    if rays.what[slot] != _NOTHING:
        toward = bounce_ray(view, hits, lit, where[0], row, first + lane, sky_rays, seed)
        bounce = bounced(scene, light, hit_of(casters, rays.t[slot], rays.what[slot]), lit.origin[i], toward, 0)
        rays.found[slot] = bounce.own - smooth_sky(light, light.stream * toward)
        rays.sun[slot] = bounce.sun
        rays.start[slot] = bounce.start


@wp.kernel
def bounce_mirror(
    casters: Casters, scene: Scene, view: View, light: Light, first_row: int, rows: int, lane: int, seed: int,
    hits: Hits, lit: Lit, rays: Rays,
):  # fmt: skip
    """What the ray in the mirror direction, in `lane`, brings back through the fog, less the sky behind it."""
    where = dealt(wp.tid(), rows, view.width)
    row = first_row + where[1]
    if where[2] < 0:
        return
    i = row * view.width + where[0]
    slot = lane * view.width * view.height + i
    black = wp.vec3(0.0, 0.0, 0.0)
    rays.sun[slot] = black
    rays.found[slot] = black
    if rays.what[slot] != _NOTHING:
        toward = bounce_ray(view, hits, lit, where[0], row, 1, 0, seed)
        bounce = bounced(scene, light, hit_of(casters, rays.t[slot], rays.what[slot]), lit.origin[i], toward, 1)
        clear = wp.exp(-light.fog_density * rays.t[slot])
        away = light.stream * toward
        found = bounce.own * clear + fog_in(light, away) * (1.0 - clear)
        rays.found[slot] = found - reflected_sky(light, away, lit.roughness[i])
        rays.sun[slot] = bounce.sun * clear
        rays.start[slot] = bounce.start


@wp.kernel
def pool_sun(start: int, pixels: int, lanes: int, sun_rays: int, rays: Rays, lit: Lit):
    """Adds lanes to `sun`, always in the same order."""
    i = start + wp.tid()
    total = lit.sun[i]
    for lane in range(lanes):
        total += rays.t[lane * pixels + i] / float(sun_rays)
    lit.sun[i] = total


@wp.kernel
def pool_bounces(start: int, pixels: int, first: int, lanes: int, sky_rays: int, rays: Rays, lit: Lit):
    """Adds lanes to `indirect`, always in the same order, and the one after all sky rays to `mirror`."""
    i = start + wp.tid()
    total = lit.indirect[i]
    for lane in range(lanes):
        if first + lane < sky_rays:
            total += rays.found[lane * pixels + i] / float(sky_rays)
        else:
            lit.mirror[i] = rays.found[lane * pixels + i]
    lit.indirect[i] = total


@wp.kernel
def move_points(
    pos: wp.array(dtype=wp.vec3),
    rot: wp.array(dtype=wp.mat33),
    geom: wp.array(dtype=int),
    local: wp.array(dtype=wp.vec3),
    points: wp.array(dtype=wp.vec3),
):
    """Corners of what moves from their geoms' frames to the world's."""
    i = wp.tid()
    g = geom[i / 3]
    points[i] = rot[g] * local[i] + pos[g]


__all__ = [
    "Casters",
    "Rays",
    "bounce_mirror",
    "bounce_sky",
    "gather_lamps",
    "move_points",
    "pool_bounces",
    "pool_sun",
    "start_rays",
    "trace_bounces",
    "trace_shadows",
    "trace_sun",
]
