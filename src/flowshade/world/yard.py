"""A works yard from a seed: machines, containers and tanks about a drive, with fork-lifts, people and loose goods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowshade.world import buildings, machines, meshes, props, textures
from flowshade.world.camera import KeepOut, Rail
from flowshade.world.motion import Route
from flowshade.world.scene import Scene

GREEN = (0.28, 0.42, 0.16)


@dataclass(frozen=True)
class Plot:
    """The measures of a yard, metres from its middle along x and y to each ring."""

    half: tuple[float, float]
    """The wall."""

    def ring(self, inset: float) -> tuple[float, float]:
        return self.half[0] - inset, self.half[1] - inset

    @property
    def store(self) -> tuple[float, float]:
        """Where goods stand along the wall."""
        return self.ring(3.0)

    @property
    def walk(self) -> tuple[float, float]:
        return self.ring(6.6)

    @property
    def drive(self) -> tuple[float, float]:
        return self.ring(9.6)

    @property
    def middle(self) -> tuple[float, float]:
        """What stands in the middle stays within this."""
        return self.ring(12.8)


def loop(half: tuple[float, float], height: float, rounding: float = 3.0) -> Route:
    """A rounded rectangle about the middle, counter-clockwise."""
    x, y = half
    corners = np.array([(-x, -y), (0, -y), (x, -y), (x, 0), (x, y), (0, y), (-x, y), (-x, 0)], float)
    return Route.through(np.column_stack([corners, np.full(len(corners), height)]), rounding=rounding)


def build_yard(scene: Scene) -> tuple[str, ...]:
    """Fills the scene; gives captions, the canonical one first."""
    rng = scene.rng
    plot = Plot((float(rng.uniform(29, 36)), float(rng.uniform(22, 27))))
    palette = props.make_palette(scene, GREEN, 2)
    works = machines.make_works(scene)
    _ground(scene, plot)
    hall = _surroundings(scene, plot, palette, works)
    stored, gaps = _store(scene, plot, palette, works)
    centre = _middle(scene, plot, palette, works)
    lifts, people = _traffic(scene, plot, palette, works)
    _rails(scene, plot)
    _oddments(scene, palette, works, gaps)
    props.far_woods(scene, palette, (plot.half[0] + 24, plot.half[1] + 24), 2.6, 34)
    return _captions(hall, stored, centre, lifts, people)


def _ground(scene: Scene, plot: Plot) -> None:
    rng = scene.rng
    lawn = textures.grass(rng, scene.vary((0.32, 0.38, 0.18), 0.03), scene.vary((0.5, 0.46, 0.3)))
    scene.ground(420, 0.0, scene.material(texture=lawn, roughness=0.95, repeat=(140, 140)))
    tone = scene.pick(((0.52, 0.51, 0.49), (0.36, 0.36, 0.37), (0.58, 0.53, 0.45)))
    picture = scene.pick(
        (textures.slabs(rng, scene.vary(tone), rows=2, columns=2), textures.speckle(rng, scene.vary(tone)))
    )
    floor = scene.material(texture=picture, roughness=float(rng.uniform(0.55, 0.95)))
    x, y = plot.half
    corners = np.array([[(-x, -y, 0.01), (x, -y, 0.01), (x, y, 0.01), (-x, y, 0.01)]])
    scene.shape(scene.place("floor"), meshes.quads(corners, tile=4.0), floor)
    paint = scene.material(scene.pick(((0.85, 0.72, 0.15), (0.86, 0.86, 0.84))), roughness=0.6)
    for inset in (7.9, 11.3):
        ring = loop(plot.ring(inset), 0.0).points[:, :2]
        scene.detail(meshes.ribbon(np.concatenate([ring, ring[:1]]), 0.07, -0.07, 0.022, 1.0), paint)


def _surroundings(scene: Scene, plot: Plot, palette: props.Palette, works: machines.Works) -> str:
    """A wall about the yard, halls behind two sides, trees and stacks behind the others; gives what the halls are."""
    rng = scene.rng
    facades = buildings.make_facades(scene)
    kind = str(rng.choice(["brick", "concrete"]))
    wall = facades.walls[kind][0]
    x, y = plot.half
    height = float(rng.uniform(1.8, 2.6))
    for side in (-1, 1):
        for centre, size in (((0, side * (y + 0.15)), (2 * x, 0.3)), ((side * (x + 0.15), 0), (0.3, 2 * y))):
            mesh = meshes.boxes(np.array([*centre, height / 2]), np.array([*size, height]), tile=1.6)
            scene.shape(scene.place("fence"), mesh, wall)
    sheet = scene.pick(works.steel)
    for side, yaw in ((-1, np.pi), (1, 0.0)):
        at = -x + rng.uniform(2, 8)
        while at < x - 8:
            width = float(rng.uniform(10, 18))
            place = (at + width / 2, side * (y + 1.2), 0.0)
            if rng.random() < 0.55:
                plan = buildings.Plan(width=width, depth=float(rng.uniform(8, 12)), floors=int(rng.integers(1, 3)),
                                      kind=kind, shop=False, pitched=bool(rng.random() < 0.5))  # fmt: skip
                buildings.building(scene, facades, plan, place, yaw)
            else:
                _shed(scene, place, yaw, width, sheet, palette)
            at += width + rng.uniform(0.5, 7)
    for side in (-1, 1):
        for _ in range(5):
            spot = (side * (x + rng.uniform(8, 15)), rng.uniform(-1, 1) * y, 0.0)
            grow = scene.pick((props.tree, props.tree, props.fir))
            grow(scene, palette, spot)
        if rng.random() < 0.6:
            machines.containers(scene, works, (side * (x + 3.2), rng.uniform(-0.5, 0.5) * y, 0.0), np.pi / 2, 4)
    return {"brick": "brick halls", "concrete": "concrete halls"}[kind]


def _shed(scene: Scene, position: tuple[float, float, float], yaw: float, width: float, sheet: str,
          palette: props.Palette) -> None:  # fmt: skip
    """A hall of corrugated sheet with a rolling door; its front faces -y of its own."""
    rng = scene.rng
    place = scene.place("building", position, yaw)
    depth, height = float(rng.uniform(9, 13)), float(rng.uniform(5, 8))
    scene.shape(
        place, meshes.boxes(np.array([0, depth / 2, height / 2]), np.array([width, depth, height]), tile=2.4), sheet
    )
    slopes, ends = meshes.gable(width, depth, float(rng.uniform(1.2, 2.4)), 0.4, 2.4)
    scene.shape(place, slopes, palette.dark_metal, (0, depth / 2, height))
    scene.shape(place, ends, sheet, (0, depth / 2, height))
    doors = np.array([(rng.uniform(-0.3, 0.3) * width, -0.03, 2.0)])
    scene.shape(place, meshes.boxes(doors, np.array([4.2, 0.08, 4.0]), tile=1.2), palette.metal)
    panes = np.array([(k * width, -0.02, height - 0.9) for k in (-0.4, -0.2, 0.0, 0.2, 0.4)])
    scene.shape(place, meshes.boxes(panes, np.array([1.6, 0.06, 0.9])), palette.glass)


Slot = tuple[float, float, float]
"""x, y and yaw."""


def _store(scene: Scene, plot: Plot, palette: props.Palette, works: machines.Works) -> tuple[set[str], list[Slot]]:
    """Goods and machines along the wall, a slot each; gives what there is, and the slots that hold only a mast."""
    rng = scene.rng
    x, y = plot.store
    slots = [(at, side * y, 0.0 if side < 0 else np.pi) for side in (-1, 1) for at in np.arange(-x + 4, x - 2, 7.2)]
    slots += [
        (side * x, at, np.pi / 2 + (0 if side > 0 else np.pi))
        for side in (-1, 1)
        for at in np.arange(-y + 6.5, y - 5, 7.2)
    ]
    found: set[str] = set()
    gaps: list[Slot] = []
    weights = np.array([0.26, 0.14, 0.1, 0.12, 0.14, 0.14, 0.1]) * rng.uniform(0.3, 1.7, 7)
    for px, py, yaw in slots:
        kind = str(rng.choice(["containers", "tanks", "silos", "generators", "pallets", "crates", "gap"],
                              p=weights / weights.sum()))  # fmt: skip
        at = (px, py, 0.01)
        found.add(kind)
        if kind == "containers":
            machines.containers(scene, works, at, yaw)
        elif kind == "tanks":
            machines.tank(scene, works, palette, at, yaw + np.pi / 2)
        elif kind == "silos":
            machines.silo(scene, works, palette, at, yaw)
        elif kind == "generators":
            machines.generator(scene, works, palette, at, yaw + np.pi / 2)
        elif kind == "pallets":
            for shift in (-1.8, 1.4):
                side = (px + shift * np.cos(yaw), py + shift * np.sin(yaw), 0.01)
                machines.pallets(scene, works, palette, side, yaw)
        elif kind == "crates":
            inward = 0.7 if abs(abs(py) - y) < 0.1 else 0.0
            props.crate_pile(scene, palette, (px, py + np.sign(py) * inward, 0.01), yaw)
        else:
            machines.floodlight(scene, works, palette, at, yaw + np.pi / 2)
            gaps.append((px, py, yaw))
    return found, gaps


def _oddments(scene: Scene, palette: props.Palette, works: machines.Works, gaps: list[Slot]) -> None:
    """Cones, tyres, cable drums and barriers on both sides of the masts that stand in gaps."""
    rng = scene.rng
    for px, py, yaw in gaps:
        for side in (-1, 1):
            reach = side * rng.uniform(1.6, 2.2)
            at = (px + reach * np.cos(yaw), py + reach * np.sin(yaw), 0.01)
            place = scene.place("oddment", at, yaw + rng.normal(0, 0.3))
            kind = int(rng.integers(4))
            if kind == 0:
                cones = [meshes.cone(0.2, 0.7, segments=10).moved((x, 0, 0)) for x in (-0.7, 0.0, 0.7)]
                scene.shape(place, meshes.join(cones), scene.material((0.9, 0.36, 0.08), roughness=0.6))
            elif kind == 1:
                for level in range(int(rng.integers(2, 6))):
                    shift = rng.normal(0, 0.03, 2)
                    scene.solid(place, "cylinder", (0.4, 0.11), (*shift, 0.11 + 0.22 * level), palette.rubber)
            elif kind == 2:
                flat = (0.7071, 0.7071, 0.0, 0.0)
                for y in (-0.35, 0.35):
                    scene.solid(place, "cylinder", (0.75, 0.04), (0, y, 0.75), palette.wood, quat=flat)
                scene.solid(place, "cylinder", (0.4, 0.33), (0, 0, 0.75), scene.pick(works.signal), quat=flat)
            else:
                boards = np.array([(0, 0, 0.55), (0, 0, 0.9)])
                scene.shape(place, meshes.boxes(boards, np.array([1.7, 0.05, 0.22]), tile=0.8), works.stripes)
                feet = np.array([(-0.7, 0, 0.5), (0.7, 0, 0.5)])
                scene.shape(place, meshes.boxes(feet, np.array([0.06, 0.4, 1.0])), palette.dark_metal)


def _middle(scene: Scene, plot: Plot, palette: props.Palette, works: machines.Works) -> str:
    """The middle of the yard: a gantry over containers, a tank farm, or a digger among heaps; gives which."""
    rng = scene.rng
    x, y = plot.middle
    kind = str(rng.choice(["gantry", "tanks", "heaps"]))
    if kind == "gantry":
        machines.gantry(scene, works, palette, (rng.uniform(-0.3, 0.3) * x, 0, 0.01), 0.0, 2 * y - 3)
        for px in np.arange(-x + 4, x - 2, 8.0):
            for py in (-y + 3.2, 0.0, y - 3.2):
                if rng.random() < 0.62:
                    machines.containers(scene, works, (px, py, 0.01), 0.0, 2)
    elif kind == "tanks":
        for px in np.arange(-x + 2.5, x - 2.4, 5.2):
            for py in (-0.5 * y, 0.5 * y):
                make = scene.pick((machines.tank, machines.tank, machines.silo))
                make(scene, works, palette, (px, py, 0.01), scene.pick((-1, 1)) * np.pi / 2)
        pipe = scene.pick(works.plate)
        place = scene.place("pipes")
        for level, at in ((2.2, -0.4), (2.6, 0.4)):
            scene.rod(place, "cylinder", 0.13, (-x + 1.5, at, level), (x - 1.5, at, level), pipe)
        for px in np.arange(-x + 2, x, 4.0):
            scene.rod(place, "box", 0.06, (px, 0, 0), (px, 0, 2.7), palette.dark_metal)
    else:
        machines.digger(
            scene, works, palette, (rng.uniform(-0.2, 0.2) * x, rng.uniform(-0.2, 0.2) * y, 0.01), rng.uniform(0, 6)
        )
        for _ in range(5):
            soil = textures.speckle(
                rng, scene.vary(scene.pick(((0.45, 0.34, 0.24), (0.6, 0.57, 0.5), (0.3, 0.29, 0.28))))
            )
            heap = meshes.blob(rng, rng.uniform((1.6, 1.6, 0.9), (3.0, 2.6, 1.9)), 0.12, 2.0, 3, 4.0)
            side = scene.pick((-1, 1))
            at = (side * rng.uniform(0.45, 0.8) * x, rng.uniform(-0.6, 0.6) * y, 0.0)
            scene.shape(scene.place("heap", at), heap, scene.material(texture=soil, roughness=0.95, cube=True))
        machines.generator(scene, works, palette, (0.1 * x, 0.75 * y, 0.01), 0.0)
    mast = scene.place("beacon", mocap=True)
    at = (scene.pick((-1, 1)) * (x + 0.4), scene.pick((-1, 1)) * (y + 0.4), 0.0)
    scene.solid(mast, "cylinder", (0.08, 2.6), (0, 0, 2.6), palette.metal)
    scene.solid(mast, "box", (0.9, 0.06, 0.3), (0, 0, 5.3), works.stripes)
    scene.solid(mast, "sphere", (0.14,), (0.9, 0, 5.3), palette.tail_light)
    machines.turning(scene, mast, at, float(rng.uniform(3, 7)), 5.8)
    scene.keep_out.append(KeepOut((at[0], at[1]), 1.2, 6.0))
    props.ball(scene, (0.0, 0.93 * y, 0.0), float(rng.uniform(0.2, 0.4)), 1.6)
    return kind


def _traffic(scene: Scene, plot: Plot, palette: props.Palette, works: machines.Works) -> tuple[int, int]:
    """Fork-lifts round the drive, evenly spaced; people on a beat of their own at its inner side."""
    rng = scene.rng
    route = loop(plot.drive, 0.012)
    lifts, speed = int(rng.integers(1, 4)), float(rng.uniform(2.0, 3.5))
    for k in range(lifts):
        place = scene.place("forklift", mocap=True)
        machines.forklift(scene, works, palette, place)
        scene.follow(place, route, speed, route.length * k / lifts, radius=1.5, height=2.4)
    people, pace = int(rng.integers(1, 4)), float(rng.uniform(1.0, 1.5))
    beat = loop(plot.ring(11.9), 0.012, 2.0)
    for k in range(people):
        props.walker(scene, beat, beat.length * (k + rng.uniform(-0.3, 0.3)) / people, pace)
    return lifts, people


def _rails(scene: Scene, plot: Plot) -> None:
    x, y = plot.half
    for inset in (5.9, 6.4, 7.0):
        ring = loop(plot.ring(inset), 0.01)
        scene.rails.append(Rail(ring, (1.1, 2.0), (1.4, 2.0), ("heading", "inward"), weight=1.2))
    for height in ((3.8, 6.0), (6.5, 10.0)):
        scene.rails.append(Rail(loop(plot.ring(8.0), 0.01), (1.5, 4.0), height, ("heading", "inward"), clearance=0.6))
    scene.rails.append(Rail(loop((0.75 * x, 0.7 * y), 0.01), (2.0, 4.0), (11.5, 14.0), ("heading",), weight=0.5))


def _captions(hall: str, stored: set[str], centre: str, lifts: int, people: int) -> tuple[str, ...]:
    middle = {"gantry": "a gantry crane over containers", "tanks": "a tank farm with pipes",
              "heaps": "a digger among heaps of soil"}[centre]  # fmt: skip
    things = [thing for thing in ("containers", "tanks", "silos", "generators", "pallets") if thing in stored]
    listed = ", ".join(things[:3]) or "crates"
    moving = (
        f"{'a fork-lift' if lifts == 1 else 'fork-lifts'} driving, {'a worker' if people == 1 else 'workers'} walking"
    )
    return (
        f"a works yard with {middle}, {listed} along the wall, {hall}, {moving}",
        f"an industrial yard between {hall}, with {middle}",
        f"{middle} in the middle of a yard, {moving}",
        f"a factory yard: {listed}, {moving}",
        "an industrial yard with machines",
    )
