"""Memory and time of the 7B inverse with random weights, stage by stage: what a chunk costs, not how good it is.

    python benchmarks/inverse7b.py                 # full size on a GPU, a tiny network on a CPU
    python benchmarks/inverse7b.py --offload --chunks 2
    python benchmarks/inverse7b.py --tiny --device cuda

A chunk is 57 pictures; five buffers of it take 15 evaluations of the network each. Encoding the video, denoising and
decoding are all counted; reading, resizing and writing pictures are not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch
from torch import nn

from flowshade.inverse.cosmos import (
    CosmosConfig,
    CosmosDecoder,
    CosmosEncoder,
    CosmosNetwork,
    LatentStatistics,
    TokenizerConfig,
)
from flowshade.inverse.diffusion import DiffusionConfig, DiffusionInverse
from flowshade.provenance import hardware
from flowshade.types import Frames

TINY = CosmosConfig(heads=2, head_dim=24, layers=2, modulation_rank=16, context_dim=16, latent_channels=4)
TINY_TOKENIZER = TokenizerConfig(
    latent_channels=4, encoder_widths=(8, 8, 16, 16), decoder_widths=(8, 16, 16, 16), layers=1
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run."""

    hardware: str
    torch: str
    date: str
    network: str
    size: tuple[int, int]
    dtype: str
    steps: int
    chunk: int
    overlap: int
    chunks: int
    offload: bool
    seconds: list[float]
    """Of each chunk."""
    stages: dict[str, float]
    """Seconds a chunk, the mean."""
    frames_per_second: float
    """New pictures of every chunk after the first, over the mean time of a chunk; None of the overlap is counted."""
    weights_gib: float
    peak_memory_gib: float
    """Allocated on the GPU; 0 on a CPU."""


class Stages:
    """Seconds spent in the networks, from outside: each call is timed with the device waited for."""

    def __init__(self, inverse: DiffusionInverse) -> None:
        self.seconds: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._device = inverse.device
        parts: dict[str, nn.Module] = {"encode": inverse.encoder, "denoise": inverse.network, "decode": inverse.decoder}
        for name, part in parts.items():
            part.register_forward_pre_hook(lambda *_, name=name: self._start(name))
            part.register_forward_hook(lambda *_, name=name: self._stop(name))

    def _start(self, name: str) -> None:
        synchronise(self._device)
        self._began[name] = time.perf_counter()

    def _stop(self, name: str) -> None:
        synchronise(self._device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._began[name]


def build(options: argparse.Namespace, tiny: bool, device: torch.device, dtype: torch.dtype) -> DiffusionInverse:
    torch.manual_seed(0)
    network, tokenizer = (TINY, TINY_TOKENIZER) if tiny else (CosmosConfig(), TokenizerConfig())
    home = torch.device("cpu") if options.offload else device
    codec_dtype = torch.float32 if device.type == "cpu" else dtype  # see `load_diffusion_inverse`
    with default_dtype(dtype), home:
        transformer = CosmosNetwork(network).eval().requires_grad_(False)
    with default_dtype(codec_dtype), home:
        encoder = CosmosEncoder(tokenizer).eval().requires_grad_(False)
        decoder = CosmosDecoder(tokenizer).eval().requires_grad_(False)
    chunk, overlap = (int(text) for text in options.window.split("/"))
    height, width = (int(text) for text in options.size.split("x"))
    config = DiffusionConfig(
        name="random", steps=options.steps, chunk=chunk, overlap=overlap, size=(height, width), offload=options.offload
    )
    statistics = LatentStatistics((network.latent_channels, config.latents), network.latent_channels)
    return DiffusionInverse(transformer, encoder, decoder, statistics, config, device=device)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Builds weights in a type right away, so that 29 GB of float32 never exist."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def measure(inverse: DiffusionInverse, chunks: int, network: str) -> Result:
    config, device = inverse.config, inverse.device
    assert config.size is not None
    new = config.chunk - config.overlap
    inverse.push(Frames(rgb=torch.rand(config.chunk, 3, *config.size)))  # warm-up
    stages = Stages(inverse)
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(chunks):
        pictures = torch.rand(new, 3, *config.size)
        began = time.perf_counter()
        made = inverse.push(Frames(rgb=pictures))
        synchronise(device)
        seconds.append(time.perf_counter() - began)
        assert made is not None and made.gbuffer.frames == new
    parts = (inverse.network, inverse.encoder, inverse.decoder)
    return Result(
        hardware=hardware(),
        torch=torch.__version__,
        date=date.today().isoformat(),
        network=network,
        size=config.size,
        dtype=str(inverse.network.dtype).removeprefix("torch."),
        steps=config.steps,
        chunk=config.chunk,
        overlap=config.overlap,
        chunks=chunks,
        offload=config.offload,
        seconds=seconds,
        stages={name: value / chunks for name, value in stages.seconds.items()},
        frames_per_second=new * chunks / sum(seconds),
        weights_gib=sum(value.nbytes for part in parts for value in part.parameters()) / 2**30,
        peak_memory_gib=torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0,
    )


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(result: Result) -> str:
    header = ["size", "dtype", "steps", "chunk/overlap", "offload", "s a chunk", "FPS", "weights GiB", "peak GiB"]
    mean = sum(result.seconds) / len(result.seconds)
    row = [f"{result.size[0]}x{result.size[1]}", result.dtype, str(result.steps), f"{result.chunk}/{result.overlap}"]
    row += ["yes" if result.offload else "no", f"{mean:.2f}", f"{result.frames_per_second:.3f}"]
    row += [f"{result.weights_gib:.2f}", f"{result.peak_memory_gib:.2f}" if result.peak_memory_gib else "not measured"]
    lines = [header, ["---"] * len(header), row]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n\n| stage | s a chunk |\n| --- | --- |"
    return text + "".join(f"\n| {name} | {value:.3f} |" for name, value in result.stages.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="HxW that the network works at; by default 704x1280, of the tiny one 64x96")
    parser.add_argument("--device", help="by default a GPU when there is one")
    parser.add_argument("--tiny", action="store_true", help="a tiny network, as by default on a CPU")
    parser.add_argument("--steps", type=int, default=DiffusionConfig.steps)
    parser.add_argument("--window", help="pictures in a chunk and shared with the next; by default 57/17")
    parser.add_argument("--chunks", type=int, default=1, help="chunks that are timed, after one that is not")
    parser.add_argument("--offload", action="store_true", help="networks are on the GPU for their turn only")
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tiny = options.tiny or device.type != "cuda"
    options.size = options.size or ("64x96" if tiny else "704x1280")
    options.window = options.window or f"{DiffusionConfig.chunk}/{DiffusionConfig.overlap}"
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    inverse = build(options, tiny, device, dtype)
    result = measure(inverse, options.chunks, "tiny" if tiny else "7B")
    print(f"{result.date}, {result.hardware}, torch {result.torch}, {result.network}, random weights\n")
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
