"""What the wheel carries: the built page, whole, and nothing of what it is built from."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

import flowshade.play
from flowshade.play.server import STATIC

ROOT = Path(flowshade.play.__file__).parents[3]


def test_the_page_names_files_that_are_there() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="\./([^"]+)"', page)
    assert len(named) >= 2
    assert {name for name in named if not (STATIC / name).is_file()} == set()
    on_disk = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert on_disk == {"index.html", *named}, "left over from an older build"


def test_the_page_speaks_the_protocol_of_this_version() -> None:
    """The built script holds every message's type and every input's field; a stale build would not."""
    script = "".join(path.read_text(encoding="utf-8") for path in STATIC.glob("assets/*.js"))
    for word in (
        "hello",
        "set_look",
        "set_view",
        "command",
        "ack",
        "welcome",
        "status",
        "recorded",
        "bound_ms",
        "throw",
    ):
        assert word in script, f"{word}: run npm run build in src/flowshade/play/client"


def test_the_wheel_holds_the_page_and_not_its_source(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is in the dev extra")
    built = next(wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    names = set(zipfile.ZipFile(built).namelist())
    page = {f"flowshade/play/static/{path.relative_to(STATIC).as_posix()}" for path in STATIC.rglob("*.*")}
    assert page <= names
    assert not [name for name in names if "play/client" in name or "node_modules" in name]
