"""Other materials on a world's things, so that what learns from it cannot know one by its shape or colour."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from flowshade.world.textures import Image

_ROLE = mujoco.mjtTextureRole
_PATTERN_ROLES = (int(_ROLE.mjTEXROLE_RGB), int(_ROLE.mjTEXROLE_RGBA))
_LUMA = np.array([0.2126, 0.7152, 0.0722], np.float32)


@dataclass(frozen=True, kw_only=True)
class MaterialVariation:
    """How often each property of a material is drawn anew, [0, 1]."""

    colour: float = 0.5
    roughness: float = 0.4
    metal: float = 0.12
    """Becomes bare metal, from mirrors to brushed ones."""
    smoothest: float = 0.05
    """Least roughness that is drawn."""


def vary_materials(
    model: mujoco.MjModel, rng: np.random.Generator, how: MaterialVariation = MaterialVariation()
) -> None:
    """Draws colours, roughness and metalness of a model's materials anew, in place; patterns of textures stay.

    What sends out light stays as it is. Geometry, dynamics and instance ids do not change. Call it before a `Tracer` is
    made, which copies materials.

    Args:
        model: of a world.
        rng: its draws decide everything.
        how: how often.
    """
    for material in range(model.nmat):
        if model.mat_emission[material] <= 0 and model.mat_texid[material, int(_ROLE.mjTEXROLE_EMISSIVE)] < 0:
            _vary_material(model, material, rng, how)
    for texture in _patterns(model):
        if rng.random() < how.colour:
            _recolour(_pixels(model, texture), rng)
    _vary_own_colours(model, rng, how)


def draw_colour(rng: np.random.Generator) -> NDArray[np.float32]:
    """An sRGB colour, [3] in [0, 1]: every hue, greys and whites more often than vivid ones."""
    return np.array(colorsys.hsv_to_rgb(rng.random(), rng.beta(1.0, 1.6), rng.uniform(0.06, 1.0)), np.float32)


def _vary_material(model: mujoco.MjModel, material: int, rng: np.random.Generator, how: MaterialVariation) -> None:
    plain = all(model.mat_texid[material, role] < 0 for role in _PATTERN_ROLES)
    if plain and rng.random() < how.colour:
        model.mat_rgba[material, :3] = draw_colour(rng)
    if rng.random() < how.roughness:
        model.mat_roughness[material] = rng.uniform(how.smoothest, 1.0)
    if rng.random() < how.metal:
        model.mat_metallic[material] = 1.0
        model.mat_roughness[material] = rng.uniform(how.smoothest, 0.6)


def _patterns(model: mujoco.MjModel) -> Iterator[int]:
    """Textures that colour things which do not glow, each once."""
    dark = model.mat_emission <= 0
    for texture in np.unique(model.mat_texid[:, _PATTERN_ROLES]):
        wearing = (model.mat_texid[:, _PATTERN_ROLES] == texture).any(1)
        if texture >= 0 and dark[wearing].all():
            yield int(texture)


def _pixels(model: mujoco.MjModel, texture: int) -> Image:
    """A view of a texture's colours, [H, W, 3]; without its alpha."""
    height, width, channels = (int(v[texture]) for v in (model.tex_height, model.tex_width, model.tex_nchannel))
    first = int(model.tex_adr[texture])
    pixels = model.tex_data[first : first + height * width * channels].reshape(height, width, channels)
    return pixels[:, :, :3]


def _recolour(pixels: Image, rng: np.random.Generator) -> None:
    """Half of the time the texture's light and dark in one new colour, else its channels in another order."""
    if pixels.shape[2] < 3 or rng.random() < 0.5:
        pixels[:] = pixels[:, :, rng.permutation(pixels.shape[2])]
        return
    shade = pixels.astype(np.float32) @ _LUMA  # [H, W]
    shade /= max(float(shade.mean()), 1.0)
    pixels[:] = np.clip(255 * shade[..., None] * draw_colour(rng) + 0.5, 0, 255).astype(np.uint8)


def _vary_own_colours(model: mujoco.MjModel, rng: np.random.Generator, how: MaterialVariation) -> None:
    """Of geoms without a material; those of one colour get one colour again."""
    bare = np.flatnonzero(model.geom_matid < 0)
    colours, which = np.unique(model.geom_rgba[bare, :3], axis=0, return_inverse=True)
    for index in range(len(colours)):
        if rng.random() < how.colour:
            model.geom_rgba[bare[which.ravel() == index], :3] = draw_colour(rng)
