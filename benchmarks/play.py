"""How fast `flowshade play` answers: frames a second, and the time from an input to the picture that shows it.

    python benchmarks/play.py                              # compact, 128x224 on a CPU, 480x832 on a GPU
    python benchmarks/play.py --size 96x160 --load 2       # beside two busy processes
    python benchmarks/play.py --search 8                   # the largest size of each preset with 8 frames a second
    python benchmarks/play.py --goals                      # on an H200: what the design asks for, met or missed
    python benchmarks/play.py --in-process                 # without web server: needs no fastapi, uvicorn, websockets
    python benchmarks/play.py --model alaya-flash --random-weights --window 16 --in-process   # Flash's shape

Starts the server as a process and plays with headless clients on the same machine: every 16 ms an input, every frame
decoded and confirmed. Counted: everything from the sending of an input (socket, physics, tracing, rendering, JPEG,
pacing, socket) to its first decoded picture; with `--in-process` all of these but the two sockets. Not counted: drawing
it on a screen. Counting begins after preparing the model and the first seconds of generated pictures. Prints a markdown
row; `--json FILE` also keeps everything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from flash import build, tiny

from flowshade.api import FlashStream, StyledRenderer
from flowshade.device import choose_device
from flowshade.play import protocol
from flowshade.play.launch import Launch
from flowshade.play.pace import FrameQueue, TimedFrame
from flowshade.play.painting import Models
from flowshade.play.protocol import VERSION, Ack, Hello, pack_frame, unpack_frame
from flowshade.play.session import Session
from flowshade.provenance import hardware
from flowshade.renderer.fast import speed_up
from flowshade.renderer.flash import FlashConfig
from flowshade.renderer.prompt import MAX_TOKENS, WIDTH
from flowshade.renderer.styles import load_styles
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.upstream import TEXT_TOKENS
from flowshade.upstream import FLASH

MOST_UNANSWERED = 32
"""Inputs on their way; further ones are merged, as the page does. A merged input counts from its first part."""


@dataclass
class Client:
    """A headless player. `connect` gives a socket, or what stands in for one."""

    connect: Callable[[], Any]
    number: int
    seed: int
    warm_seconds: float
    seconds: float
    latencies: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    bad: int = 0
    """Frames out of order, or of another size: there must be none."""
    size: tuple[int, int] = (0, 0)
    error: str = ""
    ready: float = 0.0
    """Seconds from the start to the first generated picture: loading and preparing the model."""

    def run(self) -> None:
        try:
            with self.connect() as socket:
                self._play(socket)
        except Exception as error:  # noqa: BLE001 - shown in the report
            self.error = f"{type(error).__name__}: {error}"

    def _play(self, ws: Any) -> None:
        ws.send(json.dumps({"type": "hello", "version": VERSION, "seed": self.seed}))
        sent: dict[int, float] = {}
        began, last, generated, measuring = time.monotonic(), 0, 0.0, False
        next_input, number, wanted = time.monotonic(), 0, None
        while True:
            now = time.monotonic()
            if now >= next_input:
                next_input = max(next_input + 0.016, now)
                wanted = now if wanted is None else wanted
                if len(sent) < MOST_UNANSWERED:
                    number += 1
                    ws.send(json.dumps({"type": "input", "id": number, "forward": 1.0, "yaw": 0.01}))
                    sent[number], wanted = wanted, None
            try:
                message = ws.recv(timeout=max(0.0, next_input - time.monotonic()))
            except TimeoutError:
                continue
            if isinstance(message, str):
                self._hear(json.loads(message))
                continue
            header, data = unpack_frame(message)
            picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            now = time.monotonic()
            ws.send(json.dumps({"type": "ack", "frame": header.id}))
            self.bad += header.id <= last or picture is None or picture.shape[:2] != self.size
            last = header.id
            answered = [key for key in sent if key <= header.input]
            for key in answered:
                at = sent.pop(key)
                if measuring and at > generated + self.warm_seconds:
                    self.latencies.append(now - at)
            if header.view == "generated":
                generated = generated or now
                self.ready = generated - began
                measuring = now > generated + self.warm_seconds
                if measuring:
                    self.shown.append(now)
                if now > generated + self.warm_seconds + self.seconds:
                    return

    def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "welcome":
            self.size = message["height"], message["width"]
        elif message["type"] == "status":
            self.status = message
        elif message["type"] == "problem":
            raise RuntimeError(message["text"])


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table."""

    hardware: str
    date: str
    model: str
    size: tuple[int, int]
    sessions: int
    busy: int
    """Other processes that kept a core busy each."""
    seconds: float
    fps: list[float]
    """A session each."""
    median_ms: float
    p95_ms: float
    p99_ms: float
    worst_ms: float
    first_half_p95_ms: float
    second_half_p95_ms: float
    window: int
    steps: int
    stride: int
    work_ms: float
    bound_ms: float
    note: str
    bad_frames: int
    ready_s: float
    """Seconds until the first generated picture."""
    in_process: bool
    """Without a web server."""

    def row(self) -> str:
        height, width = self.size
        cells = [
            self.hardware,
            self.model,
            f"{height}x{width}",
            self.sessions,
            self.busy,
            f"{statistics.mean(self.fps):.1f}",
            f"{min(self.fps):.1f}",
            *(f"{value:.0f}" for value in (self.median_ms, self.p95_ms, self.p99_ms)),
            f"{self.first_half_p95_ms:.0f} / {self.second_half_p95_ms:.0f}",
            f"{self.window} / {self.steps} / {self.stride}",
            f"{self.work_ms:.0f}",
            "none" if self.in_process else "on this machine",
            self.bad_frames,
        ]
        return f"| {' | '.join(str(cell) for cell in cells)} |"


COLUMNS = (
    "hardware", "model", "size", "sessions", "busy processes", "FPS a session", "slowest", "median ms", "p95 ms",
    "p99 ms", "p95 of halves ms", "window / steps / stride", "work ms", "sockets", "bad frames",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def spin() -> None:
    while True:
        pass


def debug_model(folder: Path) -> Path:
    """A small model with random weights."""
    from flowshade.checkpoints.store import save_renderer
    from flowshade.presets import debug_renderer
    from flowshade.renderer.renderer import Renderer

    torch.manual_seed(0)
    path = folder / "debug.safetensors"
    save_renderer(Renderer(debug_renderer()), path)
    return path


# What is played with --------------------------------------------------------------------------------------------------


class RandomPrompts:
    """In place of a text encoder, which takes no part in a frame: embeddings that only tell prompts apart."""

    def __init__(self, text_dim: int, tokens: int, device: torch.device) -> None:
        self._shape, self._device = (tokens, text_dim), device

    def encode(self, texts: list[str]) -> TextContext:
        rows = []
        for text in texts:
            generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
            rows.append(torch.randn(*self._shape, generator=generator))
        return TextContext(tokens=torch.stack(rows).to(self._device))

    def check(self, text: str) -> None:
        """Any will do."""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Makes the renderer, in whichever process plays."""

    launch: Launch
    random_weights: bool
    past: str
    """How a random Flash looks at its past: "full" as upstream's, or "one_way"."""
    random_prompts: bool

    def __call__(self) -> StyledRenderer:
        device = choose_device(self.launch.device)
        if not self.random_weights:
            encoder: Any = RandomPrompts(WIDTH, MAX_TOKENS, device) if self.random_prompts else None
            return self.launch.load_model(encoder)
        cuda = device.type == "cuda"
        config = FlashConfig() if cuda else tiny()
        model = build(config, self.past, device, torch.bfloat16 if cuda else torch.float32)
        if self.launch.fast or (cuda and self.launch.fast is None):
            speed_up(model)
        encoder = RandomPrompts(config.transformer.text_dim, TEXT_TOKENS, device)
        return FlashStream(
            model, name=f"{config.name}, random weights", fingerprint="random", steps=self.launch.steps,
            styles=load_styles(), encoder=encoder,
        )  # fmt: skip


def serve_loaded(loader: Loader, sessions: int, port: int) -> None:
    """The server, in a process of its own."""
    from flowshade.play.link import Limits
    from flowshade.play.server import PlayConfig, serve
    from flowshade.world import WORLDS

    launch = loader.launch
    config = PlayConfig(
        open_source=launch.open_source, model_name=launch.model, worlds=tuple(WORLDS), window=launch.window,
        limits=Limits(sessions=sessions),
    )  # fmt: skip
    serve(config, loader, port=port)


class Direct:
    """A session in this process, behind what looks like a socket. What the server does between the two, it does too."""

    def __init__(self, launch: Launch, models: Models, recordings: Path) -> None:
        self._launch, self._models, self._recordings = launch, models, recordings
        self._changed = threading.Condition()
        self._messages: list[protocol.ServerMessage] = []
        self._frames = FrameQueue()
        self._session: Session | None = None

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
            self._session.join(60)

    def send(self, text: str) -> None:
        message = protocol.decode(text)
        if isinstance(message, Hello):
            self._open(message)
        elif isinstance(message, Ack):
            with self._changed:
                self._frames.shown(message.frame)
        elif self._session is not None:
            self._session.take(message)

    def _open(self, hello: Hello) -> None:
        source = self._launch.open_source(hello.world, hello.seed)
        self._session = Session(
            "1", source, self._models, self._emit, recordings=self._recordings, window=self._launch.window
        )
        height, width = source.size
        self._emit(
            protocol.Welcome(
                version=VERSION, session="1", model=self._launch.model, world=source.name, seed=source.seed,
                description=source.description, worlds=[], styles=[], views=list(protocol.VIEWS), prompt="",
                style="original", height=height, width=width, fps=source.fps, interactive=source.interactive,
            )
        )  # fmt: skip
        self._session.start()

    def _emit(self, item: protocol.ServerMessage | list[TimedFrame]) -> None:
        """From the session's thread."""
        with self._changed:
            if isinstance(item, list):
                self._frames.put(item, time.monotonic())
            else:
                self._messages.append(item)
            self._changed.notify_all()

    def recv(self, timeout: float) -> str | bytes:
        """The next message, or the next frame once it is due.

        Raises:
            TimeoutError: there is none in time.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._messages:
                    return protocol.encode(self._messages.pop(0))
                now = time.monotonic()
                frame = self._frames.take(now)
                if frame is not None:
                    return pack_frame(frame.header, frame.data)
                if now >= deadline:
                    raise TimeoutError
                wait = self._frames.wait(now)
                self._changed.wait(deadline - now if wait is None else min(wait, deadline - now))


def wait_until_up(port: int, alive: Callable[[], bool]) -> None:
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            return
        except OSError:
            if not alive():
                raise SystemExit("the server did not come up") from None
            time.sleep(0.2)


@contextmanager
def players_place(args: argparse.Namespace, loader: Loader, folder: Path) -> Iterator[Callable[[], Any]]:
    """Something to connect to, as long as it is needed."""
    if args.in_process:
        models = Models(loader)
        try:
            yield lambda: Direct(loader.launch, models, folder)
        finally:
            models.close()
        return
    from websockets.sync.client import connect

    port = free_port()
    server = multiprocessing.get_context("spawn").Process(target=serve_loaded, args=(loader, args.sessions, port))
    server.start()
    try:
        wait_until_up(port, server.is_alive)
        address = f"ws://127.0.0.1:{port}/ws"
        yield lambda: connect(address, max_size=None, compression=None, ping_interval=None)
    finally:
        server.terminate()
        server.join(60)


def measure(args: argparse.Namespace, folder: Path) -> Result:
    launch = Launch(
        world=args.world, model=str(debug_model(folder)) if args.model == "debug" else args.model,
        checkpoint=args.checkpoint, size=args.size, fps=args.fps, steps=args.steps, window=args.window,
        sessions=args.sessions, device=args.device, fast=args.fast,
    ).settled()  # fmt: skip
    loader = Loader(
        launch=launch, random_weights=args.random_weights, past=args.past, random_prompts=args.random_prompts
    )
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(args.load)]
    try:
        with players_place(args, loader, folder) as connect:
            for process in busy:
                process.start()
            clients = [Client(connect, index, index, args.warm, args.seconds) for index in range(args.sessions)]
            threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        for process in busy:
            if process.pid is not None:
                process.kill()
    return summary(args, clients)


def summary(args: argparse.Namespace, clients: list[Client]) -> Result:
    for client in clients:
        if client.error:
            raise SystemExit(f"player {client.number} failed: {client.error}")
    if min(len(client.latencies) for client in clients) < 2:
        raise SystemExit(f"hardly an input was answered in {args.seconds:.0f} s; give more --seconds.")
    latencies = np.array([value for client in clients for value in client.latencies]) * 1000
    middles = [len(client.latencies) // 2 for client in clients]
    early = [value for client, middle in zip(clients, middles) for value in client.latencies[:middle]]
    late = [value for client, middle in zip(clients, middles) for value in client.latencies[middle:]]
    status = clients[0].status
    return Result(
        hardware=f"{hardware()}, {os.cpu_count()} cores", date=date.today().isoformat(),
        model=f"{args.model}{', random weights' if args.random_weights else ''}",
        size=clients[0].size, sessions=args.sessions, busy=args.load, seconds=args.seconds,
        fps=[(len(c.shown) - 1) / (c.shown[-1] - c.shown[0]) for c in clients],
        median_ms=float(np.median(latencies)), p95_ms=float(np.percentile(latencies, 95)),
        p99_ms=float(np.percentile(latencies, 99)), worst_ms=float(latencies.max()),
        first_half_p95_ms=1000 * float(np.percentile(early, 95)),
        second_half_p95_ms=1000 * float(np.percentile(late, 95)),
        window=status["window"], steps=status["steps"], stride=status["stride"], work_ms=status["work_ms"],
        bound_ms=status["bound_ms"], note=status["note"], bad_frames=sum(c.bad for c in clients),
        ready_s=max(c.ready for c in clients), in_process=args.in_process,
    )  # fmt: skip


SEARCHED = (
    (64, 112), (80, 144), (96, 160), (112, 192), (128, 224), (144, 256), (160, 272), (176, 304), (192, 336), (240, 416),
)  # fmt: skip
"""Heights and widths that `--search` tries."""
PRESETS = ((1, 4), (1, 8), (2, 4), (2, 8))
"""Steps and windows that it tries."""


def search(args: argparse.Namespace, folder: Path) -> list[Result]:
    """The largest size of each preset that reaches `args.search` frames a second, and the row that misses it."""
    results: list[Result] = []
    for args.steps, args.window in PRESETS:
        best = None
        for args.size in SEARCHED:
            results.append(measure(args, folder))
            print(results[-1].row(), flush=True)
            if min(results[-1].fps) < args.search:
                break
            best = results[-1]
        found = "none" if best is None else f"{best.size[0]}x{best.size[1]}, p95 {best.p95_ms:.0f} ms"
        print(f"  {args.steps} steps at best, windows of {args.window}: {found}", flush=True)
    return results


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the design asks for on one H200 at 480x832, physics and tracing included."""

    random_weights: bool
    """Flash's shape instead of `--model`."""
    window: int
    tick_rate: float
    fps: float
    p95_ms: float | None


GOALS = (
    Goal(random_weights=False, window=4, tick_rate=60.0, fps=60.0, p95_ms=175.0),
    Goal(random_weights=True, window=4, tick_rate=30.0, fps=30.0, p95_ms=None),
    Goal(random_weights=True, window=16, tick_rate=30.0, fps=30.0, p95_ms=None),
)
_ROUNDING = 0.98
"""Of a goal: frames that are counted at the ends of a run."""


def goals(args: argparse.Namespace, folder: Path) -> list[Result]:
    """Measures every goal, in process and, where the packages are there, through the web server."""
    web = all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "websockets"))
    results: list[Result] = []
    compact = args.model
    for goal in GOALS:
        args.model = FLASH if goal.random_weights else compact
        args.random_weights, args.window = goal.random_weights, goal.window
        args.fps = goal.tick_rate
        for args.in_process in (True, False) if web else (True,):
            result = measure(args, folder)
            results.append(result)
            print(result.row(), flush=True)
            fast = min(result.fps) >= _ROUNDING * goal.fps
            soon = goal.p95_ms is None or result.p95_ms <= goal.p95_ms
            wanted = "" if goal.p95_ms is None else f" and p95 within {goal.p95_ms:.0f} ms"
            said = f"{result.steps} steps, windows of {result.window}, {result.note or 'nothing given up'}"
            reached = (
                f"{min(result.fps):.1f} FPS, p95 {result.p95_ms:.0f} ms with {said}; ready in {result.ready_s:.0f} s"
            )
            print(f"  {goal.fps:.0f} FPS{wanted}: {'met' if fast and soon else 'MISSED'}: {reached}", flush=True)
    return results


def parse_size(text: str) -> tuple[int, int]:
    height, width = text.split("x")
    return int(height), int(width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="compact", help="a model's name or file; 'debug' makes a small random one")
    parser.add_argument("--checkpoint", type=Path, help="of a named model: its folder or its transformer's file")
    parser.add_argument("--random-weights", action="store_true", help=f"with --model {FLASH}: its shape only")
    parser.add_argument("--random-prompts", action="store_true", help="where the text encoder is not installed")
    parser.add_argument("--past", choices=("full", "one_way"), default="full", help="of random weights")
    parser.add_argument("--world", default="street")
    parser.add_argument("--size", type=parse_size, help="HxW in pixels")
    parser.add_argument("--fps", type=float, help="world ticks a second")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, help="the fast path; by default on a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sessions", type=int, default=1, help="players at a time, each in a world of its own")
    parser.add_argument("--load", type=int, default=0, help="processes that keep a core busy each")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of play before anything is counted")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--in-process", action="store_true", help="the same sessions without a web server")
    parser.add_argument(
        "--search", type=float, metavar="FPS", help="find the largest sizes with so many frames a second"
    )
    parser.add_argument("--goals", action="store_true", help="measure what the design asks for")
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    if args.random_weights and args.model != FLASH:
        parser.error(f"random weights are for --model {FLASH}; got --model {args.model}.")
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if args.goals:
            results = goals(args, Path(folder))
        elif args.search:
            results = search(args, Path(folder))
        else:
            results = [measure(args, Path(folder))]
            print(results[0].row())
            print(f"\n{results[0].date}; worst {results[0].worst_ms:.0f} ms; {results[0].note or 'nothing given up'}")
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
