"""Worlds: physics, procedural scenes and model files. Nothing here is learned."""

from flowshade.world.camera import CameraPath, camera_at
from flowshade.world.catalogue import WORLDS, WorldKind, make_world
from flowshade.world.errors import WorldError
from flowshade.world.loading import load_mjcf, load_urdf
from flowshade.world.world import World, step

__all__ = [
    "WORLDS", "CameraPath", "World", "WorldError", "WorldKind", "camera_at", "load_mjcf", "load_urdf", "make_world",
    "step",
]  # fmt: skip
