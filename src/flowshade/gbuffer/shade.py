"""The reference picture: what a `Look` makes of a G-buffer.

Two shaders share every formula. The one with rays (`light_kernels.py`, through `Tracer.shade`) sees shadows, bounce
light, reflections and lamps; `shade_without_rays` here sees the buffers alone, takes every visibility as 1, and is
the plain baseline that a learned renderer has to beat. Where nothing occludes, the two agree.

The formulas, with n the normal, v towards the camera, l towards the sun, radiance linear Rec.709:

    weather   wetness darkens and smooths, puddles stand on level ground, snow whitens what faces up, autumn turns
              green to orange
    f0        lerp(0.04, albedo, metallic)
    diffuse   albedo (1 - metallic) (sun max(n.l, 0) visible / pi + ambient)
    specular  GGX(sun) visible + reflected (f0 a + b), a and b from Karis's fit of the environment BRDF (2014)
    ambient   mean sky radiance over the cosine-weighted hemisphere (spherical harmonics to degree 2),
              less what is occluded, plus light bounced once and lamps
    fog       L T + fog (1 - T), T = exp(-(density + absorption) distance); a sky ray at elevation e
              crosses fog_height / sin e metres of it
    picture   sRGB(ACES(exposure L)), ACES as fitted by Narkowicz (2016)
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from flowshade.color import linear_to_srgb
from flowshade.gbuffer.environment import load_environment, look_up, with_sun
from flowshade.gbuffer.look import Look
from flowshade.types import Camera, GBuffer

NOISE_SIZE = 256
STARS_SIZE = 768


# Shared tables --------------------------------------------------------------------------------------------------------


@functools.cache
def noise_map() -> np.ndarray:
    """[256, 256] float32 tileable fractal noise, [0, 1], median 0.5: clouds and snow. Always the same."""
    rng = np.random.default_rng(7)
    total = np.zeros((NOISE_SIZE, NOISE_SIZE))
    for octave in range(6):
        cells = 4 * 2**octave
        grid = rng.standard_normal((cells, cells))
        at = np.arange(NOISE_SIZE) * cells / NOISE_SIZE
        low = at.astype(int)
        f = at - low
        f = f * f * (3 - 2 * f)
        high = (low + 1) % cells
        rows = grid[low] * (1 - f)[:, None] + grid[high] * f[:, None]
        total += (rows[:, low] * (1 - f) + rows[:, high] * f) * 0.55**octave
    ranks = total.ravel().argsort().argsort().reshape(total.shape) / (total.size - 1)
    return ranks.astype(np.float32)


@functools.cache
def star_map() -> np.ndarray:
    """[768, 768] float32 stars of the upper hemisphere, [0, 1], stereographic: (x, y) / (1 + z) over [-1, 1]."""
    rng = np.random.default_rng(11)
    image = np.zeros((STARS_SIZE, STARS_SIZE), np.float32)
    z = rng.random(420)
    angle = rng.random(420) * 2 * np.pi
    radius = np.sqrt(1 - z * z) / (1 + z)
    rows = (0.5 + 0.5 * radius * np.sin(angle)) * STARS_SIZE
    columns = (0.5 + 0.5 * radius * np.cos(angle)) * STARS_SIZE
    light = rng.random(420) ** 3 * 0.9 + 0.1
    ys, xs = np.mgrid[0:STARS_SIZE, 0:STARS_SIZE].astype(np.float32)
    for row, column, value in zip(rows, columns, light):
        near = (slice(max(0, int(row) - 4), int(row) + 5), slice(max(0, int(column) - 4), int(column) + 5))
        blob = value * np.exp(-((ys[near] - row) ** 2 + (xs[near] - column) ** 2) / (2 * 0.9**2))
        image[near] = np.maximum(image[near], blob)
    return image


@functools.lru_cache(maxsize=16)
def _table(name: str, device: torch.device) -> Tensor:
    return torch.from_numpy({"noise": noise_map, "stars": star_map}[name]()).to(device)


def _bilinear_wrapped(image: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """`image` [N, N] at (u, v) in tiles, bilinear, wrapping."""
    size = image.shape[0]
    x, y = u * size - 0.5, v * size - 0.5
    x0, y0 = x.floor(), y.floor()
    fx, fy = x - x0, y - y0
    xa, ya = x0.long() % size, y0.long() % size
    xb, yb = (xa + 1) % size, (ya + 1) % size
    top = image[ya, xa] * (1 - fx) + image[ya, xb] * fx
    bottom = image[yb, xa] * (1 - fx) + image[yb, xb] * fx
    return top * (1 - fy) + bottom * fy


def _smoothstep(low: float, high: float, x: Tensor) -> Tensor:
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def _rgb(value: tuple[float, float, float], like: Tensor) -> Tensor:
    """[3, 1, ...] of `like`'s rank [3, ...]."""
    return torch.tensor(value, dtype=like.dtype, device=like.device).view(3, *[1] * (like.ndim - 1))


# Sky ------------------------------------------------------------------------------------------------------------------


def smooth_sky(look: Look, d: Float[Tensor, "3 ..."]) -> Float[Tensor, "3 ..."]:
    """Radiance of the sky in stream-frame directions, without disc, clouds and stars: what surfaces are lit by."""
    if look.hdri:
        return look_up(load_environment(look.hdri).soft, d, look.hdri_turn)
    up = d[2]
    sky = torch.lerp(_rgb(look.horizon, d), _rgb(look.zenith, d), up.clamp(0, 1).sqrt())
    sky = torch.lerp(sky, _rgb(look.ground, d), _smoothstep(0.0, 0.1, -up))
    toward = einsum(look.sun_vector().to(d), d, "c, c ... -> ...").clamp(0, 1)
    above = _smoothstep(-0.1, 0.02, up)
    sky = sky + _rgb(look.halo, d) * (0.7 * toward**32 + 0.3 * toward**5) * above
    low = torch.exp(-5.0 * up.clamp(min=0)) * above
    sky = sky + _rgb(look.glow_left, d) * (-d[0]).clamp(min=0) ** 2 * low
    return sky + _rgb(look.glow_right, d) * d[0].clamp(min=0) ** 2 * low


def cloudy_sky(look: Look, d: Float[Tensor, "3 ..."]) -> Float[Tensor, "3 ..."]:
    """`smooth_sky` with clouds: what reflections show."""
    if look.hdri:
        return look_up(load_environment(look.hdri).radiance, d, look.hdri_turn)
    sky = smooth_sky(look, d)
    if look.cloudiness <= 0:
        return sky
    up = d[2].clamp(min=0)
    noise = _bilinear_wrapped(_table("noise", d.device), d[0] / (up + 0.15) * 0.11, d[1] / (up + 0.15) * 0.11)
    shown = _smoothstep(0.02, 0.22, d[2])
    if look.cloudiness >= 1:  # a closed cover: only its texture shows
        return sky * (1 + 0.35 * (noise - 0.5) * shown)
    cover = _smoothstep(1.0 - look.cloudiness, 1.25 - look.cloudiness, noise) * shown
    return torch.lerp(sky, _rgb(cloud_color(look), d), 0.85 * cover)


def reflected_sky(look: Look, d: Float[Tensor, "3 ..."], roughness: Float[Tensor, "..."]) -> Float[Tensor, "3 ..."]:
    """`cloudy_sky`; a picture's is blurred for rough surfaces."""
    sky = cloudy_sky(look, d)
    if not look.hdri:
        return sky
    sky = sky.clamp(max=load_environment(look.hdri).peak)  # the rest is the sun's
    return torch.lerp(sky, smooth_sky(look, d), _smoothstep(0.05, 0.35, roughness))


def cloud_color(look: Look) -> tuple[float, float, float]:
    """Radiance of a scattered cloud: sunlight, scattered, and some of the sky's."""
    light = zip(look.sun, look.zenith, look.horizon)
    r, g, b = (0.16 * sun + 0.4 * zenith + 0.4 * horizon for sun, zenith, horizon in light)
    return r, g, b


def full_sky(look: Look, d: Float[Tensor, "3 ..."]) -> Float[Tensor, "3 ..."]:
    """Everything the camera sees of the sky: `cloudy_sky`, stars, and the sun's or moon's disc; no fog."""
    sky = cloudy_sky(look, d)
    if look.stars > 0:
        u, v = (0.5 + 0.5 * d[i] / (1 + d[2].clamp(min=0)) for i in (0, 1))
        stars = _bilinear_wrapped(_table("stars", d.device), u, v) * _smoothstep(0.0, 0.15, d[2])
        sky = sky + look.stars * stars
    if look.has_sun:
        toward = einsum(look.sun_vector().to(d), d, "c, c ... -> ...")
        radius = disc_radius(look)
        sky = sky + _rgb(disc_color(look), d) * _smoothstep(math.cos(radius * 1.25), math.cos(radius * 0.75), toward)
    return sky


def disc_radius(look: Look) -> float:
    """Radians that the disc in the sky is drawn with; wide enough to be seen in small pictures."""
    return math.radians(1.6 if look.moon else max(look.sun_radius, 1.2))


def disc_color(look: Look) -> tuple[float, float, float]:
    """Radiance of the sun's or moon's disc."""
    r, g, b = look.sun
    scale = (1.1 if look.moon else 6.0) / max(r, g, b, 1e-6)
    if look.sun_radius > 2:  # veiled: the halo is all one sees
        scale *= 0.1
    return r * scale, g * scale, b * scale


def fog_in(look: Look, d: Float[Tensor, "3 ..."]) -> Float[Tensor, "3 ..."]:
    """Radiance that fog adds in stream-frame directions: its own, brighter towards the sun."""
    toward = einsum(look.sun_vector().to(d), d, "c, c ... -> ...").clamp(0, 1)
    return _rgb(look.fog_color, d) + _rgb(look.halo, d) * 0.5 * toward**8


# Ambient light as spherical harmonics ---------------------------------------------------------------------------------


def _harmonics(d: Tensor) -> Tensor:
    """[9, ...] real spherical harmonics to degree 2 of directions [3, ...]."""
    x, y, z = d
    return torch.stack(
        [
            torch.full_like(x, 0.282095),
            0.488603 * y,
            0.488603 * z,
            0.488603 * x,
            1.092548 * x * y,
            1.092548 * y * z,
            0.315392 * (3 * z * z - 1),
            1.092548 * x * z,
            0.546274 * (x * x - y * y),
        ]
    )


@functools.lru_cache(maxsize=256)
def ambient_coefficients(look: Look) -> Float[Tensor, "9 3"]:
    """Mean of `smooth_sky` over the cosine-weighted hemisphere around n is `harmonics(n) . coefficients`.

    Ramamoorthi and Hanrahan 2001: bands 1, 2/3, 1/4 (their irradiance over pi).
    """
    count = 8192
    k = torch.arange(count, dtype=torch.float64) + 0.5
    z = 1 - 2 * k / count
    angle = k * math.pi * (3 - math.sqrt(5))
    flat = (1 - z * z).sqrt()
    d = torch.stack([flat * angle.cos(), flat * angle.sin(), z])
    projected = einsum(_harmonics(d), smooth_sky(look, d), "h n, c n -> h c") * (4 * math.pi / count)
    band = torch.tensor([1.0] + [2 / 3] * 3 + [1 / 4] * 5, dtype=torch.float64)
    return (projected * band[:, None]).float()


def _ambient(look: Look, n: Tensor) -> Tensor:
    """[3, ...] mean sky radiance around stream-frame normals [3, ...]."""
    return einsum(_harmonics(n), ambient_coefficients(look).to(n), "h ..., h c -> c ...").clamp(min=0)


# Shading without rays -------------------------------------------------------------------------------------------------


def tone_curve(radiance: Tensor) -> Tensor:
    """ACES as fitted by Narkowicz, then sRGB: linear exposed radiance to display values in [0, 1]."""
    x = radiance.clamp(min=0)
    return linear_to_srgb(x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14))


def _weather(
    look: Look, albedo: Tensor, roughness: Tensor, metallic: Tensor, n: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Autumn, wetness, puddles and snow, in this order; `n` and `p` in world axes."""
    if look.autumn > 0:
        r, g, b = albedo
        green = _smoothstep(0.05, 0.35, (g - torch.maximum(r, b)) / g.clamp(min=1e-4)) * look.autumn
        light = r * 0.3 + g * 0.6 + b * 0.1
        orange = torch.stack([light * 2.2, light * 0.85, light * 0.12]).clamp(0, 1)
        albedo = torch.lerp(albedo, orange, green)
    facing_up = _smoothstep(0.3, 0.8, n[2])
    if look.wetness > 0:
        wet = look.wetness * (0.35 + 0.65 * facing_up)
        albedo = albedo * (1 - 0.5 * wet * (1 - metallic))
        roughness = torch.lerp(roughness, roughness * 0.2 + 0.04, wet)
    if look.puddles > 0:
        noise = _bilinear_wrapped(_table("noise", n.device), p[0] * 0.11, p[1] * 0.11)
        dry = 1.0 - 0.45 * look.puddles
        pool = _smoothstep(dry, dry + 0.06, noise) * _smoothstep(0.97, 0.995, n[2])
        albedo = albedo * (1 - 0.55 * pool)
        roughness = torch.lerp(roughness, torch.full_like(roughness, 0.02), pool)
        metallic = metallic * (1 - pool)
    if look.snow > 0:
        noise = _bilinear_wrapped(_table("noise", n.device), p[0] * 0.06, p[1] * 0.06)
        cover = (look.snow * (0.8 + 0.4 * noise)).clamp(max=1) * _smoothstep(0.45, 0.75, n[2] + 0.2 * (noise - 0.5))
        albedo = torch.lerp(albedo, _rgb((0.86, 0.88, 0.92), albedo), cover)
        roughness = torch.lerp(roughness, torch.full_like(roughness, 0.75), cover)
        metallic = metallic * (1 - cover)
    return albedo, roughness, metallic


def _environment_brdf(f0: Tensor, roughness: Tensor, facing: Tensor) -> Tensor:
    x = -1.0 * roughness + 1.0
    y = -0.0275 * roughness + 0.0425
    z = -0.572 * roughness + 1.04
    w = 0.022 * roughness - 0.04
    a = torch.minimum(x * x, torch.exp(-6.4324 * facing)) * x + y
    return f0 * (-1.04 * a + z) + (1.04 * a + w)


def _sun_specular(f0: Tensor, roughness: Tensor, n: Tensor, v: Tensor, sun: Tensor, radius: float) -> Tensor:
    """GGX times n.l for unit irradiance; the sun's size widens alpha, and the peak is held to 30."""
    alpha = (roughness.clamp(min=0.08) ** 2 + 0.5 * radius).clamp(max=1)
    half = torch.nn.functional.normalize(sun + v, dim=0)
    nl, nv = (n * sun).sum(0).clamp(min=0), (n * v).sum(0).clamp(min=1e-3)
    nh, vh = (n * half).sum(0).clamp(0, 1), (v * half).sum(0).clamp(0, 1)
    a2 = alpha * alpha
    d = a2 / (math.pi * (nh * nh * (a2 - 1) + 1) ** 2)
    g = 0.5 / (nl * (nv * nv * (1 - a2) + a2).sqrt() + nv * (nl * nl * (1 - a2) + a2).sqrt()).clamp(min=1e-4)
    f = f0 + (1 - f0) * (1 - vh) ** 5
    return f * (d * g * nl).clamp(max=30)


def shade_without_rays(
    gbuffer: GBuffer, look: Look, camera: Camera | None = None, *, stream: Float[Tensor, "3 3"]
) -> Float[Tensor, "T 3 H W"]:
    """The picture that the buffers alone give: no shadows, bounce light, lamps or reflections of things.

    Args:
        gbuffer: albedo, normal, depth, roughness and metallic; emission if there is any.
        look: light and weather.
        camera: defaults to the G-buffer's own.
        stream: world to stream frame, from `flowshade.types.stream_frame`.

    Returns:
        Display sRGB in [0, 1].

    Raises:
        ValueError: a core channel or the camera is missing.
    """
    look = with_sun(look)
    camera = camera if camera is not None else gbuffer.camera
    channels = gbuffer.channels()
    missing = [name for name in ("albedo", "normal", "depth", "roughness", "metallic") if name not in channels]
    if camera is None or missing:
        wanted = ", ".join(missing) or "a camera"
        raise ValueError(f"shade_without_rays misses {wanted}; it needs the five core channels and a camera.")
    height, width = gbuffer.size
    camera = camera.to(gbuffer.device)
    rays = camera.rays(height, width)
    stream = stream.to(gbuffer.device)
    return torch.stack(
        [
            _shade_frame({name: value[t] for name, value in channels.items()}, look, camera.pose[t], rays[t], stream)
            for t in range(gbuffer.frames)
        ]
    )


def _shade_frame(
    channels: dict[str, Tensor], look: Look, pose: Tensor, rays: Tensor, stream: Tensor
) -> Float[Tensor, "3 H W"]:
    albedo, depth = channels["albedo"], channels["depth"][0]
    roughness, metallic = channels["roughness"][0], channels["metallic"][0]
    ground = torch.isfinite(depth)
    n = einsum(pose[:3, :3], channels["normal"], "i j, j h w -> i h w")  # world
    along = einsum(-pose[:3, 2], rays, "c, c h w -> h w")  # ray length to depth
    distance = torch.where(ground, depth, torch.zeros_like(depth)) / along.clamp(min=1e-6)
    p = pose[:3, 3, None, None] + rays * distance

    def turn(d: Tensor) -> Tensor:
        return einsum(stream, d, "i j, j h w -> i h w")

    albedo, roughness, metallic = _weather(look, albedo, roughness, metallic, n, p)
    v = -rays
    sun = (stream.T @ look.sun_vector().to(n))[:, None, None]
    sunlight = _rgb(look.sun, n)
    f0 = torch.lerp(torch.full_like(albedo, 0.04), albedo, metallic)
    facing = (n * v).sum(0).clamp(min=0)
    mirrored = turn(rays + 2 * facing * n)
    lit = sunlight * (n * sun).sum(0).clamp(min=0) / math.pi
    radiance = albedo * (1 - metallic) * (lit + _ambient(look, turn(n)))
    shown = reflected_sky(look, mirrored, roughness)
    reflected = torch.lerp(shown, _ambient(look, turn(n)), _smoothstep(0.3, 0.9, roughness))
    radiance = radiance + reflected * _environment_brdf(f0, roughness, facing)
    radiance = radiance + sunlight * _sun_specular(f0, roughness, n, v, sun, math.radians(look.sun_radius))
    if "emission" in channels:
        radiance = radiance + channels["emission"] * _rgb(look.lamp_tint, n) * look.lamps

    d = turn(rays)
    extinction = _rgb(look.absorption, n) + look.fog_density
    path = torch.where(ground, distance, look.fog_height / d[2].clamp(min=1e-3))
    clear = torch.exp(-extinction * path)
    radiance = torch.where(ground, radiance, full_sky(look, d)) * clear + fog_in(look, d) * (1 - clear)
    return tone_curve(radiance * look.exposure)


__all__ = ["ambient_coefficients", "cloudy_sky", "full_sky", "shade_without_rays", "smooth_sky", "tone_curve"]
