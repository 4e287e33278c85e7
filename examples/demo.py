"""What `make demo` runs: two clips rendered with a prompt and a style, by the same commands a user would type."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from flowshade.cli import main as flowshade

CLIPS = Path(__file__).resolve().parent / "clips"


def run(command: str) -> None:
    """Shows a command and runs it in this process."""
    print(f"\n$ flowshade {command}", flush=True)
    status = flowshade(shlex.split(command))
    if status:
        sys.exit(status)


def demo(out: Path) -> None:
    """Renders a clip that Blender wrote, then one recorded on the spot from a procedural world."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    place = shlex.quote(str(out))
    blender = shlex.quote(str(CLIPS / "blender-plaza"))
    run(f"inspect {blender}")
    run(
        f"render {blender} -o {place}/plaza.mp4 --prompt 'a paved plaza with columns and statues' "
        "--style sunset --compare --sheet"
    )
    run(f"world record street --seed 3 --seconds 10 --fps 24 --size 240x416 -o {place}/street-clip --overwrite")
    run(
        f"render {place}/street-clip -o {place}/street.mp4 --prompt 'a city street with parked cars' "
        "--style snowy_winter --compare --sheet"
    )
    print(f"\nDone in {time.perf_counter() - began:.0f} s. Look at:")
    for name in ("plaza", "street"):
        print(f"  {name}: the video         {out}/{name}.mp4")
        print(f"  {' ' * len(name)}  buffers and result {out}/{name}.compare.mp4")
        print(f"  {' ' * len(name)}  contact sheet      {out}/{name}.sheet.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for everything the demo writes")
    demo(parser.parse_args().out)
