"""Things of yards and quays: containers, tanks, silos, cranes, diggers, generators, fork-lifts. +x is their front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowshade.world import meshes, props, textures
from flowshade.world.motion import Route
from flowshade.world.scene import Place, Scene
from flowshade.world.textures import Colour

CONTAINER = (6.06, 2.44, 2.59)
"""Length, width and height of a twenty-foot container, metres."""
STEEL: tuple[Colour, ...] = (
    (0.60, 0.18, 0.14), (0.14, 0.28, 0.46), (0.16, 0.38, 0.28), (0.78, 0.52, 0.14), (0.55, 0.56, 0.58),
    (0.30, 0.20, 0.16), (0.84, 0.82, 0.78), (0.42, 0.16, 0.30),
)  # fmt: skip
SIGNAL: tuple[Colour, ...] = ((0.92, 0.66, 0.08), (0.90, 0.38, 0.08), (0.85, 0.82, 0.15), (0.20, 0.45, 0.62))


@dataclass(frozen=True)
class Works:
    """Materials and meshes that the machines of a world share."""

    steel: tuple[str, ...]
    """Painted corrugated sheet."""
    plate: tuple[str, ...]
    """Bare and galvanised metal."""
    signal: tuple[str, ...]
    """Bright paint of machines."""
    container: str
    frame: str
    stripes: str
    light: str


def make_works(scene: Scene) -> Works:
    """Draws what the machines of a world share."""
    rng = scene.rng
    colours = [STEEL[int(k)] for k in rng.permutation(len(STEEL))[:4]]
    length, width, height = CONTAINER
    body = meshes.boxes(np.array([0, 0, height / 2]), np.array([length, width, height - 0.1]), tile=2.4)
    edges = [(sx * (length / 2 - 0.06), sy * (width / 2 - 0.06), height / 2) for sx in (-1, 1) for sy in (-1, 1)]
    posts = meshes.boxes(np.array(edges), np.array([0.16, 0.16, height]))
    rails = [(0, sy * (width / 2 - 0.05), z) for sy in (-1, 1) for z in (0.07, height - 0.07)]
    bars = meshes.boxes(np.array(rails), np.array([length, 0.14, 0.14]))
    return Works(
        steel=tuple(
            scene.material(texture=textures.corrugated(rng, scene.vary(c), ribs=10), roughness=float(r), metallic=0.2)
            for c, r in zip(colours, rng.uniform(0.35, 0.7, 4))
        ),
        plate=(
            scene.material(scene.vary((0.62, 0.63, 0.64)), metallic=0.9, roughness=0.35),
            scene.material(texture=textures.mottled(rng, scene.vary((0.52, 0.50, 0.48))), metallic=0.8, roughness=0.5),
        ),
        signal=tuple(scene.material(scene.vary(scene.pick(SIGNAL)), roughness=0.4) for _ in range(2)),
        container=scene.mesh(body),
        frame=scene.mesh(meshes.join([posts, bars])),
        stripes=scene.material(texture=textures.stripes((0.9, 0.75, 0.1), (0.06, 0.06, 0.06), diagonal=True)),
        light=scene.material((1.0, 0.93, 0.8), roughness=0.3, emission=4.0),
    )  # fmt: skip


def containers(scene: Scene, works: Works, position: Sequence[float], yaw: float, most: int = 3) -> None:
    """A stack of one to `most` containers, not quite in line."""
    rng = scene.rng
    for level in range(int(rng.integers(1, most + 1))):
        offset = rng.normal(0, 0.05, 2)
        at = (position[0] + offset[0], position[1] + offset[1], position[2] + level * CONTAINER[2])
        place = scene.place("container", at, yaw + rng.normal(0, 0.015) + np.pi * rng.integers(2))
        paint = scene.pick(works.steel)
        scene.shape(place, works.container, paint)
        scene.shape(place, works.frame, paint)
        half = np.array(CONTAINER) / 2
        scene.solid(place, "box", half, (0, 0, half[2]), None, collide=True, hidden=True)


def tank(scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float) -> None:
    """An upright vessel with a domed top, a ladder, and a pipe down its front."""
    rng = scene.rng
    radius, height = rng.uniform(1.1, 1.9), rng.uniform(2.4, 5.0)
    place = scene.place("tank", position, yaw)
    skin = scene.pick((*works.plate, *works.signal))
    scene.solid(place, "cylinder", (radius, height / 2), (0, 0, 0.3 + height / 2), skin, collide=True)
    scene.solid(place, "ellipsoid", (radius, radius, 0.5), (0, 0, 0.3 + height), skin)
    scene.solid(place, "cylinder", (radius * 0.9, 0.16), (0, 0, 0.15), palette.dark_metal)
    for side in (-0.2, 0.2):
        scene.rod(
            place, "cylinder", 0.025, (radius + 0.08, side, 0.2), (radius + 0.08, side, height + 0.6), palette.metal
        )
    rungs = [(radius + 0.08, 0, z) for z in np.arange(0.5, height + 0.5, 0.35)]
    scene.shape(place, meshes.boxes(np.array(rungs), np.array([0.03, 0.4, 0.03])), palette.metal)
    pipe = scene.pick((*works.signal, palette.bright_metal))
    scene.rod(place, "capsule", 0.09, (0.3, radius + 0.15, height), (0.3, radius + 0.15, 0.5), pipe)
    scene.rod(place, "capsule", 0.09, (0.3, radius + 0.15, 0.5), (radius + 0.6, radius + 0.15, 0.5), pipe)


def silo(scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float) -> None:
    """A hopper on legs."""
    rng = scene.rng
    radius, height, foot = rng.uniform(1.2, 1.7), rng.uniform(2.5, 4.5), 2.2
    place = scene.place("silo", position, yaw)
    skin = scene.pick((*works.plate, *works.steel))
    scene.solid(place, "cylinder", (radius, height / 2), (0, 0, foot + height / 2), skin)
    upside_down = meshes.cone(radius, 1.5)
    mesh = meshes.Mesh(
        upside_down.vertices * [1, -1, -1], upside_down.normals * [1, -1, -1], upside_down.uv, upside_down.faces
    )
    scene.shape(place, mesh, skin, (0, 0, foot))
    scene.shape(place, meshes.cone(radius * 1.05, 0.8), palette.dark_metal, (0, 0, foot + height))
    for x in (-1, 1):
        for y in (-1, 1):
            at = np.array([x, y]) * radius * 0.72
            scene.rod(place, "cylinder", 0.09, (*at, 0), (*at, foot + 0.4), palette.metal)


def generator(scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float) -> None:
    """A humming cabinet: louvres, an exhaust, a hazard plinth and a lit panel."""
    rng = scene.rng
    place = scene.place("generator", position, yaw)
    long, wide, tall = rng.uniform(1.6, 2.6), rng.uniform(1.1, 1.6), rng.uniform(1.4, 2.0)
    paint = scene.pick((*works.signal, *works.steel))
    scene.shape(place, meshes.boxes(np.array([0, 0, 0.15]), np.array([long + 0.3, wide + 0.3, 0.3])), works.stripes)
    scene.shape(place, meshes.boxes(np.array([0, 0, 0.3 + tall / 2]), np.array([long, wide, tall]), tile=2.0), paint)
    slats = np.array(
        [(x, s * (wide / 2 + 0.02), 0.3 + tall * 0.55) for x in np.linspace(-0.35, 0.35, 6) * long for s in (-1, 1)]
    )
    scene.shape(place, meshes.boxes(slats, np.array([0.06, 0.05, tall * 0.5])), palette.dark_metal)
    scene.rod(place, "cylinder", 0.11, (-long * 0.3, 0, tall), (-long * 0.3, 0, tall + 1.0), palette.metal)
    scene.solid(place, "box", (0.02, 0.16, 0.1), (long / 2 + 0.02, 0.2, 0.3 + tall * 0.7), works.light)
    scene.solid(place, "sphere", (0.08,), (long * 0.3, 0, tall + 0.36), palette.tail_light)
    scene.solid(place, "box", (long / 2, wide / 2, tall / 2), (0, 0, 0.3 + tall / 2), None, collide=True, hidden=True)


def digger(scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float) -> None:
    """An excavator at rest: tracks, a cab of glass, and an arm folded before it."""
    rng = scene.rng
    place = scene.place("digger", position, yaw)
    paint = works.signal[0]
    for side in (-0.95, 0.95):
        scene.shape(place, meshes.boxes(np.array([0, side, 0.42]), np.array([2.6, 0.5, 0.5])), palette.rubber)
        for x in (-1.3, 1.3):
            scene.solid(place, "cylinder", (0.42, 0.25), (x, side, 0.42), palette.rubber, quat=(0.7071, 0.7071, 0, 0))
    turn = meshes.boxes(np.array([[-0.35, 0, 1.25], [-1.1, 0, 1.6]]), np.array([[2.3, 2.0, 0.8], [0.9, 1.9, 0.9]]))
    scene.shape(place, turn, paint)
    scene.shape(place, meshes.boxes(np.array([0.25, 0.5, 2.15]), np.array([1.1, 0.95, 1.2])), palette.glass)
    scene.shape(place, meshes.boxes(np.array([0.25, 0.5, 2.8]), np.array([1.25, 1.1, 0.1])), paint)
    elbow = np.array([rng.uniform(2.2, 2.8), -0.4, rng.uniform(3.0, 3.8)])
    wrist = np.array([rng.uniform(3.0, 3.6), -0.4, rng.uniform(1.2, 1.8)])
    scene.rod(place, "box", 0.2, (0.6, -0.4, 1.6), elbow, paint)
    scene.rod(place, "box", 0.15, elbow, wrist, paint)
    scene.rod(place, "cylinder", 0.07, (0.9, -0.4, 1.3), (elbow + np.array([0.6, -0.4, 1.6])) / 2, palette.bright_metal)
    bucket = meshes.extrude(np.array([[0, 0], [0.35, 0.1], [0.5, -0.35], [0.2, -0.65], [-0.15, -0.4]]), 0.9)
    scene.shape(place, bucket, palette.dark_metal, wrist)


def gantry(
    scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float, span: float
) -> None:
    """A travelling crane: legs of lattice, a girder over `span` metres along y, a trolley with its hook and lamps."""
    rng = scene.rng
    place = scene.place("gantry", position, yaw)
    height, paint = float(rng.uniform(7.5, 9.5)), scene.pick(works.signal)
    for y in (-span / 2, span / 2):
        for x in (-1.2, 1.2):
            scene.rod(place, "box", 0.16, (x, y, 0), (0.35 * x, y, height), paint)
        scene.rod(place, "box", 0.18, (-1.5, y, 0.2), (1.5, y, 0.2), palette.dark_metal)
        for k in (0.3, 0.6):
            reach = 1.2 - 0.78 * k
            scene.rod(place, "box", 0.07, (-reach, y, k * height), (reach, y, k * height), paint)
    for x in (-0.5, 0.5):
        scene.rod(place, "box", 0.26, (x, -span / 2 - 1.5, height), (x, span / 2 + 1.5, height), paint)
    y = rng.uniform(-0.3, 0.3) * span
    scene.shape(place, meshes.boxes(np.array([0, y, height - 0.1]), np.array([1.7, 1.4, 0.9])), works.stripes)
    low = rng.uniform(5.5, 6.5)  # over two containers
    scene.rod(place, "cylinder", 0.03, (0, y, height - 0.5), (0, y, low), palette.dark_metal)
    scene.solid(place, "sphere", (0.22,), (0, y, low), palette.metal)
    for side in (-0.35, 0.35):
        scene.solid(place, "box", (0.25, 0.25, 0.06), (0, side * span, height - 0.32), works.light)


def floodlight(scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float) -> None:
    """A tall mast with two lamps that look along +x and down."""
    place = scene.place("lamp", position, yaw)
    scene.rod(place, "cylinder", 0.11, (0, 0, 0), (0, 0, 7.0), palette.metal)
    scene.rod(place, "cylinder", 0.05, (0.2, -0.7, 6.9), (0.2, 0.7, 6.9), palette.metal)
    for y in (-0.55, 0.55):
        scene.solid(place, "box", (0.1, 0.3, 0.2), (0.28, y, 6.8), works.light, quat=(0.966, 0, 0.259, 0))


def pallets(scene: Scene, works: Works, palette: props.Palette, position: Sequence[float], yaw: float) -> None:
    """Goods on wooden pallets: sacks, drums or boxes under strapping."""
    rng = scene.rng
    for k in range(int(rng.integers(1, 3))):
        turn = np.array([np.cos(yaw), np.sin(yaw)]) * (k * 1.5 - 0.5)
        place = scene.place(
            "pallet", (position[0] + turn[0], position[1] + turn[1], position[2]), yaw + rng.normal(0, 0.1)
        )
        boards = [(0, y, 0.12) for y in (-0.5, -0.25, 0, 0.25, 0.5)] + [(x, 0, 0.05) for x in (-0.45, 0, 0.45)]
        sizes = [(1.2, 0.18, 0.03)] * 5 + [(0.1, 1.1, 0.1)] * 3
        scene.shape(place, meshes.boxes(np.array(boards), np.array(sizes)), palette.wood)
        kind = int(rng.integers(3))
        if kind == 0:
            for x in (-0.28, 0.28):
                for y in (-0.27, 0.27):
                    scene.solid(
                        place, "cylinder", (0.25, 0.42), (x, y, 0.56), scene.pick((*works.signal, *works.plate))
                    )
        elif kind == 1:
            sack = scene.material(
                texture=textures.mottled(rng, scene.vary((0.72, 0.66, 0.54)), n=64), roughness=0.95, cube=True
            )
            for level in range(int(rng.integers(2, 5))):
                for x in (-0.3, 0.3):
                    scene.solid(place, "ellipsoid", (0.32, 0.5, 0.13), (x, 0, 0.26 + 0.19 * level), sack)
        else:
            height = rng.uniform(0.5, 1.1)
            scene.solid(place, "box", (0.52, 0.48, height / 2), (0, 0, 0.14 + height / 2), palette.crate, collide=True)


def forklift(scene: Scene, works: Works, palette: props.Palette, place: Place) -> None:
    """Builds a fork-lift on a body, its nose to +x, about 2.9 m long with its forks."""
    paint = works.signal[-1]
    scene.shape(
        place,
        meshes.boxes(np.array([[-0.3, 0, 0.75], [-0.85, 0, 1.0]]), np.array([[1.7, 1.05, 0.7], [0.6, 1.1, 0.6]])),
        paint,
    )
    for x in (-0.8, 0.55):
        for y in (-0.5, 0.5):
            scene.solid(place, "cylinder", (0.3, 0.11), (x, y, 0.3), palette.rubber, quat=(0.7071, 0.7071, 0, 0))
    for x, y in ((-0.9, -0.45), (-0.9, 0.45), (0.35, -0.45), (0.35, 0.45)):
        scene.rod(place, "cylinder", 0.035, (x, y, 1.0), (x * 0.8, y, 2.1), palette.dark_metal)
    scene.shape(place, meshes.boxes(np.array([-0.22, 0, 2.12]), np.array([1.2, 1.05, 0.06])), palette.dark_metal)
    for y in (-0.32, 0.32):
        scene.rod(place, "box", 0.05, (0.72, y, 0.15), (0.72, y, 2.2), palette.dark_metal)
        scene.shape(place, meshes.boxes(np.array([1.25, y, 0.35]), np.array([1.1, 0.12, 0.05])), palette.metal)
    scene.solid(place, "box", (0.42, 0.45, 0.3), (1.3, 0, 0.68), palette.crate)
    scene.solid(
        place, "ellipsoid", (0.17, 0.22, 0.32), (-0.35, 0, 1.4), scene.material(scene.pick(props.CLOTH), roughness=0.9)
    )
    scene.solid(place, "sphere", (0.13,), (-0.33, 0, 1.83), works.signal[0])
    scene.solid(place, "sphere", (0.07,), (-0.4, 0.3, 2.2), palette.tail_light)


def turning(
    scene: Scene, place: Place, position: Sequence[float], seconds: float, height: float, depth: float = np.inf
) -> None:
    """Has a mocap body turn on the spot once in `seconds`: a route so small that only its heading matters."""
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    ring = np.stack([np.cos(angle), np.sin(angle), np.zeros(64)], -1) * 0.02 + np.asarray(position, float)
    route = Route(ring)
    scene.follow(place, route, route.length / seconds, scene.rng.uniform(0, route.length), radius=0.4, height=height,
                 depth=depth)  # fmt: skip
