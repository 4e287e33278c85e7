"""Things that stand, roll and drive about in procedural worlds. Sizes in metres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowshade.world import meshes, textures
from flowshade.world.camera import DETAIL_GROUP, KeepOut
from flowshade.world.meshes import Mesh
from flowshade.world.motion import Floats, Kick, Route
from flowshade.world.scene import Place, Scene
from flowshade.world.textures import Colour

PAINT: tuple[Colour, ...] = (
    (0.78, 0.10, 0.09), (0.11, 0.25, 0.55), (0.93, 0.93, 0.92), (0.07, 0.07, 0.08), (0.62, 0.64, 0.66),
    (0.92, 0.62, 0.08), (0.10, 0.40, 0.28), (0.35, 0.62, 0.80), (0.45, 0.12, 0.18), (0.80, 0.76, 0.62),
    (0.95, 0.82, 0.25), (0.30, 0.32, 0.36), (0.85, 0.38, 0.15), (0.55, 0.72, 0.35),
)  # fmt: skip
CLOTH: tuple[Colour, ...] = (
    (0.75, 0.20, 0.20), (0.18, 0.26, 0.45), (0.85, 0.80, 0.70), (0.22, 0.45, 0.35), (0.90, 0.65, 0.20),
    (0.25, 0.22, 0.25), (0.60, 0.35, 0.55), (0.45, 0.60, 0.75), (0.92, 0.92, 0.90), (0.55, 0.42, 0.30),
)  # fmt: skip
SKIN: tuple[Colour, ...] = ((0.92, 0.75, 0.62), (0.78, 0.57, 0.42), (0.52, 0.35, 0.25), (0.36, 0.24, 0.18))
TOY: tuple[Colour, ...] = (
    (0.86, 0.20, 0.22), (0.15, 0.45, 0.75), (0.96, 0.80, 0.22), (0.20, 0.62, 0.42), (0.90, 0.50, 0.15),
    (0.55, 0.30, 0.62), (0.92, 0.90, 0.86), (0.95, 0.62, 0.68), (0.18, 0.20, 0.24), (0.30, 0.72, 0.72),
)  # fmt: skip
LAMP_LIGHT: tuple[Colour, ...] = ((1.0, 0.82, 0.55), (1.0, 0.72, 0.40), (0.92, 0.95, 1.0))


@dataclass(frozen=True)
class Palette:
    """Materials and meshes that a world's props share."""

    metal: str
    dark_metal: str
    bright_metal: str
    rubber: str
    glass: str
    wood: str
    crate: str
    bark: str
    head_light: str
    tail_light: str
    lamp: str
    crowns: tuple[str, ...]
    """Tree crown meshes."""
    crown_reach: tuple[float, ...]
    """How far each reaches from its trunk, metres."""
    foliage: tuple[str, ...]
    """For flat and small things, which bring texture coordinates."""
    canopy: tuple[str, ...]
    """The same leaves seen from the middle of a crown, so that they are not drawn out at its sides."""
    firs: tuple[str, ...]
    needles: str
    lamp_posts: tuple[str, ...]


def make_palette(scene: Scene, leaf: Colour, variety: int = 3) -> Palette:
    """Draws what a world's props share; `variety` tree crowns, with leaves near the colour `leaf`."""
    rng = scene.rng
    lamp = scene.pick(LAMP_LIGHT)
    boards = textures.planks(rng, scene.vary((0.58, 0.42, 0.27)))
    bark = textures.mottled(rng, scene.vary((0.36, 0.27, 0.19)), contrast=0.5, cells=8)
    shapes = [_crown(rng) for _ in range(variety)]
    pictures = [textures.leaves(rng, scene.vary(leaf, 0.05)) for _ in range(2)]
    foliage = tuple(scene.material(texture=picture, roughness=0.85) for picture in pictures)
    canopy = tuple(scene.material(texture=picture, roughness=0.85, cube=True) for picture in pictures)
    needles = scene.material(texture=textures.leaves(rng, scene.vary((0.13, 0.27, 0.17), 0.03)), roughness=0.9)
    return Palette(
        metal=scene.material(scene.vary((0.50, 0.52, 0.54)), metallic=1.0, roughness=0.35),
        dark_metal=scene.material(scene.vary((0.14, 0.16, 0.15), 0.03), metallic=0.6, roughness=0.45),
        bright_metal=scene.material((0.86, 0.87, 0.88), metallic=1.0, roughness=0.12),
        rubber=scene.material((0.06, 0.06, 0.065), roughness=0.9),
        glass=scene.material((0.07, 0.09, 0.11), roughness=0.06, metallic=0.15),
        wood=scene.material(texture=boards, roughness=0.7),
        crate=scene.material(texture=boards, roughness=0.75, cube=True),
        bark=scene.material(texture=bark, roughness=0.95, cube=True),
        head_light=scene.material((1.0, 0.95, 0.84), roughness=0.2, emission=2.0),
        tail_light=scene.material((0.85, 0.06, 0.05), roughness=0.25, emission=1.0),
        lamp=scene.material(lamp, roughness=0.4, emission=4.0),
        crowns=tuple(scene.mesh(shape) for shape in shapes),
        crown_reach=tuple(float(np.linalg.norm(shape.vertices[:, :2], axis=1).max()) for shape in shapes),
        foliage=foliage,
        canopy=canopy,
        firs=tuple(scene.mesh(_fir(rng)) for _ in range(2)),
        needles=needles,
        lamp_posts=tuple(scene.mesh(_lamp_mesh(style)) for style in range(3)),
    )


# Trees ---------------------------------------------------------------------------------------------------------


def _crown(rng: np.random.Generator) -> Mesh:
    """Several bumpy lumps about a centre: 3 to 4 m wide."""
    size = rng.uniform(1.4, 2.2)
    lumps = [meshes.blob(rng, (size, size, size * 0.85), 0.16, 3.0, 3, 5.0)]
    for _ in range(int(rng.integers(2, 5))):
        part = size * rng.uniform(0.45, 0.7)
        angle, reach = rng.uniform(0, 2 * np.pi), size * rng.uniform(0.55, 0.85)
        at = (reach * np.cos(angle), reach * np.sin(angle), size * rng.uniform(-0.35, 0.75))
        lumps.append(meshes.blob(rng, (part, part, part * 0.85), 0.16, 3.0, 2, 3.0).moved(at))
    return meshes.join(lumps)


def _fir(rng: np.random.Generator) -> Mesh:
    """Ragged cones, one over another, from 1 m to about 6 m."""
    tiers = int(rng.integers(4, 7))
    height = rng.uniform(5, 8)
    parts = []
    for k in range(tiers):
        t = k / tiers
        radius = (1 - t) ** 0.85 * height * 0.27 + 0.15
        parts.append(meshes.cone(radius, height / tiers * 1.75, rng).moved((0, 0, 0.8 + t * height), rng.uniform(0, 6)))
    return meshes.join(parts)


def tree(scene: Scene, palette: Palette, position: Sequence[float], tall: float = 1.0, headroom: float = 0.0,
         reach: float = np.inf) -> None:  # fmt: skip
    """A broad-leaved tree: a trunk and a crown, sometimes of plain ellipsoids.

    Args:
        headroom: metres that stay free under the crown.
        reach: metres to the nearest wall; a crown that is wider gives way to the narrowest.
    """
    rng = scene.rng
    trunk = max(rng.uniform(1.9, 3.0) * tall, headroom + 1.0)
    place = scene.place("tree", position, rng.uniform(0, 2 * np.pi))
    radius = rng.uniform(0.11, 0.2)
    scene.rod(place, "cylinder", radius, (0, 0, -0.3), (0, 0, trunk + 0.6), palette.bark)
    leaf = scene.pick(palette.canopy)
    if rng.random() < 0.75:
        crown = int(rng.integers(len(palette.crowns)))
        if palette.crown_reach[crown] > reach:
            crown = int(np.argmin(palette.crown_reach))
        scene.shape(place, palette.crowns[crown], leaf, (0, 0, trunk + 1.4), rng.uniform(0, 6))
        return
    for k in range(3):
        size = rng.uniform(0.8, 1.4)
        at = (rng.normal(0, 0.45), rng.normal(0, 0.45), trunk + 0.5 + 0.75 * k)
        scene.solid(place, "ellipsoid", (size * (1.3 - 0.25 * k), size * (1.3 - 0.25 * k), size), at, leaf)


def fir(scene: Scene, palette: Palette, position: Sequence[float]) -> None:
    """A conifer, 5 to 8 m tall."""
    place = scene.place("fir", position, scene.rng.uniform(0, 2 * np.pi))
    scene.rod(place, "cylinder", 0.16, (0, 0, -0.4), (0, 0, 2.2), palette.bark)
    scene.shape(place, scene.pick(palette.firs), palette.needles)


def bush(scene: Scene, palette: Palette, position: Sequence[float]) -> None:
    """A low lump of leaves."""
    rng = scene.rng
    place = scene.place("bush", position, rng.uniform(0, 6))
    mesh = meshes.blob(rng, rng.uniform(0.35, 0.8, 3) * [1.2, 1.2, 1.0], 0.2, 3.0, 2, 2.0)
    scene.shape(place, mesh, scene.pick(palette.canopy), (0, 0, 0.3))


def far_woods(scene: Scene, palette: Palette, near: tuple[float, float], far: float, clumps: int) -> None:
    """Groups of trees far off on level ground, in three meshes, so that plains have something on them.

    Args:
        near: half axes of the ellipse about the origin that they keep out of, metres.
        far: how much larger the ellipse is that they stay within.
        clumps: how many groups, of three to eight trees.
    """
    rng = scene.rng
    tiers = [meshes.cone(2.1 - 0.55 * k, 3.0, segments=6).moved((0, 0, 0.8 + 1.7 * k)) for k in range(3)]
    fir_shape = meshes.join(tiers)
    crown_shapes = [meshes.blob(rng, (2.2, 2.2, 1.9), 0.16, 3.0, 1, 5.0) for _ in range(4)]
    firs, crowns, trunks = [], [], []
    for _ in range(clumps):
        angle, reach = rng.uniform(0, 2 * np.pi), np.sqrt(rng.uniform(1.0, far**2))
        middle = reach * np.array([near[0] * np.cos(angle), near[1] * np.sin(angle)])
        conifers = rng.random() < 0.4
        for _ in range(int(rng.integers(3, 9))):
            x, y = middle + rng.normal(0, 5.0, 2)
            tall = rng.uniform(0.8, 1.5)
            if np.hypot(x / near[0], y / near[1]) < 1.0:
                continue
            if conifers:
                firs.append(fir_shape.scaled(tall).moved((x, y, 0.0), rng.uniform(0, 6)))
                continue
            crowns.append(scene.pick(crown_shapes).scaled(tall).moved((x, y, 3.6 * tall), rng.uniform(0, 6)))
            trunks.append(meshes.tube((x, y, -0.1), (x, y, 2.4 * tall), 0.16 * tall, 4))
    place = scene.place("woods")
    for parts, material in ((firs, palette.needles), (crowns, scene.pick(palette.foliage)), (trunks, palette.bark)):
        if parts:
            scene.shape(place, meshes.join(parts), material, group=DETAIL_GROUP)


# Street furniture ----------------------------------------------------------------------------------------------


def _lamp_mesh(style: int) -> Mesh:
    """Everything of a lamp but its light: a post with an arm over the road, or for a lantern or globe."""
    foot = meshes.tube((0, 0, 0), (0, 0, 0.5), 0.11)
    if style == 0:
        head = meshes.boxes(np.array([1.5, 0, 5.9]), np.array([0.68, 0.26, 0.1]))
        return meshes.join(
            [foot, meshes.tube((0, 0, 0.4), (0, 0, 5.62), 0.06), meshes.tube((0, 0, 5.6), (1.3, 0, 5.9), 0.045), head]
        )
    top = 3.6 if style == 1 else 3.5
    parts = [foot, meshes.tube((0, 0, 0.4), (0, 0, top), 0.055)]
    return meshes.join([*parts, meshes.cone(0.26, 0.3, segments=8).moved((0, 0, 4.03))] if style == 1 else parts)


def lamp_post(scene: Scene, palette: Palette, position: Sequence[float], yaw: float, style: int) -> None:
    """A post with an arm over the road (towards +x of its own), or a lantern or globe on top."""
    place = scene.place("lamp", position, yaw)
    scene.shape(place, palette.lamp_posts[style], palette.dark_metal, group=DETAIL_GROUP)
    height = (5.6, 3.6, 3.5)[style]
    scene.solid(place, "cylinder", (0.11, height / 2), (0, 0, height / 2), None, collide=True, hidden=True)
    if style == 0:
        scene.solid(place, "box", (0.28, 0.1, 0.03), (1.5, 0, 5.83), palette.lamp)
    elif style == 1:
        scene.solid(place, "cylinder", (0.1, 0.22), (0, 0, 3.82), palette.lamp)
    else:
        scene.solid(place, "sphere", (0.22,), (0, 0, 3.7), palette.lamp)


def bench(scene: Scene, palette: Palette, position: Sequence[float], yaw: float) -> None:
    """Seat and back; one sits facing -y of its own."""
    place = scene.place("bench", position, yaw)
    slats = meshes.boxes(np.array([[0, y, 0.45] for y in (-0.2, -0.03, 0.14)]), np.array([1.7, 0.14, 0.045]))
    back = meshes.boxes(np.array([[0, 0.27, z] for z in (0.65, 0.82)]), np.array([1.7, 0.04, 0.13]))
    scene.shape(place, meshes.join([slats, back]), palette.wood)
    legs = meshes.boxes(
        np.array([[x, y, 0.22 if y < 0 else 0.45] for x in (-0.7, 0.7) for y in (-0.2, 0.24)]),
        np.array([[0.06, 0.06, 0.44], [0.06, 0.06, 0.9]] * 2),
    )
    scene.shape(place, legs, palette.dark_metal)


def bin_(scene: Scene, palette: Palette, position: Sequence[float]) -> None:
    """A round litter bin with a domed lid."""
    place = scene.place("bin", position)
    body = scene.material(scene.vary(scene.pick(((0.15, 0.35, 0.22), (0.28, 0.30, 0.33), (0.20, 0.28, 0.45)))),
                          roughness=0.5)  # fmt: skip
    scene.solid(place, "cylinder", (0.24, 0.42), (0, 0, 0.42), body, collide=True)
    scene.solid(place, "ellipsoid", (0.26, 0.26, 0.12), (0, 0, 0.86), palette.metal)


def bollard(scene: Scene, palette: Palette, position: Sequence[float]) -> None:
    """A short post with a bright ring."""
    place = scene.place("bollard", position)
    scene.solid(place, "capsule", (0.09, 0.4), (0, 0, 0.42), palette.dark_metal, collide=True)
    scene.solid(place, "cylinder", (0.093, 0.05), (0, 0, 0.7), palette.bright_metal)


def planter(scene: Scene, palette: Palette, position: Sequence[float], yaw: float) -> None:
    """A tub with a shrub."""
    place = scene.place("planter", position, yaw)
    tub = scene.material(scene.vary(scene.pick(((0.62, 0.60, 0.56), (0.62, 0.34, 0.22), (0.30, 0.30, 0.32)))))
    scene.solid(place, "box", (0.75, 0.3, 0.27), (0, 0, 0.27), tub, collide=True)
    shrub = meshes.blob(scene.rng, (0.68, 0.3, 0.35), 0.2, 4.0, 2, 2.0)
    scene.shape(place, shrub, scene.pick(palette.canopy), (0, 0, 0.62))


def sign(scene: Scene, palette: Palette, position: Sequence[float], yaw: float) -> None:
    """A round or square plate on a pole, facing -y of its own."""
    place = scene.place("sign", position, yaw)
    scene.rod(place, "cylinder", 0.035, (0, 0, 0), (0, 0, 2.6), palette.metal)
    first, second = scene.pick(TOY), scene.pick(((0.95, 0.95, 0.94), (0.05, 0.05, 0.06)))
    if scene.rng.random() < 0.5:
        scene.rod(place, "cylinder", 0.34, (0, -0.05, 2.3), (0, -0.08, 2.3), scene.material(first, roughness=0.35))
        scene.rod(place, "cylinder", 0.22, (0, -0.06, 2.3), (0, -0.09, 2.3), scene.material(second, roughness=0.35))
    else:
        plate = meshes.boxes(np.array([0, -0.06, 2.25]), np.array([0.7, 0.03, 0.7]))
        scene.shape(place, plate, scene.material(texture=textures.stripes(first, second, diagonal=True), roughness=0.4))


# Loose things --------------------------------------------------------------------------------------------------


def crate(scene: Scene, palette: Palette, position: Sequence[float], size: float, yaw: float) -> None:
    """A wooden or painted box that physics moves."""
    place = scene.place("crate", position, yaw, free=True)
    wood = scene.rng.random() < 0.5
    material = palette.crate if wood else scene.material(
        texture=textures.planks(scene.rng, scene.vary(scene.pick(TOY)), n=64, boards=4), roughness=0.65, cube=True
    )  # fmt: skip
    half = size / 2
    scene.solid(place, "box", (half, half, half), (0, 0, 0), material, collide=True, mass=30 * size**3)


def crate_pile(scene: Scene, palette: Palette, position: Sequence[float], yaw: float) -> None:
    """Two side by side, one or two on them so far out that they topple and slide off along the wall."""
    rng = scene.rng
    x, y, z = position
    along = np.array([np.cos(yaw), np.sin(yaw)])
    size = rng.uniform(0.45, 0.7)

    def put(offset: float, height: float, edge: float, turn: float) -> None:
        crate(scene, palette, (x + offset * along[0], y + offset * along[1], z + height), edge, yaw + turn)

    for k in (-0.5, 0.5):
        put(k * 1.15 * size, size / 2 + 0.01, size, rng.uniform(-0.1, 0.1))
    side, height = rng.choice([-1, 1]), size + 0.01
    for _ in range(int(rng.integers(1, 3))):
        edge = size * rng.uniform(0.6, 0.9)
        put(side * size * rng.uniform(1.1, 1.3), height + edge / 2 + 0.01, edge, rng.uniform(0, 1.5))
        height += edge + 0.01
    scene.keep_out.append(KeepOut((x, y), 1.6, z + 3.0))


def ball(scene: Scene, position: Sequence[float], radius: float, reach: float) -> None:
    """A ball that is kicked every few seconds and stays within about `reach` metres."""
    rng = scene.rng
    place = scene.place("ball", (position[0], position[1], position[2] + radius + 0.01), free=True)
    first, second = scene.pick(TOY), scene.pick(TOY)
    metal = rng.random() < 0.2
    picture = textures.checker(first, second, cells=4) if rng.random() < 0.5 else textures.stripes(first, second)
    material = scene.material(texture=picture, cube=True, roughness=0.08 if metal else float(rng.uniform(0.2, 0.7)),
                              metallic=float(metal))  # fmt: skip
    scene.solid(place, "sphere", (radius,), (0, 0, 0), material, collide=True, mass=0.6, roll=0.01)
    scene.kicks.append(
        Kick(f"{place.name}-joint", (position[0], position[1]), float(rng.uniform(4, 8)), float(rng.uniform(0, 4)),
             float(rng.uniform(0.6, 1.1)), float(rng.uniform(0.5, 3.0)))
    )  # fmt: skip
    scene.keep_out.append(KeepOut((position[0], position[1]), reach, position[2] + 3.0))


def barrel(scene: Scene, position: Sequence[float], lying: bool, yaw: float) -> None:
    """A steel or wooden drum that physics moves."""
    rng = scene.rng
    rise = 0.31 if lying else 0.45
    place = scene.place("barrel", (position[0], position[1], position[2] + rise), yaw, free=True)
    metal = rng.random() < 0.6
    paint = scene.vary(scene.pick(PAINT) if metal else (0.45, 0.30, 0.18))
    body = scene.material(paint, roughness=0.4 if metal else 0.75, metallic=0.7 if metal else 0.0)
    quat = (0.7071, 0.7071, 0, 0) if lying else (1, 0, 0, 0)
    scene.keep_out.append(KeepOut((position[0], position[1]), 0.8, position[2] + 2.0))
    scene.solid(place, "cylinder", (0.29, 0.44), (0, 0, 0), body, quat=quat, collide=True, mass=20.0, roll=0.01)
    hoop = scene.material(scene.vary((0.35, 0.34, 0.33)), metallic=0.9, roughness=0.4)
    for z in (-0.25, 0.25):
        at = (0, -z, 0) if lying else (0, 0, z)
        scene.solid(place, "cylinder", (0.302, 0.025), at, hoop, quat=quat)


def toys(scene: Scene, position: Sequence[float], count: int, spread: float) -> None:
    """Standing shapes of every kind, checkered, striped, glossy or plain, some tilted: shapes teach shading."""
    rng = scene.rng
    others: list[tuple[Floats, float]] = []
    for _ in range(count):
        offset, yaw = rng.uniform(-spread, spread, 2), rng.uniform(0, 6)
        kind = scene.pick(("box", "sphere", "ellipsoid", "capsule", "cylinder", "cone", "rock"))
        size = rng.uniform(0.25, 0.85)
        offset = _beside(offset, size, others)
        others.append((offset, size))
        place = scene.place("toy", (position[0] + offset[0], position[1] + offset[1], position[2]), yaw)
        material = _toy_material(scene, cube=kind not in ("cone", "rock"))
        if kind == "cone":
            scene.shape(place, meshes.cone(size, 2.2 * size), material)
        elif kind == "rock":
            lump = meshes.blob(rng, (size, size, size), 0.15, 2.0, 2, 1.0, flat=True)
            scene.shape(place, lump, material, (0, 0, 0.6 * size))
        else:
            _toy_primitive(scene, place, kind, size, material)


def _beside(at: Floats, size: float, others: Sequence[tuple[Floats, float]]) -> Floats:
    """`at` [2], pushed away from what stands too near, by at least so much that a thing of `size` meets none of it."""
    for _ in range(20):
        gaps = [float(np.linalg.norm(at - other)) - 1.4 * (size + its_size) for other, its_size in others]
        if not gaps or min(gaps) >= 0:
            break
        other, its_size = others[int(np.argmin(gaps))]
        away = at - other
        at = other + away / max(float(np.linalg.norm(away)), 1e-6) * 1.45 * (size + its_size)
    return at


def _toy_material(scene: Scene, cube: bool) -> str:
    rng = scene.rng
    first, second = scene.vary(scene.pick(TOY)), scene.vary(scene.pick(TOY))
    metallic = float(rng.random() < 0.3)
    roughness = float(rng.uniform(0.05, 0.9))
    kind = int(rng.integers(4))
    if kind == 0:
        return scene.material(first, roughness=roughness, metallic=metallic)
    picture = (
        textures.checker(first, second, cells=int(rng.choice([4, 6, 8]))) if kind == 1
        else textures.stripes(first, second, bands=int(rng.integers(2, 5)), diagonal=rng.random() < 0.5) if kind == 2
        else textures.mottled(rng, first, n=64, contrast=0.5)
    )  # fmt: skip
    return scene.material(texture=picture, roughness=roughness, metallic=metallic, cube=cube)


def _toy_primitive(scene: Scene, place: Place, kind: str, size: float, material: str) -> None:
    rng = scene.rng
    long = size * rng.uniform(0.6, 1.6)
    tilt = rng.normal(0, 0.25) if rng.random() < 0.4 else 0.0
    quat = (np.cos(tilt / 2), np.sin(tilt / 2), 0, 0)
    sizes = {
        "box": (size, size * rng.uniform(0.5, 1.3), long),
        "sphere": (size,),
        "ellipsoid": (size, size * rng.uniform(0.5, 1.3), long),
        "capsule": (size * 0.5, long),
        "cylinder": (size * 0.7, long),
    }
    rise = {"sphere": size, "capsule": long + 0.5 * size}.get(kind, long)
    scene.solid(place, kind, sizes[kind], (0, 0, rise), material, quat=quat, collide=True)


# Vehicles and people -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CarShape:
    """Meshes of a kind of car; its nose points to +x and its wheels stand on z = 0."""

    body: str
    cabin: str
    hubs: str
    front: str
    rear: str
    trim: str
    width: float
    length: float


def make_car_shape(scene: Scene) -> CarShape:
    """A saloon, a hatchback, a van or a pickup, each with its own proportions."""
    rng = scene.rng
    kind = scene.pick(("saloon", "hatch", "van", "pickup"))
    length, width, wheel = rng.uniform(4.0, 4.7), rng.uniform(1.72, 1.86), rng.uniform(0.31, 0.36)
    belt, roof = rng.uniform(0.92, 1.0), rng.uniform(1.40, 1.50)
    cabin = {"saloon": (-0.36, -0.19, 0.07, 0.24), "hatch": (-0.475, -0.40, 0.06, 0.24),
             "van": (-0.485, -0.47, 0.22, 0.40), "pickup": (-0.10, -0.06, 0.10, 0.25)}[kind]  # fmt: skip
    if kind == "van":
        length, belt, roof = length + 0.5, 1.15, rng.uniform(1.9, 2.15)
    h = length / 2
    nose = 0.78 if kind != "van" else 1.0
    lower = np.array([[-h, 0.34], [-h - 0.04, 0.6], [-h + 0.03, belt - 0.06], [-h + 0.16, belt],
                      [cabin[3] * length + 0.05, belt], [h - 0.35, belt - 0.12], [h - 0.05, nose], [h + 0.03, 0.55],
                      [h, 0.34], [h - 0.25, 0.22], [-h + 0.25, 0.22]])  # fmt: skip
    wide = width * np.array([0.94, 0.97, 0.96, 0.95, 0.96, 0.94, 0.93, 0.96, 0.93, 0.9, 0.9])
    a, b, c, d = (x * length for x in cabin)
    glass = np.array([[a, belt - 0.02], [b, roof], [c, roof], [d, belt - 0.02]])
    narrow = width * np.array([0.93, 0.74, 0.74, 0.93])
    top = np.array([[b - 0.06, roof - 0.05], [b, roof + 0.03], [c, roof + 0.03], [c + 0.08, roof - 0.05]])
    side = np.array([[x, s * y, 0.68] for x, s, y in ((h - 0.03, -1, 0.66), (h - 0.03, 1, 0.66))])
    axles = [(x * length, 0, wheel) for x in (-0.31, 0.32)]
    tyre, hub = meshes.drum(wheel, 0.25), meshes.drum(0.58 * wheel, width + 0.05)
    wheels = [tyre.moved((x, s * (width / 2 - 0.115), z)) for x, _, z in axles for s in (-1, 1)]
    bumpers = meshes.boxes(np.array([[h - 0.02, 0, 0.42], [-h + 0.02, 0, 0.42]]), np.array([0.2, width * 0.9, 0.16]))
    pillars = _pillars(a, b, c, d, belt, roof, width)
    return CarShape(
        body=scene.mesh(meshes.join([meshes.extrude(lower, wide), meshes.extrude(top, width * 0.76), pillars])),
        cabin=scene.mesh(meshes.extrude(glass, narrow)),
        hubs=scene.mesh(meshes.join([hub.moved(at) for at in axles])),
        front=scene.mesh(meshes.boxes(side, np.array([0.12, 0.36, 0.14]))),
        rear=scene.mesh(meshes.boxes(side * [-1, 1, 1.05], np.array([0.12, 0.3, 0.16]))),
        trim=scene.mesh(meshes.join([bumpers, *wheels])),
        width=width, length=length,
    )  # fmt: skip


def _pillars(a: float, b: float, c: float, d: float, belt: float, roof: float, width: float) -> Mesh:
    """Painted posts at the corners and middle of the cabin."""
    low, high = 0.465 * width + 0.012, 0.37 * width + 0.012
    posts = []
    for x0, x1 in ((a, b), (d, c), ((a + d) / 2, (b + c) / 2)):
        for side in (-1, 1):
            foot = np.array([[x0 - 0.05, side * low, belt], [x0 + 0.05, side * low, belt]])
            head = np.array([[x1 + 0.04, side * high, roof], [x1 - 0.04, side * high, roof]])
            posts.append(np.concatenate([foot, head])[:: side * -1])
    return meshes.quads(np.stack(posts))


def car(scene: Scene, palette: Palette, shape: CarShape, place: Place, lights: bool) -> None:
    """Builds a car on a body, parked or moving."""
    rng = scene.rng
    paint = scene.material(
        scene.vary(scene.pick(PAINT), 0.04), roughness=float(rng.uniform(0.12, 0.4)),
        metallic=float(rng.choice([0.0, 0.35, 0.8])),
    )  # fmt: skip
    for mesh, material in (
        (shape.body, paint), (shape.cabin, palette.glass), (shape.trim, palette.rubber),
        (shape.hubs, palette.bright_metal),
        (shape.front, palette.head_light if lights else palette.bright_metal),
        (shape.rear, palette.tail_light if lights else scene.material((0.55, 0.05, 0.05), roughness=0.2)),
    ):  # fmt: skip
        scene.shape(place, mesh, material)
    scene.solid(place, "box", (shape.length / 2, shape.width / 2, 0.55), (0, 0, 0.75), None, collide=True, hidden=True)


def walker(scene: Scene, route: Route, phase: float, speed: float) -> None:
    """A person of capsules who walks along a route, legs swinging."""
    rng = scene.rng
    size = rng.uniform(0.92, 1.05)
    shirt = scene.material(scene.vary(scene.pick(CLOTH)), roughness=0.9)
    trousers = scene.material(scene.vary(scene.pick(CLOTH[:6]), 0.03), roughness=0.9)
    skin = scene.material(scene.pick(SKIN), roughness=0.6)
    hair = scene.material(scene.pick(((0.10, 0.07, 0.05), (0.35, 0.22, 0.12), (0.7, 0.6, 0.4))), roughness=0.8)
    torso = scene.place("walker", mocap=True)
    scene.solid(torso, "ellipsoid", (0.15, 0.21, 0.34), (0, 0, 1.17 * size), shirt)
    scene.solid(torso, "sphere", (0.115,), (0.02, 0, 1.63 * size), skin)
    scene.solid(torso, "ellipsoid", (0.12, 0.12, 0.1), (-0.015, 0, 1.67 * size), hair)
    stride = 0.62
    scene.follow(torso, route, speed, phase, swing=(0.0, stride, 0.0), bob=0.012)
    for side in (-1, 1):
        leg = scene.place("leg", mocap=True)
        scene.rod(leg, "capsule", 0.075, (0, 0, 0), (0, 0, -0.76 * size), trousers)
        scene.solid(leg, "ellipsoid", (0.13, 0.055, 0.05), (0.05, 0, -0.83 * size), _shoe(scene))
        scene.follow(leg, route, speed, phase, offset=(0, 0.09 * side, 0.9 * size),
                     swing=(0.42, stride, 0.25 * (1 + side)))  # fmt: skip
        arm = scene.place("arm", mocap=True)
        scene.rod(arm, "capsule", 0.05, (0, 0, 0), (0.04, 0, -0.52 * size), shirt)
        scene.follow(arm, route, speed, phase, offset=(0, 0.25 * side, 1.38 * size),
                     swing=(0.35, stride, 0.25 * (1 - side)))  # fmt: skip


def _shoe(scene: Scene) -> str:
    return scene.material((0.10, 0.08, 0.07), roughness=0.6)
