"""How fast Flash's architecture is, end to end, with random weights: five 8-bit buffers in, pictures out.

    python benchmarks/flash.py                        # upstream's size on a GPU, a tiny network on a CPU
    python benchmarks/flash.py --windows 1000 --compile --plain --json flash.json
    python benchmarks/flash.py --window 4 --steps 2   # a window received to its pictures

Counted: buffers in the device's memory to pictures in its memory: encode, history, every step, decode. Not counted:
reading clips, encoding prompts, writing videos. 20 windows of warm-up fill the past first. `--plain` also times
diffusers' own network, eager and compiled by block, in the same run, over the same window and past.

Below the table stands what each stage reaches of the machine's own rates, measured just before (`flowshade budget`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

import torch

from flowshade.budget import Rates, count, measure_rates
from flowshade.codec.tiny import GroupedEncoderConfig, TinyDecoderConfig
from flowshade.provenance import hardware
from flowshade.renderer.flash import FlashConfig, FlashRenderer
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.upstream import BUFFERS, TEXT_TOKENS, flash_transformer
from flowshade.timing import StageTimer, watching
from flowshade.types import FRAMES_PER_LATENT

WARM_UP = 20


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run."""

    hardware: str
    torch: str
    date: str
    size: tuple[int, int]
    dtype: str
    memory: str
    steps: int
    window: int
    windows: int
    compiled: bool
    frames_per_second: float
    median_ms: float
    p99_ms: float
    stages_ms: dict[str, float]
    """Mean a window, from a pass of its own with the stages timed."""
    reached: dict[str, float]
    """Of what the machine's own rates allow, by stage."""
    peak_memory_mib: float
    growth_mib: float
    """Memory after the last window less that after the warm-up."""
    plain_ms: dict[str, float]
    """diffusers' network alone, `steps` evaluations; empty unless asked for."""


def tiny() -> FlashConfig:
    """Runs on a CPU in seconds."""
    transformer = flash_transformer(
        latent_channels=4, buffer_channels=20, heads=2, head_dim=12, rope_dims=(4, 4, 4), layers=2, ffn_dim=32,
        text_dim=16, freq_dim=16,
    )  # fmt: skip
    return FlashConfig(
        name="tiny",
        transformer=transformer,
        encoder=GroupedEncoderConfig(width=8, blocks=1, latent_channels=4),
        decoder=TinyDecoderConfig(latent_channels=4, widths=(16, 8, 8, 8)),
    )


def build(config: FlashConfig, memory: str, device: torch.device, dtype: torch.dtype, compiled: bool) -> FlashRenderer:
    torch.manual_seed(0)
    config = replace(config, transformer=replace(config.transformer, memory=memory))
    with torch.device(device):
        renderer = FlashRenderer(config).to(dtype).eval().requires_grad_(False)
    torch.nn.init.normal_(renderer.transformer.proj_out.weight, std=0.02)  # a new network's output is silent
    if compiled:
        for block in renderer.transformer.blocks:
            for method in ("forward", "joint", "remember"):
                setattr(block, method, torch.compile(getattr(block, method)))
        renderer.encoder.forward = torch.compile(renderer.encoder.forward)
        renderer.decoder.step = torch.compile(renderer.decoder.step)
    text = torch.randn(1, TEXT_TOKENS, config.transformer.text_dim, device=device)
    renderer.set_text(TextContext(tokens=text))
    return renderer


def measure(
    renderer: FlashRenderer,
    *,
    size: tuple[int, int],
    steps: int,
    window: int,
    windows: int,
    compiled: bool,
    plain: bool,
) -> Result:
    device, dtype = renderer.device, renderer.transformer.dtype
    shape = (window, 3, *size)
    planes = {name: torch.randint(0, 256, shape, dtype=torch.uint8, device=device) for name in BUFFERS}
    for _ in range(WARM_UP):
        renderer.push(planes, steps=steps)
    synchronise(device)
    before = allocated(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [timed(lambda: renderer.push(planes, steps=steps), device) for _ in range(windows)]
    growth, peak = allocated(device) - before, peak_memory(device)
    timer, passes = StageTimer(device), max(windows // 10, 2)
    with watching(timer, renderer):
        for _ in range(passes):
            renderer.push(planes, steps=steps)
    stages = {name: 1000 * total / passes for name, total in timer.totals().items()}
    plain_ms = plain_network(renderer, size, steps, window) if plain else {}
    return Result(
        hardware=hardware(),
        torch=torch.__version__,
        date=date.today().isoformat(),
        size=size,
        dtype=str(dtype).removeprefix("torch."),
        memory=renderer.transformer.config.memory,
        steps=steps,
        window=window,
        windows=windows,
        compiled=compiled,
        frames_per_second=window * windows / sum(seconds),
        median_ms=1000 * statistics.median(seconds),
        p99_ms=1000 * sorted(seconds)[min(int(0.99 * windows), windows - 1)],
        stages_ms=stages,
        reached=roofline(renderer, size, steps, window, stages, measure_rates(device)),
        peak_memory_mib=peak / 2**20,
        growth_mib=growth / 2**20,
        plain_ms=plain_ms,
    )


def roofline(
    renderer: FlashRenderer, size: tuple[int, int], steps: int, window: int, stages: dict[str, float], rates: Rates
) -> dict[str, float]:
    """Every stage's least time at the machine's measured rates over the time it took."""
    config, dtype = renderer.config, renderer.transformer.dtype
    with torch.device("meta"):
        model = FlashRenderer(config).to(dtype)
    h, w = size[0] // config.encoder.patch, size[1] // config.encoder.patch
    latents, settings = window // FRAMES_PER_LATENT, config.transformer

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    latent, buffers = (
        empty(1, settings.latent_channels, latents, h, w),
        empty(1, settings.buffer_channels, latents, h, w),
    )
    model.memory.start_with_zeros(latent, buffers if settings.history_buffers else None)
    past = model.transformer.encode_history(model.memory.view())
    text = model.transformer.encode_text(TextContext(tokens=empty(1, TEXT_TOKENS, settings.text_dim)))
    share, time_ = model.transformer.embed_buffers(buffers), torch.empty(1, device="meta")
    costs = {
        "encode": count(lambda: model.encoder(empty(1, window, 3 * config.encoder.buffers, *size))),
        "history": count(lambda: model.transformer.encode_history(model.memory.view())),
        "transformer": count(lambda: model.transformer(latent, time_, text, share, None, past)).times(steps),
        "decode": count(lambda: model.decoder(latent)),
    }
    least = {
        name: 1000 * (cost.linear / rates.linear + cost.conv / rates.conv + cost.attention / rates.attention)
        for name, cost in costs.items()
    }
    return {name: least[name] / stages[name] for name in least if name in stages}


def plain_network(renderer: FlashRenderer, size: tuple[int, int], steps: int, window: int) -> dict[str, float]:
    """Milliseconds of `steps` evaluations of diffusers' network, eager and compiled by block."""
    from diffusers.models.transformers.transformer_helios import HeliosTransformer3DModel

    config, device, dtype = renderer.transformer.config, renderer.device, renderer.transformer.dtype
    with torch.device(device):
        network = HeliosTransformer3DModel(
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=config.latent_channels + config.buffer_channels,
            out_channels=config.latent_channels,
            text_dim=config.text_dim,
            freq_dim=config.freq_dim,
            ffn_dim=config.ffn_dim,
            num_layers=config.layers,
            rope_dim=config.rope_dims,
            is_amplify_history=config.amplify_history,
        )
    network = network.to(dtype).eval().requires_grad_(False)
    channels, h, w = config.latent_channels + config.buffer_channels, size[0] // 8, size[1] // 8
    latents = window // FRAMES_PER_LATENT

    def volume(frames: int) -> torch.Tensor:
        return torch.randn(1, channels, frames, h, w, device=device, dtype=dtype)

    index = torch.arange(20 + latents, device=device)[None]
    given = {
        "hidden_states": volume(latents),
        "timestep": torch.tensor([900.0], device=device),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, config.text_dim, device=device, dtype=dtype),
        "indices_hidden_states": index[:, 20:],
        "indices_latents_history_long": index[:, 1:17],
        "indices_latents_history_mid": index[:, 17:19],
        "indices_latents_history_short": index[:, [0, 19]],
        "latents_history_long": volume(16),
        "latents_history_mid": volume(2),
        "latents_history_short": volume(2),
        "return_dict": False,
    }

    @torch.no_grad()
    def run() -> None:
        for _ in range(steps):
            network(**given)

    results = {"eager": 1000 * best_of(run, device)}
    if device.type == "cuda":
        network.compile_repeated_blocks()
        results["compiled by block"] = 1000 * best_of(run, device)
    return results


def best_of(function: Callable[[], object], device: torch.device, runs: int = 5) -> float:
    function()
    return min(timed(function, device) for _ in range(runs))


def timed(function: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    began = time.perf_counter()
    function()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocated(device: torch.device) -> float:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0.0


def peak_memory(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0.0


def table(result: Result) -> str:
    header = ["size", "dtype", "memory", "steps", "window", "FPS", "median ms", "p99 ms", "peak MiB", "growth MiB"]
    speeds = [f"{value:.1f}" for value in (result.frames_per_second, result.median_ms, result.p99_ms)]
    sizes = [f"{result.peak_memory_mib:.0f}", f"{result.growth_mib:.1f}"]
    what = [f"{result.size[0]}x{result.size[1]}", result.dtype, result.memory, str(result.steps), str(result.window)]
    lines = [header, ["---"] * len(header), [*what, *speeds, *sizes]]
    text = "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n\n| stage | ms | reached |\n| --- | --- | --- |"
    for name, value in result.stages_ms.items():
        share = f"{100 * result.reached[name]:.0f}%" if name in result.reached else ""
        text += f"\n| {name} | {value:.2f} | {share} |"
    for name, value in result.plain_ms.items():
        text += f"\n| diffusers' network, {name}, {result.steps} steps | {value:.2f} | |"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="HxW in pixels; by default 448x832 on a GPU and 64x96 on a CPU")
    parser.add_argument("--device", help="by default a GPU when there is one")
    parser.add_argument("--tiny", action="store_true", help="a tiny network, as by default on a CPU")
    parser.add_argument("--memory", choices=("full", "one_way"), default="full", help="how the past is looked at")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--window", type=int, default=16, help="frames a window, a multiple of 4")
    parser.add_argument("--windows", type=int, default=100, help="windows that are timed")
    parser.add_argument("--compile", action="store_true", help="compile every layer and both codecs")
    parser.add_argument("--plain", action="store_true", help="also time diffusers' network")
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cuda = device.type == "cuda"
    height, width = (int(text) for text in (options.size or ("448x832" if cuda else "64x96")).split("x"))
    config = tiny() if options.tiny or not cuda else FlashConfig()
    dtype = torch.bfloat16 if cuda else torch.float32
    renderer = build(config, options.memory, device, dtype, options.compile)
    result = measure(
        renderer,
        size=(height, width),
        steps=options.steps,
        window=options.window,
        windows=options.windows,
        compiled=options.compile,
        plain=options.plain,
    )
    how = "compiled" if result.compiled else "eager"
    print(f"{result.date}, {result.hardware}, torch {result.torch}, {config.name}, {result.windows} windows, {how}\n")
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
