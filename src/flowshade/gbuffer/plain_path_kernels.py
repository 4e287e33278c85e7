# ruff: noqa: UP018  (float(0.0) declares a variable that loops may change)
# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""The paths of `path_kernels`, plainly: one thread follows a lane's samples. `wave_kernels` is tested against it."""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import (
    Hits,
    Material,
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
    base_reflectance,
    cloudy_sky,
    dealt,
    lift,
    sees_sun,
    sequence,
    specular,
    tile_index,
    weathered,
)
from flowshade.gbuffer.path_kernels import (
    LANES,
    Aim,
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

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

_LANES = wp.constant(LANES)
_MISS = wp.constant(1.0e30)


@wp.func
def arriving(scene: Scene, origin: wp.vec3, aim: Aim) -> wp.vec3:
    """What is left of a light that was aimed at, after its shadow ray."""
    lit = aim.arrives[0] + aim.arrives[1] + aim.arrives[2] > 0.0
    if lit and not occluded(scene.solids, origin, aim.ray, aim.free, aim.ignored):
        return aim.arrives
    return wp.vec3(0.0, 0.0, 0.0)


@wp.func
def surface_light(
    scene: Scene, light: Light, emitters: Emitters, p: wp.vec3, n: wp.vec3, ng: wp.vec3, origin: wp.vec3, g: int,
    seed: wp.uint32,
) -> wp.vec3:  # fmt: skip
    """Mean radiance over the hemisphere at a later vertex of a path: sun, one lamp, one emitter."""
    state = seed
    total = wp.vec3(0.0, 0.0, 0.0)
    cosine = wp.dot(n, light.sun_dir)
    sunny = light.has_sun != 0 and cosine > 0.0 and wp.dot(ng, light.sun_dir) > 0.0
    if sunny and not occluded(scene.solids, origin, light.sun_dir, float(_MISS), -1):
        total += light.sun * (cosine / wp.pi)
    if light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0:
        if light.lamp_count > 0:
            pick = wp.randf(state)
            u = wp.vec2(wp.randf(state), wp.randf(state))
            aim = aim_at_lamp(scene, light, p, n, ng, g, pick, u)
            total += arriving(scene, origin, aim) * (wp.max(wp.dot(n, aim.toward), 0.0) / wp.pi)
        if emitters.count > 0:
            glow = aim_at_emitter(scene, light, emitters, p, n, origin, g, wp.randu(state))
            total += arriving(scene, origin, glow)
    if light.sky_aimed != 0:
        toward = toward_sky(light, wp.vec2(wp.randf(state), wp.randf(state)))
        cosine = wp.dot(n, toward)
        if cosine > 0.0 and wp.dot(ng, toward) > 0.0 and not occluded(scene.solids, origin, toward, float(_MISS), -1):
            away = light.stream * toward
            total += cloudy_sky(light, away) * (cosine / wp.pi / (cosine / wp.pi + sky_density(light, away)))
    return total


@wp.func
def incoming(
    scene: Scene, light: Light, emitters: Emitters, origin: wp.vec3, direction: wp.vec3, first_glossy: int,
    first_density: float, bounces: int, limit: float, seed: wp.uint32,
) -> wp.vec3:  # fmt: skip
    """Radiance that arrives along a ray, followed over `bounces` surfaces; its largest channel is held to `limit`.

    A ray that a diffuse lobe sent out does not count the surfaces that were aimed at: lamps, emitters, the sun. A sky
    picture, which is aimed at too, counts by its share (`sky_by_chance`).
    """
    state = seed
    total = wp.vec3(0.0, 0.0, 0.0)
    through = wp.vec3(1.0, 1.0, 1.0)
    o = origin
    d = direction
    glossy = int(first_glossy)
    density = float(first_density)
    for _bounce in range(bounces):
        hit = closest_hit(scene.solids, o, d, float(_MISS))
        if hit.geom < 0:
            total += wp.cw_mul(through, sky_by_chance(light, light.stream * d, glossy, density))
            break
        vertex = visit(scene, light, emitters, hit, o, d, through, glossy)
        s = vertex.s
        total += vertex.adds
        o = lift(s.raised, s.ng, hit.t)
        lit = surface_light(scene, light, emitters, s.p, s.n, s.ng, o, hit.geom, wp.randu(state))
        total += wp.cw_mul(wp.cw_mul(vertex.through, vertex.lobes.diffuse), lit)
        u = wp.vec2(wp.randf(state), wp.randf(state))
        pick = wp.randf(state)
        on = go_on(vertex, d, u, pick, wp.randf(state))
        d = on.d
        through = on.through
        glossy = on.glossy
        density = on.density
        if wp.max(wp.max(through[0], through[1]), through[2]) <= 0.0:
            break
    return held(total, limit)


@wp.func
def scattered(scene: Scene, light: Light, o: wp.vec3, d: wp.vec3, path: float, u: float, seed: wp.uint32) -> wp.vec3:
    """Light that fog or water turns towards the eye at one place of a view ray: shafts of sun, halos of lamps."""
    state = seed
    shaft = shaft_at(light, o, d, path, u)
    found = wp.vec3(0.0, 0.0, 0.0)
    if light.has_sun != 0 and not occluded(scene.solids, shaft.p, light.sun_dir, float(_MISS), -1):
        found += light.sun * phase(wp.dot(d, light.sun_dir))
    if light.lamp_count > 0 and light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0:
        found += arriving(scene, shaft.p, aim_from_fog(scene, light, shaft.p, wp.randf(state)))
    return wp.cw_mul(found, shaft.clear)


@wp.kernel
def trace_paths(
    scene: Scene,
    view: View,
    light: Light,
    emitters: Emitters,
    first_row: int,
    rows: int,
    samples: int,
    bounces: int,
    limit: float,
    seed: int,
    hits: Hits,
    albedo: wp.array(dtype=float),
    roughness: wp.array(dtype=float),
    metallic: wp.array(dtype=float),
    paths: Paths,
):
    """What reaches each pixel centre's surface: a lane takes `samples` of its pixel's samples."""
    where = dealt(wp.tid(), rows, view.width)
    column = where[0]
    row = first_row + where[1]
    lane = where[2]
    if lane < 0:
        return
    i = row * view.width + column
    slot = i * _LANES + lane
    black = wp.vec3(0.0, 0.0, 0.0)
    sun = float(0.0)
    direct = black
    indirect = black
    gloss = black
    scatter = black
    mirror = black
    mirror_weight = float(0.0)
    count = view.width * view.height
    along = camera_ray(view, float(column) + 0.5, float(row) + 0.5)
    d = wp.normalize(along)
    tile = tile_index(column, row)
    state = wp.rand_init(seed, slot)
    g = hits.geom[i]
    path = sky_path(light, light.stream * d)
    all_samples = samples * _LANES
    if g >= 0:
        hit = centre_hit(hits, i)
        path = hit.t
        s = surface_at(scene, hit, view.pos, d)
        n = s.n
        origin = lift(s.raised, s.ng, hit.t)
        m = Material()
        m.albedo = wp.vec3(albedo[i], albedo[count + i], albedo[2 * count + i])
        m.roughness = roughness[i]
        m.metallic = metallic[i]
        m = weathered(light, m, n, s.p)
        f0 = base_reflectance(m)
        v = -d

        # The sun: rays spread over its disc and, on smooth ground, over the pixel.
        if light.has_sun != 0 and wp.dot(n, light.sun_dir) > 0.0:
            pixel = wp.where(hits.edge[i] == 0, hit.t / (view.fx * wp.length(along)), 0.0)
            higher = origin + s.ng * (0.1 * pixel)
            rays = wp.max(samples / 2, 1)
            for k in range(rays):
                index = ((tile >> 2) * _LANES + lane) * rays + k
                if sees_sun(scene, light, higher, s.ng, pixel, index, seed):
                    sun += 1.0 / float(rays)

        # Lamps and emitters: one of each a sample.
        lit = light.lamps[0] + light.lamps[1] + light.lamps[2] > 0.0
        for k in range(samples):
            index = tile * all_samples + lane * samples + k
            if lit and light.lamp_count > 0:
                pick = (float(lane * samples + k) + wp.randf(state)) / float(all_samples)
                aim = aim_at_lamp(scene, light, s.p, n, s.ng, g, pick, sequence(index, seed + 11))
                arrives = arriving(scene, origin, aim)
                direct += arrives * (wp.max(wp.dot(n, aim.toward), 0.0) / wp.pi)
                gloss += wp.cw_mul(arrives, specular(f0, m.roughness, n, v, aim.toward, aim.radius))
            if lit and emitters.count > 0:
                glow = aim_at_emitter(scene, light, emitters, s.p, n, origin, g, wp.randu(state))
                direct += arriving(scene, origin, glow)
        direct = direct / float(samples)
        gloss = gloss / float(samples)

        # Paths: some along the glossy lobe, the others along the diffuse one.
        glossy = glossy_paths(m, samples)
        diffuse = wp.max(samples - glossy, 1)
        alpha = wp.max(m.roughness * m.roughness, 1.0e-3)

        # A sky picture: one direction a sample for both lobes, shared with their own rays by the balance heuristic.
        diffuse_rate = float(diffuse) / float(samples)  # own rays for each that is aimed
        glossy_rate = float(glossy) / float(samples)
        if light.sky_aimed != 0:
            for k in range(samples):
                toward = toward_sky(light, sequence(tile * all_samples + lane * samples + k, seed + 23))
                cosine = wp.dot(n, toward)
                above = cosine > 0.0 and wp.dot(toward, s.ng) > 0.0
                if above and not occluded(scene.solids, origin, toward, float(_MISS), -1):
                    away = light.stream * toward
                    sky = cloudy_sky(light, away)
                    aimed = sky_density(light, away)
                    own = cosine / wp.pi
                    direct += sky * (own / (own * diffuse_rate + aimed) / float(samples))
                    own = glossy_density(n, v, toward, alpha)
                    weight = glossy_weight(f0, n, v, toward, alpha)
                    mirror += sky * (weight * own * glossy_rate / (own * glossy_rate + aimed))
        for k in range(glossy + diffuse):
            along_gloss = wp.where(k < glossy, 1, 0)
            u = sequence((tile * _LANES + lane) * diffuse + k - glossy, seed)
            if along_gloss != 0:
                u = sequence((tile * _LANES + lane) * glossy + k, seed + 3)
            first = first_ray(n, s.ng, d, f0, alpha, along_gloss, u)
            toward = first.toward
            weight = first.weight
            density = first.density * wp.where(along_gloss != 0, glossy_rate, diffuse_rate)
            ray = wp.randu(state)
            arrives = incoming(scene, light, emitters, origin, toward, along_gloss, density, bounces, limit, ray)
            if along_gloss != 0:
                mirror += arrives * weight
                mirror_weight += weight
            else:
                indirect += arrives / float(diffuse)

    places = fog_places(light, path, samples)
    for k in range(places):
        w = sequence((tile * _LANES + lane) * places + k, seed + 19)
        scatter += scattered(scene, light, view.pos, d, path, w[0], wp.randu(state)) / float(places)
    paths.sun[slot] = sun
    paths.direct[slot] = direct
    paths.indirect[slot] = indirect
    paths.mirror[slot] = wp.vec4(mirror[0], mirror[1], mirror[2], mirror_weight)
    paths.gloss[slot] = gloss
    paths.scatter[slot] = scatter


__all__ = ["trace_paths"]
