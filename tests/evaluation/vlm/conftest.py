"""A local server that speaks chat completions and misbehaves in known ways, and a small contest on disk."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from flowshade.color import srgb_to_linear
from flowshade.gbuffer.io import write_clip, write_video
from flowshade.types import GBuffer

Answering = Callable[["Handler", dict], None]


def completion(text: str | None, **message: object) -> dict:
    return {
        "model": "stub-1",
        "choices": [{"message": {"role": "assistant", "content": text} | message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 20},
    }


class Handler(BaseHTTPRequestHandler):
    """One request: kept by the server, answered by the next of its script."""

    def do_POST(self) -> None:
        stub: Stub = self.server.stub  # pyright: ignore[reportAttributeAccessIssue]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with stub.lock:
            stub.requests.append((self.path, dict(self.headers), body))
            answering = stub.script.pop(0) if stub.script else stub.default
        with suppress(BrokenPipeError, ConnectionResetError):  # the client may have given up, as it should
            answering(self, body)

    def send(self, value: object, status: int = 200, **headers: str) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Stub:
    """What the server does next, and what it was asked."""

    url: str
    default: Answering
    script: list[Answering] = field(default_factory=list)
    requests: list[tuple[str, dict, dict]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def labels_of(body: dict) -> list[str]:
    """The labels that a request's prompt names."""
    text = next(m for m in body["messages"] if m["role"] == "user")["content"][-1]["text"]
    listed = text.partition("the tiles ")[2].partition(" are estimates")[0]
    return listed.split(", ")


def pictures_of(body: dict) -> list[bytes]:
    parts = next(m for m in body["messages"] if m["role"] == "user")["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls]


def ranked(body: dict) -> str:
    return json.dumps({"reason": "x", "ranks": {label: n for n, label in enumerate(labels_of(body), 1)}})


def says(text: str | Callable[[dict], str], **message: object) -> Answering:
    return lambda handler, body: handler.send(completion(text if isinstance(text, str) else text(body), **message))


def fails(status: int, body: object = None, **headers: str) -> Answering:
    return lambda handler, _: handler.send({"error": status} if body is None else body, status, **headers)


def drips(handler: Handler, body: dict) -> None:
    """A byte now and then, which no socket's own timeout ends, and after 3 s a whole reply."""
    data = json.dumps(completion("dripped")).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(60 + len(data)))
    handler.end_headers()
    for _ in range(60):
        handler.wfile.write(b" ")
        time.sleep(0.05)
    handler.wfile.write(data)


def hangs_up(handler: Handler, body: dict) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.stub = Stub(f"http://127.0.0.1:{server.server_port}/v1", says(ranked))  # pyright: ignore
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server.stub  # pyright: ignore[reportAttributeAccessIssue]
    server.shutdown()
    server.server_close()
    thread.join()


FRAMES, SIZE = 6, (48, 80)


def small_gbuffer(frames: int = FRAMES, value: float = 0.5) -> GBuffer:
    return GBuffer(
        albedo=torch.full((frames, 3, *SIZE), value),
        roughness=torch.full((frames, 1, *SIZE), value),
        depth=torch.full((frames, 1, *SIZE), 3.0),
    )


@pytest.fixture
def contest_folders(tmp_path: Path) -> dict[str, Path]:
    """Footage of two clips, and methods `bright`, `dark` and `grey` with maps of one value each."""
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "footage").mkdir()
    for clip in ("one", "two"):
        pictures = (torch.rand(FRAMES, *SIZE, 3, generator=generator) * 255).to(torch.uint8)
        write_video(tmp_path / "footage" / f"{clip}.mp4", pictures, fps=24)
    for method, value in (("bright", 0.9), ("dark", 0.1), ("grey", 0.5)):
        for clip in ("one", "two"):
            write_clip(tmp_path / method / clip, small_gbuffer(value=value), 24)
    return {name: tmp_path / name for name in ("footage", "bright", "dark", "grey")}


@pytest.fixture
def textured() -> torch.Tensor:
    """Linear albedo [3, 48, 80] of coloured patches."""
    generator = torch.Generator().manual_seed(1)
    return (
        srgb_to_linear(torch.rand(3, 6, 10, generator=generator) * 0.8 + 0.1)
        .repeat_interleave(8, 1)
        .repeat_interleave(8, 2)
    )
