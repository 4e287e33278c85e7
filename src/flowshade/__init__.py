"""Flowshade: a generative world renderer. G-buffers and a prompt in, a streamed picture out.

`load_renderer` is where to start; `docs/design.md` says what lies where. Importing this package loads nothing heavy:
names are resolved when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowshade.api import StyledRenderer, invert, load_inverse, load_renderer, restyle
    from flowshade.errors import FlowshadeError
    from flowshade.gbuffer.io import open_clip, read_clip, write_clip
    from flowshade.types import Camera, Frames, GBuffer

__version__ = "0.1.0"

_HOMES = {
    "Camera": "flowshade.types",
    "FlowshadeError": "flowshade.errors",
    "Frames": "flowshade.types",
    "GBuffer": "flowshade.types",
    "StyledRenderer": "flowshade.api",
    "invert": "flowshade.api",
    "load_inverse": "flowshade.api",
    "load_renderer": "flowshade.api",
    "open_clip": "flowshade.gbuffer.io",
    "read_clip": "flowshade.gbuffer.io",
    "restyle": "flowshade.api",
    "write_clip": "flowshade.gbuffer.io",
}

__all__ = [
    "Camera",
    "FlowshadeError",
    "Frames",
    "GBuffer",
    "StyledRenderer",
    "invert",
    "load_inverse",
    "load_renderer",
    "open_clip",
    "read_clip",
    "restyle",
    "write_clip",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
