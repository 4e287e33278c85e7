"""From what the command line was told to a running server."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flowshade.api import StyledRenderer, choose_device, load_renderer
from flowshade.checkpoints.catalogue import MODELS
from flowshade.checkpoints.loading import find_parts
from flowshade.errors import MissingDependencyError
from flowshade.play.errors import PlayError
from flowshade.play.sources import ClipSource, Source, WorldSource, open_world
from flowshade.renderer.prompt import CaptionBank, PromptEncoder
from flowshade.types import FRAMES_PER_LATENT
from flowshade.upstream import FLASH
from flowshade.world import WORLDS, WorldError

CPU_SIZE = (128, 224)
"""What two cores paint at about twelve frames a second."""
GPU_SIZE = (480, 832)
PUSH_BYTES = 2**28
"""Of a pushed window: 16 frames of four streams at 480x832 and more."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to play, with what, and where."""

    world: str = "street"
    seed: int = 0
    mjcf: Path | None = None
    clip: Path | None = None
    model: str = "compact"
    checkpoint: Path | None = None
    """Of alaya-flash: its folder or its transformer's file; None looks where `models pull` puts it."""
    size: tuple[int, int] | None = None
    """Height and width in pixels; None takes `CPU_SIZE` or `GPU_SIZE`."""
    fps: float | None = None
    """World ticks a second; None takes 30 on a CPU and 60 on a GPU."""
    steps: int | None = None
    window: int = FRAMES_PER_LATENT
    fast: bool | None = None
    """Whether the model runs its fast path (`renderer.fast.speed_up`); None runs it on a GPU."""
    sessions: int = 8
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    push: bool = False
    """Whether engines may push windows of their own."""

    @property
    def fixed(self) -> bool:
        """Whether the world comes from a file, so that players cannot choose another."""
        return self.mjcf is not None or self.clip is not None

    def settled(self) -> Launch:
        """With everything chosen that was left to the device.

        Raises:
            FlowshadeError: a device that is not there.
        """
        gpu = choose_device(self.device).type == "cuda"
        size = self.size or (GPU_SIZE if gpu else CPU_SIZE)
        return replace(self, size=size, fps=self.fps or (60.0 if gpu else 30.0))

    def load_model(self, encoder: PromptEncoder | CaptionBank | None = None) -> StyledRenderer:
        """The renderer that all players share; `encoder` as `load_renderer` takes it."""
        return load_renderer(
            self.model, checkpoint=self.checkpoint, device=self.device, steps=self.steps, encoder=encoder,
            fast=self.fast,
        )  # fmt: skip

    def open_source(self, kind: str | None, seed: int | None) -> Source:
        """A world or clip of a session's own; for a settled launch."""
        assert self.size is not None and self.fps is not None
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
        CheckpointError: the model's files are missing.
        WorldError: an unknown kind of world.
    """
    missing = [name for name in ("fastapi", "uvicorn", "websockets") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"play needs {' and '.join(missing)}, not installed here; run: pip install 'flowshade[play]'"
        )
    from flowshade.play.server import Limits, PlayConfig, serve

    _check(launch)
    launch = launch.settled()
    config = PlayConfig(
        open_source=launch.open_source,
        model_name=Path(launch.model).stem,
        worlds=() if launch.fixed else tuple(WORLDS),
        window=launch.window,
        token=launch.token,
        limits=Limits(sessions=launch.sessions, push_bytes=PUSH_BYTES if launch.push else 0),
    )
    if launch.push:
        announce(f"ws://{launch.host}:{launch.port}/push")
    query = "" if launch.token is None else f"?token={launch.token}"
    announce(f"http://{launch.host}:{launch.port}/{query}")
    serve(config, launch.load_model, host=launch.host, port=launch.port)


def _check(launch: Launch) -> None:
    if launch.mjcf is not None and launch.clip is not None:
        raise PlayError("got both --mjcf and --clip; give one of them.")
    if not launch.fixed and launch.world not in WORLDS:
        raise WorldError(f"unknown world {launch.world!r}; expected one of {', '.join(WORLDS)}, or use --mjcf FILE.")
    if launch.model == FLASH:
        find_parts(MODELS[FLASH], launch.checkpoint)  # says at once what is missing
    elif launch.checkpoint is not None:
        raise PlayError(f"a checkpoint goes with --model {FLASH}; give {launch.checkpoint} as the --model itself.")
    if launch.window < 1 or launch.window % FRAMES_PER_LATENT:
        raise PlayError(f"window is {launch.window} frames; expected a multiple of {FRAMES_PER_LATENT}, such as 4.")
    if launch.sessions < 1:
        raise PlayError(f"sessions is {launch.sessions}; expected at least 1 place for players.")
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
