"""Render a clip from Python: python examples/render_clip.py CLIP OUT.mp4 "a prompt" [style]"""

from __future__ import annotations

import sys

from flowshade import load_renderer, open_clip
from flowshade.gbuffer.io import VideoWriter


def main(clip_path: str, video_path: str, prompt: str, style: str | None = None) -> None:
    renderer = load_renderer("compact")
    with open_clip(clip_path) as clip, VideoWriter(video_path, fps=clip.info.fps, size=clip.info.size) as video:
        for frames in renderer.render(clip, prompt, style, seed=0):
            video.append(frames)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
