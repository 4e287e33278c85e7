"""Hills from a seed: a height field with a trail, woods, rocks, cabins, a pond, a vehicle and things that roll."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flowshade.world import meshes, props, textures
from flowshade.world.buildings import WALL_TILE
from flowshade.world.camera import DETAIL_GROUP, KeepOut, Rail
from flowshade.world.meshes import Floats
from flowshade.world.motion import Route
from flowshade.world.scene import Scene
from flowshade.world.textures import Colour, darker, noise

HALF = 56.0
"""Half the side of the height field, metres."""
CELLS = 112
"""Cells along a side."""
PLAIN = 420.0
"""Half the side of the level ground about it, metres."""
GRASS_TILE = 6.2
"""Metres that a tile of grass covers."""
MEADOW_TILE = 47.0
"""The same on the level ground, which is seen from afar: small tiles would show as a pattern there."""

Spot = tuple[float, float]

SEASONS: tuple[tuple[str, Colour, Colour, Colour], ...] = (
    ("green", (0.27, 0.40, 0.14), (0.45, 0.45, 0.22), (0.24, 0.42, 0.14)),
    ("lush", (0.20, 0.38, 0.13), (0.33, 0.45, 0.18), (0.17, 0.34, 0.13)),
    ("dry", (0.58, 0.50, 0.28), (0.66, 0.58, 0.38), (0.36, 0.42, 0.18)),
    ("autumn", (0.42, 0.40, 0.18), (0.58, 0.46, 0.22), (0.72, 0.44, 0.13)),
    ("heather", (0.36, 0.36, 0.20), (0.50, 0.32, 0.44), (0.26, 0.38, 0.20)),
    ("sandy", (0.72, 0.60, 0.42), (0.62, 0.50, 0.34), (0.34, 0.44, 0.22)),
)  # fmt: skip
"""Name, grass, its dry patches, leaves."""


@dataclass
class Terrain:
    """Heights on a square grid, with ground that is taken already."""

    heights: Floats
    """[CELLS + 1, CELLS + 1], row 0 at y = -HALF."""
    taken: list[tuple[float, float, float]] = field(default_factory=list)
    """Discs x, y, radius."""
    _discs: Floats = field(default_factory=lambda: np.zeros((0, 3)))

    @staticmethod
    def grid() -> tuple[Floats, Floats]:
        """x and y of every grid point."""
        axis = np.linspace(-HALF, HALF, CELLS + 1)
        x, y = np.meshgrid(axis, axis)
        return x, y

    def at(self, x: Floats | float, y: Floats | float) -> Floats:
        """Height of the ground, bilinear."""
        u = np.clip((np.asarray(x, float) + HALF) / (2 * HALF) * CELLS, 0, CELLS - 1e-6)
        v = np.clip((np.asarray(y, float) + HALF) / (2 * HALF) * CELLS, 0, CELLS - 1e-6)
        i, j = u.astype(int), v.astype(int)
        s, t, h = u - i, v - j, self.heights
        low = h[j, i] * (1 - s) + h[j, i + 1] * s
        return low * (1 - t) + (h[j + 1, i] * (1 - s) + h[j + 1, i + 1] * s) * t

    def level(self, x: float, y: float, radius: float, bowl: float = 0.0) -> float:
        """Flattens a disc to its mean height, hollowed by `bowl` metres, and takes it; gives its middle's height."""
        gx, gy = self.grid()
        distance = np.hypot(gx - x, gy - y)
        target = float(self.heights[distance < radius].mean())
        weight = np.clip(1 - (distance - radius) / (0.8 * radius + 2.0), 0, 1)
        weight = weight * weight * (3 - 2 * weight)
        hollow = target - bowl * np.clip(1 - (distance / radius) ** 2, 0, 1)
        self.heights = self.heights * (1 - weight) + hollow * weight
        self.taken.append((x, y, radius))
        return target - bowl

    def drape(self, line: Floats, width: float) -> None:
        """Makes a band along a line [N, 3] level across, at the line's heights."""
        cell, reach = 2 * HALF / CELLS, width / 2 + 4.0
        span = np.arange(-int(reach / cell) - 1, int(reach / cell) + 2)
        column, row = (np.round((line[:, k, None, None] + HALF) / cell).astype(int) for k in (0, 1))
        column, row = np.broadcast_arrays(column + span, row + span[:, None])  # [N, S, S]: what a point may reach
        distance = np.hypot(column * cell - HALF - line[:, 0, None, None], row * cell - HALF - line[:, 1, None, None])
        height = np.broadcast_to(line[:, 2, None, None], distance.shape)
        inside = (distance < reach) & (column >= 0) & (column <= CELLS) & (row >= 0) & (row <= CELLS)
        column, row, distance, height = column[inside], row[inside], distance[inside], height[inside]
        nearest_last = np.argsort(-distance, kind="stable")
        target, weight = self.heights.copy(), np.zeros_like(self.heights)
        at = row[nearest_last], column[nearest_last]
        target[at] = height[nearest_last]
        weight[at] = np.clip(1 - (distance[nearest_last] - width / 2) / 4.0, 0, 1)
        weight = weight * weight * (3 - 2 * weight)
        self.heights = self.heights * (1 - weight) + target * weight

    def is_free(self, x: float, y: float, radius: float) -> bool:
        if len(self._discs) != len(self.taken):
            self._discs = np.array(self.taken)
        away = self._discs[:, :2] - (x, y)
        return bool((np.einsum("nk,nk->n", away, away) > (self._discs[:, 2] + radius) ** 2).all())

    def find(self, rng: np.random.Generator, radius: float, reach: float, tries: int = 25) -> Spot | None:
        """A free disc within `reach` metres of the middle, or None; does not take it."""
        for _ in range(tries):
            distance, angle = reach * np.sqrt(rng.random()), rng.uniform(0, 2 * np.pi)
            x, y = float(distance * np.cos(angle)), float(distance * np.sin(angle))
            if self.is_free(x, y, radius):
                return x, y
        return None


def draw_terrain(rng: np.random.Generator) -> Terrain:
    """Rolling hills that sink to zero at the rim."""
    n = CELLS + 1
    cells = int(rng.integers(3, 6))
    shape = noise(rng, n, cells) + 0.45 * noise(rng, n, 2 * cells) + 0.12 * noise(rng, n, 5 * cells)
    x, y = Terrain.grid()
    inside = np.clip((HALF - np.hypot(x, y)) / 18.0, 0, 1)
    inside = inside * inside * (3 - 2 * inside)
    height = rng.uniform(1.5, 5.5)
    return Terrain(((shape + 1.0) * height * inside).astype(float))


def build_hills(scene: Scene) -> tuple[str, ...]:
    """Fills the scene; gives captions, the canonical one first."""
    rng = scene.rng
    season, grass, dry, leaf = scene.pick(SEASONS)
    palette = props.make_palette(scene, leaf)
    terrain = draw_terrain(rng)
    trail, walk = _ways(scene, terrain)
    woods = float(rng.uniform(0.2, 1.0))
    sites = _sites(scene, terrain, trail, walk)
    if sites.pond is not None:
        _pond(scene, terrain, sites.pond, sites.pond_radius)
    _cabins(scene, terrain, palette, sites.cabins)
    _rolling(scene, terrain, sites.hollows)
    for spot in sites.toys:
        props.toys(scene, (*spot, float(terrain.at(*spot))), int(rng.integers(2, 6)), 2.2)
    vehicle = _vehicle(scene, palette, trail)
    _lamps(scene, terrain, palette, trail)
    _fence(scene, terrain, palette, trail)
    trees = _woods(scene, terrain, palette, woods)
    rocks = _rocks(scene, terrain)
    _farm(scene, terrain, palette)
    _undergrowth(scene, terrain, palette, trail, walk, dry)
    grass_here, dry_here = scene.vary(grass, 0.03), scene.vary(dry, 0.03)
    _ground(scene, terrain, grass_here, dry_here, trail)
    _patches(scene, terrain, dry)
    _mountains(scene, grass)
    _rails(scene, terrain, trail, walk)
    meadow = scene.material(texture=textures.grass(rng, grass_here, dry_here), roughness=0.95)
    scene.shape(scene.place("plain"), _plain(terrain), meadow, group=DETAIL_GROUP)
    props.far_woods(scene, palette, (66.0, 66.0), 2.7, 40)
    return _captions(season, trees, rocks, sites, vehicle)


def _ring(rng: np.random.Generator, radius: float) -> Floats:
    """A wobbly closed curve [N, 2] about the middle."""
    angle = np.linspace(0, 2 * np.pi, 240, endpoint=False)
    wave = sum(rng.normal(0, 0.09) * np.cos(k * angle + rng.uniform(0, 6)) for k in (2, 3, 4))
    shape = radius * (1 + wave)
    return np.stack([shape * np.cos(angle), shape * np.sin(angle)], -1)


def _ways(scene: Scene, terrain: Terrain) -> tuple[Route, Route]:
    """The trail that vehicles use, draped into the ground, and a footpath for cameras inside it."""
    rng = scene.rng
    outer = _ring(rng, rng.uniform(23, 31))
    walk = outer * rng.uniform(0.5, 0.75)
    routes = []
    for line, width, rounding, free in ((outer, 4.0, 14.0, 2.8), (walk, 1.0, 10.0, 1.9)):
        raised = np.column_stack([line, terrain.at(line[:, 0], line[:, 1])])
        route = Route.through(raised, rounding=rounding)
        terrain.drape(route.points[::2], width + 0.8)
        terrain.taken += [(float(x), float(y), free) for x, y, _ in route.points[::3]]
        routes.append(route)
    return routes[0], routes[1]


def _ground(scene: Scene, terrain: Terrain, grass: Colour, dry: Colour, trail: Route) -> None:
    rng = scene.rng
    picture = scene.texture(textures.grass(rng, grass, dry))
    tiles = 2 * HALF / GRASS_TILE
    scene.terrain(terrain.heights, HALF, scene.material(texture=picture, roughness=0.95, repeat=(tiles, tiles)))
    soil = scene.pick(((0.48, 0.38, 0.27), (0.58, 0.52, 0.44), (0.42, 0.33, 0.26), (0.62, 0.50, 0.36)))
    gravel = scene.material(texture=textures.speckle(rng, scene.vary(soil), contrast=0.3), roughness=0.95)
    line = np.concatenate([trail.points, trail.points[:2]])
    z = terrain.at(line[:, 0], line[:, 1])[:, None] + 0.08
    scene.detail(meshes.ribbon(line[:, :2], 1.35, -1.35, np.broadcast_to(z, (len(line), 2)), 2.0), gravel)


def _plain(terrain: Terrain) -> meshes.Mesh:
    """Level ground about the height field, sewn to its rim; nothing lies under the field, which may sink below it."""
    count = 4 * CELLS
    step = np.arange(count) % CELLS
    side = np.arange(count) // CELLS  # south, east, north, west: counter-clockwise
    column = np.select([side == 0, side == 1, side == 2], [step, CELLS, CELLS - step], 0)
    row = np.select([side == 0, side == 1, side == 2], [0, step, CELLS], CELLS - step)
    rim = 2 * np.stack([column, row], -1) / CELLS - 1  # [N, 2] on the unit square
    rings = [np.column_stack([rim * HALF, terrain.heights[row, column]])]
    rings += [np.column_stack([rim * reach, np.zeros(count)]) for reach in (HALF + 9.0, PLAIN)]
    vertices = np.concatenate(rings)
    here, after = np.arange(count), np.roll(np.arange(count), -1)
    strips = [(k * count + here, k * count + after, (k + 1) * count + here, (k + 1) * count + after) for k in (0, 1)]
    faces = np.concatenate([np.concatenate([np.stack([a, c, b], -1), np.stack([b, c, d], -1)])
                            for a, b, c, d in strips]).astype(np.int32)  # fmt: skip
    return meshes.Mesh(vertices, meshes.vertex_normals(vertices, faces), vertices[:, :2] / MEADOW_TILE, faces)


def _patches(scene: Scene, terrain: Terrain, dry: Colour) -> None:
    """Bare earth, gravel and other growth in irregular patches, draped over the grass."""
    rng = scene.rng
    earth = scene.vary(scene.pick(((0.40, 0.31, 0.22), (0.52, 0.46, 0.38), (0.58, 0.50, 0.36))), 0.04)
    growth = darker(dry, rng.uniform(0.65, 0.9))
    for colour, count in ((earth, int(rng.integers(8, 20))), (growth, int(rng.integers(8, 20)))):
        material = scene.material(texture=textures.speckle(rng, colour, contrast=0.35), roughness=0.95)
        for _ in range(count):
            spot = terrain.find(rng, 1.0, 44, tries=3)
            if spot is not None:
                scene.detail(_patch(rng, terrain, spot), material)


def _patch(rng: np.random.Generator, terrain: Terrain, spot: tuple[float, float]) -> meshes.Mesh:
    """An irregular disc that lies on the ground, with smooth normals."""
    angle = np.linspace(0, 2 * np.pi, 25)[:-1]
    outline = rng.uniform(1.0, 3.5) * (1 + 0.2 * np.cos(2 * angle + rng.uniform(0, 6)) + 0.15 * np.cos(5 * angle))
    rings = np.linspace(0, 1, 7)[1:, None] * outline  # [R, S]
    x = np.concatenate([[0.0], (rings * np.cos(angle)).ravel()]) + spot[0]
    y = np.concatenate([[0.0], (rings * np.sin(angle)).ravel()]) + spot[1]
    # The rim dips into the ground, so that the edge follows the grass and does not float.
    lift = np.full(len(x), 0.045)
    lift[-len(angle) :] = -0.02
    vertices = np.column_stack([x, y, terrain.at(x, y) + lift])
    segment, after = np.arange(len(angle)), np.roll(np.arange(len(angle)), -1)
    inner = np.column_stack([0 * segment, 1 + segment, 1 + after])
    rows = [1 + len(angle) * k for k in range(len(rings) - 1)]
    ring = [np.column_stack([r + segment, r + len(angle) + segment, r + len(angle) + after]) for r in rows]
    ring += [np.column_stack([r + segment, r + len(angle) + after, r + after]) for r in rows]
    faces = np.concatenate([inner, *ring]).astype(np.int32)
    return meshes.Mesh(vertices, meshes.vertex_normals(vertices, faces), vertices[:, :2] / 2.0, faces)


def _mountains(scene: Scene, grass: Colour) -> None:
    """Far ridges all round, so that the horizon is a place."""
    rng = scene.rng
    angle = np.linspace(0, 2 * np.pi, 97)
    place = scene.place("mountains")
    for radius, tall, colour in ((200, 30, darker(grass, 0.75)), (360, 95, (0.40, 0.41, 0.45))):
        rise = np.zeros_like(angle)
        for k in range(2, 18):
            rise += np.cos(k * angle + rng.uniform(0, 2 * np.pi)) * rng.uniform(0.4, 1) / k**0.6
        rise = tall * (0.55 + 0.45 * (rise - rise.min()) / np.ptp(rise)) * rng.uniform(0.3, 1.2)
        ring = np.column_stack([np.cos(angle), np.sin(angle)])
        foot = np.column_stack([ring * radius, np.full(97, -2.0)])
        top = np.column_stack([ring * radius * 1.22, rise])
        corners = np.stack([foot[1:], foot[:-1], top[:-1], top[1:]], 1)
        along, up = radius * angle / 110.0, np.linalg.norm(top - foot, axis=1) / 110.0  # in tiles, running on
        low, high = np.column_stack([along, 0 * up]), np.column_stack([along, up])
        uv = np.stack([low[1:], low[:-1], high[:-1], high[1:]], 1)
        picture = textures.mottled(rng, scene.vary(colour, 0.03), contrast=0.45, cells=6)
        material = scene.material(texture=picture, roughness=0.95)
        scene.shape(place, meshes.quads(corners, uv), material, group=1)


@dataclass(frozen=True)
class Sites:
    """Levelled places, by what they are for."""

    pond: Spot | None
    pond_radius: float
    cabins: list[Spot]
    hollows: list[Spot]
    toys: list[Spot]


def _sites(scene: Scene, terrain: Terrain, trail: Route, walk: Route) -> Sites:
    """Finds and shapes all ground before anything is put on it, so that nothing ends up floating or buried."""
    rng = scene.rng

    def take(count: int, radius: float, reach: float, bowl: float = 0.0) -> list[Spot]:
        found = []
        for _ in range(count):
            spot = terrain.find(rng, radius + 0.7, reach, tries=50)
            if spot is not None:
                terrain.level(*spot, radius, bowl)
                found.append(spot)
        return found

    radius = float(rng.uniform(4.5, 8))
    ponds = take(int(rng.random() < 0.55), radius, 44, bowl=1.6)
    sites = Sites(
        pond=ponds[0] if ponds else None,
        pond_radius=radius,
        cabins=take(int(rng.integers(1, 4)), 5.5, 40),
        hollows=take(int(rng.integers(1, 4)), 5.0, 42, bowl=0.8),
        toys=take(int(rng.integers(1, 4)), 3.0, 34),
    )
    for route, width in ((trail, 4.8), (walk, 1.8)):  # slopes of the sites must not reach into the ways
        terrain.drape(route.points[::2], width)
    return sites


def _pond(scene: Scene, terrain: Terrain, spot: Spot, radius: float) -> None:
    water = scene.material(scene.vary((0.10, 0.20, 0.24), 0.03), roughness=0.04)
    place = scene.place("pond", (*spot, float(terrain.at(*spot)) + 0.75))
    scene.shape(place, meshes.disc(radius * 1.15, 4.0, 40), water)


def _cabins(scene: Scene, terrain: Terrain, palette: props.Palette, spots: list[Spot]) -> None:
    """Cabins whose fronts look roughly at the middle of the world."""
    for x, y in spots:
        yaw = float(np.arctan2(-y, -x) + np.pi / 2 + scene.rng.normal(0, 0.5))
        _cabin(scene, palette, (x, y, float(terrain.at(x, y))), yaw)


def _cabin(scene: Scene, palette: props.Palette, position: tuple[float, float, float], yaw: float) -> None:
    """A gabled hut with set-back windows, a door, a chimney and a lamp by the door; its front faces -y."""
    rng = scene.rng
    w, d, h = rng.uniform(5, 8), rng.uniform(4, 5.5), rng.uniform(2.4, 3.0)
    place = scene.place("cabin", position, yaw)
    stone = rng.random() < 0.3
    colour = scene.vary(scene.pick(((0.50, 0.33, 0.20), (0.62, 0.22, 0.17), (0.40, 0.38, 0.36), (0.80, 0.76, 0.66))))
    mortar = (0.6, 0.58, 0.55)
    picture = textures.bricks(rng, colour, mortar, rows=8, columns=4) if stone else textures.planks(rng, colour)
    wall = scene.material(texture=picture, roughness=0.85)
    lit = scene.material(texture=textures.windows(rng, (1.0, 0.80, 0.50)), roughness=0.1, emission=1.2)
    sides, panes = [], []
    x = np.array([-w / 2, -w * 0.36, -w * 0.16, w * 0.2, w * 0.38, w / 2])
    z = np.array([-0.6, 0.9, 2.0, h])
    for side_x, turn, at in (
        (x, 0.0, (0, -d / 2, 0)), (x, np.pi, (0, d / 2, 0)),
        (np.array([-d / 2, -0.5, 0.5, d / 2]), np.pi / 2, (w / 2, 0, 0)),
        (np.array([-d / 2, d / 2]), -np.pi / 2, (-w / 2, 0, 0)),
    ):  # fmt: skip
        mesh, openings = meshes.wall_with_openings(side_x, z, 0.12, WALL_TILE)
        sides += [mesh.moved(at, turn)] if mesh else []
        if len(openings):
            uv = (rng.integers(0, 4, (len(openings), 1, 2)) + np.array([[0, 0], [1, 0], [1, 1], [0, 1]])) / 4
            panes.append(meshes.quads(openings, uv).moved(at, turn))
    slopes, ends = meshes.gable(w, d, rng.uniform(1.2, 2.2), 0.45, 2.0)
    roof = scene.material(texture=textures.corrugated(rng, scene.vary((0.35, 0.24, 0.20))), roughness=0.8)
    scene.shape(place, meshes.join([*sides, ends.moved((0, 0, h))]), wall, group=DETAIL_GROUP)
    scene.shape(place, slopes.moved((0, 0, h)), roof, group=DETAIL_GROUP)
    scene.shape(place, meshes.join(panes), lit if rng.random() < 0.6 else palette.glass, group=DETAIL_GROUP)
    scene.solid(place, "box", (w / 2 + 0.5, d / 2 + 0.5, h / 2 + 1.0), (0, 0, h / 2 + 0.6), None, hidden=True)
    door = scene.material(scene.vary((0.25, 0.16, 0.10)), roughness=0.6)
    scene.solid(place, "box", (0.48, 0.07, 1.0), (0.1, -d / 2, 1.0), door)
    scene.solid(place, "box", (0.3, 0.3, 0.9), (w * 0.3, d * 0.2, h + 1.5), wall)
    scene.solid(place, "sphere", (0.12,), (0.9, -d / 2 - 0.15, 2.1), palette.lamp)
    scene.solid(place, "box", (w / 2, 0.7, 0.1), (0, -d / 2 - 0.6, 0.05), palette.wood)


def _rolling(scene: Scene, terrain: Terrain, hollows: list[Spot]) -> None:
    """Balls and barrels that roll about in hollows."""
    rng = scene.rng
    for spot in hollows:
        low = float(terrain.at(*spot))
        for _ in range(int(rng.integers(1, 3))):
            x, y = (float(s + rng.uniform(-2.0, 2.0)) for s in spot)
            props.ball(scene, (x, y, float(terrain.at(x, y)) + 0.03), float(rng.uniform(0.25, 0.6)), 5.0)
        if rng.random() < 0.7:
            x, y = spot[0] + 2.4, spot[1]
            props.barrel(scene, (x, y, float(terrain.at(x, y)) + 0.1), True, float(rng.uniform(0, 6)))
        scene.keep_out.append(KeepOut(spot, 5.0, low + 4.0))


def _vehicle(scene: Scene, palette: props.Palette, trail: Route) -> str:
    rng = scene.rng
    speed = float(rng.uniform(2.5, 5.0))
    count = int(rng.integers(1, 3))
    for k in range(count):
        place = scene.place("vehicle", mocap=True)
        props.car(scene, palette, props.make_car_shape(scene), place, True)
        phase = trail.length * (k + rng.uniform(0.3, 0.7)) / count
        scene.follow(place, trail, speed, phase, radius=2.6, height=2.4, offset=(0.0, 0.0, 0.06))
    return "a car" if count == 1 else "two cars"


def _beside(trail: Route, distance: float, offset: float) -> tuple[float, float, float]:
    """x, y and yaw of a spot `offset` metres left of the trail."""
    (x, y, _), yaw, _ = trail.at(distance)
    return x - offset * np.sin(yaw), y + offset * np.cos(yaw), yaw


def _lamps(scene: Scene, terrain: Terrain, palette: props.Palette, trail: Route) -> None:
    rng = scene.rng
    style = int(rng.integers(1, 3))
    count = int(rng.integers(2, 7))
    for k in range(count):
        x, y, yaw = _beside(trail, trail.length * (k + rng.uniform(-0.2, 0.2)) / count, float(rng.choice([-2.3, 2.3])))
        props.lamp_post(scene, palette, (x, y, float(terrain.at(x, y)) - 0.05), yaw, style)
        terrain.taken.append((x, y, 0.5))


def _fence(scene: Scene, terrain: Terrain, palette: props.Palette, trail: Route) -> None:
    """Posts and two rails along stretches of the trail."""
    rng = scene.rng
    for _ in range(int(rng.integers(1, 4))):
        start, spans = rng.uniform(0, trail.length), int(rng.integers(5, 12))
        spots = [_beside(trail, start + 2.2 * k, 3.0) for k in range(spans)]
        points = np.array([[x, y, terrain.at(x, y)] for x, y, _ in spots])
        posts = meshes.boxes(points + np.array([0, 0, 0.5]), np.array([0.11, 0.11, 1.3]))
        heights = np.array([[0, 0, 0.55], [0, 0, 0.95]])
        bars = [_bar(points[:-1] + z, points[1:] + z, 0.045, 0.13) for z in heights]
        scene.detail(meshes.join([posts, *bars]), palette.wood)
        terrain.taken += [(float(x), float(y), 0.6) for x, y, _ in points]


def _bar(start: Floats, end: Floats, thick: float, tall: float) -> meshes.Mesh:
    """Flat boards from point to point: two sides and a top."""
    along = end - start
    side = np.column_stack([-along[:, 1], along[:, 0], np.zeros(len(along))])
    side = side / np.linalg.norm(side, axis=1, keepdims=True) * thick / 2
    up = np.array([0, 0, tall / 2])
    right = np.stack([start - side - up, end - side - up, end - side + up, start - side + up], 1)
    left = np.stack([end + side - up, start + side - up, start + side + up, end + side + up], 1)
    top = np.stack([start - side + up, end - side + up, end + side + up, start + side + up], 1)
    return meshes.quads(np.concatenate([right, left, top]))


def _woods(scene: Scene, terrain: Terrain, palette: props.Palette, amount: float) -> int:
    rng, count = scene.rng, 0
    firs = float(rng.choice([0.1, 0.5, 0.9]))
    for _ in range(int(8 + 12 * amount)):
        middle = terrain.find(rng, 1.0, 48)
        if middle is None:
            continue
        conifers = rng.random() < firs
        for _ in range(int(rng.integers(2, int(5 + 4 * amount)))):
            x, y = (float(v + rng.normal(0, 3.6)) for v in middle)
            if np.hypot(x, y) < 53 and terrain.is_free(x, y, 1.0):
                at = (x, y, float(terrain.at(x, y)) - 0.1)
                if conifers:
                    props.fir(scene, palette, at)
                else:
                    props.tree(scene, palette, at, float(rng.uniform(0.9, 1.7)))
                terrain.taken.append((x, y, 1.2))
                count += 1
    for _ in range(int(10 * amount) + 4):
        spot = terrain.find(rng, 0.8, 42)
        if spot is not None:
            props.bush(scene, palette, (*spot, float(terrain.at(*spot))))
    return count


def _rocks(scene: Scene, terrain: Terrain) -> int:
    rng = scene.rng
    tone = scene.pick(((0.50, 0.50, 0.50), (0.58, 0.52, 0.44), (0.38, 0.38, 0.40), (0.55, 0.40, 0.32)))
    material = scene.material(texture=textures.mottled(rng, tone, contrast=0.45, cells=6), roughness=0.9)
    pebble = scene.material(scene.vary(tone), roughness=0.8)
    kinds = []
    for _ in range(4):
        size = rng.uniform(0.5, 1.6)
        shape = size * rng.uniform(0.6, 1.2, 3) * [1, 1, 0.75]
        kinds.append((scene.mesh(meshes.blob(rng, shape, 0.14, 1.8, 2, 1.5, flat=True)), shape))
    count = int(rng.integers(6, 22))
    for _ in range(count):
        spot = terrain.find(rng, 1.4, 46)
        if spot is None:
            continue
        name, shape = scene.pick(kinds)
        place = scene.place("rock", (*spot, float(terrain.at(*spot)) + 0.25 * shape[2]), float(rng.uniform(0, 6)))
        scene.shape(place, name, material)
        if rng.random() < 0.3:
            size = rng.uniform(0.2, 0.5, 3)
            scene.solid(place, "ellipsoid", size, (shape[0] + 0.4, 0.3, -0.2 * shape[2]), pebble, collide=True)
        terrain.taken.append((*spot, 1.2))
    return count


def _undergrowth(scene: Scene, terrain: Terrain, palette: props.Palette, trail: Route, walk: Route,
                 dry: Colour) -> None:  # fmt: skip
    """Tufts of grass and flowers, thickest by the footpath; each kind is one mesh."""
    rng = scene.rng
    count = int(rng.integers(120, 300))
    near = walk.positions(rng.uniform(0, walk.length, count))[:, :2] + rng.normal(0, 6.0, (count, 2))
    far = rng.uniform(-42, 42, (count // 2, 2))
    spots = np.concatenate([near, far])
    to_trail = np.linalg.norm(spots[:, None] - trail.points[None, ::2, :2], axis=-1).min(1)
    spots = spots[(np.abs(spots).max(1) < HALF - 4) & (to_trail > 1.7)]
    roots = np.column_stack([spots, terrain.at(spots[:, 0], spots[:, 1])])
    reed = scene.material(scene.vary(dry, 0.04), roughness=0.9)
    scene.detail(meshes.tufts(rng, roots[::2], 0.45), reed)
    scene.detail(meshes.tufts(rng, roots[1::2], 0.3), scene.pick(palette.foliage))
    if rng.random() < 0.6:
        heads = roots[: int(rng.integers(60, len(roots)))]
        heads = heads + np.column_stack([rng.normal(0, 0.4, (len(heads), 2)), rng.uniform(0.15, 0.4, len(heads))])
        petals = scene.material(scene.pick(((0.92, 0.85, 0.25), (0.90, 0.35, 0.40), (0.95, 0.95, 0.92),
                                            (0.55, 0.40, 0.80))), roughness=0.7)  # fmt: skip
        scene.detail(meshes.boxes(heads, rng.uniform(0.05, 0.12, (len(heads), 1)) * [1, 1, 0.6]), petals)


def _farm(scene: Scene, terrain: Terrain, palette: props.Palette) -> None:
    """Hay bales and log piles."""
    rng = scene.rng
    straw = scene.material(texture=textures.stripes((0.78, 0.66, 0.36), (0.70, 0.57, 0.28), bands=8), roughness=0.95,
                           cube=True)  # fmt: skip
    for _ in range(int(rng.integers(0, 7))):
        spot = terrain.find(rng, 1.5, 36)
        if spot is None:
            continue
        yaw = rng.uniform(0, 6)
        place = scene.place("bale", (*spot, float(terrain.at(*spot)) + 0.62), yaw)
        scene.solid(place, "cylinder", (0.7, 0.55), (0, 0, 0), straw, quat=(0.7071, 0.7071, 0, 0), collide=True)
        terrain.taken.append((*spot, 1.3))
    for _ in range(int(rng.integers(0, 3))):
        spot = terrain.find(rng, 1.8, 34)
        if spot is None:
            continue
        place = scene.place("logs", (*spot, float(terrain.at(*spot))), rng.uniform(0, 6))
        for x, z in ((-0.42, 0.2), (0, 0.2), (0.42, 0.2), (-0.21, 0.56), (0.21, 0.56)):
            scene.rod(place, "cylinder", 0.2, (x, -1.3, z), (x, 1.3, z), palette.bark)
        terrain.taken.append((*spot, 1.8))


def _rails(scene: Scene, terrain: Terrain, trail: Route, walk: Route) -> None:
    """The footpath for walking, the trail for driving, a wide and a narrow loop for drones, viewpoints."""
    speed = scene.movers[-1].speed
    phases = np.array([mover.phase for mover in scene.movers if mover.route is trail])
    places = trail.length * np.arange(12) / 12
    apart = np.abs((places[:, None] - phases + trail.length / 2) % trail.length - trail.length / 2).min(1)
    free = places[apart > 14.0]
    scene.rails.append(Rail(walk, (1.1, 2.2), (1.5, 2.3), weight=3.0, clearance=0.4))
    for place in free:
        scene.rails.append(
            Rail(trail, (speed, speed), (1.4, 2.2), ("heading",), traffic=(speed, float(place)), weight=2.0 / len(free))
        )
    for factor in (0.5, 0.7, 1.2):
        line = trail.points[::4, :2] * factor
        ground = terrain.at(line[:, 0], line[:, 1])
        route = Route.through(np.column_stack([line, ground]), rounding=20.0)
        gaze = ("heading", "fixed", "swing") if factor < 1 else ("heading", "inward")
        scene.rails.append(Rail(route, (2.5, 5.0), (5.0, 11.0), gaze, clearance=0.6, weight=1.0))
        scene.rails.append(Rail(route, (2.0, 4.0), (13.0, 17.0), gaze, clearance=0.6, weight=0.3))


def _captions(season: str, trees: int, rocks: int, sites: Sites, vehicle: str) -> tuple[str, ...]:
    wood = "woods" if trees > 30 else "scattered trees"
    things = [
        "rocks" if rocks > 8 else "",
        {0: "", 1: "a cabin"}.get(len(sites.cabins), "cabins"),
        "a pond" if sites.pond else "",
        f"{vehicle} on a trail",
        "rolling balls" if sites.hollows else "",
    ]
    things = [thing for thing in things if thing]
    listed = ", ".join(things[:-1]) + f" and {things[-1]}" if len(things) > 1 else things[0]
    return (
        f"{season} hills with {wood}, {listed}",
        f"a {season} hilly landscape with {wood} and {things[0]}",
        f"open country: {season} slopes, {wood}, {listed}",
        f"a trail winding through {season} hills with {wood}",
        "hills with trees and rocks",
    )
