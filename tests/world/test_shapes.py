"""Meshes wind outwards and have the right size; textures repeat without a seam."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flowshade.world import meshes, textures
from flowshade.world.meshes import Mesh


def volume(mesh: Mesh) -> float:
    """By the divergence theorem: positive only if faces wind outwards."""
    a, b, c = (mesh.vertices[mesh.faces[:, k]] for k in range(3))
    return float((a * np.cross(b, c)).sum() / 6)


def area(mesh: Mesh) -> float:
    a, b, c = (mesh.vertices[mesh.faces[:, k]] for k in range(3))
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)


def check(mesh: Mesh) -> None:
    """Normals are unit and on the side that faces wind to; nothing is missing or not finite."""
    assert len(mesh.vertices) == len(mesh.normals) == len(mesh.uv)
    assert np.isfinite(mesh.vertices).all()
    assert np.isfinite(mesh.uv).all()
    np.testing.assert_allclose(np.linalg.norm(mesh.normals, axis=1), 1, atol=1e-6)
    assert mesh.faces.min() >= 0
    assert mesh.faces.max() < len(mesh.vertices)
    a, b, c = (mesh.vertices[mesh.faces[:, k]] for k in range(3))
    face = np.cross(b - a, c - a)
    real = np.linalg.norm(face, axis=1) > 1e-9
    towards = (face[:, None] * mesh.normals[mesh.faces]).sum(-1)[real]
    assert (towards > 0).mean() > 0.98


RNG = np.random.default_rng(0)
PROFILE = np.array([[0, 0], [0, 1], [2, 1], [2, 0]], float)  # clockwise seen from -Y
SOLIDS: dict[str, tuple[Mesh, float]] = {
    "boxes": (meshes.boxes(np.array([[0, 0, 0], [5, 0, 0]]), np.array([1.0, 2.0, 3.0])), 12.0),
    "extrude": (meshes.extrude(PROFILE, 3.0), 6.0),
    "drum": (meshes.drum(1.0, 2.0, 64), 2 * np.pi),
    "blob": (meshes.blob(RNG, (1, 2, 3), 0.0, detail=3), 8 * np.pi),
    "facets": (meshes.blob(RNG, (1, 1, 1), 0.0, detail=3, flat=True), 4 / 3 * np.pi),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_solids_have_their_volume(name: str) -> None:
    mesh, expected = SOLIDS[name]
    check(mesh)
    assert volume(mesh) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    "mesh",
    [
        meshes.blob(RNG, (1, 1, 0.8), 0.2), meshes.cone(1, 3, RNG), meshes.disc(2, 1.0),
        meshes.gable(4, 3, 1, 0.3, 1)[0], meshes.gable(4, 3, 1, 0.3, 1)[1], meshes.tube((0, 0, 0), (1, 2, 3), 0.1),
        meshes.ribbon(np.array([[0, 0], [5, 0], [10, 2.0]]), 2, -1, 0.1, 1.0, 0.1),
        meshes.tufts(RNG, np.zeros((4, 3)), 0.3),
    ],
    ids=["blob", "cone", "disc", "roof", "gable", "tube", "ribbon", "tufts"],
)  # fmt: skip
def test_meshes_are_sound(mesh: Mesh) -> None:
    check(mesh)


def test_a_wall_has_holes_where_windows_are() -> None:
    x, z = np.array([0, 1, 2, 4, 5, 6.0]), np.array([0, 1, 2, 3.0])
    mesh, panes = meshes.wall_with_openings(x, z, 0.25, 1.0)
    assert mesh is not None
    check(mesh)
    assert panes.shape == (2, 4, 3)
    assert (panes[..., 1] == 0.25).all()
    # 6 x 3 less two holes of 1 x 1, and four reveals of 1 x 0.25 each.
    assert area(mesh) == pytest.approx(18 - 2 + 8 * 0.25)
    for pane in panes:
        inside = pane[[0, 2]].mean(0)
        in_front = mesh.vertices[mesh.faces]
        covers = (
            (in_front[..., 1] == 0).all(1)
            & (in_front[..., 0].min(1) < inside[0]) & (in_front[..., 0].max(1) > inside[0])
            & (in_front[..., 2].min(1) < inside[2]) & (in_front[..., 2].max(1) > inside[2])
        )  # fmt: skip
        assert not covers.any()


def test_a_wall_may_have_no_openings() -> None:
    mesh, panes = meshes.wall_with_openings(np.array([-1, 1.0]), np.array([0, 3.0]), 0.2, 1.0)
    assert mesh is not None
    assert len(panes) == 0
    assert area(mesh) == pytest.approx(6)


def test_moving_keeps_shape() -> None:
    mesh = SOLIDS["boxes"][0]
    moved = mesh.moved((3, 4, 5), 0.7)
    check(moved)
    assert volume(moved) == pytest.approx(volume(mesh))
    assert volume(mesh.scaled(2.0)) == pytest.approx(8 * volume(mesh))


TILES: dict[str, Callable[[np.random.Generator], textures.Image]] = {
    "mottled": lambda rng: textures.mottled(rng, (0.5, 0.4, 0.3)),
    "speckle": lambda rng: textures.speckle(rng, (0.4, 0.4, 0.4)),
    "bricks": lambda rng: textures.bricks(rng, (0.6, 0.3, 0.2), (0.7, 0.7, 0.7)),
    "slabs": lambda rng: textures.slabs(rng, (0.6, 0.6, 0.5)),
    "planks": lambda rng: textures.planks(rng, (0.5, 0.4, 0.3)),
    "corrugated": lambda rng: textures.corrugated(rng, (0.5, 0.3, 0.2)),
    "grass": lambda rng: textures.grass(rng, (0.2, 0.4, 0.1), (0.5, 0.5, 0.2)),
    "leaves": lambda rng: textures.leaves(rng, (0.2, 0.4, 0.1)),
    "windows": lambda rng: textures.windows(rng, (1, 0.8, 0.5)),
    "facade": lambda rng: textures.facade(rng, (0.6, 0.6, 0.6)),
    "checker": lambda rng: textures.checker((1, 0, 0), (0, 0, 1)),
    "stripes": lambda rng: textures.stripes((1, 0, 0), (0, 0, 1), diagonal=True),
}


@pytest.mark.parametrize("name", TILES)
def test_textures_are_square_pictures_with_content(name: str) -> None:
    image = TILES[name](np.random.default_rng(1))
    assert image.dtype == np.uint8
    assert image.shape == (len(image), len(image), 3)
    assert len(image) <= 256
    assert image.std() > 3
    assert (image == TILES[name](np.random.default_rng(1))).all()


@pytest.mark.parametrize("name", ["mottled", "grass", "leaves"])
def test_textures_repeat_without_a_seam(name: str) -> None:
    image = TILES[name](np.random.default_rng(2)).astype(float)
    inside = np.abs(np.diff(image, axis=0)).mean(), np.abs(np.diff(image, axis=1)).mean()
    across = np.abs(image[0] - image[-1]).mean(), np.abs(image[:, 0] - image[:, -1]).mean()
    assert across[0] < 1.9 * inside[0]
    assert across[1] < 1.9 * inside[1]


def test_noise_is_periodic_and_bounded() -> None:
    values = textures.noise(np.random.default_rng(0), 64, 4)
    assert np.abs(values).max() <= 1
    assert np.abs(values[0] - values[-1]).max() <= 1.5 * np.abs(np.diff(values, axis=0)).max()
