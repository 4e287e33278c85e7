# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""Warp kernels of the reference picture: the formulas of `shade.py`, with rays.

Rays first, from pixel centres: how much of the sun is visible, what lamps give, and what corrects the smooth sky, since
it blocks it and bounces light off. The kernels that trace them are those of `ray_kernels`, and, as the plain version,
those of `plain_kernels`; both take their rays and what these bring back from here. The sample pattern is a
low-discrepancy sequence dealt out over a 4x4 tile of pixels, so that averaging a tile is averaging 16 times the
samples; threads are dealt out such that neighbours take the same place of different tiles, whose rays are nearly
parallel (`dealt`). `compose` and `compose_edges` do that averaging with weights that are exact over the tile and zero
across edges, on quantities without albedo, then shade: once per pixel, or once per sample where the pixel holds an
edge. Randomness is a function of the pixel and the seed alone: a still scene is a still picture.
"""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import (
    Hit,
    Hits,
    Material,
    Scene,
    View,
    camera_ray,
    closest_of,
    material_at,
    occluded,
    shapes_around,
    surface_at,
)

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

mat93 = wp.types.matrix(shape=(9, 3), dtype=wp.float32)

_MISS = wp.constant(1.0e30)
_LAMP_REACH = wp.constant(22.0)  # metres
_LAMP_GAIN = wp.constant(15.0)  # emission of 1 reads as a dim bulb, 4 as a street lamp
_NOISE = wp.constant(256)
_STARS = wp.constant(768)
_SOFT_ROWS = wp.constant(16)  # of the blurred sky picture


@wp.struct
class Light:
    """A `Look` in world axes; see there for units."""

    stream: wp.mat33  # world to stream frame
    sun_dir: wp.vec3
    sun_stream: wp.vec3  # the same in the stream frame
    sun: wp.vec3
    sun_radius: float  # radians
    disc: wp.vec3
    disc_radius: float
    zenith: wp.vec3
    horizon: wp.vec3
    ground: wp.vec3
    halo: wp.vec3
    glow_left: wp.vec3
    glow_right: wp.vec3
    cloud: wp.vec3
    cloudiness: float
    stars: float
    fog_density: float
    fog_height: float
    fog_color: wp.vec3
    absorption: wp.vec3
    snow: float
    wetness: float
    puddles: float
    autumn: float
    lamps: wp.vec3  # intensity times tint
    exposure: float
    harmonics: mat93
    has_sun: int
    noise: wp.array(dtype=float)
    star_map: wp.array(dtype=float)
    lamp_geom: wp.array(dtype=int)
    lamp_radius: wp.array(dtype=float)
    lamp_power: wp.array(dtype=wp.vec3)
    lamp_count: int
    sky: wp.array(dtype=wp.vec3)  # an equirectangular picture instead of the colours above, row by row
    soft_sky: wp.array(dtype=wp.vec3)  # the same, blurred
    sky_rows: wp.array(dtype=float)  # what aims at it: see `environment.Environment`
    sky_columns: wp.array(dtype=float)
    sky_share: wp.array(dtype=float)
    sky_height: int  # 0 = there is none
    sky_aimed: int  # 1 = some of it is aimed at
    sky_turn: float  # in turns, to the right
    sky_peak: float  # radiance above which light belongs to the sun of the direct reference


@wp.struct
class Lit:
    """What rays find for `compose`, row by row."""

    origin: wp.array(dtype=wp.vec3)  # where rays start
    ng: wp.array(dtype=wp.vec3)  # geometric normal there, towards the eye
    roughness: wp.array(dtype=float)  # after the weather
    sun: wp.array(dtype=float)  # visible share of the sun
    indirect: wp.array(dtype=wp.vec3)  # lamps and bounce light less occluded sky, as mean radiance
    mirror: wp.array(dtype=wp.vec3)  # reflected radiance less that of the sky
    gloss: wp.array(dtype=wp.vec3)  # specular radiance of lamps


# The sky --------------------------------------------------------------------------------------------------------------


@wp.func
def saturate(x: float) -> float:
    """x held to [0, 1]."""
    return wp.clamp(x, 0.0, 1.0)


@wp.func
def ease(low: float, high: float, x: float) -> float:
    """Smoothstep."""
    t = saturate((x - low) / (high - low))
    return t * t * (3.0 - 2.0 * t)


@wp.func
def mix(a: wp.vec3, b: wp.vec3, t: float) -> wp.vec3:
    return a + (b - a) * t


@wp.func
def square_map(image: wp.array(dtype=float), size: int, u: float, v: float) -> float:
    """A square picture at (u, v) in tiles, bilinear, wrapping."""
    x = (u - wp.floor(u)) * float(size) - 0.5
    y = (v - wp.floor(v)) * float(size) - 0.5
    x0 = int(wp.floor(x))
    y0 = int(wp.floor(y))
    fx = x - float(x0)
    fy = y - float(y0)
    xa = (x0 + size) % size
    xb = (x0 + 1) % size
    ya = ((y0 + size) % size) * size
    yb = ((y0 + 1) % size) * size
    top = image[ya + xa] * (1.0 - fx) + image[ya + xb] * fx
    bottom = image[yb + xa] * (1.0 - fx) + image[yb + xb] * fx
    return top * (1.0 - fy) + bottom * fy


@wp.func
def sky_picture(picture: wp.array(dtype=wp.vec3), height: int, turn: float, d: wp.vec3) -> wp.vec3:
    """An equirectangular picture in a stream-frame direction, bilinear."""
    width = 2 * height
    x = (wp.atan2(d[0], d[1]) / (2.0 * wp.pi) + 0.5 - turn) * float(width) - 0.5
    y = wp.acos(wp.clamp(d[2], -1.0, 1.0)) / wp.pi * float(height) - 0.5
    x0 = wp.floor(x)
    y0 = wp.floor(y)
    left = (int(x0) + 4 * width) % width
    right = (left + 1) % width
    top = wp.clamp(int(y0), 0, height - 1) * width
    bottom = wp.clamp(int(y0) + 1, 0, height - 1) * width
    upper = mix(picture[top + left], picture[top + right], x - x0)
    lower = mix(picture[bottom + left], picture[bottom + right], x - x0)
    return mix(upper, lower, y - y0)


@wp.func
def smooth_sky(light: Light, d: wp.vec3) -> wp.vec3:
    """Sky radiance in a stream-frame direction, without disc, clouds and stars."""
    if light.sky_height > 0:
        return sky_picture(light.soft_sky, _SOFT_ROWS, light.sky_turn, d)
    up = d[2]
    sky = mix(light.horizon, light.zenith, wp.sqrt(saturate(up)))
    sky = mix(sky, light.ground, ease(0.0, 0.1, -up))
    toward = saturate(wp.dot(light.sun_stream, d))
    above = ease(-0.1, 0.02, up)
    sky += light.halo * ((0.7 * wp.pow(toward, 32.0) + 0.3 * wp.pow(toward, 5.0)) * above)
    low = wp.exp(-5.0 * wp.max(up, 0.0)) * above
    left = wp.max(-d[0], 0.0)
    right = wp.max(d[0], 0.0)
    sky += light.glow_left * (left * left * low) + light.glow_right * (right * right * low)
    return sky


@wp.func
def cloudy_sky(light: Light, d: wp.vec3) -> wp.vec3:
    """`smooth_sky` with clouds."""
    if light.sky_height > 0:
        return sky_picture(light.sky, light.sky_height, light.sky_turn, d)
    sky = smooth_sky(light, d)
    if light.cloudiness > 0.0:
        up = wp.max(d[2], 0.0)
        noise = square_map(light.noise, _NOISE, d[0] / (up + 0.15) * 0.11, d[1] / (up + 0.15) * 0.11)
        shown = ease(0.02, 0.22, d[2])
        if light.cloudiness >= 1.0:
            sky = sky * (1.0 + 0.35 * (noise - 0.5) * shown)
        else:
            cover = ease(1.0 - light.cloudiness, 1.25 - light.cloudiness, noise) * shown
            sky = mix(sky, light.cloud, 0.85 * cover)
    return sky


@wp.func
def reflected_sky(light: Light, d: wp.vec3, roughness: float) -> wp.vec3:
    """`cloudy_sky`; a picture's is blurred for rough surfaces."""
    sky = cloudy_sky(light, d)
    if light.sky_height > 0:
        sky = wp.min(sky, wp.vec3(light.sky_peak, light.sky_peak, light.sky_peak))  # the rest is the sun's
        sky = mix(sky, smooth_sky(light, d), ease(0.05, 0.35, roughness))
    return sky


@wp.func
def full_sky(light: Light, d: wp.vec3) -> wp.vec3:
    """`cloudy_sky` with stars and the disc of the sun or moon."""
    sky = cloudy_sky(light, d)
    if light.stars > 0.0:
        reach = 1.0 + wp.max(d[2], 0.0)
        star = square_map(light.star_map, _STARS, 0.5 + 0.5 * d[0] / reach, 0.5 + 0.5 * d[1] / reach)
        star = light.stars * star * ease(0.0, 0.15, d[2])
        sky += wp.vec3(star, star, star)
    if light.has_sun != 0:
        toward = wp.dot(light.sun_stream, d)
        sky += light.disc * ease(wp.cos(light.disc_radius * 1.25), wp.cos(light.disc_radius * 0.75), toward)
    return sky


@wp.func
def fog_in(light: Light, d: wp.vec3) -> wp.vec3:
    toward = saturate(wp.dot(light.sun_stream, d))
    return light.fog_color + light.halo * (0.5 * wp.pow(toward, 8.0))


@wp.func
def ambient(light: Light, n: wp.vec3) -> wp.vec3:
    """Mean sky radiance over the cosine-weighted hemisphere around a stream-frame normal."""
    x = n[0]
    y = n[1]
    z = n[2]
    total = wp.vec3(0.0, 0.0, 0.0)
    for c in range(3):
        total[c] = wp.max(
            0.282095 * light.harmonics[0, c]
            + 0.488603 * (y * light.harmonics[1, c] + z * light.harmonics[2, c] + x * light.harmonics[3, c])
            + 1.092548 * (x * y * light.harmonics[4, c] + y * z * light.harmonics[5, c] + x * z * light.harmonics[7, c])
            + 0.315392 * (3.0 * z * z - 1.0) * light.harmonics[6, c]
            + 0.546274 * (x * x - y * y) * light.harmonics[8, c],
            0.0,
        )
    return total


# Surfaces -------------------------------------------------------------------------------------------------------------


@wp.func
def weathered(light: Light, m: Material, n: wp.vec3, p: wp.vec3) -> Material:
    """Autumn, wetness, puddles and snow, in this order."""
    out = Material()
    albedo = m.albedo
    roughness = m.roughness
    metallic = m.metallic
    if light.autumn > 0.0:
        r = albedo[0]
        g = albedo[1]
        b = albedo[2]
        green = ease(0.05, 0.35, (g - wp.max(r, b)) / wp.max(g, 1.0e-4)) * light.autumn
        lum = r * 0.3 + g * 0.6 + b * 0.1
        albedo = mix(albedo, wp.vec3(saturate(lum * 2.2), saturate(lum * 0.85), saturate(lum * 0.12)), green)
    if light.wetness > 0.0:
        wet = light.wetness * (0.35 + 0.65 * ease(0.3, 0.8, n[2]))
        albedo = albedo * (1.0 - 0.5 * wet * (1.0 - metallic))
        roughness = wp.lerp(roughness, roughness * 0.2 + 0.04, wet)
    if light.puddles > 0.0:
        noise = square_map(light.noise, _NOISE, p[0] * 0.11, p[1] * 0.11)
        dry = 1.0 - 0.45 * light.puddles
        pool = ease(dry, dry + 0.06, noise) * ease(0.97, 0.995, n[2])
        albedo = albedo * (1.0 - 0.55 * pool)
        roughness = wp.lerp(roughness, 0.02, pool)
        metallic = metallic * (1.0 - pool)
    if light.snow > 0.0:
        noise = square_map(light.noise, _NOISE, p[0] * 0.06, p[1] * 0.06)
        cover = wp.min(light.snow * (0.8 + 0.4 * noise), 1.0) * ease(0.45, 0.75, n[2] + 0.2 * (noise - 0.5))
        albedo = mix(albedo, wp.vec3(0.86, 0.88, 0.92), cover)
        roughness = wp.lerp(roughness, 0.75, cover)
        metallic = metallic * (1.0 - cover)
    out.albedo = albedo
    out.roughness = roughness
    out.metallic = metallic
    out.emission = m.emission
    return out


@wp.func
def base_reflectance(m: Material) -> wp.vec3:
    return mix(wp.vec3(0.04, 0.04, 0.04), m.albedo, m.metallic)


@wp.func
def environment_brdf(f0: wp.vec3, roughness: float, facing: float) -> wp.vec3:
    """Karis's fit of the environment BRDF."""
    x = 1.0 - roughness
    y = 0.0425 - 0.0275 * roughness
    z = 1.04 - 0.572 * roughness
    w = 0.022 * roughness - 0.04
    a = wp.min(x * x, wp.exp(-6.4324 * facing)) * x + y
    b = 1.04 * a + w
    return f0 * (z - 1.04 * a) + wp.vec3(b, b, b)


@wp.func
def specular(f0: wp.vec3, roughness: float, n: wp.vec3, v: wp.vec3, toward: wp.vec3, radius: float) -> wp.vec3:
    """GGX times n.l for unit irradiance from a light at `toward` of angular radius `radius`."""
    rough = wp.max(roughness, 0.08)
    alpha = wp.min(rough * rough + 0.5 * radius, 1.0)
    half = wp.normalize(toward + v)
    nl = wp.max(wp.dot(n, toward), 0.0)
    nv = wp.max(wp.dot(n, v), 1.0e-3)
    nh = saturate(wp.dot(n, half))
    vh = saturate(wp.dot(v, half))
    a2 = alpha * alpha
    spread = nh * nh * (a2 - 1.0) + 1.0
    d = a2 / (wp.pi * spread * spread)
    g = 0.5 / wp.max(nl * wp.sqrt(nv * nv * (1.0 - a2) + a2) + nv * wp.sqrt(nl * nl * (1.0 - a2) + a2), 1.0e-4)
    f = f0 + (wp.vec3(1.0, 1.0, 1.0) - f0) * wp.pow(1.0 - vh, 5.0)
    return f * wp.min(d * g * nl, 30.0)


# Rays -----------------------------------------------------------------------------------------------------------------


@wp.func
def sequence(k: int, seed: int) -> wp.vec2:
    """Point k of the R2 sequence (Roberts 2018), shifted by the seed."""
    x = 0.5 + 0.7548776662466927 * float(k) + 0.3819660112501051 * float(seed)
    y = 0.5 + 0.5698402909980532 * float(k) + 0.7236067977499789 * float(seed)
    return wp.vec2(x - wp.floor(x), y - wp.floor(y))


@wp.func
def tile_index(x: int, y: int) -> int:
    """A pixel's place in a 4x4 ordered dither: neighbours get far-apart parts of the sequence."""
    a = (x ^ y) & 1
    b = y & 1
    c = ((x ^ y) >> 1) & 1
    d = (y >> 1) & 1
    return a * 8 + b * 4 + c * 2 + d


@wp.func
def tangent(n: wp.vec3) -> wp.vec3:
    """A unit vector across n (Duff and others 2017)."""
    s = wp.where(n[2] >= 0.0, 1.0, -1.0)
    a = -1.0 / (s + n[2])
    return wp.vec3(1.0 + s * n[0] * n[0] * a, s * n[0] * n[1] * a, -s * n[0])


@wp.func
def around(n: wp.vec3, u: wp.vec2, spread: float) -> wp.vec3:
    """Offset in the disc of radius `spread` across n."""
    t = tangent(n)
    b = wp.cross(n, t)
    r = spread * wp.sqrt(u[0])
    angle = 2.0 * wp.pi * u[1]
    return t * (r * wp.cos(angle)) + b * (r * wp.sin(angle))


@wp.func
def lift(p: wp.vec3, ng: wp.vec3, distance: float) -> wp.vec3:
    """A point just off a surface seen from `distance` away."""
    return p + ng * (1.0e-3 + 1.0e-4 * distance)


@wp.struct
class Bounce:
    """What a secondary ray brings back from a surface, before its shadow ray."""

    own: wp.vec3  # radiance but for the sun's
    sun: wp.vec3  # what the sun adds where it is seen from `start`; black = no ray is needed
    start: wp.vec3


@wp.func
def bounced(scene: Scene, light: Light, hit: Hit, o: wp.vec3, d: wp.vec3, textured: int) -> Bounce:
    """A hit under the sun and a sky that is taken as unoccluded, with its own light."""
    s = surface_at(scene, hit, o, d)
    m = Material()
    geom = scene.geoms[hit.geom]
    if textured != 0:
        m = material_at(scene, hit.geom, hit.face, s.local, s.ng_local, 0.004 * hit.t, 0.0)
    else:
        m.albedo = geom.mean_rgb
        m.roughness = geom.roughness
        m.metallic = geom.metallic
        m.emission = geom.mean_rgb * geom.emission
    m = weathered(light, m, s.n, s.p)
    bounce = Bounce()
    bounce.own = wp.cw_mul(m.albedo, ambient(light, light.stream * s.n) * 0.7)
    if geom.is_lamp == 0:  # lamps are sampled by themselves
        bounce.own += wp.cw_mul(m.emission, light.lamps)
    bounce.sun = wp.vec3(0.0, 0.0, 0.0)
    cosine = wp.dot(s.n, light.sun_dir)
    if light.has_sun != 0 and cosine > 0.0:
        bounce.sun = wp.cw_mul(m.albedo, light.sun) * (cosine / wp.pi)
    bounce.start = lift(s.p, s.ng, hit.t)
    return bounce


@wp.func
def sky_ray(n: wp.vec3, index: int, seed: int) -> wp.vec3:
    """A direction drawn by the cosine around n."""
    u = sequence(index, seed)
    return around(n, u, 1.0) + n * wp.sqrt(wp.max(1.0 - u[0], 0.0))


@wp.func
def mirror_ray(d: wp.vec3, n: wp.vec3, ng: wp.vec3, roughness: float, index: int, seed: int) -> wp.vec3:
    """The mirror direction of d, spread by roughness; it may still point below the surface, whose normal is ng."""
    spread = roughness * roughness * wp.where(roughness < 0.1, 0.0, 1.0)
    half = wp.normalize(n + around(n, sequence(index, seed + 3), 1.0) * spread)
    toward = d - half * (2.0 * wp.dot(d, half))
    if wp.dot(toward, ng) <= 0.0:
        toward = d + n * (2.0 * wp.max(-wp.dot(n, d), 0.0))
    return toward


@wp.func
def sun_ray(light: Light, index: int, seed: int) -> wp.vec3:
    """A direction to a point of the sun's disc."""
    return wp.normalize(light.sun_dir + around(light.sun_dir, sequence(index, seed), wp.tan(light.sun_radius)))


@wp.func
def sun_offset(ng: wp.vec3, pixel: float, index: int, seed: int) -> wp.vec3:
    """An offset across ng within a pixel's width."""
    w = sequence(index, seed + 7)
    across = tangent(ng) * ((w[0] - 0.5) * pixel)
    return across + wp.cross(ng, tangent(ng)) * ((w[1] - 0.5) * pixel)


@wp.struct
class LampRay:
    """A shadow ray to a lamp, and what it brings if nothing is in its way."""

    toward: wp.vec3  # the lamp's centre
    aim: wp.vec3  # the point of the lamp that the ray goes to
    free: float  # metres that must be free; negative = there is no ray
    cosine: float
    radius: float  # of the lamp as seen from here
    arrives: wp.vec3  # irradiance on what faces it


@wp.func
def lamp_ray(scene: Scene, light: Light, k: int, p: wp.vec3, n: wp.vec3, ng: wp.vec3, u: wp.vec2) -> LampRay:
    """Lamps are sphere lights, windowed to nothing at the end of their reach."""
    ray = LampRay()
    lamp = light.lamp_geom[k]
    to_lamp = scene.pos[lamp] + scene.rot[lamp] * scene.geoms[lamp].center - p
    reach = wp.length(to_lamp)
    radius = light.lamp_radius[k]
    ray.toward = to_lamp / wp.max(reach, 1.0e-4)
    ray.cosine = wp.dot(n, ray.toward)
    ray.free = float(-1.0)
    window = saturate(1.0 - wp.pow(reach / _LAMP_REACH, 4.0))
    if ray.cosine > 0.0 and wp.dot(ng, ray.toward) > 0.0 and window > 0.0:
        ray.aim = wp.normalize(to_lamp + around(ray.toward, u, radius))
        ray.free = wp.max(reach - 2.0 * radius, 0.0)
        ray.radius = radius / wp.max(reach, 0.1)
        fall = _LAMP_GAIN * (0.1 + radius) * window * window / (0.25 + reach * reach)
        ray.arrives = wp.cw_mul(light.lamp_power[k], light.lamps) * fall
    return ray


@wp.func
def weathered_pixel(
    light: Light, hits: Hits, i: int, count: int, albedo: wp.array(dtype=float), roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float),
) -> Material:  # fmt: skip
    """Pixel i's material after the weather; its emission is left out."""
    m = Material()
    m.albedo = wp.vec3(albedo[i], albedo[count + i], albedo[2 * count + i])
    m.roughness = roughness[i]
    m.metallic = metallic[i]
    return weathered(light, m, hits.normal[i], hits.point[i])


@wp.func
def pixel_width(view: View, column: int, row: int, distance: float) -> float:
    """Metres that a pixel covers at a distance, across its ray."""
    return distance / (view.fx * wp.length(camera_ray(view, float(column) + 0.5, float(row) + 0.5)))


@wp.func
def sees_sun(scene: Scene, light: Light, origin: wp.vec3, ng: wp.vec3, pixel: float, index: int, seed: int) -> bool:
    """Whether one ray, from a point spread over a pixel's width, meets the point of the sun's disc that it aims at."""
    start = origin + sun_offset(ng, pixel, index, seed)
    return not occluded(scene.solids, start, sun_ray(light, index, seed), float(_MISS), -1)


@wp.func
def dealt(thread: int, rows: int, width: int) -> wp.vec3i:
    """Column, row and lane of a thread among `rows` rows; lane -1 = outside, where blocks of tiles stick out.

    Tiles of 4x4 pixels come first, 8x4 tiles a block, then the places of a tile, then lanes: the threads of a warp take
    the same place of the tiles of one block, so that their rays are nearly parallel, start close together and meet the
    same parts of the scene.
    """
    across = (width + 31) / 32
    tiles = 32 * across * ((rows + 15) / 16)
    tile = thread % tiles
    block = tile / 32
    place = (thread / tiles) % 16
    column = (block % across) * 32 + (tile % 8) * 4 + place % 4
    row = (block / across) * 16 + ((tile / 8) % 4) * 4 + place / 4
    if column >= width or row >= rows:
        return wp.vec3i(0, 0, -1)
    return wp.vec3i(column, row, thread / tiles / 16)


# Composition ----------------------------------------------------------------------------------------------------------


@wp.struct
class Found:
    """Light at one point, averaged over the pixels around it that see the same surface."""

    sun: float
    indirect: wp.vec3
    mirror: wp.vec3
    gloss: wp.vec3


@wp.func
def nearby_light(
    view: View, hits: Hits, lit: Lit, i: int, p: wp.vec3, n: wp.vec3, tolerance: float, spread: float
) -> Found:
    """Averages `lit` around pixel i over surfaces that continue the plane (p, n).

    Over a 5x5 window with half weight at its rim each place of the 4x4 tile counts the same; the sun, dealt over 2x2,
    needs 3x3. `spread` in [0, 1] is how much of the neighbours' reflections to take.
    """
    x = i % view.width
    y = i / view.width
    found = Found()
    black = wp.vec3(0.0, 0.0, 0.0)
    sun = float(0.0)
    sun_weight = float(0.0)
    indirect = black
    weight = float(0.0)
    mirror = black
    gloss = black
    mirror_weight = float(0.0)
    spare_sun = float(0.0)
    spare = black
    spare_weight = float(0.0)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            xx = x + dx
            yy = y + dy
            if xx >= 0 and yy >= 0 and xx < view.width and yy < view.height:
                j = yy * view.width + xx
                if hits.geom[j] >= 0:
                    rim = wp.where(wp.abs(dx) == 2, 0.5, 1.0) * wp.where(wp.abs(dy) == 2, 0.5, 1.0)
                    spare_sun += lit.sun[j] * rim
                    spare += lit.indirect[j] * rim
                    spare_weight += rim
                    off = wp.abs(wp.dot(hits.point[j] - p, n))
                    if off < tolerance and wp.dot(hits.normal[j], n) > 0.9:
                        indirect += lit.indirect[j] * rim
                        weight += rim
                        part = rim * wp.where(dx == 0 and dy == 0, 1.0, spread) + 1.0e-4
                        mirror += lit.mirror[j] * part
                        gloss += lit.gloss[j] * part
                        mirror_weight += part
                        if wp.abs(dx) < 2 and wp.abs(dy) < 2:
                            near = wp.where(dx == 0, 1.0, 0.5) * wp.where(dy == 0, 1.0, 0.5)
                            sun += lit.sun[j] * near
                            sun_weight += near
    if weight > 0.0:
        found.indirect = indirect / weight
        found.mirror = mirror / mirror_weight
        found.gloss = gloss / mirror_weight
        found.sun = sun / wp.max(sun_weight, 1.0e-6)
        if sun_weight == 0.0:
            found.sun = spare_sun / spare_weight
    elif spare_weight > 0.0:  # a sliver between pixel centres: whatever is around
        found.sun = spare_sun / spare_weight
        found.indirect = spare / spare_weight
    else:
        found.sun = float(1.0)
    return found


@wp.func
def radiance(light: Light, m: Material, found: Found, n: wp.vec3, d: wp.vec3) -> wp.vec3:
    """What a surface sends back along d."""
    v = -d
    f0 = base_reflectance(m)
    facing = wp.max(wp.dot(n, v), 0.0)
    cosine = wp.max(wp.dot(n, light.sun_dir), 0.0)
    around_n = ambient(light, light.stream * n) + found.indirect
    around_n = wp.max(around_n, wp.vec3(0.0, 0.0, 0.0))
    out = wp.cw_mul(m.albedo * (1.0 - m.metallic), light.sun * (found.sun * cosine / wp.pi) + around_n)
    mirrored = light.stream * (d + n * (2.0 * facing))
    reflected = wp.max(reflected_sky(light, mirrored, m.roughness) + found.mirror, wp.vec3(0.0, 0.0, 0.0))
    reflected = mix(reflected, around_n, ease(0.3, 0.9, m.roughness))
    out += wp.cw_mul(reflected, environment_brdf(f0, m.roughness, facing))
    if found.sun > 0.0 and cosine > 0.0:
        out += wp.cw_mul(light.sun, specular(f0, m.roughness, n, v, light.sun_dir, light.sun_radius)) * found.sun
    return out + found.gloss + wp.cw_mul(m.emission, light.lamps)


@wp.func
def through_fog(light: Light, d: wp.vec3, seen: wp.vec3, path: float) -> wp.vec3:
    haze = fog_in(light, d)
    out = seen
    for c in range(3):
        clear = wp.exp(-(light.fog_density + light.absorption[c]) * path)
        out[c] = seen[c] * clear + haze[c] * (1.0 - clear)
    return out


@wp.func
def curve(x: float) -> float:
    """ACES as fitted by Narkowicz, then sRGB."""
    a = wp.max(x, 0.0)
    a = saturate(a * (2.51 * a + 0.03) / (a * (2.43 * a + 0.59) + 0.14))
    if a <= 0.0031308:
        return 12.92 * a
    return 1.055 * wp.pow(a, 1.0 / 2.4) - 0.055


@wp.func
def display(light: Light, view: View, hits: Hits, lit: Lit, i: int, d: wp.vec3, m: Material, t: float, p: wp.vec3,
            n: wp.vec3) -> wp.vec3:  # fmt: skip
    """What a ray of pixel i along d shows of a surface at distance t; of the sky if t is _MISS."""
    away = light.stream * d
    seen = wp.vec3(0.0, 0.0, 0.0)
    path = float(t)
    if t < _MISS:
        seen_as = weathered(light, m, n, p)
        tolerance = 0.01 + 4.0 * t / view.fx
        found = nearby_light(view, hits, lit, i, p, n, tolerance, ease(0.08, 0.2, seen_as.roughness))
        seen = radiance(light, seen_as, found, n, d)
    else:
        seen = full_sky(light, away)
        path = light.fog_height / wp.max(away[2], 1.0e-3)
    seen = through_fog(light, away, seen, path) * light.exposure
    return wp.vec3(curve(seen[0]), curve(seen[1]), curve(seen[2]))


@wp.kernel
def compose(
    view: View,
    light: Light,
    start: int,
    hits: Hits,
    albedo: wp.array(dtype=float),
    roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float),
    emission: wp.array(dtype=float),
    lit: Lit,
    rgb: wp.array(dtype=float),
):
    """The display picture where a pixel holds one surface, or sky: one shade a pixel."""
    i = start + wp.tid()
    if hits.edge[i] != 0:
        return
    count = view.width * view.height
    d = wp.normalize(camera_ray(view, float(i % view.width) + 0.5, float(i / view.width) + 0.5))
    m = Material()
    m.albedo = wp.vec3(albedo[i], albedo[count + i], albedo[2 * count + i])
    m.emission = wp.vec3(emission[i], emission[count + i], emission[2 * count + i])
    m.roughness = roughness[i]
    m.metallic = metallic[i]
    shown = display(light, view, hits, lit, i, d, m, hits.t[i], hits.point[i], hits.normal[i])
    for c in range(3):
        rgb[c * count + i] = shown[c]


@wp.kernel
def compose_edges(
    scene: Scene,
    view: View,
    light: Light,
    start: int,
    offsets: wp.array(dtype=wp.vec2),
    hits: Hits,
    lit: Lit,
    rgb: wp.array(dtype=float),
):
    """The rest of it, one shade a sample; a kernel of its own, since it needs twice the registers."""
    i = start + wp.tid()
    if hits.edge[i] == 0:
        return
    count = view.width * view.height
    x = float(i % view.width) + 0.5
    y = float(i / view.width) + 0.5
    samples = offsets.shape[0]
    total = wp.vec3(0.0, 0.0, 0.0)
    candidates = shapes_around(view, hits, i)
    for k in range(samples):
        along = camera_ray(view, x + offsets[k][0], y + offsets[k][1])
        d = wp.normalize(along)
        hit = closest_of(scene.solids, candidates, view.pos, d)
        p = hits.point[i]
        n = hits.normal[i]
        m = Material()
        if hit.geom >= 0:
            s = surface_at(scene, hit, view.pos, d)
            p = s.p
            n = s.n
            facing = wp.max(-wp.dot(d, s.ng), 0.05)
            width = hit.t / (view.fx * wp.length(along)) / wp.sqrt(facing * float(samples))
            m = material_at(scene, hit.geom, hit.face, s.local, s.ng_local, width, 0.0)
        total += display(light, view, hits, lit, i, d, m, hit.t, p, n)
    for c in range(3):
        rgb[c * count + i] = total[c] / float(samples)


__all__ = ["Light", "Lit", "compose", "compose_edges", "dealt", "mat93"]
