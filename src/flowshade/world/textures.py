"""Procedural textures: small square tiles that repeat without a seam, drawn with NumPy from a generator.

Every function returns `[n, n, 3]` uint8 in sRGB. A tile stands for the number of metres its docstring names;
whoever applies it chooses texture coordinates to match.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Colour = tuple[float, float, float]
"""sRGB, [0, 1]."""


def _image(values: NDArray[np.floating]) -> Image:
    return (np.clip(values, 0, 1) * 255 + 0.5).astype(np.uint8)


def darker(colour: Colour, factor: float) -> Colour:
    """A colour with every channel scaled."""
    r, g, b = (factor * c for c in colour)
    return r, g, b


def noise(rng: np.random.Generator, n: int, cells: int) -> NDArray:
    """Smooth periodic value noise, [n, n], about [-1, 1], with `cells` bumps across the tile."""
    grid = rng.uniform(-1, 1, (cells, cells)).astype(np.float32)
    position = (np.arange(n, dtype=np.float32) + 0.5) * cells / n
    low = position.astype(int) % cells
    high = (low + 1) % cells
    t = position % 1
    t = t * t * (3 - 2 * t)
    rows = grid[low] * (1 - t)[:, None] + grid[high] * t[:, None]  # [n, cells]
    return rows[:, low] * (1 - t) + rows[:, high] * t  # [n, n]


def fractal(rng: np.random.Generator, n: int, cells: int = 4, octaves: int = 4, gain: float = 0.6) -> NDArray:
    """Octaves of `noise`, [n, n], about [-1, 1]."""
    total, weight, norm = np.zeros((n, n), np.float32), 1.0, 0.0
    for _ in range(octaves):
        if cells > n:
            break
        total += weight * noise(rng, n, cells)
        norm += weight
        cells, weight = cells * 2, weight * gain
    return total / norm


def _tint(shade: NDArray, colour: Colour) -> NDArray:
    return shade[..., None] * np.asarray(colour, np.float32)


def mottled(rng: np.random.Generator, colour: Colour, n: int = 128, contrast: float = 0.25, cells: int = 4) -> Image:
    """Plaster, soil, rock, bark: one colour with fractal light and dark."""
    shade = 1 + contrast * fractal(rng, n, cells, 5, 0.7)
    warmth = 0.06 * fractal(rng, n, cells, 2)
    rgb = _tint(shade, colour)
    rgb[..., 0] += warmth * colour[0]
    rgb[..., 2] -= warmth * colour[2]
    return _image(rgb)


def speckle(rng: np.random.Generator, colour: Colour, n: int = 128, contrast: float = 0.22) -> Image:
    """Asphalt, gravel, granite: grain a pixel or two wide over slow stains."""
    grain = rng.normal(0, 1, (n, n)).astype(np.float32)
    grain = grain + 0.5 * (np.roll(grain, 1, 0) + np.roll(grain, 1, 1))
    shade = 1 + contrast * (0.35 * grain + 0.7 * fractal(rng, n, 3, 4))
    return _image(_tint(shade, colour))


def bricks(
    rng: np.random.Generator, colour: Colour, mortar: Colour, n: int = 128, rows: int = 12, columns: int = 4
) -> Image:
    """Running bond; a tile is about one metre."""
    rows = max(2, rows // 2 * 2)
    y, x = np.mgrid[0:n, 0:n].astype(np.float32) / n
    row = (y * rows).astype(int)
    shifted = (x * columns + 0.5 * (row % 2)) % columns
    column = shifted.astype(int)
    tone = 1 + rng.normal(0, 0.13, (rows, columns))[row, column]
    joint_y = np.abs((y * rows) % 1 - 0.5) > 0.42
    joint_x = np.abs(shifted % 1 - 0.5) > 0.5 - 0.08 * columns / rows * 1.4
    shade = tone * (1 + 0.12 * fractal(rng, n, 16, 2))
    joint = (joint_y | joint_x)[..., None]
    return _image(np.where(joint, _tint(1 + 0.1 * noise(rng, n, 16), mortar), _tint(shade, colour)))


def slabs(rng: np.random.Generator, colour: Colour, n: int = 128, rows: int = 4, columns: int = 4) -> Image:
    """Paving, panels, tiles: a grid with thin dark joints and a tone for each piece."""
    y, x = np.mgrid[0:n, 0:n].astype(np.float32) / n
    row, column = (y * rows).astype(int), (x * columns).astype(int)
    tone = 1 + rng.normal(0, 0.08, (rows, columns))[row, column]
    edge = np.maximum(np.abs((y * rows) % 1 - 0.5), np.abs((x * columns) % 1 - 0.5))
    joint = np.where(edge > 0.5 - 0.6 * max(rows, columns) / n, 0.62, 1.0)
    return _image(_tint(tone * joint * (1 + 0.14 * fractal(rng, n, 8, 4)), colour))


def planks(rng: np.random.Generator, colour: Colour, n: int = 128, boards: int = 6) -> Image:
    """Wooden boards along x with grain."""
    y = np.arange(n) / n * boards
    board = y.astype(int)
    tone = 1 + rng.normal(0, 0.12, boards)[board]
    grain = np.repeat(noise(rng, n, 32)[:, ::8], 8, axis=1) * 0.12 + 0.1 * noise(rng, n, 8)
    gap = np.where(np.abs(y % 1 - 0.5) > 0.46, 0.45, 1.0)
    return _image(_tint((tone * gap)[:, None] * (1 + grain), colour))


def checker(first: Colour, second: Colour, n: int = 64, cells: int = 4) -> Image:
    """Squares of two colours; `cells` is even so that the tile repeats."""
    y, x = np.mgrid[0:n, 0:n] * cells // n
    return _image(np.where(((x + y) % 2)[..., None], np.asarray(first), np.asarray(second)))


def stripes(first: Colour, second: Colour, n: int = 64, bands: int = 4, diagonal: bool = False) -> Image:
    """Bands of two colours along x, or along x + y."""
    y, x = np.mgrid[0:n, 0:n]
    band = ((x + (y if diagonal else 0)) * 2 * bands // n) % 2
    return _image(np.where(band[..., None], np.asarray(first), np.asarray(second)))


def corrugated(rng: np.random.Generator, colour: Colour, n: int = 128, ribs: int = 8) -> Image:
    """Roof tiles and sheet: ribs along y, courses along x."""
    y, x = np.mgrid[0:n, 0:n].astype(np.float32) / n
    rib = 0.85 + 0.15 * np.cos(2 * np.pi * x * ribs)
    course = np.where((y * ribs) % 1 < 0.14, 0.65, 1.0)
    tone = 1 + rng.normal(0, 0.08, (ribs, ribs))[(y * ribs).astype(int), (x * ribs).astype(int)]
    return _image(_tint(rib * course * tone * (1 + 0.12 * fractal(rng, n, 8, 3)), colour))


def grass(rng: np.random.Generator, colour: Colour, dry: Colour, n: int = 256) -> Image:
    """Meadow seen from standing height: blades, tufts and dry patches; a tile is about six metres."""
    blades = rng.normal(0, 1, (n, n)).astype(np.float32)
    blades = blades + np.roll(blades, 1, 0) + np.roll(blades, 1, 1) + np.roll(blades, (1, 1), (0, 1))
    tufts = fractal(rng, n, 10, 4, 0.9)
    patch = np.clip(0.4 + 0.8 * fractal(rng, n, 5, 4, 0.8), 0, 1)[..., None]
    base = np.asarray(colour) * (1 - patch) + np.asarray(dry) * patch
    return _image(base * (1 + 0.09 * blades + 0.28 * tufts)[..., None])


def leaves(rng: np.random.Generator, colour: Colour, n: int = 128) -> Image:
    """Foliage: clumps of light and dark with a few yellower leaves."""
    clumps = fractal(rng, n, 10, 4, 0.9)
    speck = rng.random((n // 2, n // 2)).repeat(2, 0).repeat(2, 1)
    rgb = _tint(1 + 0.55 * clumps + 0.35 * (speck - 0.5), colour)
    rgb[..., 0] += 0.1 * (speck > 0.85)
    rgb[..., 1] += 0.06 * (speck > 0.85)
    return _image(rgb)


def windows(rng: np.random.Generator, lit: Colour | None, n: int = 128) -> Image:
    """Four by four panes behind glass: dark rooms, curtains and blinds; lit ones take the colour of `lit`."""
    y, x = np.mgrid[0:n, 0:n].astype(np.float32) / n * 4
    row, column = y.astype(int), x.astype(int)
    v, u = y % 1, x % 1
    kind = rng.integers(0, 4, (4, 4))[row, column]
    tone = rng.uniform(0.6, 1.2, (4, 4))[row, column]
    glass = 0.16 + 0.14 * (1 - v)
    curtain = np.where(np.minimum(u, 1 - u) < 0.26, 0.55 + 0.1 * np.cos(u * 60), glass)
    blind = np.where(v < 0.5, 0.5 + 0.08 * np.cos(v * 90), glass)
    shade = np.select([kind == 1, kind == 2], [curtain, blind], glass) * tone
    if lit is None:
        return _image(_tint(shade, (0.82, 0.95, 1.1)))
    return _image(_tint(0.55 + 0.5 * np.clip(shade, 0, 1) + 0.1 * v, lit))


def facade(rng: np.random.Generator, wall: Colour, n: int = 128, rows: int = 8, columns: int = 6) -> Image:
    """A far building's side as one picture: rows of windows in a wall."""
    y, x = np.mgrid[0:n, 0:n].astype(np.float32) / n
    row, column = (y * rows).astype(int), (x * columns).astype(int)
    v, u = (y * rows) % 1, (x * columns) % 1
    opening = (np.abs(u - 0.5) < 0.3) & (np.abs(v - 0.5) < 0.3)
    tone = rng.uniform(0.12, 0.45, (rows, columns))[row, column] * (1.2 - 0.4 * v)
    body = _tint(1 + 0.1 * fractal(rng, n, 4, 4), wall)
    return _image(np.where(opening[..., None], _tint(tone, (0.8, 0.95, 1.1)), body))
