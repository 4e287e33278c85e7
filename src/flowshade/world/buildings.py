"""Houses: walls with real, set-back windows, shop fronts, sills, cornices and roofs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowshade.world import meshes, textures
from flowshade.world.meshes import Mesh
from flowshade.world.motion import Floats
from flowshade.world.scene import DETAIL_GROUP, Place, Scene
from flowshade.world.textures import Colour

WALLS: dict[str, tuple[Colour, ...]] = {
    "brick": ((0.58, 0.26, 0.19), (0.66, 0.38, 0.26), (0.45, 0.24, 0.20), (0.72, 0.60, 0.45), (0.40, 0.32, 0.30)),
    "plaster": ((0.90, 0.84, 0.70), (0.86, 0.68, 0.52), (0.62, 0.72, 0.78), (0.85, 0.55, 0.45), (0.93, 0.91, 0.87),
                (0.95, 0.80, 0.50), (0.60, 0.70, 0.55), (0.78, 0.58, 0.60), (0.50, 0.58, 0.66)),
    "concrete": ((0.62, 0.61, 0.59), (0.50, 0.50, 0.51), (0.72, 0.69, 0.64)),
    "glass": ((0.22, 0.26, 0.30), (0.30, 0.30, 0.31), (0.70, 0.71, 0.72)),
}  # fmt: skip
ROOFS: tuple[Colour, ...] = ((0.55, 0.25, 0.18), (0.30, 0.30, 0.33), (0.42, 0.30, 0.24), (0.35, 0.42, 0.40))


@dataclass(frozen=True)
class Plan:
    """The measures of one building; its front faces -y of its own and its footprint is centred on x."""

    width: float
    depth: float
    floors: int
    kind: str
    shop: bool
    pitched: bool
    ground_floor: float = 3.7
    floor: float = 3.1

    @property
    def height(self) -> float:
        return self.ground_floor + self.floors * self.floor


@dataclass
class Parts:
    """Meshes of a building, by what they are made of."""

    wall: list[Mesh]
    base: list[Mesh]
    dark: list[Mesh]
    lit: list[Mesh]
    trim: list[Mesh]
    roof: list[Mesh]


@dataclass(frozen=True)
class Facades:
    """Materials that the buildings of a world share."""

    dark: str
    lit: str
    doors: tuple[str, ...]
    trims: tuple[str, ...]
    roofs: tuple[str, ...]
    flat_roof: str
    walls: dict[str, tuple[str, ...]]


def make_facades(scene: Scene) -> Facades:
    """Draws the materials that the buildings of a world share."""
    rng = scene.rng
    glow = scene.pick(((1.0, 0.84, 0.58), (1.0, 0.76, 0.46), (0.95, 0.93, 0.85)))
    return Facades(
        dark=scene.material(texture=textures.windows(rng, None), roughness=0.08, metallic=0.0),
        lit=scene.material(texture=textures.windows(rng, glow), roughness=0.1, emission=1.2),
        doors=tuple(scene.material(scene.vary(c), roughness=0.45) for c in
                    ((0.35, 0.12, 0.10), (0.10, 0.25, 0.30), (0.20, 0.28, 0.18), (0.25, 0.18, 0.12))),
        trims=tuple(scene.material(scene.vary(c, 0.03), roughness=0.6) for c in
                    ((0.90, 0.88, 0.84), (0.72, 0.68, 0.60), (0.24, 0.25, 0.27))),
        roofs=tuple(scene.material(texture=textures.corrugated(rng, scene.vary(c)), roughness=0.8)
                    for c in (scene.pick(ROOFS), scene.pick(ROOFS))),
        flat_roof=scene.material(texture=textures.speckle(rng, (0.38, 0.37, 0.36)), roughness=0.95),
        walls={kind: tuple(wall_material(scene, kind) for _ in range(3 if kind in ("brick", "plaster") else 1))
               for kind in WALLS},
    )  # fmt: skip


def wall_material(scene: Scene, kind: str) -> str:
    """A textured wall; one tile of its texture is `WALL_TILE` metres."""
    rng, colour = scene.rng, scene.vary(scene.pick(WALLS[kind]), 0.04)
    if kind == "brick":
        mortar = scene.pick(((0.75, 0.72, 0.67), (0.45, 0.42, 0.40)))
        return scene.material(texture=textures.bricks(rng, colour, mortar, rows=16, columns=5), roughness=0.9)
    if kind == "plaster":
        return scene.material(texture=textures.mottled(rng, colour, contrast=0.13), roughness=0.85)
    if kind == "concrete":
        return scene.material(texture=textures.slabs(rng, colour, rows=2, columns=1), roughness=0.8)
    return scene.material(colour, roughness=0.3, metallic=0.7)


WALL_TILE = 1.6


def draw_plan(scene: Scene, width: float, tallest: int) -> Plan:
    """Draws a building `width` metres wide with at most `tallest` floors above the ground floor."""
    rng = scene.rng
    kind = str(rng.choice(["brick", "plaster", "concrete", "glass"], p=[0.34, 0.40, 0.14, 0.12]))
    low = kind in ("brick", "plaster")
    floors = int(rng.integers(1, min(tallest, 4 if low else tallest) + 1))
    return Plan(
        width=width, depth=float(rng.uniform(8, 12)), floors=floors, kind=kind, shop=bool(rng.random() < 0.55),
        pitched=bool(low and rng.random() < 0.6), floor=float(rng.uniform(2.8, 3.3)),
        ground_floor=float(rng.uniform(3.3, 4.1)),
    )  # fmt: skip


def building(scene: Scene, facades: Facades, plan: Plan, position: tuple[float, float, float], yaw: float) -> None:
    """Adds a building; `position` is the middle of its front at ground level."""
    rng = scene.rng
    parts = Parts([], [], [], [], [], [])
    _front(scene, plan, parts)
    _sides(scene, plan, parts)
    _top(scene, plan, parts)
    place = scene.place("building", position, yaw)
    wall = scene.pick(facades.walls[plan.kind])
    base = wall if rng.random() < 0.5 else scene.pick(facades.walls[str(rng.choice(["plaster", "concrete", "brick"]))])
    trim = scene.pick(facades.trims)
    roof = scene.pick(facades.roofs) if plan.pitched else facades.flat_roof
    _door(scene, facades, plan, parts, place)
    if base == wall:
        parts.wall, parts.base = parts.wall + parts.base, []
    for group, material in ((parts.wall, wall), (parts.base, base), (parts.roof, roof), (parts.trim, trim),
                            (parts.dark, facades.dark), (parts.lit, facades.lit)):  # fmt: skip
        if group:
            scene.shape(place, meshes.join(group), material, group=DETAIL_GROUP)
    # A mesh's bounding box lies along its axes of inertia and is loose, so plain boxes stand in as obstacles.
    half = (plan.width / 2, plan.depth / 2, plan.height / 2)
    scene.solid(place, "box", half, (0, plan.depth / 2, plan.height / 2), None, collide=True, hidden=True)
    top = (plan.width / 2 + 0.5, plan.depth / 2 + 0.5, 0.25 * plan.depth if plan.pitched else 0.6)
    scene.solid(place, "box", top, (0, plan.depth / 2, plan.height - 0.3 + top[2]), None, hidden=True)
    if plan.shop:
        _awning(scene, plan, place)
    if not plan.pitched:
        _roof_clutter(scene, plan, place)


def _breaks(width: float, count: int, opening: float, margin: float) -> Floats:
    """Wall, opening, wall, ... breaks for `count` evenly spread openings, centred on zero."""
    if count == 0:
        return np.array([-width / 2, width / 2])
    pitch = (width - 2 * margin) / count
    centres = -width / 2 + margin + pitch * (np.arange(count) + 0.5)
    edges = np.stack([centres - opening * pitch / 2, centres + opening * pitch / 2], -1).ravel()
    return np.concatenate([[-width / 2], edges, [width / 2]])


def _front(scene: Scene, plan: Plan, parts: Parts) -> None:
    rng = scene.rng
    columns = max(2, int(plan.width / rng.uniform(2.2, 3.4)))
    wide = 0.82 if plan.kind == "glass" else rng.uniform(0.38, 0.6)
    sill, head = (0.12, 0.92) if plan.kind == "glass" else (rng.uniform(0.25, 0.33), rng.uniform(0.8, 0.88))
    x = _breaks(plan.width, columns, wide, 0.4)
    levels = plan.ground_floor + plan.floor * np.arange(plan.floors)
    z = np.concatenate([[plan.ground_floor], np.stack([levels + sill * plan.floor, levels + head * plan.floor], -1)
                        .ravel(), [plan.height]])  # fmt: skip
    wall, panes = meshes.wall_with_openings(x, z, 0.18, WALL_TILE)
    parts.wall += [wall] if wall else []
    _glaze(scene, panes, parts, 0.14)
    shop_x = _breaks(plan.width, max(1, int(plan.width / 3.6)) if plan.shop else columns, 0.82 if plan.shop else wide,
                     0.5)  # fmt: skip
    shop_z = np.array([0.0, 0.5 if plan.shop else 1.0, plan.ground_floor * 0.76, plan.ground_floor])
    base, shop_panes = meshes.wall_with_openings(shop_x, shop_z, 0.2, WALL_TILE)
    parts.base += [base] if base else []
    _glaze(scene, shop_panes, parts, 0.45 if plan.shop else 0.14)
    parts.trim.append(meshes.boxes(np.array([0, -0.06, plan.ground_floor]), np.array([plan.width, 0.22, 0.24])))
    if plan.kind != "glass":
        centre, size = (panes[:, 0] + panes[:, 2]) / 2, panes[:, 2] - panes[:, 0]
        below = centre - np.array([0, 0.2, 0.04]) - size * [0, 0, 0.5]
        parts.trim.append(meshes.boxes(below, size * [1, 0, 0] + np.array([0.24, 0.2, 0.08])))


def _glaze(scene: Scene, panes: Floats, parts: Parts, lit_share: float) -> None:
    """Panes, each one of the sixteen in the windows texture, and glazing bars before them."""
    rng = scene.rng
    if not len(panes):
        return
    cell = rng.integers(0, 4, (len(panes), 1, 2))
    corners = np.array([[0.02, 0.02], [0.98, 0.02], [0.98, 0.98], [0.02, 0.98]])
    uv = (cell + corners) / 4
    lit = rng.random(len(panes)) < lit_share
    for group, chosen in ((parts.lit, lit), (parts.dark, ~lit)):
        if chosen.any():
            group.append(meshes.quads(panes[chosen], uv[chosen]))
    centre, size = (panes[:, 0] + panes[:, 2]) / 2 - [0, 0.03, 0], panes[:, 2] - panes[:, 0]
    half_up, half_across = 0.5 * size * [0, 0, 1], 0.5 * size * [1, 0, 0]
    raised = centre + 0.32 * half_up
    parts.trim.append(
        meshes.bars(
            np.concatenate([centre - half_up, raised - half_across]),
            np.concatenate([centre + half_up, raised + half_across]), 0.06,
        )
    )  # fmt: skip


def _sides(scene: Scene, plan: Plan, parts: Parts) -> None:
    """Left, right and back walls, with a sparse column or two of windows at the sides."""
    rng = scene.rng
    levels = plan.ground_floor + plan.floor * np.arange(plan.floors)
    z = np.concatenate([[0.0], np.stack([levels + 0.32 * plan.floor, levels + 0.8 * plan.floor], -1).ravel(),
                        [plan.height]])  # fmt: skip
    for side in (-1, 1):
        x = _breaks(plan.depth, int(rng.integers(0, 3)), 0.35, 1.0)
        wall, panes = meshes.wall_with_openings(x, z if len(x) > 2 else z[[0, -1]], 0.15, WALL_TILE)
        local = Parts([], [], [], [], [], [])
        _glaze(scene, panes, local, 0.14)
        turn, at = side * np.pi / 2, (side * plan.width / 2, plan.depth / 2, 0)
        local.wall = [wall] if wall else []
        for target, source in ((parts.wall, local.wall), (parts.dark, local.dark), (parts.lit, local.lit),
                               (parts.trim, local.trim)):  # fmt: skip
            target += [mesh.moved(at, turn) for mesh in source]
    back, _ = meshes.wall_with_openings(np.array([-0.5, 0.5]) * plan.width, z[[0, -1]], 0.1, WALL_TILE)
    parts.wall += [back.moved((0, plan.depth, 0), np.pi)] if back else []


def _top(scene: Scene, plan: Plan, parts: Parts) -> None:
    w, d, h = plan.width, plan.depth, plan.height
    if plan.pitched:
        slopes, ends = meshes.gable(w, d, scene.rng.uniform(0.25, 0.45) * d, 0.45, 2.0)
        parts.roof.append(slopes.moved((0, d / 2, h)))
        parts.wall.append(ends.moved((0, d / 2, h)))
        parts.trim.append(meshes.boxes(np.array([0, -0.12, h - 0.1]), np.array([w, 0.3, 0.2])))
        return
    parts.roof.append(meshes.boxes(np.array([0, d / 2, h - 0.05]), np.array([w - 0.1, d - 0.1, 0.12]), tile=2.0))
    rim = np.array([[0, 0.1, h + 0.25], [0, d - 0.1, h + 0.25], [-w / 2 + 0.1, d / 2, h + 0.25],
                    [w / 2 - 0.1, d / 2, h + 0.25]])  # fmt: skip
    size = np.array([[w + 0.2, 0.3, 0.6], [w + 0.2, 0.3, 0.6], [0.3, d, 0.6], [0.3, d, 0.6]])
    parts.trim.append(meshes.boxes(rim, size))


def _door(scene: Scene, facades: Facades, plan: Plan, parts: Parts, place: Place) -> None:
    """A door in its frame, with a step before it."""
    x = float(scene.rng.uniform(-0.35, 0.35) * plan.width)
    scene.solid(place, "box", (0.55, 0.06, 1.1), (x, -0.02, 1.1), scene.pick(facades.doors))
    frame_and_step = np.array([[x, 0.0, 1.15], [x, -0.13, 0.08]])
    parts.trim.append(meshes.boxes(frame_and_step, np.array([[1.32, 0.1, 2.38], [1.6, 0.36, 0.16]])))


def _awning(scene: Scene, plan: Plan, place: Place) -> None:
    rng = scene.rng
    first, second = scene.pick(((0.70, 0.15, 0.15), (0.12, 0.32, 0.25), (0.15, 0.25, 0.50), (0.85, 0.60, 0.20))), (
        0.93, 0.92, 0.88)  # fmt: skip
    cloth = scene.material(texture=textures.stripes(first, second, bands=2), roughness=0.9)
    width, reach, top = plan.width * rng.uniform(0.5, 0.85), rng.uniform(0.9, 1.4), plan.ground_floor * 0.8
    slope = np.array([[-width / 2, -reach, top - 0.5], [width / 2, -reach, top - 0.5], [width / 2, 0, top],
                      [-width / 2, 0, top]])  # fmt: skip
    edge = slope[[0, 1, 1, 0]] - np.array([[0, 0, 0.22], [0, 0, 0.22], [0, 0, 0], [0, 0, 0]])
    both = np.stack([slope, slope[::-1] - [0, 0, 0.02], edge, edge[::-1] + np.array([0, 0.02, 0])])
    scene.shape(place, meshes.quads(both), cloth, group=DETAIL_GROUP)
    scene.solid(place, "box", (width / 2, reach / 2, 0.4), (0, -reach / 2, top - 0.35), None, hidden=True)


def _roof_clutter(scene: Scene, plan: Plan, place: Place) -> None:
    rng = scene.rng
    grey = scene.material((0.55, 0.56, 0.57), metallic=0.5, roughness=0.5)
    for _ in range(int(rng.integers(0, 3))):
        x, y = rng.uniform(-0.3, 0.3) * plan.width, plan.depth * rng.uniform(0.3, 0.7)
        scene.solid(place, "box", rng.uniform(0.4, 1.1, 3), (x, y, plan.height + 0.7), grey)
    if rng.random() < 0.25:
        at = (rng.uniform(-0.25, 0.25) * plan.width, plan.depth * 0.6, plan.height + 1.6)
        scene.solid(place, "cylinder", (1.0, 1.2), at, scene.pick(_tanks(scene)))


def _tanks(scene: Scene) -> tuple[str, ...]:
    wood, steel = (0.45, 0.30, 0.20), (0.6, 0.6, 0.6)
    return scene.material(wood, roughness=0.8), scene.material(steel, metallic=0.9, roughness=0.3)
