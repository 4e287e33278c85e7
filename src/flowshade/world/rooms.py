"""A flat from a seed: two rows of furnished rooms with doorways, windows to a garden, people, toys and lamps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowshade.world import machines, meshes, props, textures
from flowshade.world.camera import KeepOut, Rail
from flowshade.world.motion import Route
from flowshade.world.scene import Scene
from flowshade.world.textures import Colour

WALLS: tuple[Colour, ...] = (
    (0.92, 0.90, 0.85), (0.80, 0.84, 0.80), (0.86, 0.78, 0.66), (0.66, 0.74, 0.80), (0.90, 0.82, 0.80),
    (0.55, 0.62, 0.55), (0.78, 0.66, 0.58), (0.45, 0.52, 0.62),
)  # fmt: skip
FAN_DROP = 0.75
"""From the ceiling to where the fan's body stands, metres; its blades are higher."""
USES = ("living room", "kitchen", "study", "bedroom", "dining room", "playroom")


@dataclass(frozen=True)
class Flat:
    """Measures: `columns` by 2 rooms of `size`, centred on the origin."""

    columns: int
    size: tuple[float, float]
    height: float
    door: float
    """Half the width of a doorway."""

    def centre(self, column: int, row: int) -> tuple[float, float]:
        return (column - (self.columns - 1) / 2) * self.size[0], (row - 0.5) * self.size[1]

    @property
    def half(self) -> tuple[float, float]:
        return self.columns * self.size[0] / 2, self.size[1]


def build_rooms(scene: Scene) -> tuple[str, ...]:
    """Fills the scene; gives captions, the canonical one first."""
    rng = scene.rng
    flat = Flat(int(rng.integers(2, 4)), (float(rng.uniform(5.8, 7.2)), float(rng.uniform(6.2, 7.4))),
                float(rng.uniform(2.7, 3.2)), float(rng.uniform(0.85, 1.1)))  # fmt: skip
    palette = props.make_palette(scene, (0.26, 0.44, 0.16), 2)
    white = scene.material((0.93, 0.93, 0.91), roughness=0.5)
    dyes = [scene.vary(scene.pick(props.CLOTH)) for _ in range(4)]
    fabrics = tuple(scene.material(texture=textures.mottled(rng, dye, n=64, contrast=0.12),
                                   roughness=0.95, cube=True) for dye in dyes)  # fmt: skip
    _outside(scene, flat, palette)
    _shell(scene, flat, white, fabrics)
    uses = [USES[int(k)] for k in rng.permutation(len(USES))[: 2 * flat.columns]]
    for index, use in enumerate(uses):
        _furnish(scene, flat, palette, fabrics, white, use, *divmod(index, 2))
    people = _moving(scene, flat, palette)
    _rails(scene, flat)
    props.far_woods(scene, palette, (flat.half[0] + 20, flat.half[1] + 20), 2.6, 34)
    return _captions(flat, uses, people)


def _outside(scene: Scene, flat: Flat, palette: props.Palette) -> None:
    rng = scene.rng
    lawn = textures.grass(rng, scene.vary((0.30, 0.42, 0.17), 0.03), scene.vary((0.46, 0.45, 0.24)))
    scene.ground(420, -0.02, scene.material(texture=lawn, roughness=0.95, repeat=(140, 140)))
    x, y = flat.half
    for side in (-1, 1):
        for px in np.arange(-x, x, 5.0):
            grow = scene.pick((props.tree, props.bush, props.bush, props.fir))
            grow(scene, palette, (px + rng.uniform(0, 3), side * (y + rng.uniform(4, 11)), 0.0))


def _shell(scene: Scene, flat: Flat, white: str, fabrics: tuple[str, ...]) -> None:
    """Floors, ceiling, walls with doorways and windows; every piece of wall is a geom of its own."""
    rng = scene.rng
    x, y = flat.half
    wood = textures.planks(
        rng, scene.vary(scene.pick(((0.60, 0.42, 0.26), (0.42, 0.28, 0.18), (0.72, 0.58, 0.42)))), boards=8
    )
    tiles = textures.slabs(
        rng, scene.vary(scene.pick(((0.85, 0.83, 0.79), (0.45, 0.44, 0.44), (0.70, 0.52, 0.42)))), rows=4
    )
    floors = [scene.material(texture=picture, roughness=float(rng.uniform(0.15, 0.5))) for picture in (wood, tiles)]
    place = scene.place("floor")
    sx, sy = flat.size[0] / 2, flat.size[1] / 2
    for column in range(flat.columns):
        for row in range(2):
            cx, cy = flat.centre(column, row)
            corners = [(cx - sx, cy - sy, 0), (cx + sx, cy - sy, 0), (cx + sx, cy + sy, 0), (cx - sx, cy + sy, 0)]
            scene.shape(place, meshes.quads(np.array([corners], float), tile=2.0), floors[int(rng.random() < 0.35)])
    scene.solid(place, "box", (x, y, 0.2), (0, 0, -0.2), None, collide=True, hidden=True)
    roof = meshes.boxes(np.array([0, 0, flat.height + 0.1]), np.array([2 * x + 0.6, 2 * y + 0.6, 0.2]))
    scene.shape(scene.place("ceiling"), roof, white)
    paints = [scene.material(texture=textures.mottled(rng, scene.vary(c, 0.03), contrast=0.06), roughness=0.85)
              for c in (scene.pick(WALLS), scene.pick(WALLS), scene.pick(WALLS))]  # fmt: skip
    for row in range(2):  # outer long walls, with a window a room
        for column in range(flat.columns):
            cx, cy = flat.centre(column, row)
            at = cy + (sy if row else -sy)
            wide = float(rng.uniform(1.3, 2.1))
            _wall(scene, flat, (cx - sx, at), (cx + sx, at), paints[0], white, wide, 0.7)
            _curtains(scene, (cx, at - np.sign(at) * 0.17), 0.0, wide, fabrics)
    for end in (-1, 1):
        for row in range(2):
            cy = flat.centre(0, row)[1]
            window = float(rng.uniform(0.6, 1.2)) if rng.random() < 0.6 else 0.0
            _wall(scene, flat, (end * x, cy - sy), (end * x, cy + sy), paints[1], white, window, 0.9)
            if window:
                _curtains(scene, (end * (x - 0.17), cy), np.pi / 2, window, fabrics)
    for column in range(flat.columns):  # between the rows: doorways in the first and the last column
        cx = flat.centre(column, 0)[0]
        door = flat.door if column in (0, flat.columns - 1) else 0.0
        _wall(scene, flat, (cx - sx, 0), (cx + sx, 0), paints[2], white, door, 0.0)
    for column in range(flat.columns - 1):
        edge = flat.centre(column, 0)[0] + sx
        for row in range(2):
            cy = flat.centre(0, row)[1]
            _wall(scene, flat, (edge, cy - sy), (edge, cy + sy), paints[column % 2], white, flat.door, 0.0)


def _wall(scene: Scene, flat: Flat, start: tuple[float, float], end: tuple[float, float], paint: str, white: str,
          opening: float, sill: float) -> None:  # fmt: skip
    """A wall with an opening of half width `opening` in its middle: a doorway, or a window above `sill`."""
    a, b = np.array(start, float), np.array(end, float)
    length = float(np.linalg.norm(b - a))
    along = (b - a) / length
    yaw = float(np.arctan2(along[1], along[0]))
    middle = (a + b) / 2
    thick, top = 0.16, 2.15
    place = scene.place("wall", (*middle, 0.0), yaw)

    def piece(x0: float, x1: float, z0: float, z1: float, material: str = paint, wide: float = thick) -> None:
        centre, size = np.array([(x0 + x1) / 2, 0, (z0 + z1) / 2]), np.array([x1 - x0, wide, z1 - z0])
        scene.shape(place, meshes.boxes(centre, size, tile=2.0), material)
        scene.solid(place, "box", size / 2, centre, None, collide=True, hidden=True)

    ends = [(-length / 2, length / 2)] if opening <= 0 or sill > 0 else [(-length / 2, -opening), (opening, length / 2)]
    skirting = [((x0 + x1) / 2, 0, 0.05) for x0, x1 in ends], [(x1 - x0, thick + 0.03, 0.1) for x0, x1 in ends]
    scene.detail(meshes.boxes(*np.array(skirting, float)).moved((*middle, 0.0), yaw), white)
    if opening <= 0:
        piece(-length / 2, length / 2, 0, flat.height)
        return
    piece(-length / 2, -opening, 0, flat.height)
    piece(opening, length / 2, 0, flat.height)
    piece(-opening, opening, top, flat.height)
    if sill > 0:
        piece(-opening, opening, 0, sill)
    frames = [(0, 0, top)] + [(side * opening, 0, (top + sill) / 2) for side in (-1, 1)]
    sizes = [(2 * opening + 0.1, thick + 0.06, 0.06)] + [(0.06, thick + 0.06, top - sill)] * 2
    if sill > 0:
        frames += [(0, 0, sill), (0, 0, (top + sill) / 2)]
        sizes += [(2 * opening + 0.2, thick + 0.16, 0.05), (0.05, 0.05, top - sill)]
    scene.detail(meshes.boxes(np.array(frames, float), np.array(sizes, float)).moved((*middle, 0.0), yaw), white)


def _curtains(
    scene: Scene, at: tuple[float, float], yaw: float, opening: float, fabrics: tuple[str, ...]
) -> None:  # fmt: skip
    """Folds of cloth on both sides of a window of half width `opening`, under a rod."""
    rng = scene.rng
    place, cloth = scene.place("curtain", (*at, 0.0), yaw), scene.pick(fabrics)
    low = 0.04 if rng.random() < 0.6 else 0.6
    folds = np.arange(6) * 0.09
    for side in (-1, 1):
        x = side * (opening + 0.22 - folds)
        centre = np.stack([x, 0.025 * (-1.0) ** np.arange(6), np.full(6, (2.25 + low) / 2)], -1)
        scene.shape(place, meshes.boxes(centre, np.tile([0.1, 0.05, 2.25 - low], (6, 1))), cloth)
    scene.rod(place, "cylinder", 0.015, (-opening - 0.35, 0, 2.27), (opening + 0.35, 0, 2.27), scene.pick(fabrics))


def _furnish(scene: Scene, flat: Flat, palette: props.Palette, fabrics: tuple[str, ...], white: str, use: str,
             column: int, row: int) -> None:  # fmt: skip
    """A lamp overhead, a rug, and furniture along the walls; the way through the middle stays free."""
    rng = scene.rng
    cx, cy = flat.centre(column, row)
    sx, sy = flat.size[0] / 2, flat.size[1] / 2
    out = 1 if row else -1  # towards the outer wall
    lamp = scene.place("ceiling-lamp", (cx, cy, 0.0))
    hangs = rng.random() < 0.6
    if column == flat.columns - 1 and row == 0:  # under the hub of the fan
        scene.solid(lamp, "sphere", (0.12,), (0, 0, flat.height - FAN_DROP - 0.06), palette.lamp)
    elif hangs:
        scene.rod(lamp, "cylinder", 0.015, (0, 0, flat.height), (0, 0, flat.height - 0.3), palette.dark_metal)
        scene.solid(lamp, "sphere", (0.14,), (0, 0, flat.height - 0.4), palette.lamp)
    else:
        scene.solid(lamp, "box", (0.5, 0.12, 0.03), (0, 0, flat.height - 0.05), palette.lamp)
    pattern = scene.pick((textures.checker, textures.stripes))(
        scene.vary(scene.pick(props.CLOTH)), scene.vary(scene.pick(props.CLOTH))
    )
    rug = np.array([[(-1.3, -0.75, 0.012), (1.3, -0.75, 0.012), (1.3, 0.75, 0.012), (-1.3, 0.75, 0.012)]])
    scene.detail(meshes.quads(rug, tile=1.0).moved((cx, cy, 0.0)), scene.material(texture=pattern, roughness=0.95))
    if column == flat.columns - 1 and row == 1:  # loose things have the outer half of one room to themselves
        _loose(scene, palette, cx, cy + out * (sy - 1.2))
    elif column == 0 and row == 0:  # and the walker of another
        _shelf(scene, palette, (cx + sx - 0.35, cy + out * (sy - 1.2), 0.0), np.pi / 2)
    else:
        inset = 1.17 if use in ("kitchen", "bedroom") else 1.0  # clear of the curtains
        at = (cx, cy + out * (sy - inset), 0.0)
        _main_piece(scene, palette, fabrics, white, use, at, 0.0 if out > 0 else np.pi)
    wall = cy - out * (sy - 0.35)
    spots = {side: (cx + side * (sx - 1.15), wall, 0.0) for side in (-1, 1)}
    hides = {
        side: _side_piece(scene, palette, fabrics, spot, np.pi if out > 0 else 0.0) for side, spot in spots.items()
    }
    for side in (-1, 1):
        if not hides[side]:
            inner = (cx + 0.5 * sx * side, cy - out * (sy - 0.1), 1.65)
            _picture(scene, palette, inner, 0.0 if out < 0 else np.pi)
        corner = (cx + side * (sx - 0.68), cy + out * (sy - 0.5), 0.0)
        free = use not in ("kitchen", "bedroom") and not (column in (0, flat.columns - 1) and row == (column > 0))
        if free and rng.random() < 0.7:
            _side_piece(scene, palette, fabrics, corner, 0.0 if out > 0 else np.pi)
    if column in (0, flat.columns - 1):  # on the outer end wall, beside its window
        end = -1 if column == 0 else 1
        _picture(scene, palette, (cx + end * (sx - 0.1), cy - 0.62 * out * sy, 1.6), -end * np.pi / 2)


def _picture(scene: Scene, palette: props.Palette, at: tuple[float, float, float], yaw: float) -> None:
    """A framed canvas that faces -y of its own."""
    rng = scene.rng
    art = scene.place("picture", at, yaw)
    colour, wide = scene.vary(scene.pick(props.TOY)), rng.uniform(0.5, 1.0)
    canvas = scene.pick((
        textures.mottled(rng, colour, n=64, contrast=0.9, cells=2),
        textures.stripes(colour, scene.vary(scene.pick(props.TOY)), bands=2, diagonal=True),
    ))  # fmt: skip
    scene.shape(art, meshes.boxes(np.array([0, -0.01, 0]), np.array([wide + 0.08, 0.03, 0.68])), palette.wood, group=1)
    x, z = wide / 2, 0.3
    front = np.array([[(-x, -0.03, -z), (x, -0.03, -z), (x, -0.03, z), (-x, -0.03, z)]])
    scene.shape(art, meshes.quads(front, tile=1.0), scene.material(texture=canvas, roughness=0.5), group=1)


def _main_piece(scene: Scene, palette: props.Palette, fabrics: tuple[str, ...], white: str, use: str,
                at: tuple[float, float, float], yaw: float) -> None:  # fmt: skip
    """What tells a room's use, against its outer wall; it faces -y of its own."""
    rng = scene.rng
    place = scene.place("furniture", at, yaw)
    fabric = scene.pick(fabrics)

    def block(centre: tuple[float, float, float], size: tuple[float, float, float], material: str) -> None:
        scene.shape(place, meshes.boxes(np.array(centre), np.array(size)), material)

    if use == "living room":
        block((0, 0.25, 0.25), (2.2, 0.9, 0.34), fabric)
        block((0, 0.62, 0.6), (2.2, 0.22, 0.6), fabric)
        for side in (-1, 1):
            block((side * 1.15, 0.25, 0.36), (0.2, 0.95, 0.5), fabric)
            scene.solid(place, "ellipsoid", (0.25, 0.1, 0.22), (side * 0.6, 0.45, 0.62), scene.pick(fabrics))
    elif use == "bedroom":
        block((0, -0.1, 0.22), (1.7, 2.0, 0.3), palette.wood)
        block((0, -0.1, 0.45), (1.6, 1.95, 0.18), white)
        block((0, -0.4, 0.5), (1.64, 1.3, 0.14), fabric)
        block((0, 0.9, 0.6), (1.8, 0.08, 1.0), palette.wood)
        for side in (-0.4, 0.4):
            scene.solid(place, "ellipsoid", (0.32, 0.2, 0.09), (side, 0.6, 0.6), white)
    elif use == "kitchen":
        block((0, 0.6, 0.44), (3.4, 0.6, 0.88), scene.material(scene.vary(scene.pick(WALLS)), roughness=0.35))
        block(
            (0, 0.58, 0.9),
            (3.5, 0.66, 0.05),
            scene.material(texture=textures.speckle(rng, (0.3, 0.3, 0.31)), roughness=0.12),
        )
        scene.solid(place, "box", (0.3, 0.33, 0.9), (2.1, 0.6, 0.9), palette.metal)
        for k in range(3):
            scene.solid(
                place,
                "cylinder",
                (0.1, 0.09),
                (-1.2 + 0.5 * k, 0.5, 1.02),
                scene.pick((palette.bright_metal, palette.metal)),
            )
        scene.solid(place, "capsule", (0.02, 0.14), (0.5, 0.8, 1.06), palette.bright_metal)
    else:
        top = palette.wood if use != "playroom" else white
        block((0, 0.1, 0.74), (1.8, 0.9, 0.05), top)
        for x in (-0.8, 0.8):
            for y in (-0.25, 0.45):
                scene.rod(place, "cylinder", 0.03, (x, y, 0), (x, y, 0.72), palette.dark_metal)
        for x in (-0.5, 0.5):
            block((x, -0.65, 0.45), (0.42, 0.42, 0.05), fabric)
            block((x, -0.85, 0.75), (0.42, 0.05, 0.5), fabric)
            scene.rod(place, "cylinder", 0.025, (x, -0.65, 0), (x, -0.65, 0.43), palette.metal)
        if use == "study":
            scene.solid(place, "box", (0.32, 0.015, 0.2), (0, 0.35, 1.02), palette.glass)
            scene.rod(place, "cylinder", 0.02, (0.65, 0.3, 0.76), (0.65, 0.3, 1.1), palette.metal)
            scene.solid(place, "sphere", (0.09,), (0.65, 0.25, 1.14), palette.lamp)
        else:
            for k in range(3):
                size, colour = rng.uniform(0.06, 0.13), scene.vary(scene.pick(props.TOY))
                glossy = scene.material(
                    colour, roughness=float(rng.uniform(0.05, 0.5)), metallic=float(rng.random() < 0.3)
                )
                scene.solid(
                    place,
                    scene.pick(("sphere", "sphere", "cylinder")),
                    (size, size),
                    (-0.5 + 0.5 * k, 0.1, 0.77 + size),
                    glossy,
                )


def _side_piece(scene: Scene, palette: props.Palette, fabrics: tuple[str, ...], at: tuple[float, float, float],
                yaw: float) -> bool:  # fmt: skip
    """Something narrow against a wall; it faces -y of its own. Says whether it hides what hangs behind it."""
    rng = scene.rng
    kind = int(rng.integers(5))
    if kind == 0:
        _shelf(scene, palette, at, yaw)
        return True
    ahead = {2: 0.2, 4: 0.1}.get(kind, 0.0)  # what is deeper stands further from the wall
    at = (at[0] + ahead * np.sin(yaw), at[1] - ahead * np.cos(yaw), at[2])
    place = scene.place("furniture", at, yaw)
    if kind == 1:  # a standing lamp
        scene.solid(place, "cylinder", (0.15, 0.02), (0, 0, 0.02), palette.dark_metal)
        scene.rod(place, "cylinder", 0.018, (0, 0, 0), (0, 0, 1.5), palette.dark_metal)
        scene.solid(place, "ellipsoid", (0.17, 0.17, 0.13), (0, 0, 1.6), palette.lamp)
    elif kind == 2:  # a plant
        scene.solid(place, "cylinder", (0.17, 0.17), (0, 0, 0.17), scene.material(scene.vary((0.7, 0.4, 0.28))))
        leaves = meshes.blob(rng, (0.32, 0.32, rng.uniform(0.35, 0.6)), 0.25, 4.0, 2, 2.0)
        scene.shape(place, leaves, scene.pick(palette.canopy), (0, 0, 0.8))
    elif kind == 3:  # drawers
        body = scene.material(
            scene.vary(scene.pick(((0.5, 0.36, 0.24), (0.88, 0.87, 0.84), (0.3, 0.36, 0.4)))), roughness=0.4
        )
        scene.shape(place, meshes.boxes(np.array([0, 0, 0.45]), np.array([1.0, 0.45, 0.9])), body)
        knobs = np.array([(x, -0.24, z) for x in (-0.25, 0.25) for z in (0.2, 0.45, 0.7)])
        scene.shape(place, meshes.boxes(knobs, np.array([0.12, 0.03, 0.03])), palette.bright_metal, group=1)
        scene.solid(
            place,
            "ellipsoid",
            (0.1, 0.1, 0.17),
            (0.2, 0, 1.07),
            scene.material(scene.vary(scene.pick(props.TOY)), roughness=0.08),
        )
    else:  # an armchair
        fabric = scene.pick(fabrics)
        parts = np.array([[0, -0.1, 0.25], [0, 0.2, 0.6], [-0.42, -0.05, 0.4], [0.42, -0.05, 0.4]])
        sizes = np.array([[0.75, 0.75, 0.35], [0.75, 0.18, 0.65], [0.14, 0.75, 0.5], [0.14, 0.75, 0.5]])
        scene.shape(place, meshes.boxes(parts, sizes), fabric)
    return False


def _shelf(scene: Scene, palette: props.Palette, at: tuple[float, float, float], yaw: float) -> None:
    """Boards with a row of books on each."""
    rng = scene.rng
    place = scene.place("shelf", at, yaw)
    boards = [(0, 0, z) for z in (0.06, 0.5, 0.94, 1.38, 1.82)]
    sizes = [(1.1, 0.32, 0.04)] * 5 + [(0.04, 0.32, 1.86)] * 2
    scene.shape(
        place, meshes.boxes(np.array([*boards, (-0.55, 0, 0.93), (0.55, 0, 0.93)]), np.array(sizes)), palette.wood
    )
    for _ in range(3):
        spines, sizes = [], []
        for _, _, z in boards[:-1]:
            x = -0.5
            while x < 0.42:
                wide, tall = rng.uniform(0.025, 0.06), rng.uniform(0.2, 0.34)
                if rng.random() < 0.3:
                    spines.append((x + wide / 2, 0.0, z + 0.02 + tall / 2))
                    sizes.append((wide, 0.22, tall))
                x += wide + 0.003
        if spines:
            cover = scene.material(scene.vary(scene.pick(props.CLOTH)), roughness=0.6)
            scene.shape(place, meshes.boxes(np.array(spines), np.array(sizes)), cover, group=1)


def _loose(scene: Scene, palette: props.Palette, x: float, y: float) -> None:
    """A stack of boxes from a move that topples, or a ball that is kicked about."""
    if scene.rng.random() < 0.5:
        props.crate(scene, palette, (x - 0.1, y, 0.22), 0.42, 0.1)
        props.crate(scene, palette, (x + 0.12, y, 0.61), 0.34, 0.5)
        props.crate(scene, palette, (x + 0.33, y + 0.05, 0.94), 0.3, 1.0)
        scene.keep_out.append(KeepOut((x, y), 1.6, 2.2))
    else:
        props.ball(scene, (x, y, 0.0), float(scene.rng.uniform(0.11, 0.18)), 1.7)


def _moving(scene: Scene, flat: Flat, palette: props.Palette) -> int:
    """Someone pacing in the first room, a cleaning robot in the same one's far corner, both out of the way."""
    rng = scene.rng
    cx, cy = flat.centre(0, 0)
    y = cy - flat.size[1] / 2 + 1.15
    beat = np.array([(cx - 1.5, y - 0.3, 0), (cx + 0.9, y - 0.3, 0), (cx + 0.9, y + 0.3, 0), (cx - 1.5, y + 0.3, 0)])
    route = Route.through(beat, spacing=0.1, rounding=0.6)
    people, pace = 1 + int(rng.random() < 0.4), float(rng.uniform(0.7, 1.0))  # one pace: nobody is caught up with
    for k in range(people):
        props.walker(scene, route, route.length * k / people, pace)
    fan = scene.place("fan", mocap=True)
    at = (*flat.centre(flat.columns - 1, 0), flat.height - FAN_DROP)
    arms = np.array([[0.45, 0, 0], [-0.45, 0, 0], [0, 0.45, 0], [0, -0.45, 0]])
    long, short = (0.7, 0.14, 0.015), (0.14, 0.7, 0.015)
    blades = meshes.boxes(arms, np.array([long, long, short, short]))
    scene.shape(fan, blades, palette.wood, (0, 0, 0.28))
    scene.rod(fan, "cylinder", 0.05, (0, 0, 0.2), (0, 0, FAN_DROP), palette.metal)
    machines.turning(scene, fan, at, float(rng.uniform(1.5, 4)), 0.0, depth=0.0)
    return people


def _rails(scene: Scene, flat: Flat) -> None:
    x = flat.centre(flat.columns - 1, 0)[0]
    y = flat.centre(0, 1)[1]

    def rail(points: list[tuple[float, float]], rounding: float, weight: float, gaze: tuple[str, ...]) -> None:
        path = Route.through(np.array([(*p, 0.0) for p in points]), spacing=0.2, rounding=rounding)
        scene.rails.append(Rail(path, (0.6, 1.1), (1.3, 1.6), gaze, clearance=0.32, weight=weight, spread=np.pi))

    ring = [(-x, -y), (0, -y), (x, -y), (x, 0), (x, y), (0, y), (-x, y), (-x, 0)]
    rail(ring, 1.6, 2.0, ("heading",))
    for row in (-1, 1):
        lane = [
            (-x - 0.8, row * y - 0.35),
            (x + 0.8, row * y - 0.35),
            (x + 0.8, row * y + 0.35),
            (-x - 0.8, row * y + 0.35),
        ]
        rail(lane, 0.7, 1.0, ("swing", "heading"))
    for column in range(flat.columns):
        for row in range(2):
            cx, cy = flat.centre(column, row)
            small = [(cx - 1.6, cy - 0.5), (cx + 1.6, cy - 0.5), (cx + 1.6, cy + 0.5), (cx - 1.6, cy + 0.5)]
            rail(small, 0.8, 0.4, ("swing",))


def _captions(flat: Flat, uses: list[str], people: int) -> tuple[str, ...]:
    listed = ", ".join(f"a {use}" for use in uses[:3])
    someone = "someone walking" if people == 1 else "two people walking"
    size = "a small flat" if flat.columns == 2 else "a large flat"
    return (
        f"the rooms of {size}: {listed}, {someone}",
        f"indoors, {listed} with windows to a garden",
        f"{size} with furnished rooms, {someone} in one of them",
        f"an interior: {listed}",
        "inside a house, one room after another",
    )
