"""A world that runs and is rendered as it goes: physics, rays, network, four frames at a time.

python examples/live_world.py OUT.mp4 [seconds]
"""

from __future__ import annotations

import sys

from flowshade import GBuffer, load_renderer
from flowshade.gbuffer.io import VideoWriter
from flowshade.gbuffer.record import record
from flowshade.world import make_world

FPS, SIZE, WINDOW = 24, (240, 416), 4


def main(video_path: str, seconds: float = 4.0) -> None:
    world = make_world("hills", seed=1)
    renderer = load_renderer("compact")
    renderer.reset(seed=0)
    renderer.set_prompt(world.description, style="autumn_warm")
    total = max(round(seconds * FPS / WINDOW), 1) * WINDOW
    window: list[GBuffer] = []
    with VideoWriter(video_path, fps=FPS, size=SIZE) as video:
        for number, (gbuffer, _) in enumerate(record(world, frames=total, fps=FPS, size=SIZE)):
            if number == total // 2:  # prompts change while the stream runs
                renderer.set_prompt(world.description, style="moonlit_night")
            window.append(gbuffer)
            if len(window) == WINDOW:
                video.append(renderer.push(GBuffer.cat(window)))
                window.clear()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], *map(float, sys.argv[2:]))
