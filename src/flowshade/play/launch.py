"""From what the command line was told to a running server."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowshade.api import choose_device, load_renderer
from flowshade.errors import MissingDependencyError
from flowshade.play.errors import PlayError
from flowshade.play.sources import ClipSource, Source, WorldSource, open_world
from flowshade.world import WORLDS, WorldError


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to play, with what, and where."""

    world: str = "street"
    seed: int = 0
    mjcf: Path | None = None
    clip: Path | None = None
    model: str = "compact"
    size: tuple[int, int] = (240, 416)
    fps: float = 30.0
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None

    @property
    def fixed(self) -> bool:
        """Whether the world comes from a file, so that players cannot choose another."""
        return self.mjcf is not None or self.clip is not None

    def open_source(self, kind: str | None, seed: int | None) -> Source:
        """A world or clip of a session's own."""
        device = choose_device(self.device)
        if self.clip is not None:
            return ClipSource(self.clip, size=self.size, device=device)
        chosen = self.mjcf or kind or self.world
        world = open_world(chosen, self.seed if seed is None else seed, self.fps)
        return WorldSource(world, size=self.size, device=device)


def run(launch: Launch, announce: Callable[[str], None]) -> None:
    """Serves until it is interrupted; `announce` is told the address once everything has been checked.

    Raises:
        MissingDependencyError: the server's packages are not installed.
        PlayError: two worlds were asked for, or the port is taken.
        WorldError: an unknown kind of world.
    """
    missing = [name for name in ("fastapi", "uvicorn", "websockets") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"play needs {' and '.join(missing)}, not installed here; run: pip install 'flowshade[play]'"
        )
    from flowshade.play.server import PlayConfig, serve
    from flowshade.play.session import Models

    _check(launch)
    models = Models(lambda: load_renderer(launch.model, device=launch.device))
    config = PlayConfig(
        open_source=launch.open_source,
        model_name=Path(launch.model).stem,
        worlds=() if launch.fixed else tuple(WORLDS),
        token=launch.token,
    )
    query = "" if launch.token is None else f"?token={launch.token}"
    announce(f"http://{launch.host}:{launch.port}/{query}")
    serve(config, models, host=launch.host, port=launch.port)


def _check(launch: Launch) -> None:
    if launch.mjcf is not None and launch.clip is not None:
        raise PlayError("got both --mjcf and --clip; give one of them.")
    if not launch.fixed and launch.world not in WORLDS:
        raise WorldError(f"unknown world {launch.world!r}; expected one of {', '.join(WORLDS)}, or use --mjcf FILE.")
    for path in (launch.mjcf, launch.clip):
        if path is not None and not path.exists():
            raise PlayError(f"found nothing at {path}; expected a world's file or a clip. Check the path.")
    family = socket.AF_INET6 if ":" in launch.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((launch.host, launch.port))
        except OSError as error:
            raise PlayError(
                f"cannot listen at {launch.host}:{launch.port} ({error.strerror}); choose another --port."
            ) from error
