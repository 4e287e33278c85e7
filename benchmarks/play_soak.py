"""A soak of `flowshade play`: many players, for long, who do everything a player can do.

    python benchmarks/play_soak.py                                 # 8 players for 10 minutes, the debug model
    python benchmarks/play_soak.py --seconds 3600                  # an hour
    python benchmarks/play_soak.py --model compact --size 128x224 --sessions 2

Starts a server as a process and headless players on the same machine. They walk in circles, drive, jump, throw, change
prompt, style and view, pause, step, reset, record and take screenshots, and every `--stay` seconds each leaves and
comes back to another world. A player's worlds are of one hue, so that a picture's hue says whose it is.

Written into `--out` (soak.json, soak.png, and soak.jsonl as it goes; Ctrl+C ends early and keeps what there is):
resident memory, threads, open files, and what waits in the server, every few seconds. The verdict says whether memory,
threads and files are flat, queues short, and no frame was another's, out of order or of another size; a failed one
ends with status 1.
"""

from __future__ import annotations

import argparse
import colorsys
import json
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from websockets.sync.client import connect

from flowshade.play.protocol import VERSION, FrameHeader, unpack_frame
from flowshade.provenance import hardware
from play import free_port, wait_until_up

HUES = 12
"""How many can be told apart; the largest number of players."""
OWN_VIEWS = ("generated", "albedo")
"""Views whose pictures have the hue of the world."""
INPUT_SECONDS = 0.033
PATIENCE = 120.0
"""Seconds without any message after which a player gives up."""

# What a player does in each minute and when, seconds.
WISHES: tuple[tuple[float, str, dict[str, Any]], ...] = (
    (5, "set_view", {"view": "albedo"}),
    (8, "set_view", {"view": "generated"}),
    (12, "set_look", {"prompt": "a frozen city", "style": "neon"}),
    (16, "command", {"action": "drive"}),
    (21, "set_look", {"prompt": "", "style": "original"}),
    (24, "command", {"action": "walk"}),
    (28, "set_view", {"view": "split"}),
    (30, "set_view", {"view": "normal"}),
    (32, "set_view", {"view": "generated"}),
    (36, "command", {"action": "reset"}),
    (40, "command", {"action": "pause"}),
    (41, "command", {"action": "screenshot"}),
    (42, "command", {"action": "step"}),
    (43, "command", {"action": "resume"}),
    (46, "command", {"action": "record"}),
    (49, "command", {"action": "stop_recording"}),
)


# The server, in a process of its own ----------------------------------------------------------------------------------


def serve_hues(port: int, model: str, kind: str, size: tuple[int, int], sessions: int, device: str, out: str) -> None:
    """Serves worlds in the hue that the seed says; there is room for a player who comes before the last has gone."""
    from flowshade.api import choose_device, load_renderer
    from flowshade.play.link import Limits
    from flowshade.play.server import PlayConfig, serve
    from flowshade.play.sources import Source, WorldSource, open_world

    def open_source(_: str | None, seed: int | None) -> Source:
        assert seed is not None
        world = open_world(kind, seed // HUES, 30.0)
        paint_over(world.model, seed % HUES)
        return WorldSource(world, size=size, device=choose_device(device))

    config = PlayConfig(open_source=open_source, recordings=Path(out), limits=Limits(sessions=2 * sessions))
    serve(config, lambda: load_renderer(model, device=device), port=port)


def paint_over(model: Any, hue: int) -> None:
    """Gives every surface one colour; textures go."""
    colour = colorsys.hsv_to_rgb(hue / HUES, 0.85, 0.8)
    model.mat_texid[:] = -1
    model.mat_rgba[:, :3] = model.geom_rgba[:, :3] = colour


def debug_model(path: Path) -> str:
    """The debug model with random weights; its pictures keep the hue of the albedo."""
    import torch

    from flowshade.checkpoints.store import save_renderer
    from flowshade.presets import debug_renderer
    from flowshade.renderer.renderer import Renderer

    torch.manual_seed(0)
    renderer = Renderer(debug_renderer())
    torch.nn.init.normal_(renderer.transformer.proj_out.weight, std=0.2)  # a new network's output is silent
    save_renderer(renderer, path)
    return str(path)


# Players --------------------------------------------------------------------------------------------------------------


@dataclass
class Player:
    """A headless player who comes again and again, each time to another seed of its hue."""

    address: str
    number: int
    stay: float
    stop: threading.Event
    frames: int = 0
    judged: int = 0
    """Frames whose hue was looked at."""
    crossed: int = 0
    """Frames of another player's hue."""
    disordered: int = 0
    """Frames out of order, or of another size."""
    unseen: int = 0
    """Frames in which too little has a hue: the sky."""
    visits: int = 0
    recordings: int = 0
    errors: list[str] = field(default_factory=list)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with connect(self.address, max_size=None, compression=None, ping_interval=None) as socket:
                    self._visit(socket)
            except Exception as error:  # noqa: BLE001 - counted, and the verdict
                self.errors.append(f"{type(error).__name__}: {error}")
                self.stop.wait(2.0)

    def _visit(self, socket: Any) -> None:
        seed = self.visits * HUES + self.number
        socket.send(json.dumps({"type": "hello", "version": VERSION, "seed": seed}))
        self.visits += 1
        stay = self.stay * (1 + self.number / HUES) if self.visits == 1 else self.stay  # not all at once
        began = heard = time.monotonic()
        size, last, inputs, wishes, next_input = (0, 0), 0, 0, self._wishes(began), began
        while not self.stop.is_set():
            now = time.monotonic()
            if now - began > stay:
                return
            if now - heard > PATIENCE:
                raise TimeoutError(f"nothing came for {PATIENCE:.0f} s")
            if now >= next_input:
                next_input, inputs = max(next_input + INPUT_SECONDS, now), inputs + 1
                leap = inputs % 150 == 0
                socket.send(
                    json.dumps(
                        {"type": "input", "id": inputs, "forward": 1.0, "yaw": 0.02, "jump": leap, "throw": leap}
                    )
                )
            while wishes and wishes[0][0] <= now:
                _, kind, fields = wishes.pop(0)
                socket.send(json.dumps({"type": kind, **fields}))
            wishes = wishes or self._wishes(now)
            try:
                message = socket.recv(timeout=max(0.0, next_input - time.monotonic()))
            except TimeoutError:
                continue
            heard = time.monotonic()
            if isinstance(message, str):
                size = self._hear(json.loads(message)) or size
                continue
            header, data = unpack_frame(message)
            socket.send(json.dumps({"type": "ack", "frame": header.id}))
            self._judge(header, data, size, last)
            last = header.id if header.kind == "frame" else last

    def _wishes(self, now: float) -> list[tuple[float, str, dict[str, Any]]]:
        """The next minute's, each player a little later than the one before."""
        return [(now + at + 0.4 * self.number, kind, fields) for at, kind, fields in WISHES]

    def _hear(self, message: dict[str, Any]) -> tuple[int, int] | None:
        if message["type"] == "problem" and message["fatal"]:
            raise RuntimeError(message["text"])
        self.recordings += message["type"] == "recorded"
        return (message["height"], message["width"]) if message["type"] == "welcome" else None

    def _judge(self, header: FrameHeader, data: bytes, size: tuple[int, int], last: int) -> None:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        self.frames += 1
        late = header.kind == "frame" and header.id <= last  # screenshots overtake
        self.disordered += late or picture is None or picture.shape[:2] != size
        if picture is None or header.kind != "frame" or header.view not in OWN_VIEWS:
            return
        hue = hue_of(picture)
        self.unseen += hue is None
        self.judged += hue is not None
        self.crossed += hue not in (None, self.number)


def hue_of(picture: np.ndarray) -> int | None:
    """Which of the `HUES` most of a picture [H, W, 3] (BGR) has; None where too little of it has one."""
    hsv = cv2.cvtColor(picture, cv2.COLOR_BGR2HSV)
    coloured = hsv[(hsv[:, :, 1] > 90) & (hsv[:, :, 2] > 40)]
    if len(coloured) < 0.1 * picture.shape[0] * picture.shape[1]:
        return None
    votes = np.round(coloured[:, 0].astype(float) * 2 / (360 / HUES)).astype(int) % HUES
    return int(np.bincount(votes, minlength=HUES).argmax())


# Watching -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The server at one moment."""

    seconds: float
    resident_mib: float
    threads: int
    files: int
    sessions: int
    windows: int
    """That wait to be painted."""
    messages: int
    """That wait to be sent."""
    frames: int
    """That wait to be sent."""


def sample(pid: int, port: int, began: float) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
        health = json.load(answer)
    health.pop("version")
    return Sample(
        seconds=time.monotonic() - began,
        resident_mib=int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024,
        threads=int(re.findall(r"Threads:\s+(\d+)", status)[0]),
        files=len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - entries vanish while they are listed
        **health,
    )


@dataclass(frozen=True, kw_only=True)
class Soak:
    """What came out."""

    hardware: str
    cores: int
    began: str
    seconds: float
    model: str
    world: str
    size: str
    sessions: int
    stay: float
    """Seconds after which a player leaves and comes back."""
    visits: int
    frames: int
    judged: int
    crossed: int
    disordered: int
    unseen: int
    recordings: int
    errors: list[str]
    growth_mib: float
    """A straight line through the memory of the second half: its end less its beginning."""
    growth_mib_an_hour: float
    verdict: dict[str, bool]
    samples: list[Sample]


def second_half(samples: list[Sample]) -> list[Sample]:
    """Everybody has come and gone once, and caches are full."""
    return [each for each in samples if each.seconds > samples[-1].seconds / 2]


def growth(samples: list[Sample]) -> float:
    """MiB from the first sample to the last, of a straight line through them."""
    seconds = np.array([each.seconds for each in samples])
    slope = np.polyfit(seconds, [each.resident_mib for each in samples], 1)[0]
    return float(slope * (seconds[-1] - seconds[0]))


def judge(samples: list[Sample], players: list[Player]) -> dict[str, bool]:
    """Flat: memory grows by less than 3% in the second half; its last half has two threads or files more at most."""
    late, count = second_half(samples), len(players)
    middle = len(late) // 2

    def no_more(value: Callable[[Sample], int]) -> bool:
        return statistics.median(map(value, late[middle:])) <= statistics.median(map(value, late[:middle])) + 2

    return {
        "memory flat": growth(late) < 0.03 * float(np.median([each.resident_mib for each in late])),
        "threads flat": no_more(lambda each: each.threads),
        "files flat": no_more(lambda each: each.files),
        "queues short": max(each.windows for each in samples) <= count
        and max(each.frames for each in samples) <= 9 * count  # two windows of four frames and a screenshot
        and max(each.messages for each in samples) <= 8 * count,
        "no frame crossed": sum(player.crossed for player in players) == 0
        and min(player.judged for player in players) > 0,
        "no frame out of order": sum(player.disordered for player in players) == 0,
        "no errors": not any(player.errors for player in players),
    }


def plot(samples: list[Sample], path: Path) -> None:
    """Memory, threads and queues over time, one below the other, and written only when whole."""
    panels = (
        ("resident memory, MiB", {"": [each.resident_mib for each in samples]}),
        ("threads, open files and sessions", {
            "threads": [each.threads for each in samples], "files": [each.files for each in samples],
            "sessions": [each.sessions for each in samples],
        }),
        ("waiting in queues", {
            "windows to paint": [each.windows for each in samples], "frames to send": [each.frames for each in samples],
            "messages to send": [each.messages for each in samples],
        }),
    )  # fmt: skip
    seconds = np.array([each.seconds for each in samples])
    picture = np.vstack([panel(title, seconds, lines) for title, lines in panels])
    temporary = path.with_suffix(".part.png")
    cv2.imwrite(str(temporary), picture)
    temporary.replace(path)


COLOURS = ((176, 96, 32), (48, 120, 216), (80, 144, 48))  # BGR: blue, orange, green


def panel(title: str, seconds: np.ndarray, lines: Mapping[str, Sequence[float]]) -> np.ndarray:
    height, width, left, edge = 230, 860, 60, 36
    picture = np.full((height, width, 3), 255, np.uint8)
    top = max(1.0, 1.15 * max(max(values) for values in lines.values()))
    bottom = height - edge

    def write(text: str, x: int, y: int, colour: tuple[int, int, int] = (70, 70, 70)) -> None:
        cv2.putText(picture, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1, cv2.LINE_AA)

    for share in (0.0, 0.5, 1.0):
        y = int(bottom - share * (bottom - edge))
        cv2.line(picture, (left, y), (width - 20, y), (225, 225, 225), 1)
        write(f"{share * top:.0f}", 8, y + 4)
    write(title, left, 22, (20, 20, 20))
    for index, (name, values) in enumerate(lines.items()):
        x = left + seconds / seconds[-1] * (width - 20 - left)
        y = bottom - np.array(values) / top * (bottom - edge)
        points = np.stack([x, y], 1).round().astype(np.int32)
        cv2.polylines(picture, [points], False, COLOURS[index], 1, cv2.LINE_AA)
        write(name, 400 + 150 * index, 22, COLOURS[index])
    write("0", left, height - 14)
    write(f"{seconds[-1] / 60:.0f} min", width - 70, height - 14)
    return picture


def watch(pid: int, port: int, players: list[Player], args: argparse.Namespace) -> list[Sample]:
    """Samples until the time is over or somebody presses Ctrl+C; says how it goes once a minute."""
    began, samples, said = time.monotonic(), [], 0.0
    with (args.out / "soak.jsonl").open("w") as log:
        try:
            while time.monotonic() - began < args.seconds:
                samples.append(sample(pid, port, began))
                log.write(json.dumps(asdict(samples[-1])) + "\n")
                log.flush()
                if samples[-1].seconds - said >= 60:
                    said = samples[-1].seconds
                    report(samples[-1], players, args.seconds)
                time.sleep(args.every)
        except KeyboardInterrupt:
            print("stopped; what there is is kept", flush=True)
    return samples


def report(now: Sample, players: list[Player], seconds: float) -> None:
    total = {name: sum(getattr(player, name) for player in players) for name in ("frames", "crossed", "disordered")}
    errors = sum(len(player.errors) for player in players)
    print(
        f"{now.seconds / 60:.0f} of {seconds / 60:.0f} min: {now.resident_mib:.0f} MiB, {now.threads} threads, "
        f"{now.files} files, {now.sessions} sessions, waiting {now.windows}/{now.messages}/{now.frames}, "
        f"{total['frames'] / now.seconds:.1f} frames a second, {total['crossed']} crossed, "
        f"{total['disordered']} out of order, {errors} errors",
        flush=True,
    )


def soak(args: argparse.Namespace, folder: Path) -> Soak:
    port, stop = free_port(), threading.Event()
    model = debug_model(folder / "debug.safetensors") if args.model == "debug" else args.model
    height, width = (int(text) for text in args.size.split("x"))
    recordings = str(folder / "recordings")
    context = multiprocessing.get_context("spawn")
    arguments = (port, model, args.world, (height, width), args.sessions, args.device, recordings)
    server = context.Process(target=serve_hues, args=arguments)
    server.start()
    assert server.pid is not None
    address = f"ws://127.0.0.1:{port}/ws"
    players = [Player(address, number, args.stay, stop) for number in range(args.sessions)]
    threads = [threading.Thread(target=player.run, daemon=True) for player in players]
    began = datetime.now().astimezone().isoformat(timespec="seconds")
    try:
        wait_until_up(port, server.is_alive)
        for thread in threads:
            thread.start()
        samples = watch(server.pid, port, players, args)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    finally:
        stop.set()
        server.terminate()
        server.join(60)
    grown, late = growth(second_half(samples)), second_half(samples)
    totals = {
        name: sum(getattr(player, name) for player in players)
        for name in ("visits", "frames", "judged", "crossed", "disordered", "unseen", "recordings")
    }
    return Soak(
        hardware=hardware(), cores=os.cpu_count() or 0, began=began, seconds=samples[-1].seconds, model=args.model,
        world=args.world, size=args.size, sessions=args.sessions, stay=args.stay, **totals,
        errors=[error for player in players for error in player.errors], growth_mib=grown,
        growth_mib_an_hour=3600 * grown / (late[-1].seconds - late[0].seconds), verdict=judge(samples, players),
        samples=samples,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="debug", help="a model's name or file; 'debug' makes a small random one")
    parser.add_argument("--world", default="street", help="a kind of world")
    parser.add_argument("--size", default="48x80", help="HxW in pixels")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sessions", type=int, default=8, help=f"players at a time, at most {HUES}")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--stay", type=float, default=120.0, help="seconds after which a player leaves and comes back")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("out/soak"), help="folder for soak.json and soak.png")
    args = parser.parse_args()
    if not 1 <= args.sessions <= HUES:
        parser.error(f"{args.sessions} players were asked for; expected 1 to {HUES}, since each needs a hue.")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        result = soak(args, Path(folder))
    (args.out / "soak.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
    plot(result.samples, args.out / "soak.png")
    print(
        f"{result.began}, {result.hardware}, {result.cores} cores: {result.sessions} players, "
        f"{result.seconds / 60:.0f} min, {result.visits} visits, {result.frames} frames ({result.judged} judged by "
        f"hue, {result.unseen} without one), {result.recordings} recordings; memory of the second half "
        f"{result.growth_mib:+.1f} MiB "
        f"({result.growth_mib_an_hour:+.1f} an hour)"
    )
    for error in result.errors[:5]:
        print(f"error: {error}")
    for name, holds in result.verdict.items():
        print(f"{'yes' if holds else 'NO ':<4}{name}")
    sys.exit(0 if all(result.verdict.values()) else 1)


if __name__ == "__main__":
    main()
