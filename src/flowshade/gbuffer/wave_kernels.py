# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""Warp kernels of the path-traced picture as waves of rays: those that trace do not shade (as in `ray_kernels`).

    start_walks, then a bounce at a time: trace_walks, visit_walks, aim_walks, trace_aims; at last end_walks
    aim_first, trace_aims, pool_first      sun, lamps, emitters and the sky picture at the surface that is seen
    aim_shafts, trace_aims, pool_shafts    the same in the fog before it

Between them lie `Walks`, one a path, and `Aims`, AIMS shadow rays a path. What a path does at a surface is
`path_kernels`'. `plain_path_kernels` does all of this in one thread a lane, and is what this is tested against.

A pixel's paths are dealt out over rounds: path `first + lane` of a pixel belongs to lane (first + lane) / `each` of
`path_kernels.Paths`. Places are lane after lane, row by row.
"""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import Hits, Scene, View, camera_ray, centre_hit, surface_at
from flowshade.gbuffer.light_kernels import (
    Light,
    base_reflectance,
    cloudy_sky,
    dealt,
    lift,
    pixel_width,
    sequence,
    specular,
    sun_offset,
    sun_ray,
    tile_index,
    weathered_pixel,
)
from flowshade.gbuffer.path_kernels import (
    LANES,
    Emitters,
    Paths,
    aim_at_emitter,
    aim_at_lamp,
    aim_from_fog,
    first_ray,
    fog_places,
    glossy_density,
    glossy_paths,
    glossy_weight,
    go_on,
    held,
    phase,
    shaft_at,
    sky_by_chance,
    sky_density,
    sky_path,
    toward_sky,
    visit,
)
from flowshade.gbuffer.ray_kernels import Casters, blocked, blocked_before, hit_of, nearest

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

AIMS = 4
"""Shadow rays of a path at a surface: to the sun, a lamp, an emitter, the sky picture."""

_AIMS = wp.constant(AIMS)
_LANES = wp.constant(LANES)
_SUN = wp.constant(0)
_LAMP = wp.constant(1)
_EMITTER = wp.constant(2)
_SKY = wp.constant(3)
_MISS = wp.constant(1.0e30)
_NOTHING = wp.constant(-1)


@wp.struct
class Aims:
    """Shadow rays, and what they bring; trace_aims blackens those that are blocked."""

    start: wp.array(dtype=wp.vec3)
    toward: wp.array(dtype=wp.vec3)
    free: wp.array(dtype=float)  # metres
    ignored: wp.array(dtype=int)  # a geom, or -1
    adds: wp.array(dtype=wp.vec3)  # black = there is no ray
    shine: wp.array(dtype=wp.vec3)  # into the glossy lobe; only at the surface that is seen


@wp.struct
class Walks:
    """Paths on their way."""

    o: wp.array(dtype=wp.vec3)
    d: wp.array(dtype=wp.vec3)
    t: wp.array(dtype=float)
    what: wp.array(dtype=int)
    through: wp.array(dtype=wp.vec3)  # black = it has ended
    total: wp.array(dtype=wp.vec3)
    glossy: wp.array(dtype=int)
    density: wp.array(dtype=float)
    weight: wp.array(dtype=float)  # in the glossy lobe of what is seen; below 0 = a diffuse path
    geom: wp.array(dtype=int)  # of the surface it is at, -1 without one; the rest is for lights to be aimed at
    p: wp.array(dtype=wp.vec3)
    n: wp.array(dtype=wp.vec3)
    ng: wp.array(dtype=wp.vec3)
    back: wp.array(dtype=wp.vec3)  # what the eye sees of light from everywhere there


# Tracing --------------------------------------------------------------------------------------------------------------


@wp.kernel(launch_bounds=(256, 4))  # as `ray_kernels.trace_bounces`
def trace_walks(casters: Casters, view: View, first_row: int, rows: int, walks: Walks):
    """What each path meets next."""
    where = dealt(wp.tid(), rows, view.width)
    if where[2] < 0:
        return
    slot = (where[2] * view.height + first_row + where[1]) * view.width + where[0]
    through = walks.through[slot]
    if through[0] + through[1] + through[2] > 0.0:
        met = nearest(casters, walks.o[slot], walks.d[slot], _MISS)
        walks.t[slot] = met.t
        walks.what[slot] = met.what


@wp.func
def stopped(casters: Casters, o: wp.vec3, d: wp.vec3, free: float, ignored: int) -> bool:
    """Whether anything that casts shadows, other than geom `ignored`, lies along a ray nearer than `free`."""
    if ignored >= 0:
        return blocked_before(casters, o, d, free, ignored)
    return blocked(casters, o, d, free)


@wp.func
def lit_by(aims: Aims, at: int) -> bool:
    """Whether a shadow ray is needed; later, whether it was free."""
    adds = aims.adds[at]
    return adds[0] + adds[1] + adds[2] > 0.0


@wp.kernel(launch_bounds=(256, 4))
def trace_aims(casters: Casters, view: View, first_row: int, rows: int, aims: Aims):
    """Blackens what is blocked."""
    where = dealt(wp.tid(), rows, view.width)
    if where[2] < 0:
        return
    slot = (where[2] * view.height + first_row + where[1]) * view.width + where[0]
    if lit_by(aims, slot) and stopped(
        casters, aims.start[slot], aims.toward[slot], aims.free[slot], aims.ignored[slot]
    ):
        aims.adds[slot] = wp.vec3(0.0, 0.0, 0.0)


# Aiming ---------------------------------------------------------------------------------------------------------------


@wp.func
def chance(seed: int, use: int, path: int) -> wp.uint32:
    """Random numbers of a path: use 0 at what is seen, 1 in fog, 2 + 2 bounce and 3 + 2 bounce at what it meets."""
    return wp.rand_init(seed * 64 + use, path)


@wp.func
def no_aim(aims: Aims, at: int):
    aims.adds[at] = wp.vec3(0.0, 0.0, 0.0)


@wp.func
def put_aim(
    aims: Aims, at: int, start: wp.vec3, toward: wp.vec3, free: float, ignored: int, adds: wp.vec3, shine: wp.vec3
):
    aims.start[at] = start
    aims.toward[at] = toward
    aims.free[at] = free
    aims.ignored[at] = ignored
    aims.adds[at] = adds
    aims.shine[at] = shine


@wp.kernel
def aim_first(
    scene: Scene, view: View, light: Light, emitters: Emitters, first_row: int, rows: int, first: int, lanes: int,
    samples: int, seed: int, hits: Hits, albedo: wp.array(dtype=float), roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float), aims: Aims,
):  # fmt: skip
    """Shadow rays of the surface that is seen: sun, lamp, emitter, sky, for sample `first` + lane of a pixel on."""
    where = dealt(wp.tid(), rows, view.width)
    column = where[0]
    row = first_row + where[1]
    if where[2] < 0:
        return
    i = row * view.width + column
    pixels = view.width * view.height
    index = first + where[2]
    lane = index / samples
    k = index % samples
    slot = where[2] * pixels + i
    apart = lanes * pixels
    for a in range(_AIMS):
        no_aim(aims, slot + a * apart)
    if hits.geom[i] < 0:
        return
    black = wp.vec3(0.0, 0.0, 0.0)
    tile = tile_index(column, row)
    all_samples = samples * _LANES
    state = chance(seed, 0, i * all_samples + index)
    d = wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
    v = -d
    g = hits.geom[i]
    s = surface_at(scene, centre_hit(hits, i), view.pos, d)
    n = s.n
    origin = lift(s.raised, s.ng, hits.t[i])
    m = weathered_pixel(light, hits, i, pixels, albedo, roughness, metallic)
    f0 = base_reflectance(m)
    suns = wp.max(samples / 2, 1)
    if light.has_sun != 0 and wp.dot(n, light.sun_dir) > 0.0 and k < suns:
        pixel = float(0.0)
        if hits.edge[i] == 0:
            pixel = pixel_width(view, column, row, hits.t[i])
        at = ((tile >> 2) * _LANES + lane) * suns + k
        start = origin + s.ng * (0.1 * pixel) + sun_offset(s.ng, pixel, at, seed)
        one = wp.vec3(1.0, 1.0, 1.0)
        put_aim(aims, slot + _SUN * apart, start, sun_ray(light, at, seed), float(_MISS), -1, one, black)
    if light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0:
        if light.lamp_count > 0:
            pick = (float(index) + wp.randf(state)) / float(all_samples)
            u = sequence(tile * all_samples + index, seed + 11)
            aim = aim_at_lamp(scene, light, s.p, n, s.ng, g, pick, u)
            adds = aim.arrives * (wp.max(wp.dot(n, aim.toward), 0.0) / wp.pi)
            shine = wp.cw_mul(aim.arrives, specular(f0, m.roughness, n, v, aim.toward, aim.radius))
            put_aim(aims, slot + _LAMP * apart, origin, aim.ray, aim.free, aim.ignored, adds, shine)
        if emitters.count > 0:
            aim = aim_at_emitter(scene, light, emitters, s.p, n, origin, g, wp.randu(state))
            put_aim(aims, slot + _EMITTER * apart, origin, aim.ray, aim.free, aim.ignored, aim.arrives, black)
    if light.sky_aimed != 0:
        toward = toward_sky(light, sequence(tile * all_samples + index, seed + 23))
        cosine = wp.dot(n, toward)
        if cosine > 0.0 and wp.dot(toward, s.ng) > 0.0:
            glossy = glossy_paths(m, samples)
            diffuse_rate = float(wp.max(samples - glossy, 1)) / float(samples)
            glossy_rate = float(glossy) / float(samples)
            alpha = wp.max(m.roughness * m.roughness, 1.0e-3)
            away = light.stream * toward
            sky = cloudy_sky(light, away)
            aimed = sky_density(light, away)
            own = cosine / wp.pi
            adds = sky * (own / (own * diffuse_rate + aimed))
            own = glossy_density(n, v, toward, alpha)
            weight = glossy_weight(f0, n, v, toward, alpha)
            shine = sky * (weight * own * glossy_rate / (own * glossy_rate + aimed))
            put_aim(aims, slot + _SKY * apart, origin, toward, float(_MISS), -1, adds, shine)


@wp.kernel
def pool_first(start: int, pixels: int, first: int, lanes: int, samples: int, aims: Aims, paths: Paths):
    """Adds what reached the surface that is seen, always in the same order."""
    i = start + wp.tid()
    apart = lanes * pixels
    for round in range(lanes):
        slot = round * pixels + i
        lane = i * _LANES + (first + round) / samples
        if lit_by(aims, slot):
            paths.sun[lane] = paths.sun[lane] + 1.0 / float(wp.max(samples / 2, 1))
        direct = aims.adds[slot + _EMITTER * apart]
        if lit_by(aims, slot + _LAMP * apart):
            direct += aims.adds[slot + _LAMP * apart]
            paths.gloss[lane] = paths.gloss[lane] + aims.shine[slot + _LAMP * apart] / float(samples)
        if lit_by(aims, slot + _SKY * apart):
            direct += aims.adds[slot + _SKY * apart]
            shine = aims.shine[slot + _SKY * apart]
            paths.mirror[lane] = paths.mirror[lane] + wp.vec4(shine[0], shine[1], shine[2], 0.0)
        paths.direct[lane] = paths.direct[lane] + direct / float(samples)


# Paths ----------------------------------------------------------------------------------------------------------------


@wp.kernel
def start_walks(
    scene: Scene, view: View, light: Light, first_row: int, rows: int, first: int, samples: int, each: int, seed: int,
    hits: Hits, albedo: wp.array(dtype=float), roughness: wp.array(dtype=float), metallic: wp.array(dtype=float),
    walks: Walks,
):  # fmt: skip
    """Sends out paths `first` + lane on, `each` a lane of `Paths`: the first of them along the glossy lobe."""
    where = dealt(wp.tid(), rows, view.width)
    column = where[0]
    row = first_row + where[1]
    if where[2] < 0:
        return
    i = row * view.width + column
    pixels = view.width * view.height
    slot = where[2] * pixels + i
    lane = (first + where[2]) / each
    k = (first + where[2]) % each
    black = wp.vec3(0.0, 0.0, 0.0)
    walks.total[slot] = black
    walks.through[slot] = black
    walks.weight[slot] = -1.0
    if hits.geom[i] < 0:
        return
    d = wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
    s = surface_at(scene, centre_hit(hits, i), view.pos, d)
    m = weathered_pixel(light, hits, i, pixels, albedo, roughness, metallic)
    glossy = glossy_paths(m, samples)
    diffuse = wp.max(samples - glossy, 1)
    place = tile_index(column, row) * _LANES + lane
    along_gloss = wp.where(k < glossy, 1, 0)
    u = sequence(place * diffuse + k - glossy, seed)
    if along_gloss != 0:
        u = sequence(place * glossy + k, seed + 3)
    ray = first_ray(s.n, s.ng, d, base_reflectance(m), wp.max(m.roughness * m.roughness, 1.0e-3), along_gloss, u)
    rate = float(wp.where(along_gloss != 0, glossy, diffuse)) / float(samples)
    walks.o[slot] = lift(s.raised, s.ng, hits.t[i])
    walks.d[slot] = ray.toward
    walks.through[slot] = wp.vec3(1.0, 1.0, 1.0)
    walks.glossy[slot] = along_gloss
    walks.density[slot] = ray.density * rate
    if along_gloss != 0:
        walks.weight[slot] = ray.weight


@wp.func
def aims_of(aims: Aims, slot: int, apart: int) -> wp.vec3:
    total = wp.vec3(0.0, 0.0, 0.0)
    for a in range(_AIMS):
        total += aims.adds[slot + a * apart]
    return total


@wp.kernel(launch_bounds=(256, 2))  # 168 registers without, and one block of 256 threads instead of two
def visit_walks(
    casters: Casters, scene: Scene, view: View, light: Light, emitters: Emitters, first_row: int, rows: int, first: int,
    lanes: int, bounce: int, seed: int, walks: Walks, aims: Aims,
):  # fmt: skip
    """At what each path has met: its own light, and the way on. What it was lit by at the bounce before is added."""
    where = dealt(wp.tid(), rows, view.width)
    if where[2] < 0:
        return
    pixels = view.width * view.height
    i = (first_row + where[1]) * view.width + where[0]
    slot = where[2] * pixels + i
    total = walks.total[slot]
    if bounce > 0:
        total += aims_of(aims, slot, lanes * pixels)
    walks.geom[slot] = _NOTHING
    through = walks.through[slot]
    d = walks.d[slot]
    glossy = walks.glossy[slot]
    if through[0] + through[1] + through[2] > 0.0:
        if walks.what[slot] == _NOTHING:
            sky = sky_by_chance(light, light.stream * d, glossy, walks.density[slot])
            total += wp.cw_mul(through, sky)
            walks.through[slot] = wp.vec3(0.0, 0.0, 0.0)
        else:
            hit = hit_of(casters, walks.t[slot], walks.what[slot])
            vertex = visit(scene, light, emitters, hit, walks.o[slot], d, through, glossy)
            total += vertex.adds
            s = vertex.s
            state = chance(seed, 2 + 2 * bounce, (first + where[2]) * pixels + i)
            u = wp.vec2(wp.randf(state), wp.randf(state))
            pick = wp.randf(state)
            on = go_on(vertex, d, u, pick, wp.randf(state))
            walks.o[slot] = lift(s.raised, s.ng, hit.t)
            walks.d[slot] = on.d
            walks.through[slot] = on.through
            walks.glossy[slot] = on.glossy
            walks.density[slot] = on.density
            walks.geom[slot] = hit.geom
            walks.p[slot] = s.p
            walks.n[slot] = s.n
            walks.ng[slot] = s.ng
            walks.back[slot] = wp.cw_mul(vertex.through, vertex.lobes.diffuse)
    walks.total[slot] = total


@wp.kernel
def aim_walks(
    scene: Scene, view: View, light: Light, emitters: Emitters, first_row: int, rows: int, first: int, lanes: int,
    bounce: int, seed: int, walks: Walks, aims: Aims,
):  # fmt: skip
    """Shadow rays from where each path is: sun, lamp, emitter, sky; a kernel of its own for its registers."""
    where = dealt(wp.tid(), rows, view.width)
    if where[2] < 0:
        return
    pixels = view.width * view.height
    i = (first_row + where[1]) * view.width + where[0]
    slot = where[2] * pixels + i
    apart = lanes * pixels
    for a in range(_AIMS):
        no_aim(aims, slot + a * apart)
    g = walks.geom[slot]
    if g < 0:
        return
    black = wp.vec3(0.0, 0.0, 0.0)
    o = walks.o[slot]
    p = walks.p[slot]
    n = walks.n[slot]
    ng = walks.ng[slot]
    back = walks.back[slot]
    state = chance(seed, 3 + 2 * bounce, (first + where[2]) * pixels + i)
    cosine = wp.dot(n, light.sun_dir)
    if light.has_sun != 0 and cosine > 0.0 and wp.dot(ng, light.sun_dir) > 0.0:
        adds = wp.cw_mul(back, light.sun) * (cosine / wp.pi)
        put_aim(aims, slot + _SUN * apart, o, light.sun_dir, float(_MISS), -1, adds, black)
    if light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0:
        if light.lamp_count > 0:
            pick = wp.randf(state)
            u = wp.vec2(wp.randf(state), wp.randf(state))
            aim = aim_at_lamp(scene, light, p, n, ng, g, pick, u)
            adds = wp.cw_mul(back, aim.arrives) * (wp.max(wp.dot(n, aim.toward), 0.0) / wp.pi)
            put_aim(aims, slot + _LAMP * apart, o, aim.ray, aim.free, aim.ignored, adds, black)
        if emitters.count > 0:
            aim = aim_at_emitter(scene, light, emitters, p, n, o, g, wp.randu(state))
            adds = wp.cw_mul(back, aim.arrives)
            put_aim(aims, slot + _EMITTER * apart, o, aim.ray, aim.free, aim.ignored, adds, black)
    if light.sky_aimed != 0:
        toward = toward_sky(light, wp.vec2(wp.randf(state), wp.randf(state)))
        cosine = wp.dot(n, toward)
        if cosine > 0.0 and wp.dot(ng, toward) > 0.0:
            away = light.stream * toward
            share = cosine / wp.pi / (cosine / wp.pi + sky_density(light, away))
            adds = wp.cw_mul(back, cloudy_sky(light, away)) * share
            put_aim(aims, slot + _SKY * apart, o, toward, float(_MISS), -1, adds, black)


@wp.kernel
def pool_walks(
    start: int, pixels: int, first: int, lanes: int, each: int, limit: float, walks: Walks, aims: Aims, paths: Paths,
    diffuse: wp.array(dtype=int),
):  # fmt: skip
    """Adds what paths brought, always in the same order; counts the diffuse ones."""
    i = start + wp.tid()
    apart = lanes * pixels
    for round in range(lanes):
        slot = round * pixels + i
        lane = i * _LANES + (first + round) / each
        arrives = held(walks.total[slot] + aims_of(aims, slot, apart), limit)
        weight = walks.weight[slot]
        if weight >= 0.0:
            shine = arrives * weight
            paths.mirror[lane] = paths.mirror[lane] + wp.vec4(shine[0], shine[1], shine[2], weight)
        else:
            paths.indirect[lane] = paths.indirect[lane] + arrives
            diffuse[lane] = diffuse[lane] + 1


@wp.kernel
def end_walks(start: int, paths: Paths, diffuse: wp.array(dtype=int)):
    """The mean of each lane's diffuse paths."""
    i = start + wp.tid()
    for lane in range(_LANES):
        at = i * _LANES + lane
        paths.indirect[at] = paths.indirect[at] / float(wp.max(diffuse[at], 1))


# Fog ------------------------------------------------------------------------------------------------------------------


@wp.func
def seen_path(view: View, light: Light, hits: Hits, i: int, d: wp.vec3) -> float:
    """Metres of fog before what a pixel sees."""
    if hits.geom[i] >= 0:
        return hits.t[i]
    return sky_path(light, light.stream * d)


@wp.kernel
def aim_shafts(
    scene: Scene, view: View, light: Light, first_row: int, rows: int, first: int, lanes: int, samples: int, seed: int,
    hits: Hits, aims: Aims,
):  # fmt: skip
    """Shadow rays from places in the fog, to the sun and a lamp."""
    where = dealt(wp.tid(), rows, view.width)
    column = where[0]
    row = first_row + where[1]
    if where[2] < 0:
        return
    i = row * view.width + column
    pixels = view.width * view.height
    slot = where[2] * pixels + i
    apart = lanes * pixels
    index = first + where[2]
    k = index % samples
    no_aim(aims, slot + _SUN * apart)
    no_aim(aims, slot + _LAMP * apart)
    d = wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
    path = seen_path(view, light, hits, i, d)
    places = fog_places(light, path, samples)
    if k >= places:
        return
    black = wp.vec3(0.0, 0.0, 0.0)
    state = chance(seed, 1, i * samples * _LANES + index)
    w = sequence((tile_index(column, row) * _LANES + index / samples) * places + k, seed + 19)
    shaft = shaft_at(light, view.pos, d, path, w[0])
    share = shaft.clear / float(places)
    if light.has_sun != 0:
        adds = wp.cw_mul(light.sun, share) * phase(wp.dot(d, light.sun_dir))
        put_aim(aims, slot + _SUN * apart, shaft.p, light.sun_dir, float(_MISS), -1, adds, black)
    if light.lamp_count > 0 and light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0:
        aim = aim_from_fog(scene, light, shaft.p, wp.randf(state))
        adds = wp.cw_mul(aim.arrives, share)
        put_aim(aims, slot + _LAMP * apart, shaft.p, aim.ray, aim.free, aim.ignored, adds, black)


@wp.kernel
def pool_shafts(start: int, pixels: int, first: int, lanes: int, samples: int, aims: Aims, paths: Paths):
    """Adds what fog scatters, always in the same order."""
    i = start + wp.tid()
    apart = lanes * pixels
    for round in range(lanes):
        slot = round * pixels + i
        lane = i * _LANES + (first + round) / samples
        found = aims.adds[slot + _SUN * apart] + aims.adds[slot + _LAMP * apart]
        paths.scatter[lane] = paths.scatter[lane] + found


@wp.kernel
def clear_paths(start: int, paths: Paths, diffuse: wp.array(dtype=int)):
    """Nothing found yet."""
    i = start + wp.tid()
    black = wp.vec3(0.0, 0.0, 0.0)
    for lane in range(_LANES):
        at = i * _LANES + lane
        paths.sun[at] = 0.0
        paths.direct[at] = black
        paths.indirect[at] = black
        paths.mirror[at] = wp.vec4(0.0, 0.0, 0.0, 0.0)
        paths.gloss[at] = black
        paths.scatter[at] = black
        diffuse[at] = 0


__all__ = [
    "AIMS", "Aims", "Walks", "aim_first", "aim_shafts", "aim_walks", "clear_paths", "end_walks", "pool_first",
    "pool_shafts", "pool_walks", "start_walks", "trace_aims", "trace_walks", "visit_walks",
]  # fmt: skip
