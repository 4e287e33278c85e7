"""How fast `flowshade play` answers: frames a second, and the time from an input to the picture that shows it.

    python benchmarks/play.py                                    # compact, 128x224 on a CPU, 480x832 on a GPU
    python benchmarks/play.py --size 96x160 --load 2             # beside two busy processes
    python benchmarks/play.py --sessions 8 --model debug --size 48x80 --seconds 600 --memory memory.png

Starts the server as a process and plays with headless clients on the same machine: every 16 ms an input, every frame
decoded and confirmed. Counted: everything from the sending of an input (socket, physics, tracing, rendering, JPEG,
pacing, socket) to its first decoded picture. Not counted: drawing it on a screen. The first seconds are warm-up. Prints
a markdown row; `--json FILE` also keeps everything, `--memory PNG` plots the server's resident set over time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from websockets.sync.client import connect

from flowshade.play.protocol import VERSION, unpack_frame
from flowshade.provenance import hardware

MOST_UNANSWERED = 32
"""Inputs on their way; further ones are merged, as the page does. A merged input counts from its first part."""


@dataclass
class Client:
    """A headless player."""

    port: int
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

    def run(self) -> None:
        try:
            with connect(f"ws://127.0.0.1:{self.port}/ws", max_size=None, compression=None, ping_interval=None) as ws:
                self._play(ws)
        except Exception as error:  # noqa: BLE001 - shown in the report
            self.error = f"{type(error).__name__}: {error}"

    def _play(self, ws: Any) -> None:
        ws.send(json.dumps({"type": "hello", "version": VERSION, "seed": self.seed}))
        sent: dict[int, float] = {}
        last, generated, measuring = 0, 0.0, False
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
    memory_mib: list[tuple[float, float]]
    """Seconds, and the server's resident set."""

    def row(self) -> str:
        height, width = self.size
        memory = f"{self.memory_mib[0][1]:.0f} -> {self.memory_mib[-1][1]:.0f}" if self.memory_mib else "-"
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
            memory,
            self.bad_frames,
        ]
        return f"| {' | '.join(str(cell) for cell in cells)} |"


COLUMNS = (
    "hardware", "model", "size", "sessions", "busy processes", "FPS a session", "slowest", "median ms", "p95 ms",
    "p99 ms", "p95 of halves ms", "window / steps / stride", "work ms", "server MiB", "bad frames",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def spin() -> None:
    while True:
        pass


def debug_model(folder: Path) -> Path:
    """A small model with random weights: what a soak of the machinery needs."""
    import torch

    from flowshade.checkpoints.store import save_renderer
    from flowshade.presets import debug_renderer
    from flowshade.renderer.renderer import Renderer

    torch.manual_seed(0)
    path = folder / "debug.safetensors"
    save_renderer(Renderer(debug_renderer()), path)
    return path


def wait_until_up(port: int, alive: Callable[[], bool]) -> None:
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            return
        except OSError:
            if not alive():
                raise SystemExit("the server did not come up") from None
            time.sleep(0.2)


def watch(
    server: subprocess.Popen[bytes], clients: list[threading.Thread], settled: float
) -> list[tuple[float, float]]:
    """The server's memory over time, once it is loaded, until all clients are done."""
    began, samples = time.monotonic(), []
    while any(client.is_alive() for client in clients):
        if time.monotonic() - began > settled:
            samples.append((time.monotonic() - began, resident_mib(server.pid)))
        clients[0].join(2.0)
        time.sleep(0.1)
    return samples


def measure(args: argparse.Namespace, folder: Path) -> Result:
    port = free_port()
    model = str(debug_model(folder)) if args.model == "debug" else args.model
    command = [sys.executable, "-m", "flowshade.cli", "play", "--port", str(port), "--model", model]
    command += ["--sessions", str(args.sessions), "--world", args.world, "--window", str(args.window)]
    for name in ("size", "fps", "steps", "device"):
        value = getattr(args, name)
        command += [] if value is None else [f"--{name}", str(value)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(args.load)]
    try:
        wait_until_up(port, lambda: server.poll() is None)
        for process in busy:
            process.start()
        clients = [Client(port, index, index, args.warm, args.seconds) for index in range(args.sessions)]
        threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        memory = watch(server, threads, args.warm)
    finally:
        for process in busy:
            if process.pid is not None:
                process.kill()
        server.terminate()
        server.wait(60)
    return summary(args, clients, memory)


def summary(args: argparse.Namespace, clients: list[Client], memory: list[tuple[float, float]]) -> Result:
    for client in clients:
        if client.error:
            raise SystemExit(f"player {client.number} failed: {client.error}")
    latencies = np.array([value for client in clients for value in client.latencies]) * 1000
    middles = [len(client.latencies) // 2 for client in clients]
    early = [value for client, middle in zip(clients, middles) for value in client.latencies[:middle]]
    late = [value for client, middle in zip(clients, middles) for value in client.latencies[middle:]]
    status = clients[0].status
    return Result(
        hardware=f"{hardware()}, {os.cpu_count()} cores", date=date.today().isoformat(), model=args.model,
        size=clients[0].size, sessions=args.sessions, busy=args.load, seconds=args.seconds,
        fps=[(len(c.shown) - 1) / (c.shown[-1] - c.shown[0]) for c in clients],
        median_ms=float(np.median(latencies)), p95_ms=float(np.percentile(latencies, 95)),
        p99_ms=float(np.percentile(latencies, 99)), worst_ms=float(latencies.max()),
        first_half_p95_ms=1000 * float(np.percentile(early, 95)),
        second_half_p95_ms=1000 * float(np.percentile(late, 95)),
        window=status["window"], steps=status["steps"], stride=status["stride"], work_ms=status["work_ms"],
        bound_ms=status["bound_ms"], note=status["note"], bad_frames=sum(c.bad for c in clients), memory_mib=memory,
    )  # fmt: skip


def plot(samples: list[tuple[float, float]], path: Path) -> None:
    """Resident set over time, as a plain line."""
    height, width, edge = 360, 720, 50
    seconds, sizes = np.array(samples).T
    top = 1.2 * sizes.max()
    picture = np.full((height, width, 3), 255, np.uint8)
    x = edge + seconds / seconds.max() * (width - 2 * edge)
    y = height - edge - sizes / top * (height - 2 * edge)
    cv2.rectangle(picture, (edge, edge), (width - edge, height - edge), (200, 200, 200), 1)
    cv2.polylines(picture, [np.stack([x, y], 1).astype(np.int32)], False, (160, 90, 30), 2, cv2.LINE_AA)
    for text, at in ((f"{top:.0f} MiB", (4, edge - 8)), ("0", (4, height - edge)),
                     (f"{seconds.max():.0f} s", (width - edge - 30, height - edge + 22))):  # fmt: skip
        cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.5, (60, 60, 60), 1, cv2.LINE_AA)
    cv2.imwrite(str(path), picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="compact", help="a model's name or file; 'debug' makes a small random one")
    parser.add_argument("--world", default="street")
    parser.add_argument("--size", help="HxW in pixels")
    parser.add_argument("--fps", type=float, help="world ticks a second")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--sessions", type=int, default=1, help="players at a time, each in a world of its own")
    parser.add_argument("--load", type=int, default=0, help="processes that keep a core busy each")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of play before anything is counted")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--memory", type=Path, metavar="PNG", help="plot the server's memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, Path(folder))
    print(HEADER)
    print(result.row())
    print(f"\n{result.date}; worst {result.worst_ms:.0f} ms; {result.note or 'nothing given up'}")
    if args.memory:
        plot(result.memory_mib, args.memory)
    if args.json:
        args.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
