"""A browser plays: Chromium, headless, against a server in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")

PATIENCE = 180_000
"""Milliseconds to wait for what must come: long, since other work may have the machine."""

ROOM = """
<mujoco>
  <worldbody>
    <geom type="plane" size="30 30 1" rgba="0.4 0.6 0.3 1"/>
    <geom type="box" size="0.2 3 1" pos="4 0 1" rgba="0.8 0.3 0.2 1"/>
    <body pos="0 4 1"><geom type="box" size="0.3 0.3 1" rgba="0.2 0.3 0.8 1"/></body>
  </worldbody>
</mujoco>
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    """`flowshade play` in a process that can be killed and started again on the same port."""

    def __init__(self, model: str, room: Path, size: str = "48x80") -> None:
        self.port = free_port()
        self._arguments = [
            sys.executable, "-m", "flowshade.cli", "play", "--mjcf", str(room), "--model", model,
            "--size", size, "--device", "cpu", "--port", str(self.port),
        ]  # fmt: skip
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        self.process = subprocess.Popen(self._arguments, env={**os.environ, "OMP_NUM_THREADS": "1"})
        deadline = time.monotonic() + PATIENCE / 1000
        while True:
            try:
                urllib.request.urlopen(f"{self.address}health", timeout=2).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "the server did not come up"
                time.sleep(0.2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def served(debug_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    room = tmp_path_factory.mktemp("world") / "room.xml"
    room.write_text(ROOM)
    served = Served(str(debug_model), room)
    yield served
    served.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Any, address: str, **options: Any) -> Any:
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    return page


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1100, "height": 760})
    page.set_default_timeout(PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(served.address)
    shows(page, "d.view === 'generated'")
    page.focus("#picture")
    yield page
    page.close()
    assert not problems


def shows(page: Any, condition: str) -> None:
    """Waits until the frame on the canvas (its data attributes: d) meets a condition."""
    script = f"() => {{ const d = document.getElementById('picture').dataset; return d.frame && ({condition}); }}"
    page.wait_for_function(script, timeout=PATIENCE)


def pixels(page: Any) -> list[int]:
    return page.evaluate(
        "() => { const c = document.getElementById('picture');"
        " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
    )


def difference(a: list[int], b: list[int]) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)


def settled(page: Any) -> list[int]:
    """The picture some windows on."""
    at = int(page.get_attribute("#picture", "data-frame"))
    shows(page, f"Number(d.frame) > {at + 12}")
    return pixels(page)


def test_keys_move_the_camera_and_their_latency_is_shown(page: Any) -> None:
    page.keyboard.press("3")
    page.select_option("#view", "albedo")
    shows(page, "d.view === 'albedo'")
    before = settled(page)
    assert difference(before, settled(page)) < 2, "nothing moves by itself"
    page.keyboard.down("d")
    shows(page, "Number(d.input) > 0")
    moved = settled(page)
    page.keyboard.up("d")
    assert difference(before, moved) > 2
    page.wait_for_function("() => /input to picture\\d+ ms/.test(document.getElementById('hud').textContent)")


def test_inputs_that_nobody_answers_are_merged(browser: Any, served: Served) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    inputs: list[dict[str, Any]] = []

    def sent(payload: str | bytes) -> None:
        message = json.loads(payload)
        if message["type"] == "input":
            inputs.append(message)

    page.on("websocket", lambda socket: socket.on("framesent", sent))
    page.goto(served.address)
    shows(page, "d.view === 'generated'")
    page.focus("#picture")
    page.keyboard.press("p")  # paused: no picture answers
    page.wait_for_function("() => document.querySelector('[data-name=pause]').ariaPressed === 'true'")
    before = len(inputs)
    for _ in range(60):
        page.keyboard.press("t", delay=20)
    assert 2 <= len(inputs) - before <= 32
    page.keyboard.press("p")
    last = inputs[-1]["id"]
    shows(page, f"Number(d.input) > {last}")
    page.close()


def test_one_key_swaps_the_view_and_a_prompt_changes_the_picture(page: Any) -> None:
    page.keyboard.press("3")
    before = settled(page)
    page.keyboard.press("g")
    shows(page, "d.view === 'albedo'")
    assert difference(before, pixels(page)) > 2
    page.select_option("#view", "generated")
    shows(page, "d.view === 'generated'")
    page.fill("#prompt", "deep snow over a silent city")
    page.keyboard.press("Enter")
    shows(page, "d.look === '1'")
    page.click("#styles button[data-name=neon]")
    shows(page, "d.look === '2'")
    assert page.get_attribute("#styles button[data-name=neon]", "aria-pressed") == "true"
    assert "style=neon" in page.url


def test_two_players_do_not_share_a_world(page: Any, browser: Any, served: Served) -> None:
    other = open_page(browser, served.address)
    shows(other, "d.view === 'generated'")
    other.keyboard.press("3")
    other.select_option("#view", "normal")
    shows(other, "d.view === 'normal'")
    assert page.get_attribute("#picture", "data-view") == "generated"
    other.close()


@pytest.mark.parametrize("junk", ["'{'", "'x'.repeat(20000)", "'x'.repeat(300000)", "new Uint8Array(300000)"])
def test_malformed_and_oversized_messages_end_their_own_socket_only(page: Any, junk: str) -> None:
    closed = page.evaluate(
        "async () => { const socket = new WebSocket(location.href.split('?')[0].replace('http', 'ws') + 'ws');"
        " const hello = JSON.stringify({type: 'hello', version: 1});"
        f" socket.onopen = () => {{ socket.send(hello); socket.send({junk}); }};"
        " return await new Promise((done) => { socket.onclose = (event) => done(event.code); }); }"
    )
    assert closed in (1008, 1009), "policy, or too big"
    first = int(page.get_attribute("#picture", "data-frame"))
    shows(page, f"Number(d.frame) > {first + 4}")


def test_the_chosen_style_can_be_seen_on_a_narrow_screen(browser: Any, served: Served) -> None:
    page = open_page(browser, f"{served.address}?style=neon", viewport={"width": 360, "height": 720})
    shows(page, "true")
    page.wait_for_function(
        "() => { const chip = document.querySelector('#styles [aria-pressed=true]').getBoundingClientRect();"
        " return chip.left >= 0 && chip.right <= innerWidth; }"
    )
    page.close()


def test_every_control_is_reached_by_keyboard(page: Any) -> None:
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.name || ''"))
    assert {"prompt", "view", "neon", "drive", "throw", "pause", "record", "screenshot", "share"} <= reached


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_everything_fits_and_has_a_name(browser: Any, served: Served, width: int, tmp_path: Path) -> None:
    page = open_page(browser, served.address, viewport={"width": width, "height": 720})
    shows(page, "true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('button, input, select, canvas')].filter("
        "e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"
    )
    assert unnamed == 0
    page.screenshot(path=os.environ.get("FLOWSHADE_SCREENSHOTS", str(tmp_path)) + f"/page-{width}.png")
    page.close()


def test_the_page_comes_back_after_the_server_was_killed(page: Any, served: Served) -> None:
    served.kill()
    page.wait_for_function("() => document.getElementById('message').textContent.includes('trying again')")
    served.start()
    page.wait_for_function("() => document.getElementById('message').textContent === ''")
    first = int(page.get_attribute("#picture", "data-frame"))
    shows(page, f"Number(d.frame) > {first + 4}")


def test_a_typed_night_is_darker_and_a_typed_day_bright_again(browser: Any, tmp_path: Path) -> None:
    """The compact model, on a small picture: the prompt does what it says."""
    room = tmp_path / "room.xml"
    room.write_text(ROOM)
    served = Served("compact", room, "64x112")
    try:
        page = open_page(browser, f"{served.address}?prompt=&style=original")
        shows(page, "d.view === 'generated'")
        means = []
        bright, dark = "Bright sun, a clear sky, clear air, dry ground.", "Night, moonlight, dim lamps, dry ground."
        for look, words in enumerate((bright, dark, bright), 1):
            page.fill("#prompt", words)
            page.keyboard.press("Enter")
            shows(page, f"d.look === '{look}'")
            means.append(sum(settled(page)[0::4]) / (64 * 112))
        day, night, day_again = means
        assert night < 0.6 * day and night < 0.6 * day_again
        page.close()
    finally:
        served.kill()
