"""A street from a seed: a gently winding road between buildings, with traffic, people, trees and loose things."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flowshade.world import buildings, meshes, props, textures
from flowshade.world.camera import Rail
from flowshade.world.errors import WorldError
from flowshade.world.meshes import Floats
from flowshade.world.motion import Route
from flowshade.world.scene import Scene
from flowshade.world.textures import Colour

HALF_LENGTH = 44.0
"""Metres from the middle of the street to where its turning circles begin."""
CIRCLE = 11.0
"""Radius of the turning circles, metres."""
KERB = 0.13
"""Height of the pavement, metres."""

LEAVES: tuple[tuple[str, Colour], ...] = (
    ("green", (0.24, 0.42, 0.14)), ("green", (0.30, 0.46, 0.18)), ("dark green", (0.16, 0.32, 0.14)),
    ("golden", (0.72, 0.52, 0.14)), ("red-leaved", (0.62, 0.24, 0.13)), ("blossoming", (0.85, 0.62, 0.68)),
)  # fmt: skip


PAVING: tuple[Colour, ...] = ((0.62, 0.60, 0.57), (0.55, 0.50, 0.45), (0.48, 0.48, 0.50), (0.66, 0.56, 0.46))


@dataclass(frozen=True)
class Layout:
    """The measures of a street. `along` runs from -HALF_LENGTH to HALF_LENGTH; lateral is positive to the left."""

    bend: float
    wave: float
    shift: float
    lane: float
    parking: float
    pavement: float
    tallest: int
    busy: float
    green: float
    furniture: float
    lamp_style: int

    @property
    def road(self) -> float:
        """Half the carriageway, parking strips included."""
        return self.lane + self.parking

    @property
    def edge(self) -> float:
        """From the axis to the building line."""
        return self.road + self.pavement

    def point(self, along: Floats | float, lateral: Floats | float) -> Floats:
        """World x, y [..., 2]."""
        along, lateral = np.asarray(along, float), np.asarray(lateral, float)
        yaw = self.yaw(along)
        y = self.bend * np.sin(along / self.wave + self.shift)
        return np.stack([along - lateral * np.sin(yaw), y + lateral * np.cos(yaw)], -1)

    def yaw(self, along: Floats | float) -> Floats:
        slope = self.bend / self.wave * np.cos(np.asarray(along, float) / self.wave + self.shift)
        return np.arctan(slope)


def draw_layout(rng: np.random.Generator) -> Layout:
    """Draws the measures of a street."""
    return Layout(
        bend=float(rng.choice([0.0, 1.0]) * rng.uniform(2, 9)),
        wave=float(rng.uniform(24, 40)),
        shift=float(rng.uniform(0, 2 * np.pi)),
        lane=float(rng.uniform(3.0, 3.8)),
        parking=float(rng.choice([0.0, 2.2], p=[0.2, 0.8])),
        pavement=float(rng.uniform(3.8, 5.5)),
        tallest=int(rng.choice([2, 3, 5, 8], p=[0.25, 0.3, 0.3, 0.15])),
        busy=float(rng.uniform(0.2, 1.0)),
        green=float(rng.uniform(0.1, 1.0)),
        furniture=float(rng.uniform(0.3, 1.0)),
        lamp_style=int(rng.integers(3)),
    )


def build_street(scene: Scene) -> tuple[str, ...]:
    """Fills the scene; gives captions, the canonical one first."""
    rng = scene.rng
    layout = draw_layout(rng)
    leaf_name, leaf = scene.pick(LEAVES)
    palette = props.make_palette(scene, leaf)
    _ground(scene, layout)
    facades = buildings.make_facades(scene)
    kinds, parks, plots = _rows(scene, layout, palette, facades)
    _islands(scene, layout, palette)
    shapes = [props.make_car_shape(scene) for _ in range(3)]
    cars = _parked(scene, layout, palette, shapes)
    moving = _traffic(scene, layout, palette, shapes)
    trees = _pavements(scene, layout, palette)
    side = int(rng.choice([-1, 1]))
    people = _people(scene, layout, side)
    _loose(scene, layout, palette, -side, parks)
    _rails(scene, layout, moving)
    _corners(scene, layout, facades, plots)
    props.far_woods(scene, palette, (84.0, 44.0), 2.4, 40)
    return _captions(layout, kinds, cars + moving, trees, leaf_name, people)


def _ground(scene: Scene, layout: Layout) -> None:
    rng = scene.rng
    green = scene.vary((0.30, 0.40, 0.17), 0.03)
    lawn = scene.material(texture=textures.grass(rng, green, scene.vary((0.48, 0.45, 0.24))), roughness=0.95,
                          repeat=(140, 140))  # fmt: skip
    scene.ground(420, 0.0, lawn)
    tone = rng.uniform(0.2, 0.38)
    tar = textures.speckle(rng, (tone, tone, tone * 1.03))
    asphalt = scene.material(texture=tar, roughness=float(rng.uniform(0.7, 0.95)))
    paving_colour = scene.vary(scene.pick(PAVING))
    rows = int(rng.choice([2, 4, 6]))
    picture = (textures.slabs(rng, paving_colour, rows=rows, columns=int(rng.choice([2, 4]))) if rng.random() < 0.7
               else textures.bricks(rng, paving_colour, (0.4, 0.38, 0.36), rows=10, columns=5))  # fmt: skip
    paving = scene.material(texture=picture, roughness=0.85)
    kerb = scene.material(scene.vary((0.66, 0.65, 0.63), 0.03), roughness=0.8)
    white = scene.material((0.86, 0.86, 0.84), roughness=0.6)
    along = np.linspace(-HALF_LENGTH - 6, HALF_LENGTH + 6, 70)
    axis = layout.point(along, 0.0)
    place = scene.place("road")
    road = [meshes.ribbon(axis, layout.road, -layout.road, 0.012, 3.0)]
    road += [meshes.disc(CIRCLE, 3.0, 48).moved((*layout.point(s * (HALF_LENGTH + 9), 0), 0.01)) for s in (-1, 1)]
    scene.shape(place, meshes.join(road), asphalt)
    sides = [(layout.edge + 1.5, layout.road + 0.18), (-layout.road - 0.18, -layout.edge - 1.5)]
    inner = along[4:-4]
    curve = layout.point(inner, 0.0)
    scene.shape(place, meshes.join([meshes.ribbon(curve, a, b, KERB, 2.0, KERB) for a, b in sides]), paving)
    edges = [(layout.road + 0.18, layout.road), (-layout.road, -layout.road - 0.18)]
    scene.detail(meshes.join([meshes.ribbon(curve, a, b, KERB - 0.005, 1.0, KERB) for a, b in edges]), kerb)
    scene.detail(meshes.join(_markings(scene, layout)), white)


def _markings(scene: Scene, layout: Layout) -> list[meshes.Mesh]:
    """A broken middle line, lines along the parking strips, and zebra crossings."""
    dashes = np.arange(-HALF_LENGTH, HALF_LENGTH - 2, 6.0)
    strips = [_stripes(layout, dashes, 2.5, np.zeros_like(dashes), 0.14)]
    full = np.linspace(-HALF_LENGTH, HALF_LENGTH, 60)
    if layout.parking:
        for side in (-1, 1):
            strips.append(meshes.ribbon(layout.point(full, side * layout.lane), 0.06, -0.06, 0.02, 1.0))
    for _ in range(int(scene.rng.integers(0, 3))):
        lateral = np.arange(-layout.road + 0.5, layout.road - 0.4, 1.0)
        start = np.full_like(lateral, scene.rng.uniform(-0.7, 0.7) * HALF_LENGTH)
        strips.append(_stripes(layout, start, 3.0, lateral, 0.5))
    return strips


def _stripes(layout: Layout, along: Floats, length: float, lateral: Floats, width: float) -> meshes.Mesh:
    """Flat painted rectangles that start at `along` [N] and are centred on `lateral` [N]."""
    right, left = lateral - width / 2, lateral + width / 2
    corners = [(along, right), (along + length, right), (along + length, left), (along, left)]
    flat = np.stack([layout.point(s, offset) for s, offset in corners], 1)  # [N, 4, 2]
    return meshes.quads(np.concatenate([flat, np.full((*flat.shape[:2], 1), 0.022)], -1))


def _rows(
    scene: Scene, layout: Layout, palette: props.Palette, facades: buildings.Facades
) -> tuple[set[str], list[Floats], Plots]:
    """Buildings along both sides and across both ends, small parks in some gaps.

    Returns:
        Wall kinds, free lawns, and all ground that is taken.
    """
    rng = scene.rng
    kinds: set[str] = set()
    parks: list[Floats] = []
    plots = Plots()
    for side in (-1, 1):
        along = -HALF_LENGTH - 4 + rng.uniform(0, 4)
        while along < HALF_LENGTH:
            width = float(rng.uniform(10, 17))
            if rng.random() < 0.12 + 0.22 * layout.green:
                along = plots.take_next(layout, along, side, (width, PARK_DEPTH), 0.0)
                _park(scene, layout, palette, along + width / 2, side, width)
                parks.append(layout.point(along + width / 2, side * (layout.edge + 4.2)))
            else:
                plan = buildings.draw_plan(scene, width - 0.05, layout.tallest)
                kinds.add(plan.kind)
                setback = float(rng.choice([0.0, rng.uniform(0.3, 1.2)]))
                along = plots.take_next(layout, along, side, (plan.width, plan.depth), setback)
                _face(scene, layout, facades, plan, along + width / 2, side, setback)
            along += width + float(rng.choice([0.0, 0.0, rng.uniform(1.5, 5)]))
    for end in (-1, 1):
        for lateral in (-9.0, 9.0):
            plan = buildings.draw_plan(scene, float(rng.uniform(14, 17.5)), layout.tallest)
            far = end * (HALF_LENGTH + 23)
            x, y = layout.point(far, lateral)
            yaw = -end * np.pi / 2 + float(layout.yaw(far))
            buildings.building(scene, facades, plan, (x, y, 0.0), yaw)
            plots.taken.append(footprint(x, y, yaw, plan.width, plan.depth))
    _skyline(scene)
    return kinds, parks, plots


PARK_DEPTH = 14.0
"""Metres from the pavement that a small park reaches."""


def footprint(x: float, y: float, yaw: float, width: float, depth: float) -> Floats:
    """[4, 2] corners of what stands behind a front whose middle is at x, y, and which faces -y of its own."""
    across, back = np.array([np.cos(yaw), np.sin(yaw)]), np.array([-np.sin(yaw), np.cos(yaw)])
    half, deep = across * width / 2, back * depth
    return np.array([x, y]) + np.stack([-half, half, half + deep, deep - half])


def overlap(a: Floats, b: Floats) -> float:
    """Metres by which two rectangles [4, 2] run into each other; negative: how far apart they are at least."""
    least = np.inf
    for corners in (a, b):
        for edge in (corners[1] - corners[0], corners[3] - corners[0]):
            axis = edge / np.linalg.norm(edge)
            p, q = a @ axis, b @ axis
            least = min(least, p.max() - q.min(), q.max() - p.min())
    return float(least)


@dataclass
class Plots:
    """Ground along a street that is taken: on the inside of bends the backs of neighbours would meet."""

    taken: list[Floats] = field(default_factory=list)
    """[4, 2] each."""

    def take(self, layout: Layout, along: float, way: int, side: int, size: tuple[float, float], setback: float,
             search: float) -> float | None:  # fmt: skip
        """Takes the first free plot from `along` on, at most `search` metres off in direction `way` (1, -1).

        Args:
            size: width and depth, metres.

        Returns:
            Where it begins; None if all are taken.
        """
        for start in along + way * np.arange(0.0, search, 0.2):
            x, y, yaw = _front(layout, start + way * size[0] / 2, side, size[0], setback)
            plot = footprint(x, y, yaw, *size)
            if all(overlap(plot, other) < 0.01 for other in self.taken):
                self.taken.append(plot)
                return float(start)
        return None

    def take_next(self, layout: Layout, along: float, side: int, size: tuple[float, float], setback: float) -> float:
        """The same along a row, where there always is one."""
        start = self.take(layout, along, 1, side, size, setback, search=20.0)
        if start is None:
            raise WorldError(f"no free plot of {size[0]:.1f} x {size[1]:.1f} m along the street; try another seed.")
        return start


def _corners(scene: Scene, layout: Layout, facades: buildings.Facades, plots: Plots) -> None:
    """A building beside each turning circle, if there is room between the row and the blocks across the street."""
    for side in (-1, 1):
        for end in (-1, 1):
            plan = buildings.draw_plan(scene, float(scene.rng.uniform(9, 14)), layout.tallest)
            setback = max(0.0, CIRCLE + 2.5 - layout.edge)
            size = (plan.width, plan.depth)
            start = plots.take(layout, end * HALF_LENGTH, end, side, size, setback, search=9.0)
            if start is None:  # the row itself reaches round the corner
                continue
            _face(scene, layout, facades, plan, start + end * plan.width / 2, side, setback)


def _front(layout: Layout, along: float, side: int, width: float, setback: float) -> tuple[float, float, float]:
    """x, y and yaw of the middle of a front along the pavement; fronts face -y of their own."""
    # On the inside of a bend a straight front would cut the pavement, so it steps back by the sagitta.
    ends = layout.point(along + np.array([-1, 0, 1]) * width / 2, 0.0)
    sagitta = float(np.abs(np.linalg.norm(ends[1] - ends[[0, 2]].mean(0))))
    x, y = layout.point(along, side * (layout.edge + setback + sagitta))
    return float(x), float(y), float(layout.yaw(along)) + (0 if side > 0 else np.pi)


def _face(scene: Scene, layout: Layout, facades: buildings.Facades, plan: buildings.Plan, along: float, side: int,
          setback: float) -> None:  # fmt: skip
    """Puts a building with its front along the pavement."""
    x, y, yaw = _front(layout, along, side, plan.width, setback)
    buildings.building(scene, facades, plan, (x, y, KERB), yaw)


def _islands(scene: Scene, layout: Layout, palette: props.Palette) -> None:
    """What stands in the middle of the turning circles: a kerbed round with a tree, a lamp or a sculpture."""
    rng = scene.rng
    stone = scene.material(scene.vary((0.62, 0.60, 0.57)), roughness=0.8)
    for end in (-1, 1):
        x, y = layout.point(end * (HALF_LENGTH + 9), 0.0)
        place = scene.place("island", (x, y, 0.0))
        scene.solid(place, "cylinder", (2.6, 0.12), (0, 0, 0.06), stone)
        scene.shape(place, meshes.disc(2.35, 2.0), scene.pick(palette.foliage), (0, 0, 0.185))
        kind = int(rng.integers(3))
        if kind == 0:
            props.tree(scene, palette, (x, y, 0.1), 1.3)
        elif kind == 1:
            props.lamp_post(scene, palette, (x, y, 0.15), 0.0, 2)
            for angle in rng.uniform(0, 6.28, 3):
                props.bush(scene, palette, (x + 1.5 * np.cos(angle), y + 1.5 * np.sin(angle), 0.15))
        else:
            scene.solid(place, "cylinder", (1.0, 0.5), (0, 0, 0.6), stone)
            props.toys(scene, (x, y, 1.1), 1, 0.05)


def _park(scene: Scene, layout: Layout, palette: props.Palette, along: float, side: int, width: float) -> None:
    rng = scene.rng
    for _ in range(int(rng.integers(1, 4))):
        x, y = layout.point(along + rng.uniform(-0.4, 0.4) * width, side * (layout.edge + rng.uniform(8, 13)))
        grow = props.fir if rng.random() < 0.25 else props.tree
        grow(scene, palette, (x, y, 0.0))
    for _ in range(int(rng.integers(1, 4))):
        x, y = layout.point(along + rng.uniform(-0.45, 0.45) * width, side * (layout.edge + rng.uniform(8, 10)))
        props.bush(scene, palette, (x, y, 0.0))
    for end in (-1, 1):
        x, y = layout.point(along + end * 0.38 * width, side * (layout.edge + rng.uniform(2.4, 4)))
        if rng.random() < 0.4:
            props.tree(scene, palette, (x, y, 0.0), 1.2)
        else:
            props.toys(scene, (x, y, 0.0), int(rng.integers(1, 3)), 0.7)


def _skyline(scene: Scene) -> None:
    """Far blocks, so that streets end in a town and not in nothing."""
    rng = scene.rng
    pictures = [
        scene.texture(textures.facade(rng, scene.vary(scene.pick(buildings.WALLS["concrete"])), rows=rows), cube=True)
        for rows in (6, 9)
    ]
    materials = [scene.material(scene.vary((0.9, 0.88, 0.86)), texture=picture, roughness=0.6) for picture in pictures]
    place = scene.place("skyline")
    for k in range(8):
        angle = 2 * np.pi * (k + rng.uniform(-0.3, 0.3)) / 8
        size, height = rng.uniform(7, 12), rng.uniform(8, 30)
        at = (150 * np.cos(angle), 110 * np.sin(angle), height / 2)
        turn = rng.uniform(-0.4, 0.4)
        scene.solid(place, "box", (size, size, height / 2), at, scene.pick(materials),
                    quat=(np.cos(turn / 2), 0, 0, np.sin(turn / 2)))  # fmt: skip


def _parked(scene: Scene, layout: Layout, palette: props.Palette, shapes: list[props.CarShape]) -> int:
    if not layout.parking:
        return 0
    rng, count = scene.rng, 0
    for side in (-1, 1):
        along = -HALF_LENGTH + 8 + rng.uniform(0, 8)
        while along < HALF_LENGTH - 8 and count < 6:
            if rng.random() < 0.5 * layout.busy + 0.15:
                yaw = float(layout.yaw(along)) + (np.pi if side > 0 else 0) + rng.normal(0, 0.02)
                x, y = layout.point(along, side * (layout.lane + layout.parking / 2 + 0.05))
                props.car(scene, palette, scene.pick(shapes), scene.place("parked", (x, y, 0.012), yaw), False)
                count += 1
            along += rng.uniform(7, 14)
    return count


def traffic_route(layout: Layout) -> Route:
    """Down the right lane, round the turning circle, back up the other lane."""
    along = np.linspace(-HALF_LENGTH + 2, HALF_LENGTH - 2, 80)
    lane = layout.lane / 2
    there, back = layout.point(along, -lane), layout.point(along[::-1], lane)
    circle = np.radians(np.linspace(-135, 135, 24))
    ends = []
    for end in (1, -1):
        centre = layout.point(end * (HALF_LENGTH + 9), 0.0)
        turn = circle + float(layout.yaw(end * HALF_LENGTH)) + (0 if end > 0 else np.pi)
        ends.append(centre + 6.0 * np.stack([np.cos(turn), np.sin(turn)], -1))
    loop = np.concatenate([there, ends[0], back, ends[1]])
    return Route.through(np.column_stack([loop, np.full(len(loop), 0.012)]), rounding=5.0)


def _traffic(scene: Scene, layout: Layout, palette: props.Palette, shapes: list[props.CarShape]) -> int:
    """Cars at one speed in evenly spaced places of one loop; cameras may have the places that stay free."""
    rng = scene.rng
    route = traffic_route(layout)
    speed = float(rng.uniform(4, 7))
    places = 9
    taken = [k for k in range(1, places) if rng.random() < 0.2 + 0.45 * layout.busy][:4]
    for k in taken:
        place = scene.place("car", mocap=True)
        props.car(scene, palette, scene.pick(shapes), place, True)
        phase = route.length * (k + rng.uniform(-0.15, 0.15)) / places
        scene.follow(place, route, speed, phase, radius=2.4, height=2.3)
    free = [k for k in range(places) if k not in taken]
    for k in free:
        phase = route.length * k / places
        scene.rails.append(
            Rail(route, (speed, speed), (1.3, 1.9), ("heading",), traffic=(speed, phase), clearance=0.5,
                 weight=2.0 / len(free))
        )  # fmt: skip
    return len(taken)


def _pavements(scene: Scene, layout: Layout, palette: props.Palette) -> int:
    """Lamp posts, trees and furniture in a strip by the kerb."""
    rng, trees = scene.rng, 0
    lamp_every = rng.uniform(18, 26)
    strip = layout.road + 0.75
    for side in (-1, 1):
        lamps = np.arange(-HALF_LENGTH + 6 + (lamp_every / 2 if side > 0 else 0), HALF_LENGTH - 4, lamp_every)
        for along in lamps:
            x, y = layout.point(along, side * strip)
            yaw = float(layout.yaw(along)) + (-np.pi / 2 if side > 0 else np.pi / 2)
            props.lamp_post(scene, palette, (x, y, KERB), yaw, layout.lamp_style)
        along = -HALF_LENGTH + 8 + rng.uniform(0, 6)
        while along < HALF_LENGTH - 5:
            if np.abs(lamps - along).min() > 2.5:
                trees += _kerbside(scene, layout, palette, along, side, strip)
            along += rng.uniform(6, 13)
    return trees


def _kerbside(scene: Scene, layout: Layout, palette: props.Palette, along: float, side: int, strip: float) -> int:
    rng = scene.rng
    x, y = layout.point(along, side * strip)
    yaw = float(layout.yaw(along)) + (0 if side > 0 else np.pi)
    at = (x, y, KERB)
    if rng.random() < layout.green * 0.75:
        props.tree(scene, palette, at, 1.2, headroom=2.5, reach=layout.pavement - 0.6)
        return 1
    if rng.random() < layout.furniture:
        kind = int(rng.integers(6))
        if kind == 0:
            props.bench(scene, palette, at, yaw)
        elif kind == 1:
            props.bin_(scene, palette, at)
        elif kind == 2:
            for k in range(3):
                spot = layout.point(along + 1.4 * k, side * strip)
                props.bollard(scene, palette, (*spot, KERB))
        elif kind == 3:
            props.planter(scene, palette, at, yaw)
        elif kind == 4:
            props.sign(scene, palette, at, yaw + np.pi / 2)
        else:
            props.toys(scene, at, 1, 0.05)
    return 0


def _people(scene: Scene, layout: Layout, side: int) -> int:
    """Walkers up and down one pavement, all at one pace, so that they never walk through each other."""
    rng = scene.rng
    count = int(rng.integers(1, 4) + round(2 * layout.busy))
    lateral = side * (layout.edge - 1.0)
    along = np.linspace(-HALF_LENGTH + 10, HALF_LENGTH - 10, 60)
    there, back = layout.point(along, lateral - 0.35), layout.point(along[::-1], lateral + 0.35)
    loop = np.concatenate([there, back])
    route = Route.through(np.column_stack([loop, np.full(len(loop), KERB)]), rounding=1.0)
    pace = float(rng.uniform(1.0, 1.5))
    for k in range(count):
        props.walker(scene, route, route.length * (k + rng.uniform(-0.3, 0.3)) / count, pace)
    return count


def _loose(scene: Scene, layout: Layout, palette: props.Palette, side: int, parks: list[Floats]) -> None:
    """Crates that topple and barrels by the walls of the pavement where nobody walks; more, and balls, on lawns."""
    rng = scene.rng
    for along in (np.arange(4) + rng.uniform(0.2, 0.8, 4) - 2) * 0.4 * HALF_LENGTH:
        if rng.random() < 0.6:
            x, y = layout.point(along, side * (layout.edge - 0.65))
            yaw = float(layout.yaw(along))
            slab = scene.place("slab", (x, y, KERB - 0.25), yaw)
            scene.solid(slab, "box", (4.0, 2.2, 0.25), (0, 0, 0), None, collide=True, hidden=True)
            _lot(scene, palette, (x, y, KERB), yaw)
    for x, y in parks:
        if rng.random() < 0.5:
            props.ball(scene, (x, y, 0.0), float(rng.uniform(0.16, 0.45)), 3.8)
        else:
            _lot(scene, palette, (x, y, 0.0), float(rng.uniform(0, 6)))


def _lot(scene: Scene, palette: props.Palette, position: tuple[float, float, float], yaw: float) -> None:
    if scene.rng.random() < 0.65:
        props.crate_pile(scene, palette, position, yaw)
    else:
        props.barrel(scene, position, bool(scene.rng.random() < 0.4), yaw)


def _rails(scene: Scene, layout: Layout, moving: int) -> None:
    """Pavements for walking, the middle of the road above the traffic for drones."""
    axis = float(layout.yaw(0.0))

    def loop(lateral: float, half: float, reach: float) -> Route:
        along = np.linspace(-reach, reach, 60)
        there, back = layout.point(along, lateral - half), layout.point(along[::-1], lateral + half)
        both = np.concatenate([there, back])
        return Route.through(np.column_stack([both, np.full(len(both), KERB)]), rounding=2.0)

    for side in (-1, 1):
        for fraction in (0.34, 0.40, 0.46):
            lateral = side * (layout.road + fraction * layout.pavement)
            rail = Rail(loop(lateral, 0.2, HALF_LENGTH - 10), (1.1, 1.9), (1.4, 1.9), axis=axis, spread=0.5)
            scene.rails.append(rail)
        short = loop(side * (layout.road + 0.4 * layout.pavement), 0.25, 18.0)
        across = axis - side * np.pi / 2
        scene.rails.append(Rail(short, (0.5, 1.2), (1.3, 2.2), ("fixed", "swing"), axis=across, spread=0.9))
    scene.rails.append(Rail(loop(0.0, 2.0, HALF_LENGTH), (2.0, 4.0), (11.0, 15.0), axis=axis, spread=0.4, weight=0.5))
    for half in (0.8, 2.2):
        drone = loop(0.0, half, HALF_LENGTH - 6)
        scene.rails.append(Rail(drone, (1.5, 4.0), (3.6, 9.0), axis=axis, spread=0.6, clearance=0.6, weight=1.5))


def _captions(layout: Layout, kinds: set[str], cars: int, trees: int, leaf: str, people: int) -> tuple[str, ...]:
    names = {"brick": "brick houses", "plaster": "painted houses", "concrete": "concrete blocks",
             "glass": "glass fronts"}  # fmt: skip
    built = " and ".join(names[kind] for kind in sorted(kinds)[:2]) or "open lots"
    size = {2: "quiet", 3: "small-town", 5: "town", 8: "city"}[layout.tallest]
    things = [f"{'a few' if cars < 5 else 'many'} cars" if cars else "", f"{leaf} trees" if trees > 1 else "",
              "people walking" if people else "", "lamp posts"]  # fmt: skip
    things = [thing for thing in things if thing]
    listed = ", ".join(things[:-1]) + f" and {things[-1]}" if len(things) > 1 else things[0]
    shape = "winding" if layout.bend else "straight"
    return (
        f"a {size} street with {built}, {listed}",
        f"a {shape} {size} street lined with {built}",
        f"{built} along a {shape} road, with {listed}",
        f"a street scene: {listed} between {built}",
        "a street with buildings on both sides",
    )
