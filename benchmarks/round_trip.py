"""How much of a picture survives the way to G-buffers and back: estimated, then rendered in the picture's own look.

    python benchmarks/round_trip.py --world hills --look sunny --frames 16
    python benchmarks/round_trip.py --clip examples/clips/blender-plaza --prompt "Overcast, even soft light."

For a held-out world the look's canonical caption is the prompt, and its traced pictures are the video. Beside the
estimated buffers stand the true ones, rendered by the same model: what the way back cannot exceed by much; and the mean
picture, the same colour everywhere. PSNR in dB / SSIM against the video, mean of frames.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from flowshade.api import StyledRenderer, load_inverse, load_renderer
from flowshade.evaluation.inverse import RENDERED, read_reference_clip
from flowshade.evaluation.metrics import psnr, ssim
from flowshade.evaluation.worlds import ReferenceClip, WorldSuite, reference_clip
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.view import contact_sheet, to_uint8
from flowshade.inverse.stream import Inverse
from flowshade.types import Frames, GBuffer

WINDOW = 8
"""Frames pushed at a time."""


def round_trip(
    clip: ReferenceClip, look: str, prompt: str, renderer: StyledRenderer, inverse: Inverse
) -> dict[str, torch.Tensor]:
    """The video, and pictures from true and estimated buffers and from their mean, [T, 3, H, W]."""
    stored = clip.pictures[look]
    video = stored.float() / 255 if stored.dtype == torch.uint8 else stored
    estimated = GBuffer.cat([part.gbuffer for part in inverse.invert(Frames(rgb=run) for run in video.split(WINDOW))])

    def rendered(gbuffer: GBuffer) -> torch.Tensor:
        return torch.cat([part.rgb.cpu() for part in renderer.render(gbuffer, prompt, window=WINDOW)])

    # Without cameras on both sides, since estimates have none.
    true = clip.gbuffer.replace(camera=None, emission=None, motion=None, instance=None)
    return {
        "video": video,
        "true buffers": rendered(true),
        "estimated buffers": rendered(estimated.to("cpu")),
        "mean picture": video.mean((0, 2, 3), keepdim=True).expand_as(video),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default="hills", help="the kind of the held-out world")
    parser.add_argument("--look", default="sunny", choices=tuple(LOOKS))
    parser.add_argument("--clip", type=Path, help="a clip with pictures instead")
    parser.add_argument("--prompt", default="", help="the clip's own look in words")
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--size", type=int, nargs=2, default=WorldSuite.size)
    parser.add_argument("--model", default="compact", help="the renderer")
    parser.add_argument("--inverse", default="compact")
    parser.add_argument("--sheet", type=Path, help="also write the last frames here, a PNG")
    options = parser.parse_args(arguments)
    if options.clip is not None:
        clip, look, prompt = read_reference_clip(options.clip, options.frames), RENDERED, options.prompt
    else:
        look, prompt = options.look, LOOKS[options.look].caption()
        suite = WorldSuite(
            worlds=1, kinds=(options.world,), looks=(look,), frames=options.frames, size=tuple(options.size)
        )
        clip = reference_clip(suite, 0, "cpu")
    renderer, inverse = load_renderer(options.model, device="cpu"), load_inverse(options.inverse, device="cpu")
    if not isinstance(inverse, Inverse):
        parser.error(f"--inverse got {options.inverse}; expected a compact inverse, since others leave channels out.")
    pictures = round_trip(clip, look, prompt, renderer, inverse)
    video = pictures["video"]
    print(f"{clip.kind}, {look}, {len(video)} frames of {video.shape[2]}x{video.shape[3]}: {prompt}\n")
    print("| rendered from | PSNR / SSIM |\n|---|---|")
    for name in ("true buffers", "estimated buffers", "mean picture"):
        print(f"| {name} | {psnr(pictures[name], video).mean():.2f} / {ssim(pictures[name], video).mean():.3f} |")
    if options.sheet is not None:
        last = {name: to_uint8(rgb[-1:])[0] for name, rgb in pictures.items() if name != "mean picture"}
        write_png(options.sheet, contact_sheet(list(last.values()), len(last), list(last)).numpy())


if __name__ == "__main__":
    main()
