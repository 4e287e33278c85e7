"""The worlds that can be made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np

from flowshade.world.camera import plan_path
from flowshade.world.errors import WorldError
from flowshade.world.harbour import build_harbour
from flowshade.world.hills import build_hills
from flowshade.world.rooms import build_rooms
from flowshade.world.scene import Scene
from flowshade.world.street import build_street
from flowshade.world.world import World
from flowshade.world.yard import build_yard


@dataclass(frozen=True)
class WorldKind:
    """A family of procedural worlds."""

    build: Callable[[Scene], tuple[str, ...]]
    """Fills a scene and gives captions, the canonical one first."""
    about: str
    """One line for lists."""
    number: int
    """Keeps kinds apart in random streams; never changes."""


WORLDS: dict[str, WorldKind] = {
    "street": WorldKind(
        build_street, "a road between buildings: traffic, people walking, trees, lamps, toppling crates", 1
    ),
    "hills": WorldKind(
        build_hills,
        "hills around a trail: cars, trees, rocks, cabins, fences, lamps, rolling balls, some ponds",
        2,
    ),
    "yard": WorldKind(
        build_yard, "a works yard: fork-lifts, workers, containers, tanks, cranes, machines, toppling crates", 3
    ),
    "rooms": WorldKind(
        build_rooms, "a flat: furnished rooms with doorways and windows, lamps, people pacing, a fan, loose boxes", 4
    ),
    "harbour": WorldKind(
        build_harbour, "a quay by still water: moored and sailing boats, cranes, houses, vehicles, people, goods", 5
    ),
}


def make_world(
    kind: str, seed: int, *, fps: float = 30.0, extend: Callable[[mujoco.MjSpec], None] | None = None
) -> World:
    """Makes a world; the same kind and seed always give the same world and the same motion.

    Args:
        kind: a name in `WORLDS`.
        seed: any non-negative integer.
        fps: frames a second that `step` advances by.
        extend: adds bodies of your own before the world is compiled, such as a player's.

    Raises:
        WorldError: the kind is unknown or the seed negative.
    """
    if kind not in WORLDS:
        raise WorldError(f"unknown world {kind!r}; expected one of {', '.join(WORLDS)}. See `flowshade world list`.")
    if seed < 0:
        raise WorldError(f"world seed is {seed}; expected 0 or more. Choose another seed.")
    family = WORLDS[kind]
    scene = Scene(np.random.default_rng([seed, family.number]))
    captions = family.build(scene)
    if extend is not None:
        extend(scene.spec)
    model = scene.compile()
    return World(
        name=kind, seed=seed, description=captions[0], descriptions=captions, model=model,
        camera_path=plan_path(model, scene.rails, scene.movers, scene.keep_out, 1000 * seed),
        fps=fps, movers=tuple(scene.movers), kicks=tuple(scene.kicks), rails=tuple(scene.rails),
        keep_out=tuple(scene.keep_out),
    )  # fmt: skip
