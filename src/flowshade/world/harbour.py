"""A harbour from a seed: a quay with houses, cranes and goods, jetties, moored boats, one that sails, still water."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowshade.world import buildings, machines, meshes, props, textures
from flowshade.world.camera import Rail
from flowshade.world.meshes import Mesh
from flowshade.world.motion import Route
from flowshade.world.scene import Place, Scene
from flowshade.world.textures import Colour

HALF = 46.0
"""Half the length of the quay that is furnished, metres."""
WATER = -1.3
"""Level of the water below the quay, metres."""
JETTY = 1.1
"""Half the width of a jetty with its posts, metres."""
HULLS: tuple[Colour, ...] = (
    (0.90, 0.90, 0.88), (0.12, 0.22, 0.40), (0.62, 0.14, 0.12), (0.10, 0.35, 0.32), (0.85, 0.62, 0.15),
    (0.20, 0.20, 0.22), (0.45, 0.62, 0.72),
)  # fmt: skip


def build_harbour(scene: Scene) -> tuple[str, ...]:
    """Fills the scene; gives captions, the canonical one first."""
    rng = scene.rng
    palette = props.make_palette(scene, (0.26, 0.42, 0.16), 2)
    works = machines.make_works(scene)
    _sea_and_quay(scene)
    kinds = _town(scene, palette)
    crane = _edge(scene, palette, works)
    boats = _boats(scene, palette)
    cars, people = _traffic(scene, palette, works)
    _rails(scene)
    tower = _lighthouse(scene, palette) if rng.random() < 0.6 else ""
    shore = _far_shore(scene, palette)
    return _captions(kinds, crane, boats, tower or shore, cars, people)


def _sea_and_quay(scene: Scene) -> None:
    rng = scene.rng
    tone = scene.pick(((0.10, 0.19, 0.22), (0.08, 0.20, 0.20), (0.14, 0.20, 0.19), (0.09, 0.15, 0.22)))
    water = textures.mottled(rng, scene.vary(tone, 0.02), contrast=0.25, cells=6)
    scene.ground(220, WATER, scene.material(texture=water, roughness=float(rng.uniform(0.06, 0.16)), repeat=(30, 30)))
    colour = scene.vary(scene.pick(((0.55, 0.52, 0.48), (0.46, 0.44, 0.42), (0.62, 0.56, 0.46))))
    stones = textures.bricks(rng, colour, (0.35, 0.34, 0.33), rows=8, columns=4)
    paving = scene.material(texture=stones, roughness=float(rng.uniform(0.6, 0.9)))
    side = scene.material(texture=textures.slabs(rng, scene.vary((0.42, 0.41, 0.38)), rows=4, columns=2), roughness=0.8)
    place = scene.place("quay")
    reach = HALF + 24
    top = np.array([[(-reach, 0, 0), (reach, 0, 0), (reach, 60, 0), (-reach, 60, 0)]], float)
    scene.shape(place, meshes.quads(top, tile=2.0), paving, group=1)
    face = np.array([[(-reach, 0, -4), (reach, 0, -4), (reach, 0, 0), (-reach, 0, 0)]], float)
    ends = [[(s * reach, 60 * (s < 0), -4), (s * reach, 60 * (s > 0), -4), (s * reach, 60 * (s > 0), 0),
             (s * reach, 60 * (s < 0), 0)] for s in (-1, 1)]  # fmt: skip
    scene.shape(place, meshes.quads(np.concatenate([face, np.array(ends, float)]), tile=2.0), side, group=1)
    scene.solid(place, "box", (reach, 30, 2), (0, 30, -2), None, collide=True, hidden=True)
    edge = np.array([(0, 0.25, 0.06)])
    scene.detail(
        meshes.boxes(edge, np.array([2 * reach, 0.5, 0.14])),
        scene.material(scene.vary((0.66, 0.64, 0.6)), roughness=0.7),
    )


def _town(scene: Scene, palette: props.Palette) -> set[str]:
    """Houses along the back of the quay, trees in some gaps."""
    rng = scene.rng
    facades = buildings.make_facades(scene)
    kinds, along = set(), -HALF - 14 + rng.uniform(0, 4)
    tallest = int(rng.choice([2, 3, 4]))
    while along < HALF + 12:
        width = float(rng.uniform(9, 15))
        if rng.random() < 0.15:
            for _ in range(2):
                props.tree(scene, palette, (along + rng.uniform(0.2, 0.8) * width, rng.uniform(20, 25), 0.0), 1.2)
        else:
            plan = buildings.draw_plan(scene, width - 0.05, tallest)
            kinds.add(plan.kind)
            buildings.building(scene, facades, plan, (along + width / 2, 18.5 + rng.choice([0.0, 0.8]), 0.0), 0.0)
        along += width + float(rng.choice([0.0, 0.0, 2.5]))
    for x in np.arange(-HALF + 5, HALF, 15.0):
        props.lamp_post(scene, palette, (x, 16.2, 0.0), -np.pi / 2, 1)
        for shift in (4.0, 7.5, 11.0):
            _before_a_house(scene, palette, (x + shift, 16.4, 0.0))
    return kinds


def _before_a_house(scene: Scene, palette: props.Palette, at: tuple[float, float, float]) -> None:
    """A tree, a planter, a bench, a stall, a sign or nothing."""
    rng = scene.rng
    kind = int(rng.integers(7))
    if kind == 0:
        props.tree(scene, palette, at, 1.2, headroom=2.3)
    elif kind == 1:
        props.planter(scene, palette, at, 0.0)
    elif kind == 2:
        props.bench(scene, palette, at, 0.0)
    elif kind == 3:
        props.sign(scene, palette, at, 0.0)
    elif kind in (4, 5):
        stall = scene.place("stall", at)
        cloth = textures.stripes(scene.vary(scene.pick(props.TOY)), (0.95, 0.94, 0.9), bands=4)
        roof = np.array([[(-1.3, -1.0, 2.2), (1.3, -1.0, 2.2), (1.3, 0.7, 2.7), (-1.3, 0.7, 2.7)]])
        scene.shape(stall, meshes.quads(roof, tile=1.3), scene.material(texture=cloth, roughness=0.9))
        scene.shape(stall, meshes.boxes(np.array([0, 0, 0.5]), np.array([2.2, 0.9, 0.9])), palette.wood)
        for x in (-1.2, 1.2):
            scene.rod(stall, "cylinder", 0.03, (x, -0.9, 0), (x, -0.9, 2.23), palette.metal)
        for x in np.linspace(-0.8, 0.8, 4):
            goods = scene.material(scene.vary(scene.pick(props.TOY)), roughness=0.5)
            scene.solid(stall, "ellipsoid", (0.2, 0.3, 0.14), (x, -0.05, 1.0), goods)


def _edge(scene: Scene, palette: props.Palette, works: machines.Works) -> bool:
    """Bollards, goods and perhaps a crane along the water; nets and rings on the stones."""
    rng = scene.rng
    crane = bool(rng.random() < 0.6)
    taken = None
    if crane:
        taken = float(rng.uniform(-0.6, 0.6) * HALF)
        machines.gantry(scene, works, palette, (taken, 1.9, 0.0), 0.0, 2.4)
    for x in np.arange(-HALF, HALF, 4.6):
        if taken is not None and abs(x - taken) < 4:
            continue
        props.bollard(scene, palette, (x, 0.9, 0.0))
        kind, at = rng.random(), (x + 2.2, 1.9, 0.0)
        if kind < 0.16:
            props.crate_pile(scene, palette, at, 0.0)
        elif kind < 0.28:
            props.barrel(scene, at, bool(rng.random() < 0.4), 0.0)
        elif kind < 0.42:
            machines.pallets(scene, works, palette, at, 0.0)
        elif kind < 0.5:
            props.bench(scene, palette, at, 0.0)
        elif kind < 0.6:
            net = textures.speckle(rng, scene.vary(scene.pick(((0.2, 0.42, 0.38), (0.55, 0.3, 0.2)))), contrast=0.6)
            heap = meshes.blob(rng, (0.9, 0.6, 0.35), 0.25, 4.0, 2, 3.0)
            scene.shape(
                scene.place("net", at), heap, scene.material(texture=net, roughness=0.95, cube=True), (0, 0, 0.2)
            )
        elif kind < 0.66:
            props.toys(scene, at, 1, 0.05)
    return crane


def _hull(length: float, beam: float, depth: float) -> Mesh:
    """A boat's outside with its deck: sections from the transom to the stem, z = 0 at the water."""
    stations = np.linspace(0, 1, 9)
    half = beam / 2 * np.clip(1.06 - stations**3.2, 0.02, 1.0)
    sheer = depth * (0.62 + 0.45 * stations**2)
    x = (stations - 0.5) * length
    keel = np.stack([x, 0 * x, np.full(9, -0.4 * depth)], -1)
    quads = []
    for side in (-1, 1):
        rail = np.stack([x + 0.06 * length * stations, side * half, sheer], -1)
        chine = np.stack([x, side * half * 0.78, 0 * x - 0.12 * depth], -1)
        for low, high in ((chine, rail), (keel, chine)):
            strip = np.stack([low[:-1], low[1:], high[1:], high[:-1]], 1)
            quads.append(strip if side < 0 else strip[:, ::-1])
    left, right = (np.stack([x + 0.06 * length * stations, s * half * 0.97, sheer - 0.06], -1) for s in (1, -1))
    quads.append(np.stack([right[:-1], right[1:], left[1:], left[:-1]], 1))
    stern = np.array([[keel[0], (x[0], half[0], sheer[0]), (x[0], -half[0], sheer[0]), keel[0] + 1e-3]])
    return meshes.quads(np.concatenate([*quads, stern]))


def boat(scene: Scene, palette: props.Palette, place: Place, length: float) -> None:
    """Builds a boat on a body, its bow to +x: a fishing boat with a wheelhouse, or a yacht with a mast."""
    rng = scene.rng
    beam, depth = length * rng.uniform(0.3, 0.36), length * 0.13 + 0.35
    paint = scene.material(scene.vary(scene.pick(HULLS), 0.03), roughness=float(rng.uniform(0.15, 0.5)))
    white = scene.material((0.92, 0.91, 0.88), roughness=0.35)
    scene.shape(place, _hull(length, beam, depth), paint)
    deck = 0.62 * depth
    if rng.random() < 0.6:
        cabin = np.array([[-0.12 * length, 0, deck + 0.85]])
        scene.shape(place, meshes.boxes(cabin, np.array([0.24 * length, 0.6 * beam, 1.7])), white)
        scene.shape(
            place,
            meshes.boxes(cabin + np.array([0, 0, 0.35]), np.array([0.25 * length, 0.62 * beam, 0.5])),
            palette.glass,
        )
        scene.shape(
            place,
            meshes.boxes(cabin + np.array([0.02 * length, 0, 0.9]), np.array([0.3 * length, 0.7 * beam, 0.08])),
            paint,
        )
        scene.rod(place, "cylinder", 0.05, (-0.2 * length, 0, deck + 1.7), (-0.2 * length, 0, deck + 3.4), palette.wood)
        scene.solid(place, "sphere", (0.1,), (-0.2 * length, 0, deck + 3.4), palette.lamp)
        scene.rod(place, "cylinder", 0.04, (-0.2 * length, 0, deck + 1.9), (0.25 * length, 0, deck + 3.0), palette.wood)
        scene.solid(
            place, "capsule", (0.16, 0.3), (0.2 * length, 0.2, deck + 0.25), palette.rubber, quat=(0.7071, 0.7071, 0, 0)
        )
    else:
        scene.solid(place, "ellipsoid", (0.22 * length, 0.3 * beam, 0.35), (0.05 * length, 0, deck + 0.15), white)
        tall = length * rng.uniform(1.0, 1.3)
        scene.rod(place, "cylinder", 0.05, (0.08 * length, 0, deck), (0.08 * length, 0, tall), palette.bright_metal)
        scene.rod(
            place,
            "cylinder",
            0.04,
            (0.06 * length, 0, deck + 1.0),
            (-0.38 * length, 0, deck + 1.0),
            palette.bright_metal,
        )
        cloth = scene.material(scene.vary(scene.pick(props.CLOTH)), roughness=0.9)
        scene.rod(place, "capsule", 0.11, (0.04 * length, 0, deck + 1.12), (-0.36 * length, 0, deck + 1.12), cloth)


def _boats(scene: Scene, palette: props.Palette) -> int:
    """Moored along the quay and at jetties, rocking a little; one sails up and down outside."""
    rng, count = scene.rng, 0
    taken: list[tuple[float, float]] = []
    """Along the quay: middle and half length."""
    for x in np.arange(-HALF + 6, HALF, 11.5):
        if rng.random() < 0.62:
            length = float(rng.uniform(5, 9))
            place = scene.place("boat", mocap=True)
            boat(scene, palette, place, length)
            at = (x + rng.uniform(-1, 1), -0.9 - 0.18 * length, WATER)
            _moor(scene, place, at, float(rng.integers(2)) * np.pi)
            taken.append((at[0], 0.56 * length + 0.3))
            count += 1
    for x in rng.uniform(-0.8, 0.8, int(rng.integers(1, 3))) * HALF:
        berth = _free_berth(float(x), taken)
        if berth is not None:
            _jetty(scene, palette, berth)
            taken.append((berth, JETTY))
    sailor = scene.place("boat", mocap=True)
    boat(scene, palette, sailor, float(rng.uniform(7, 10)))
    reach, far = HALF * 0.8, -rng.uniform(24, 34)
    way = np.array([(-reach, far, WATER), (reach, far, WATER), (reach, far - 14, WATER), (-reach, far - 14, WATER)])
    route = Route.through(way, rounding=12.0)
    start = float(rng.uniform(0, route.length))
    scene.follow(sailor, route, float(rng.uniform(1.5, 3)), start, radius=5.0, height=10.0,
                 swing=(0.02, 0.15, 0.0), bob=0.05)  # fmt: skip
    return count + 1


def _moor(scene: Scene, place: Place, at: tuple[float, float, float], yaw: float) -> None:
    """A hull that drifts and nods on its ropes, always with its bow the same way."""
    angle = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    around = Route(np.array(at) + 0.12 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], -1))
    speed, nods = 0.04, 0.3  # metres and cycles a second
    start = around.length * float(scene.rng.uniform(0, 1))
    scene.follow(place, around, speed, start, swing=(0.03, nods / speed, 0.0), bob=0.06, radius=4.5, height=2.0,
                 heading=yaw)  # fmt: skip


def _free_berth(wanted: float, taken: list[tuple[float, float]]) -> float | None:
    """The place along the quay nearest to `wanted` where a jetty meets no boat and no other jetty."""
    places = np.linspace(-0.9, 0.9, 181) * HALF
    middle, half = np.array(taken).reshape(-1, 2).T
    free = places[(np.abs(places[:, None] - middle) > half + JETTY).all(1)]
    return float(free[np.abs(free - wanted).argmin()]) if len(free) else None


def _jetty(scene: Scene, palette: props.Palette, x: float) -> None:
    place = scene.place("jetty", (x, 0.0, 0.0))
    long = float(scene.rng.uniform(9, 15))
    scene.shape(
        place, meshes.boxes(np.array([0, -long / 2, -0.25]), np.array([1.8, long, 0.14]), tile=2.0), palette.wood
    )
    for y in np.arange(1.0, long, 2.6):
        for side in (-0.9, 0.9):
            scene.rod(place, "cylinder", 0.12, (side, -y, -3.5), (side, -y, 0.35), palette.bark)


def _traffic(scene: Scene, palette: props.Palette, works: machines.Works) -> tuple[int, int]:
    """Vans and fork-lifts up and down the quay; people nearer the water."""
    rng = scene.rng
    ends = HALF - 4
    lane = np.array([(-ends, 9.6, 0.01), (ends, 9.6, 0.01), (ends, 14.2, 0.01), (-ends, 14.2, 0.01)])
    route, speed = Route.through(lane, rounding=4.0), float(rng.uniform(3, 5.5))
    shapes = [props.make_car_shape(scene) for _ in range(2)]
    cars = int(rng.integers(1, 4))
    for k in range(cars):
        place = scene.place("car", mocap=True)
        if rng.random() < 0.3:
            machines.forklift(scene, works, palette, place)
        else:
            props.car(scene, palette, scene.pick(shapes), place, True)
        scene.follow(place, route, speed, route.length * (k + rng.uniform(-0.2, 0.2)) / cars, radius=2.4, height=2.3)
    beat = np.array([(-ends, 7.0, 0.01), (ends, 7.0, 0.01), (ends, 7.6, 0.01), (-ends, 7.6, 0.01)])
    walk, people = Route.through(beat, rounding=0.8), int(rng.integers(1, 4))
    for k in range(people):
        props.walker(scene, walk, walk.length * (k + rng.uniform(-0.3, 0.3)) / people, 1.25)
    return cars, people


def _lighthouse(scene: Scene, palette: props.Palette) -> str:
    """A mole of rocks with a banded tower at its end."""
    rng = scene.rng
    x, y = scene.pick((-1, 1)) * rng.uniform(10, 30), -rng.uniform(58, 67)  # beyond where boats sail
    stone = scene.material(
        texture=textures.mottled(rng, scene.vary((0.42, 0.41, 0.40)), contrast=0.5), roughness=0.9, cube=True
    )
    for k in range(12):
        rock = meshes.blob(rng, rng.uniform(1.4, 2.6, 3), 0.2, 2.0, 2, 1.0, flat=True)
        at = (x + np.sign(x) * 3.0 * k + rng.normal(0, 0.4), y - rng.normal(0, 0.6), WATER)
        scene.shape(scene.place("mole", at, rng.uniform(0, 6)), rock, stone)
    place = scene.place("lighthouse", (x, y, WATER))
    bands = (
        scene.material((0.92, 0.92, 0.9), roughness=0.6),
        scene.material(scene.pick(((0.75, 0.12, 0.1), (0.1, 0.12, 0.15))), roughness=0.6),
    )
    for k in range(6):
        scene.solid(place, "cylinder", (1.5 - 0.12 * k, 1.0), (0, 0, 1.6 + 2.0 * k), bands[k % 2])
    scene.solid(place, "cylinder", (0.6, 0.6), (0, 0, 13.2), palette.lamp)
    scene.shape(place, meshes.cone(1.0, 1.0), bands[1], (0, 0, 13.8))
    return "a lighthouse"


def _far_shore(scene: Scene, palette: props.Palette) -> str:
    """Low wooded hills across the water, round to where the quay ends on both sides."""
    rng = scene.rng
    for angle in np.linspace(-0.02, -0.98, 22) * np.pi:
        size = np.array([rng.uniform(24, 40), rng.uniform(12, 18), rng.uniform(4, 11)])
        reach = rng.uniform(1.0, 1.15)
        at = (175 * reach * np.cos(angle), 115 * reach * np.sin(angle), WATER)
        place = scene.place("shore", at, angle + np.pi / 2)
        scene.solid(place, "ellipsoid", size, (0, 0, 0), scene.pick(palette.canopy))
    return "a wooded shore"


def _rails(scene: Scene) -> None:
    """Ways along the quay that look along it or out over the boats, and one on the water that looks at the quay."""

    def rail(y: float, half: float, speed: tuple[float, float], height: tuple[float, float], **options) -> None:
        x = HALF - 8
        lane = np.array([(-x, y - half, 0.0), (x, y - half, 0.0), (x, y + half, 0.0), (-x, y + half, 0.0)])
        scene.rails.append(Rail(Route.through(lane, rounding=1.5), speed, height, **options))

    seaward: dict[str, Any] = {"axis": -np.pi / 2, "spread": 1.2, "one_sided": True}
    for y in (4.5, 5.0, 5.5):
        rail(y, 0.25, (1.1, 2.0), (1.4, 2.0), gaze=("heading",), weight=0.7)
        rail(y, 0.25, (0.7, 1.5), (1.4, 2.2), gaze=("swing", "fixed"), **seaward)
    rail(8.4, 0.4, (1.1, 2.0), (3.4, 6.0), weight=0.8, **seaward)
    landward: dict[str, Any] = {"axis": np.pi / 2, "spread": 0.6, "one_sided": True}
    rail(-13.5, 2.0, (1.5, 3.5), (3.6, 7.0), gaze=("heading", "swing"), clearance=0.7, **landward)
    rail(-14.5, 1.0, (1.0, 2.5), (2.6, 4.0), gaze=("swing",), clearance=0.7, **landward)


def _captions(kinds: set[str], crane: bool, boats: int, tower: str, cars: int, people: int) -> tuple[str, ...]:
    names = {
        "brick": "brick houses",
        "plaster": "painted houses",
        "concrete": "concrete blocks",
        "glass": "glass fronts",
    }
    town = " and ".join(names[kind] for kind in sorted(kinds)[:2]) or "trees"
    fleet = "a few moored boats" if boats < 5 else "many moored boats"
    extra = ", a crane on the quay" if crane else ""
    moving = f"{'a vehicle' if cars == 1 else 'vehicles'} and {'a person' if people == 1 else 'people'} on the quay"
    return (
        f"a harbour with {fleet}, {town}, {tower}{extra}, {moving}",
        f"a quay by still water with {fleet} before {town}",
        f"a harbour town: {town}, {tower} and {fleet}",
        f"boats in a harbour{extra}, {moving}",
        "a small harbour with boats",
    )
