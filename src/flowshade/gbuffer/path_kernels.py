# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""Warp kernels of the path-traced reference picture: one source for CPU and CUDA.

Four steps a picture, none of which waits for another device:

    paths           LANES a pixel share its samples: sun rays, one lamp or emitter a sample (next-event estimation),
                    one diffuse or glossy path a sample, and light scattered by fog on the way. Here is what paths do
                    where they come to; `wave_kernels` follows them, or `plain_path_kernels`
    pool_lanes      adds the lanes up, and takes the variance of the mean from their differences
    smooth          an edge-aware a-trous filter (Dammertz and others 2010), run twice, stopped by that variance
                    (Schied and others 2017), on quantities without albedo
    compose_paths   shades: once a pixel, or once a sample where the pixel holds an edge

A surface sends back D E + R S + own light: E is the mean radiance that arrives over the cosine-weighted hemisphere,
S that over the GGX lobe, R the lobe's albedo (Karis's fit with Turquin's 2019 compensation for multiple scattering)
and D = albedo (1 - metallic) (1 - R of a dielectric). S is a ratio of sums over the same samples, so a white furnace
is exact at any number of samples. The sun, lamps and emitters are aimed at, and never enter E or S by chance.
Fog scatters light of the sun (with its shadow) and of lamps; the light that the fog itself holds is the look's.
"""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import (
    Hit,
    Hits,
    Material,
    Scene,
    Surface,
    View,
    camera_ray,
    centre_hit,
    closest_of,
    material_at,
    shapes_around,
    surface_at,
    vec9i,
)
from flowshade.gbuffer.light_kernels import (
    Light,
    around,
    base_reflectance,
    cloudy_sky,
    curve,
    environment_brdf,
    full_sky,
    saturate,
    smooth_sky,
    specular,
    tangent,
    weathered,
)

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

LANES = 4
"""Threads a pixel, which share its samples."""

_LANES = wp.constant(LANES)
_LAMP_REACH = wp.constant(22.0)  # metres, as in light_kernels
_LAMP_GAIN = wp.constant(15.0)
_CANDIDATES = wp.constant(4)  # emitter points drawn for each that is traced
_FORWARD = wp.constant(0.6)  # Henyey and Greenstein's g of fog


@wp.struct
class Emitters:
    """Glowing surfaces too large to be lamps, as triangles in their geoms' frames."""

    corners: wp.array(dtype=wp.vec3)  # three a triangle, counter-clockwise from outside
    geom: wp.array(dtype=int)
    face: wp.array(dtype=int)
    cumulative: wp.array(dtype=float)  # share of the power up to and with each triangle
    density: wp.array(dtype=float)  # probability a square metre
    exact: wp.array(
        dtype=int
    )  # 1 = the triangle is the surface; it shines from both sides and may hide behind its geom
    listed: wp.array(dtype=int)  # by geom: 1 = in this table
    count: int


@wp.struct
class Paths:
    """What paths find; LANES entries a pixel."""

    sun: wp.array(dtype=float)
    direct: wp.array(dtype=wp.vec3)
    indirect: wp.array(dtype=wp.vec3)
    mirror: wp.array(dtype=wp.vec4)  # weighted radiance, weight
    gloss: wp.array(dtype=wp.vec3)
    scatter: wp.array(dtype=wp.vec3)


@wp.struct
class Pooled:
    """The same by pixel; the last component of a vec4 is the variance of its mean luminance."""

    sun: wp.array(dtype=float)
    direct: wp.array(dtype=wp.vec4)
    indirect: wp.array(dtype=wp.vec4)
    mirror: wp.array(dtype=wp.vec4)
    gloss: wp.array(dtype=wp.vec3)
    scatter: wp.array(dtype=wp.vec3)


@wp.struct
class Lobes:
    """Albedo of a surface's two lobes for one direction of view."""

    diffuse: wp.vec3
    glossy: wp.vec3
    gain: wp.vec3  # compensation within `glossy`


# Surfaces -------------------------------------------------------------------------------------------------------------


@wp.func
def luminance(c: wp.vec3) -> float:
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]


@wp.func
def lobes_of(m: Material, facing: float) -> Lobes:
    """Splits what a surface sends back; the lobes of a white one sum to 1."""
    lobes = Lobes()
    f0 = base_reflectance(m)
    single = environment_brdf(wp.vec3(1.0, 1.0, 1.0), m.roughness, facing)[0]
    lost = 1.0 / wp.max(single, 0.05) - 1.0
    lobes.gain = wp.vec3(1.0, 1.0, 1.0) + f0 * lost
    lobes.glossy = wp.cw_mul(environment_brdf(f0, m.roughness, facing), lobes.gain)
    coat = wp.vec3(0.04, 0.04, 0.04)
    clear = environment_brdf(coat, m.roughness, facing)[0] * (1.0 + 0.04 * lost)
    lobes.diffuse = m.albedo * ((1.0 - m.metallic) * (1.0 - saturate(clear)))
    return lobes


@wp.func
def glossy_half(n: wp.vec3, v: wp.vec3, alpha: float, u: wp.vec2) -> wp.vec3:
    """A half vector from the GGX normals visible along v (Heitz 2018, listing 1)."""
    t = tangent(n)
    b = wp.cross(n, t)
    local = wp.normalize(wp.vec3(wp.dot(v, t) * alpha, wp.dot(v, b) * alpha, wp.max(wp.dot(v, n), 1.0e-4)))
    flat = local[0] * local[0] + local[1] * local[1]
    first = wp.vec3(1.0, 0.0, 0.0)
    if flat > 1.0e-12:
        first = wp.vec3(-local[1], local[0], 0.0) / wp.sqrt(flat)
    second = wp.cross(local, first)
    r = wp.sqrt(u[0])
    angle = 2.0 * wp.pi * u[1]
    x = r * wp.cos(angle)
    y = r * wp.sin(angle)
    s = 0.5 * (1.0 + local[2])
    y = (1.0 - s) * wp.sqrt(wp.max(1.0 - x * x, 0.0)) + s * y
    h = first * x + second * y + local * wp.sqrt(wp.max(1.0 - x * x - y * y, 0.0))
    h = wp.normalize(wp.vec3(h[0] * alpha, h[1] * alpha, wp.max(h[2], 1.0e-6)))
    return t * h[0] + b * h[1] + n * h[2]


@wp.func
def shadowing(cosine: float, alpha: float) -> float:
    """Smith's G1 of GGX."""
    c = wp.max(cosine, 1.0e-4)
    a2 = alpha * alpha
    return 2.0 * c / (c + wp.sqrt(a2 + (1.0 - a2) * c * c))


# Light ----------------------------------------------------------------------------------------------------------------


@wp.func
def clearness(light: Light, path: float) -> wp.vec3:
    """What fog and water let through over a distance."""
    return wp.vec3(
        wp.exp(-(light.fog_density + light.absorption[0]) * path),
        wp.exp(-(light.fog_density + light.absorption[1]) * path),
        wp.exp(-(light.fog_density + light.absorption[2]) * path),
    )


@wp.func
def through_air(light: Light, seen: wp.vec3, path: float) -> wp.vec3:
    """Radiance after a stretch of fog that holds the look's own light."""
    clear = clearness(light, path)
    return wp.cw_mul(seen, clear) + wp.cw_mul(light.fog_color, wp.vec3(1.0, 1.0, 1.0) - clear)


@wp.func
def sky_path(light: Light, away: wp.vec3) -> float:
    """Metres of fog that a ray to the sky crosses."""
    return light.fog_height / wp.max(away[2], 1.0e-3)


@wp.func
def lamp_strength(scene: Scene, light: Light, k: int, p: wp.vec3) -> wp.vec3:
    """Irradiance that lamp k throws on a surface at p which faces it; windowed to nothing at the end of its reach."""
    lamp = light.lamp_geom[k]
    reach = wp.length(scene.pos[lamp] + scene.rot[lamp] * scene.geoms[lamp].center - p)
    window = saturate(1.0 - wp.pow(reach / _LAMP_REACH, 4.0))
    fall = _LAMP_GAIN * (0.1 + light.lamp_radius[k]) * window * window / (0.25 + reach * reach)
    return wp.cw_mul(light.lamp_power[k], light.lamps) * fall


@wp.func
def lamp_weight(scene: Scene, light: Light, k: int, p: wp.vec3, n: wp.vec3, g: int) -> float:
    """How much lamp k matters to a surface; 0 from behind and for the lamp itself."""
    lamp = light.lamp_geom[k]
    if lamp == g:
        return 0.0
    away = scene.pos[lamp] + scene.rot[lamp] * scene.geoms[lamp].center - p
    if wp.dot(away, n) <= 0.0:
        return 0.0
    cosine = wp.dot(away, n) / wp.max(wp.length(away), 1.0e-4)
    return luminance(lamp_strength(scene, light, k, p)) * (0.1 + cosine)


# A sky picture -------------------------------------------------------------------------------------------------------


@wp.func
def first_reaching(values: wp.array(dtype=float), start: int, count: int, u: float) -> int:
    """Index, from `start`, of the first of `count` cumulative values that exceeds u."""
    low = int(0)
    high = int(count - 1)
    while low < high:
        middle = (low + high) / 2
        if values[start + middle] <= u:
            low = middle + 1
        else:
            high = middle
    return low


@wp.func
def share_within(values: wp.array(dtype=float), start: int, k: int, u: float) -> float:
    """Where u lies between cumulative values k - 1 and k, [0, 1]."""
    before = float(0.0)
    if k > 0:
        before = values[start + k - 1]
    return saturate((u - before) / wp.max(values[start + k] - before, 1.0e-12))


@wp.func
def toward_sky(light: Light, u: wp.vec2) -> wp.vec3:
    """A world direction drawn by the luminance of the sky picture above its mean."""
    width = 2 * light.sky_height
    row = first_reaching(light.sky_rows, 0, light.sky_height, u[0])
    column = first_reaching(light.sky_columns, row * width, width, u[1])
    y = float(row) + share_within(light.sky_rows, 0, row, u[0])
    x = float(column) + share_within(light.sky_columns, row * width, column, u[1])
    angle = y / float(light.sky_height) * wp.pi
    longitude = (x / float(width) - 0.5 + light.sky_turn) * 2.0 * wp.pi
    flat = wp.sin(angle)
    away = wp.vec3(flat * wp.sin(longitude), flat * wp.cos(longitude), wp.cos(angle))
    return wp.transpose(light.stream) * away


@wp.func
def sky_density(light: Light, away: wp.vec3) -> float:
    """Probability a steradian of `toward_sky` in a stream-frame direction; 0 where nothing is aimed at."""
    if light.sky_aimed == 0:
        return 0.0
    width = 2 * light.sky_height
    turns = wp.atan2(away[0], away[1]) / (2.0 * wp.pi) + 0.5 - light.sky_turn
    column = wp.min(int((turns - wp.floor(turns)) * float(width)), width - 1)
    up = wp.clamp(away[2], -1.0, 1.0)
    row = wp.min(int(wp.acos(up) / wp.pi * float(light.sky_height)), light.sky_height - 1)
    return light.sky_share[row * width + column] / wp.max(wp.sqrt(1.0 - up * up), 1.0e-4)


@wp.func
def sky_by_chance(light: Light, away: wp.vec3, glossy: int, density: float) -> wp.vec3:
    """Sky radiance that a lobe's own ray meets, less the share that aiming accounts for.

    `density` is that of the lobe's rays for each ray that is aimed; 0 = nothing was aimed for this lobe.
    """
    if light.sky_height == 0:
        if glossy != 0:
            return cloudy_sky(light, away)
        return smooth_sky(light, away)
    sky = cloudy_sky(light, away)
    if density > 0.0:
        sky = sky * (density / (density + sky_density(light, away)))
    return sky


@wp.func
def glossy_density(n: wp.vec3, v: wp.vec3, toward: wp.vec3, alpha: float) -> float:
    """Probability a steradian of directions that `glossy_half` mirrors v into."""
    half = wp.normalize(v + toward)
    nh = saturate(wp.dot(n, half))
    a2 = alpha * alpha
    spread = nh * nh * (a2 - 1.0) + 1.0
    d = a2 / (wp.pi * spread * spread)
    nv = wp.max(wp.dot(n, v), 1.0e-4)
    return d * shadowing(nv, alpha) / (4.0 * nv)


@wp.func
def glossy_weight(f0: wp.vec3, n: wp.vec3, v: wp.vec3, toward: wp.vec3, alpha: float) -> float:
    """Luminance of a GGX lobe times the cosine, over `glossy_density`."""
    half = wp.normalize(v + toward)
    fresnel = wp.pow(1.0 - saturate(wp.dot(v, half)), 5.0)
    base = luminance(f0)
    return wp.max((base + (1.0 - base) * fresnel) * shadowing(wp.dot(n, toward), alpha), 1.0e-4)


@wp.struct
class Aim:
    """One light that was chosen, and the ray that must be free for it to arrive."""

    arrives: wp.vec3  # irradiance facing it over the probability of the choice; black = nothing
    toward: wp.vec3
    radius: float  # angular, radians
    ray: wp.vec3  # of unit length
    free: float  # metres that must be free
    ignored: int  # the geom that does not stand in the way of itself


@wp.func
def aim_at_lamp(
    scene: Scene, light: Light, p: wp.vec3, n: wp.vec3, ng: wp.vec3, g: int, pick: float, u: wp.vec2
) -> Aim:
    """One of the lamps, drawn by what it may contribute."""
    aim = Aim()
    aim.arrives = wp.vec3(0.0, 0.0, 0.0)
    aim.toward = n
    aim.radius = float(0.0)
    total = float(0.0)
    for k in range(light.lamp_count):
        total += lamp_weight(scene, light, k, p, n, g)
    if total <= 0.0:
        return aim
    chosen = int(-1)
    share = float(0.0)
    rest = float(pick * total)
    for k in range(light.lamp_count):
        weight = lamp_weight(scene, light, k, p, n, g)
        if weight > 0.0 and rest >= 0.0:
            chosen = k
            share = weight / total
        rest -= weight
    lamp = light.lamp_geom[chosen]
    radius = light.lamp_radius[chosen]
    to_lamp = scene.pos[lamp] + scene.rot[lamp] * scene.geoms[lamp].center - p
    reach = wp.length(to_lamp)
    aim.toward = to_lamp / wp.max(reach, 1.0e-4)
    aim.radius = radius / wp.max(reach, 0.1)
    if wp.dot(ng, aim.toward) <= 0.0:
        return aim
    aim.ray = wp.normalize(to_lamp + around(aim.toward, u, radius))
    aim.free = wp.max(reach - 2.0 * radius, 0.0)
    aim.ignored = lamp
    aim.arrives = lamp_strength(scene, light, chosen, p) / share
    return aim


@wp.func
def emitter_index(emitters: Emitters, u: float) -> int:
    """The triangle at share u of the power, by bisection."""
    low = int(0)
    high = int(emitters.count - 1)
    while low < high:
        middle = (low + high) / 2
        if emitters.cumulative[middle] < u:
            low = middle + 1
        else:
            high = middle
    return low


@wp.func
def emitter_point(scene: Scene, emitters: Emitters, k: int, u: wp.vec2) -> wp.vec3:
    """A point of triangle k, evenly drawn, in the frame of its geom."""
    r = wp.sqrt(u[0])
    a = emitters.corners[3 * k]
    b = emitters.corners[3 * k + 1]
    c = emitters.corners[3 * k + 2]
    return a * (1.0 - r) + b * (r * (1.0 - u[1])) + c * (r * u[1])


@wp.func
def emitter_normal(emitters: Emitters, k: int) -> wp.vec3:
    a = emitters.corners[3 * k]
    return wp.normalize(wp.cross(emitters.corners[3 * k + 1] - a, emitters.corners[3 * k + 2] - a))


@wp.func
def aim_at_emitter(
    scene: Scene, light: Light, emitters: Emitters, p: wp.vec3, n: wp.vec3, origin: wp.vec3, g: int, seed: wp.uint32
) -> Aim:
    """Mean radiance over the hemisphere that glowing surfaces give: a few points, resampled to one (Talbot 2005)."""
    aim = Aim()
    aim.arrives = wp.vec3(0.0, 0.0, 0.0)
    state = seed
    chosen = int(-1)
    local = wp.vec3(0.0, 0.0, 0.0)
    total = float(0.0)
    for _ in range(_CANDIDATES):
        k = emitter_index(emitters, wp.randf(state))
        u = wp.vec2(wp.randf(state), wp.randf(state))
        at = emitter_point(scene, emitters, k, u)
        geom = emitters.geom[k]
        to = scene.rot[geom] * at + scene.pos[geom] - p
        square = wp.max(wp.dot(to, to), 1.0e-4)
        toward = to / wp.sqrt(square)
        facing = -wp.dot(scene.rot[geom] * emitter_normal(emitters, k), toward)
        if emitters.exact[k] != 0:
            facing = wp.abs(facing)
        elif geom == g:
            facing = 0.0
        weight = wp.max(wp.dot(n, toward), 0.0) * wp.max(facing, 0.0) / square / emitters.density[k]
        total += weight
        if weight > 0.0 and wp.randf(state) * total <= weight:
            chosen = k
            local = at
    if chosen < 0:
        return aim
    geom = emitters.geom[chosen]
    to = scene.rot[geom] * local + scene.pos[geom] - origin
    reach = wp.length(to)
    aim.ray = to / wp.max(reach, 1.0e-4)
    aim.free = reach * 0.999 - 1.0e-3
    aim.ignored = wp.where(emitters.exact[chosen] != 0, -1, geom)
    m = material_at(scene, geom, emitters.face[chosen], local, emitter_normal(emitters, chosen), 0.004 * reach, 0.0)
    aim.arrives = wp.cw_mul(m.emission, light.lamps) * (total / float(_CANDIDATES) / wp.pi)
    return aim


@wp.struct
class Vertex:
    """A surface that a path has come to."""

    s: Surface
    lobes: Lobes
    roughness: float
    through: wp.vec3  # what the path lets through until here, fog and all
    adds: wp.vec3  # what fog on the way and the surface's own light give


@wp.struct
class Onward:
    """Where a path goes on."""

    d: wp.vec3
    through: wp.vec3  # black = it ends here
    glossy: int
    density: float


@wp.func
def visit(
    scene: Scene, light: Light, emitters: Emitters, hit: Hit, o: wp.vec3, d: wp.vec3, through: wp.vec3, glossy: int
) -> Vertex:
    """What a path finds where it meets a surface; textures only after a glossy lobe."""
    vertex = Vertex()
    vertex.s = surface_at(scene, hit, o, d)
    m = Material()
    geom = scene.geoms[hit.geom]
    if glossy != 0:
        m = material_at(scene, hit.geom, hit.face, vertex.s.local, vertex.s.ng_local, 0.004 * hit.t, 0.0)
    else:
        m.albedo = geom.mean_rgb
        m.roughness = geom.roughness
        m.metallic = geom.metallic
        m.emission = geom.mean_rgb * geom.emission
    m = weathered(light, m, vertex.s.n, vertex.s.p)
    clear = clearness(light, hit.t)
    vertex.adds = wp.cw_mul(wp.cw_mul(through, light.fog_color), wp.vec3(1.0, 1.0, 1.0) - clear)
    vertex.through = wp.cw_mul(through, clear)
    aimed_at = geom.is_lamp != 0 or emitters.listed[hit.geom] != 0
    if (glossy != 0 and geom.is_lamp == 0) or not aimed_at:
        vertex.adds += wp.cw_mul(vertex.through, wp.cw_mul(m.emission, light.lamps))
    vertex.lobes = lobes_of(m, wp.max(-wp.dot(d, vertex.s.n), 0.0))
    vertex.roughness = m.roughness
    return vertex


@wp.func
def go_on(vertex: Vertex, d: wp.vec3, u: wp.vec2, pick: float, chance: float) -> Onward:
    """One lobe, and fewer ways the less it sends back (Russian roulette)."""
    on = Onward()
    n = vertex.s.n
    lobes = vertex.lobes
    share = luminance(lobes.glossy) / wp.max(luminance(lobes.glossy) + luminance(lobes.diffuse), 1.0e-4)
    through = vertex.through
    if pick < share:
        alpha = wp.max(vertex.roughness * vertex.roughness, 1.0e-3)
        half = glossy_half(n, -d, alpha, u)
        on.d = d - half * (2.0 * wp.dot(d, half))
        through = wp.cw_mul(through, lobes.glossy) / wp.max(share, 1.0e-4)
        on.glossy = 1
        on.density = 0.0
    else:
        on.d = around(n, u, 1.0) + n * wp.sqrt(wp.max(1.0 - u[0], 0.0))
        through = wp.cw_mul(through, lobes.diffuse) / wp.max(1.0 - share, 1.0e-4)
        on.glossy = 0
        on.density = wp.max(wp.dot(on.d, n), 0.0) / wp.pi
    keep = wp.clamp(wp.max(wp.max(through[0], through[1]), through[2]), 0.0, 1.0)
    on.through = wp.vec3(0.0, 0.0, 0.0)
    if wp.dot(on.d, vertex.s.ng) > 0.0 and chance < keep:
        on.through = through / keep
    return on


@wp.func
def held(total: wp.vec3, limit: float) -> wp.vec3:
    """Radiance whose largest channel is at most `limit`."""
    return total * wp.min(1.0, limit / wp.max(wp.max(wp.max(total[0], total[1]), total[2]), 1.0e-6))


@wp.func
def phase(cosine: float) -> float:
    """Henyey and Greenstein 1941, a steradian."""
    g = _FORWARD
    base = 1.0 + g * g - 2.0 * g * cosine
    return (1.0 - g * g) / (4.0 * wp.pi * base * wp.sqrt(base))


@wp.struct
class Shaft:
    """A place of a view ray that fog turns light from towards the eye."""

    p: wp.vec3
    clear: wp.vec3  # share of it that arrives at the eye


@wp.func
def shaft_at(light: Light, o: wp.vec3, d: wp.vec3, path: float, u: float) -> Shaft:
    """A place drawn by where fog scatters."""
    shaft = Shaft()
    opacity = 1.0 - wp.exp(-light.fog_density * path)
    t = -wp.log(1.0 - u * opacity) / light.fog_density
    shaft.p = o + d * t
    shaft.clear = opacity * wp.vec3(
        wp.exp(-light.absorption[0] * t), wp.exp(-light.absorption[1] * t), wp.exp(-light.absorption[2] * t)
    )
    return shaft


@wp.func
def aim_from_fog(scene: Scene, light: Light, p: wp.vec3, u: float) -> Aim:
    """One of the lamps, each as likely; what it scatters a steradian."""
    aim = Aim()
    aim.arrives = wp.vec3(0.0, 0.0, 0.0)
    k = wp.min(int(u * float(light.lamp_count)), light.lamp_count - 1)
    lamp = light.lamp_geom[k]
    to_lamp = scene.pos[lamp] + scene.rot[lamp] * scene.geoms[lamp].center - p
    reach = wp.length(to_lamp)
    if reach < _LAMP_REACH:
        aim.ray = to_lamp / wp.max(reach, 1.0e-4)
        aim.free = wp.max(reach - 2.0 * light.lamp_radius[k], 0.0)
        aim.ignored = lamp
        aim.arrives = lamp_strength(scene, light, k, p) * (float(light.lamp_count) / (4.0 * wp.pi))
    return aim


@wp.func
def fog_places(light: Light, path: float, samples: int) -> int:
    """At how many places of a view ray a lane looks for scattered light: the more fog, the more."""
    opacity = 1.0 - wp.exp(-light.fog_density * path)
    if opacity <= 0.004:
        return 0
    return wp.where(opacity > 0.1, samples, wp.max(samples / 4, 1))


# Tracing --------------------------------------------------------------------------------------------------------------


@wp.func
def glossy_paths(m: Material, samples: int) -> int:
    """How many of a lane's samples follow the glossy lobe: more where it matters."""
    share = wp.max(m.metallic, 1.0 - 3.0 * m.roughness)
    return wp.clamp(int(share * float(samples) + 0.5), 1, wp.max(samples - 1, 1))


@wp.struct
class FirstRay:
    """Where a path leaves the surface that is seen."""

    toward: wp.vec3
    weight: float  # in its lobe; 0 for a diffuse one
    density: float  # probability a steradian


@wp.func
def first_ray(n: wp.vec3, ng: wp.vec3, d: wp.vec3, f0: wp.vec3, alpha: float, along_gloss: int, u: wp.vec2) -> FirstRay:
    """A ray along one lobe of a surface seen along d."""
    first = FirstRay()
    if along_gloss != 0:
        half = glossy_half(n, -d, alpha, u)
        toward = d - half * (2.0 * wp.dot(d, half))
        if wp.dot(toward, ng) <= 0.0:
            toward = d + ng * (2.0 * wp.max(-wp.dot(d, ng), 0.0))
        first.toward = toward
        first.weight = glossy_weight(f0, n, -d, toward, alpha)
        first.density = glossy_density(n, -d, toward, alpha)
        return first
    toward = around(n, u, 1.0) + n * wp.sqrt(wp.max(1.0 - u[0], 0.0))
    if wp.dot(toward, ng) <= 0.0:  # below the true surface: mirrored back above it
        toward = toward - ng * (2.0 * wp.dot(toward, ng))
    first.toward = toward
    first.weight = 0.0
    first.density = wp.max(wp.dot(toward, n), 0.0) / wp.pi
    return first


# Filtering ------------------------------------------------------------------------------------------------------------


@wp.func
def with_variance(values: wp.array(dtype=wp.vec3), i: int) -> wp.vec4:
    """Mean over pixel i's lanes, and the variance of its luminance."""
    total = wp.vec3(0.0, 0.0, 0.0)
    square = float(0.0)
    for lane in range(_LANES):
        value = values[i * _LANES + lane]
        total += value
        square += luminance(value) * luminance(value)
    mean = total / float(_LANES)
    spread = wp.max(square / float(_LANES) - luminance(mean) * luminance(mean), 0.0)
    return wp.vec4(mean[0], mean[1], mean[2], spread / float(_LANES - 1))


@wp.func
def ratio_with_variance(values: wp.array(dtype=wp.vec4), i: int) -> wp.vec4:
    """The same of weighted values: sum over sum."""
    total = wp.vec4(0.0, 0.0, 0.0, 0.0)
    for lane in range(_LANES):
        total += values[i * _LANES + lane]
    if total[3] <= 0.0:
        return wp.vec4(0.0, 0.0, 0.0, 0.0)
    mean = total / total[3]
    middle = luminance(wp.vec3(mean[0], mean[1], mean[2]))
    square = float(0.0)
    for lane in range(_LANES):
        value = values[i * _LANES + lane]
        off = luminance(wp.vec3(value[0], value[1], value[2])) - middle * value[3]
        square += off * off
    return wp.vec4(mean[0], mean[1], mean[2], square / (total[3] * total[3]) * float(_LANES) / float(_LANES - 1))


@wp.kernel
def pool_lanes(start: int, paths: Paths, pooled: Pooled):
    """Lanes to pixels."""
    i = start + wp.tid()
    pooled.direct[i] = with_variance(paths.direct, i)
    pooled.indirect[i] = with_variance(paths.indirect, i)
    pooled.mirror[i] = ratio_with_variance(paths.mirror, i)
    sun = float(0.0)
    gloss = wp.vec3(0.0, 0.0, 0.0)
    scatter = wp.vec3(0.0, 0.0, 0.0)
    for lane in range(_LANES):
        sun += paths.sun[i * _LANES + lane]
        gloss += paths.gloss[i * _LANES + lane]
        scatter += paths.scatter[i * _LANES + lane]
    pooled.sun[i] = sun / float(_LANES)
    pooled.gloss[i] = gloss / float(_LANES)
    pooled.scatter[i] = scatter / float(_LANES)


@wp.func
def likeness(a: wp.vec4, b: wp.vec4, noise: float) -> float:
    """Weight of a neighbour by its light: 1 while the difference can be noise."""
    off = wp.abs(luminance(wp.vec3(a[0], a[1], a[2])) - luminance(wp.vec3(b[0], b[1], b[2])))
    return wp.exp(-off / (3.0 * wp.sqrt(wp.max(noise, 0.0)) + 0.02 * luminance(wp.vec3(a[0], a[1], a[2])) + 1.0e-4))


@wp.func
def added(total: wp.vec4, value: wp.vec4, weight: float) -> wp.vec4:
    """Adds a value to a sum, and its variance with the weight's square."""
    return wp.vec4(
        total[0] + value[0] * weight,
        total[1] + value[1] * weight,
        total[2] + value[2] * weight,
        total[3] + value[3] * weight * weight,
    )


@wp.func
def divided(total: wp.vec4, weight: float) -> wp.vec4:
    return wp.vec4(total[0] / weight, total[1] / weight, total[2] / weight, total[3] / (weight * weight))


@wp.kernel
def smooth(
    view: View, light: Light, start: int, stride: int, hits: Hits, roughness: wp.array(dtype=float), before: Pooled,
    after: Pooled,
):  # fmt: skip
    """One pass of the a-trous filter: 5x5 taps `stride` pixels apart, over one smooth surface."""
    i = start + wp.tid()
    x = i % view.width
    y = i / view.width
    g = hits.geom[i]
    p = hits.point[i]
    n = hits.normal[i]
    direct = before.direct[i]
    indirect = before.indirect[i]
    mirror = before.mirror[i]
    zero = wp.vec4(0.0, 0.0, 0.0, 0.0)
    sums = wp.vec3(0.0, 0.0, 0.0)  # weights of direct, indirect and mirror
    sum_direct = zero
    sum_indirect = zero
    sum_mirror = zero
    scatter = wp.vec3(0.0, 0.0, 0.0)
    scatter_weight = float(0.0)
    m = Material()
    m.roughness = roughness[i]
    blur = saturate((weathered(light, m, n, p).roughness - 0.05) * 5.0)  # wet ground reflects sharply
    reach = wp.where(g >= 0, hits.t[i], 1.0e3)
    tolerance = 0.01 + 2.0 * float(stride) * reach / view.fx
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            xx = x + dx * stride
            yy = y + dy * stride
            if xx >= 0 and yy >= 0 and xx < view.width and yy < view.height:
                j = yy * view.width + xx
                tent = (3.0 - float(wp.abs(dx))) * (3.0 - float(wp.abs(dy))) / 9.0
                there = wp.where(hits.geom[j] >= 0, hits.t[j], 1.0e3)
                close = tent * wp.exp(-wp.abs(there - reach) / (0.1 * wp.min(there, reach) + 0.5))
                scatter += before.scatter[j] * close
                scatter_weight += close
                if g >= 0 and hits.geom[j] >= 0:
                    off = wp.abs(wp.dot(hits.point[j] - p, n))
                    turn = wp.dot(hits.normal[j], n)
                    if off < tolerance and turn > 0.8:
                        same = tent * wp.pow(turn, 16.0)
                        noise = direct[3] + before.direct[j][3]
                        wd = same * likeness(direct, before.direct[j], noise)
                        noise = indirect[3] + before.indirect[j][3]
                        wi = same * likeness(indirect, before.indirect[j], noise)
                        noise = mirror[3] + before.mirror[j][3]
                        wm = same * likeness(mirror, before.mirror[j], noise)
                        if dx != 0 or dy != 0:
                            wm = wm * blur
                        sum_direct = added(sum_direct, before.direct[j], wd)
                        sum_indirect = added(sum_indirect, before.indirect[j], wi)
                        sum_mirror = added(sum_mirror, before.mirror[j], wm)
                        sums += wp.vec3(wd, wi, wm)
    after.scatter[i] = scatter / scatter_weight
    after.sun[i] = before.sun[i]
    after.gloss[i] = before.gloss[i]
    if g >= 0:
        after.direct[i] = divided(sum_direct, sums[0])
        after.indirect[i] = divided(sum_indirect, sums[1])
        after.mirror[i] = divided(sum_mirror, sums[2])
    else:
        after.direct[i] = zero
        after.indirect[i] = zero
        after.mirror[i] = zero


# Composition ----------------------------------------------------------------------------------------------------------


@wp.struct
class Arriving:
    """Light at one point, from the pixels around it that see the same surface."""

    sun: float
    diffuse: wp.vec3
    mirror: wp.vec3
    gloss: wp.vec3


@wp.func
def rgb_of(value: wp.vec4) -> wp.vec3:
    return wp.vec3(value[0], value[1], value[2])


@wp.func
def nearby(view: View, hits: Hits, pooled: Pooled, i: int, p: wp.vec3, n: wp.vec3, tolerance: float) -> Arriving:
    """Averages over 3x3 pixels whose surfaces continue the plane (p, n); whatever is around where none does.

    Sun rays are dealt over 2x2 pixels, which these weights count equally. All else keeps to the centre if that fits.
    """
    x = i % view.width
    y = i / view.width
    black = wp.vec3(0.0, 0.0, 0.0)
    found = Arriving()
    sun = float(0.0)
    diffuse = black
    mirror = black
    gloss = black
    weight = float(0.0)
    sun_weight = float(0.0)
    for strict in range(2):
        if weight == 0.0:
            for dy in range(-1, 2):
                for dx in range(-1, 2):
                    xx = x + dx
                    yy = y + dy
                    if xx >= 0 and yy >= 0 and xx < view.width and yy < view.height:
                        j = yy * view.width + xx
                        fits = hits.geom[j] >= 0
                        if strict == 0 and fits:
                            off = wp.abs(wp.dot(hits.point[j] - p, n))
                            fits = off < tolerance and wp.dot(hits.normal[j], n) > 0.9
                        if fits:
                            near = wp.where(dx == 0, 1.0, 0.5) * wp.where(dy == 0, 1.0, 0.5)
                            sun += pooled.sun[j] * near
                            sun_weight += near
                            part = wp.where(dx == 0 and dy == 0, 1.0, 0.02)
                            diffuse += (rgb_of(pooled.direct[j]) + rgb_of(pooled.indirect[j])) * part
                            mirror += rgb_of(pooled.mirror[j]) * part
                            gloss += pooled.gloss[j] * part
                            weight += part
    if weight > 0.0:
        found.sun = sun / sun_weight
        found.diffuse = diffuse / weight
        found.mirror = mirror / weight
        found.gloss = gloss / weight
    return found


@wp.func
def leaving(light: Light, m: Material, found: Arriving, n: wp.vec3, d: wp.vec3) -> wp.vec3:
    """What a surface sends back along d."""
    v = -d
    lobes = lobes_of(m, wp.max(wp.dot(n, v), 0.0))
    cosine = wp.max(wp.dot(n, light.sun_dir), 0.0)
    out = wp.cw_mul(lobes.diffuse, light.sun * (found.sun * cosine / wp.pi) + found.diffuse)
    out += wp.cw_mul(lobes.glossy, found.mirror)
    if found.sun > 0.0 and cosine > 0.0:
        f0 = base_reflectance(m)
        shine = wp.cw_mul(specular(f0, m.roughness, n, v, light.sun_dir, light.sun_radius), lobes.gain)
        out += wp.cw_mul(light.sun, shine) * found.sun
    return out + wp.cw_mul(found.gloss, lobes.gain) + wp.cw_mul(m.emission, light.lamps)


@wp.kernel
def compose_paths(
    scene: Scene,
    view: View,
    light: Light,
    start: int,
    display: int,
    offsets: wp.array(dtype=wp.vec2),
    hits: Hits,
    albedo: wp.array(dtype=float),
    roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float),
    emission: wp.array(dtype=float),
    pooled: Pooled,
    rgb: wp.array(dtype=float),
):
    """The picture, one shade a pixel and one a sample at edges: display sRGB, or linear radiance if not `display`."""
    i = start + wp.tid()
    count = view.width * view.height
    x = float(i % view.width) + 0.5
    y = float(i / view.width) + 0.5
    edge = hits.edge[i] != 0
    samples = wp.where(edge, offsets.shape[0], 1)
    total = wp.vec3(0.0, 0.0, 0.0)
    candidates = vec9i()
    if edge:
        candidates = shapes_around(view, hits, i)
    for k in range(samples):
        d = wp.normalize(camera_ray(view, x, y))
        hit = centre_hit(hits, i)
        p = hits.point[i]
        n = hits.normal[i]
        m = Material()
        if edge:
            along = camera_ray(view, x + offsets[k][0], y + offsets[k][1])
            d = wp.normalize(along)
            hit = closest_of(scene.solids, candidates, view.pos, d)
            if hit.geom >= 0:
                s = surface_at(scene, hit, view.pos, d)
                p = s.p
                n = s.n
                facing = wp.max(-wp.dot(d, s.ng), 0.05)
                width = hit.t / (view.fx * wp.length(along)) / wp.sqrt(facing * float(samples))
                m = material_at(scene, hit.geom, hit.face, s.local, s.ng_local, width, 0.0)
        else:
            m.albedo = wp.vec3(albedo[i], albedo[count + i], albedo[2 * count + i])
            m.emission = wp.vec3(emission[i], emission[count + i], emission[2 * count + i])
            m.roughness = roughness[i]
            m.metallic = metallic[i]
        away = light.stream * d
        seen = wp.vec3(0.0, 0.0, 0.0)
        path = float(0.0)
        if hit.geom >= 0:
            m = weathered(light, m, n, p)
            tolerance = 0.01 + 3.0 * hit.t / view.fx
            seen = leaving(light, m, nearby(view, hits, pooled, i, p, n, tolerance), n, d)
            path = hit.t
        else:
            seen = full_sky(light, away)
            path = sky_path(light, away)
        seen = (through_air(light, seen, path) + pooled.scatter[i]) * light.exposure
        if display != 0:
            seen = wp.vec3(curve(seen[0]), curve(seen[1]), curve(seen[2]))
        total += seen
    for c in range(3):
        rgb[c * count + i] = total[c] / float(samples)


__all__ = ["LANES", "Emitters", "Paths", "Pooled", "compose_paths", "pool_lanes", "smooth"]
