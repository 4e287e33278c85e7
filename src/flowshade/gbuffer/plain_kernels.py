# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""Direct light's rays, plainly: one thread a pixel, every geom exactly as it is. `ray_kernels` is tested against it."""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import (
    Hit,
    Hits,
    Scene,
    View,
    camera_ray,
    centre_hit,
    closest_hit,
    occluded,
    surface_at,
)
from flowshade.gbuffer.light_kernels import (
    Light,
    Lit,
    base_reflectance,
    bounced,
    fog_in,
    lamp_ray,
    lift,
    mirror_ray,
    pixel_width,
    reflected_sky,
    sees_sun,
    sequence,
    sky_ray,
    smooth_sky,
    specular,
    tile_index,
    weathered_pixel,
)

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

_MISS = wp.constant(1.0e30)


@wp.func
def outgoing(scene: Scene, light: Light, hit: Hit, o: wp.vec3, d: wp.vec3, textured: int) -> wp.vec3:
    """Radiance a secondary ray brings back from a hit: sun with its shadow, sky taken as unoccluded, own light."""
    bounce = bounced(scene, light, hit, o, d, textured)
    out = bounce.own
    lit = bounce.sun[0] + bounce.sun[1] + bounce.sun[2] > 0.0
    if lit and not occluded(scene.solids, bounce.start, light.sun_dir, float(_MISS), -1):
        out += bounce.sun
    return out


@wp.kernel
def gather_light(
    scene: Scene,
    view: View,
    light: Light,
    start: int,
    sun_rays: int,
    seed: int,
    hits: Hits,
    albedo: wp.array(dtype=float),
    roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float),
    lit: Lit,
):
    """Sun and lamps at each pixel centre's surface, and where further rays start."""
    i = start + wp.tid()
    black = wp.vec3(0.0, 0.0, 0.0)
    sun = float(0.0)
    indirect = black
    gloss = black
    g = hits.geom[i]
    if g >= 0:
        column = i % view.width
        row = i / view.width
        d = wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
        hit = centre_hit(hits, i)
        s = surface_at(scene, hit, view.pos, d)
        origin = lift(s.raised, s.ng, hit.t)
        tile = tile_index(column, row)
        m = weathered_pixel(light, hits, i, view.width * view.height, albedo, roughness, metallic)
        lit.origin[i] = origin
        lit.ng[i] = s.ng
        lit.roughness[i] = m.roughness

        # The sun: rays spread over its disc and, on smooth ground, over the pixel, so that shadow edges are smooth.
        if light.has_sun != 0 and wp.dot(s.n, light.sun_dir) > 0.0:
            higher = origin
            pixel = float(0.0)
            if hits.edge[i] == 0:
                pixel = pixel_width(view, column, row, hit.t)
                higher = origin + s.ng * (0.1 * pixel)  # spread-out origins must stay above curved ground
            for k in range(sun_rays):
                if sees_sun(scene, light, higher, s.ng, pixel, (tile >> 2) * sun_rays + k, seed):
                    sun += 1.0 / float(sun_rays)

        # Lamps, with one shadow ray each.
        if light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0:
            for k in range(light.lamp_count):
                if light.lamp_geom[k] != g:
                    ray = lamp_ray(scene, light, k, s.p, s.n, s.ng, sequence(tile, seed + 11 + k))
                    lamp = light.lamp_geom[k]
                    if ray.free >= 0.0 and not occluded(scene.solids, origin, ray.aim, ray.free, lamp):
                        indirect += ray.arrives * (ray.cosine / wp.pi)
                        shine = specular(base_reflectance(m), m.roughness, s.n, -d, ray.toward, ray.radius)
                        gloss += wp.cw_mul(ray.arrives, shine)
    lit.sun[i] = sun
    lit.indirect[i] = indirect
    lit.gloss[i] = gloss


@wp.kernel
def gather_sky(scene: Scene, view: View, light: Light, start: int, sky_rays: int, seed: int, hits: Hits, lit: Lit):
    """What cosine-weighted rays meet replaces the sky they would have seen."""
    i = start + wp.tid()
    if hits.geom[i] < 0:
        return
    tile = tile_index(i % view.width, i / view.width)
    found = wp.vec3(0.0, 0.0, 0.0)
    for k in range(sky_rays):
        toward = sky_ray(hits.normal[i], tile * sky_rays + k, seed)
        if wp.dot(toward, lit.ng[i]) > 0.0:
            hit = closest_hit(scene.solids, lit.origin[i], toward, float(_MISS))
            if hit.geom >= 0:
                found += outgoing(scene, light, hit, lit.origin[i], toward, 0)
                found -= smooth_sky(light, light.stream * toward)
    lit.indirect[i] = lit.indirect[i] + found / float(wp.max(sky_rays, 1))


@wp.kernel
def gather_mirror(scene: Scene, view: View, light: Light, start: int, seed: int, hits: Hits, lit: Lit):
    """What a ray in the mirror direction, spread by roughness, meets instead of the sky."""
    i = start + wp.tid()
    mirror = wp.vec3(0.0, 0.0, 0.0)
    column = i % view.width
    row = i / view.width
    if hits.geom[i] >= 0 and lit.roughness[i] < 0.9:
        d = wp.normalize(camera_ray(view, float(column) + 0.5, float(row) + 0.5))
        toward = mirror_ray(d, hits.normal[i], lit.ng[i], lit.roughness[i], tile_index(column, row), seed)
        if wp.dot(toward, lit.ng[i]) > 0.0:
            seen = closest_hit(scene.solids, lit.origin[i], toward, float(_MISS))
            if seen.geom >= 0:
                mirror = outgoing(scene, light, seen, lit.origin[i], toward, 1)
                clear = wp.exp(-light.fog_density * seen.t)
                away = light.stream * toward
                mirror = mirror * clear + fog_in(light, away) * (1.0 - clear)
                mirror -= reflected_sky(light, away, lit.roughness[i])
    lit.mirror[i] = mirror


__all__ = ["gather_light", "gather_mirror", "gather_sky"]
