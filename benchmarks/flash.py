"""How fast Flash's architecture is, end to end, with random weights: five 8-bit buffers in, pictures out.

    python benchmarks/flash.py                        # upstream's size on a GPU, a tiny network on a CPU
    python benchmarks/flash.py --budget 480 --json flash.json                  # every variant, ending in time
    python benchmarks/flash.py --variants plain triton+graphs --profile        # where the time goes
    python benchmarks/flash.py --memory one_way --steps 4 2                    # another memory, two numbers of steps
    python benchmarks/flash.py --window 4 --variants triton+graphs             # a window received to its pictures

Counted: buffers in the device's memory to pictures in its memory: encode, history, every step, decode. Not counted:
reading clips, encoding prompts, writing videos. 20 windows of warm-up fill the past first, and are when kernels are
timed, compiled and captured.

A row is a variant: `plain` is the plain path, `blocks` the plain path with each layer compiled by PyTorch; the others
are `renderer.fast.speed_up` with those kernels, `+graphs` with CUDA graphs, `+fp8` with 8-bit layers. "differs" is
|x - plain x| / |plain x| over a stream's first three windows, where x is what the network adds to the noise, or the
frames, whichever differs more; "error" the same against the same network in float32 (two windows), which says how
much of that is bfloat16's own. Below the table stands what was timed and chosen.

"reached" is what a stage reaches of the machine's own rates, measured just before (`flowshade budget`). `--plain` also
times diffusers' own network, eager and compiled by block, over the same window and past.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch

from flowshade.budget import Rates, count, measure_rates
from flowshade.codec.tiny import GroupedEncoderConfig, TinyDecoderConfig
from flowshade.errors import FlowshadeError
from flowshade.nn.tuning import Tuner, disagreement
from flowshade.provenance import hardware
from flowshade.renderer.fast import slow_down, speed_up
from flowshade.renderer.flash import FlashConfig, FlashRenderer
from flowshade.renderer.stream import stream_noise
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.upstream import BUFFERS, TEXT_TOKENS, flash_transformer
from flowshade.timing import StageTimer, watching
from flowshade.types import FRAMES_PER_LATENT

WARM_UP = 20
COMPARED, COMPARED_EXACT = 3, 2
"""Windows that are compared with the plain path, and with float32."""

VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "blocks": None,
    "torch": {"kernels": "torch", "graphs": False},
    "triton": {"kernels": "triton", "graphs": False},
    "inductor": {"kernels": "inductor", "graphs": False},
    "triton+graphs": {"kernels": "triton", "graphs": True},
    "inductor+graphs": {"kernels": "inductor", "graphs": True},
    "triton+graphs+fp8": {"kernels": "triton", "graphs": True, "fp8": True},
    "inductor+graphs+fp8": {"kernels": "inductor", "graphs": True, "fp8": True},
}
"""What `speed_up` is given; nothing where it is not called."""
ON_CPU = ("plain", "torch")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row."""

    hardware: str
    torch: str
    date: str
    variant: str
    size: tuple[int, int]
    dtype: str
    memory: str
    steps: int
    window: int
    windows: int
    """That were timed; fewer than asked for where time ran out."""
    failure: str = ""
    """Why there are no numbers."""
    frames_per_second: float = 0.0
    median_ms: float = 0.0
    p99_ms: float = 0.0
    stages_ms: dict[str, float]
    """Mean a window, from a pass of its own with the stages timed."""
    reached: dict[str, float]
    """Of what the machine's own rates allow, by stage."""
    peak_memory_mib: float = 0.0
    growth_mib: float = 0.0
    """Memory after the last window less that after the warm-up."""
    differs: float = 0.0
    """From the plain path, relative."""
    error: float | None = None
    """From float32, relative; None unless asked for."""
    choices: dict[str, str]
    """What was timed and chosen, by kind of input."""
    preparation_s: float = 0.0
    """Speeding up and warming up: kernels compiled and timed, graphs captured."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a row is measured at, its variant aside."""

    memory: str
    steps: int
    window: int
    size: tuple[int, int]
    windows: int
    seconds: float
    """Most time for the windows that are timed."""


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


def build(config: FlashConfig, memory: str, device: torch.device, dtype: torch.dtype) -> FlashRenderer:
    torch.manual_seed(0)
    config = replace(config, transformer=replace(config.transformer, memory=memory))
    with torch.device(device):
        renderer = FlashRenderer(config).to(dtype).eval().requires_grad_(False)
    torch.nn.init.normal_(renderer.transformer.proj_out.weight, std=0.02)  # a new network's output is silent
    set_text(renderer)
    return renderer


def set_text(renderer: FlashRenderer) -> None:
    shape = (1, TEXT_TOKENS, renderer.config.transformer.text_dim)
    renderer.set_text(TextContext(tokens=torch.randn(shape, generator=torch.Generator().manual_seed(0))))


@contextmanager
def running(renderer: FlashRenderer, variant: str) -> Iterator[Tuner | None]:
    """The renderer as the variant has it, and plain again afterwards."""
    options = VARIANTS[variant]
    compiled: list[tuple[Any, str]] = []
    try:
        if variant == "blocks":
            compiled += [(block, name) for block in renderer.transformer.blocks for name in ("joint", "remember")]
            compiled += [(block, "forward") for block in renderer.transformer.blocks]
            compiled += [(renderer.encoder, "forward"), (renderer.decoder, "step")]
            for owner, name in compiled:
                setattr(owner, name, torch.compile(getattr(owner, name)))
        yield None if options is None else speed_up(renderer, **options).tuner
    finally:
        for owner, name in compiled:
            owner.__dict__.pop(name, None)
        slow_down(renderer)


class Bench:
    """One renderer and what its variants are compared with.

    Args:
        renderer: plain.
        rates: of the machine.
        exact: also compare with float32.
    """

    def __init__(self, renderer: FlashRenderer, rates: Rates, *, exact: bool) -> None:
        self.renderer, self.rates, self.exact = renderer, rates, exact
        self._made: dict[tuple[Any, ...], list[Made]] = {}

    def run(self, setting: Setting, variant: str, *, profile: bool) -> Result:
        """A row."""
        renderer, device = self.renderer, self.renderer.device
        plain, exact = self._plain(setting), self._exact(setting)
        buffers = planes(setting, 0, device)
        began = time.perf_counter()
        with running(renderer, variant) as tuner:
            renderer.reset()
            for _ in range(WARM_UP):
                renderer.push(buffers, steps=setting.steps)
            synchronise(device)
            prepared = time.perf_counter() - began
            made = first_windows(renderer, setting)
            before = allocated(device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            seconds = []
            while len(seconds) < setting.windows and sum(seconds) < setting.seconds:
                seconds.append(timed(lambda: renderer.push(buffers, steps=setting.steps), device))
            growth, peak = allocated(device) - before, peak_memory(device)
            stages = stage_times(renderer, buffers, setting.steps, max(len(seconds) // 10, 2))
            if profile:
                print(f"\n{variant}, {setting.memory}, {setting.steps} steps, window {setting.window}:")
                print(top_kernels(lambda: renderer.push(buffers, steps=setting.steps), device), flush=True)
            chosen = {} if tuner is None else choices(tuner)
        ordered = sorted(seconds)
        return Result(
            **described(renderer, setting, variant, len(seconds)),
            frames_per_second=setting.window * len(seconds) / sum(seconds),
            median_ms=1000 * statistics.median(seconds),
            p99_ms=1000 * ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)],
            stages_ms=stages,
            reached=roofline(renderer, setting.size, setting.steps, setting.window, stages, self.rates),
            peak_memory_mib=peak / 2**20,
            growth_mib=growth / 2**20,
            differs=difference(made, plain),
            error=None if exact is None else difference(made[:COMPARED_EXACT], exact),
            choices=chosen,
            preparation_s=prepared,
        )

    def _plain(self, setting: Setting) -> list[Made]:
        key = ("plain", setting.steps, setting.window, setting.size)
        if key not in self._made:
            self._made[key] = first_windows(self.renderer, setting)
        return self._made[key]

    def _exact(self, setting: Setting) -> list[Made] | None:
        key = ("exact", setting.steps, setting.window, setting.size)
        if self.exact and key not in self._made:
            with torch.device(self.renderer.device):
                exact = FlashRenderer(self.renderer.config).eval().requires_grad_(False)
            exact.load_state_dict(self.renderer.state_dict(), strict=True)
            set_text(exact)
            self._made[key] = first_windows(exact, setting, COMPARED_EXACT)
        return self._made.get(key)


def described(renderer: FlashRenderer, setting: Setting, variant: str, windows: int) -> dict[str, Any]:
    return {
        "hardware": hardware(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "variant": variant,
        "size": setting.size,
        "dtype": str(renderer.transformer.dtype).removeprefix("torch."),
        "memory": setting.memory,
        "steps": setting.steps,
        "window": setting.window,
        "windows": windows,
    }


def planes(setting: Setting, window: int, device: torch.device) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(window)
    shape = (setting.window, 3, *setting.size)
    return {name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device) for name in BUFFERS}


Made = tuple[torch.Tensor, torch.Tensor]
"""Of a window: its latents less the noise that they were made from, and its frames."""


def first_windows(renderer: FlashRenderer, setting: Setting, count: int = COMPARED) -> list[Made]:
    """A new stream's first windows."""
    renderer.reset()
    made, latents = [], setting.window // FRAMES_PER_LATENT
    for window in range(count):
        frames = renderer.push(planes(setting, window, renderer.device), steps=setting.steps).rgb
        history = renderer.memory.view()
        assert history is not None
        newest = history.latents[:, :, -latents:]  # [1, C, L, h, w]
        channels, height, width = newest[0, :, 0].shape
        noise = stream_noise(0, window * latents, latents, (channels, height, width), newest.device)
        made.append((newest - noise, frames))
    return made


def difference(made: list[Made], expected: list[Made]) -> float:
    """The larger relative difference of latents and of frames."""
    pairs = zip(zip(*made), zip(*expected))
    return max(disagreement(torch.cat(own), torch.cat(others)) for own, others in pairs)


def stage_times(
    renderer: FlashRenderer, buffers: dict[str, torch.Tensor], steps: int, windows: int
) -> dict[str, float]:
    """Mean milliseconds a window of every stage."""
    timer = StageTimer(renderer.device)
    with watching(timer, renderer):
        for _ in range(windows):
            renderer.push(buffers, steps=steps)
    return {name: 1000 * total / windows for name, total in timer.totals().items()}


def top_kernels(function: Callable[[], object], device: torch.device, rows: int = 25, runs: int = 2) -> str:
    """Markdown: what takes longest on the device in a run, by kernel."""
    cuda = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if cuda else [])
    function()
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(runs):
            function()
        synchronise(device)
    times: dict[str, tuple[float, int]] = {}
    for event in profiler.key_averages():
        if cuda and event.device_type.name != "CUDA":
            continue  # an operation's own row repeats its kernels' time
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        times[event.key] = (spent / 1000 / runs, event.count // runs)
    total = sum(spent for spent, _ in times.values()) or 1.0
    lines = [f"| kernel ({total:.2f} ms in all) | ms | share | calls |", "| --- | --- | --- | --- |"]
    for name, (spent, calls) in sorted(times.items(), key=lambda item: -item[1][0])[:rows]:
        lines.append(f"| {name[:100].replace('|', '/')} | {spent:.2f} | {100 * spent / total:.1f}% | {calls} |")
    return "\n".join(lines)


def choices(tuner: Tuner) -> dict[str, str]:
    """What was chosen, in words."""
    words = {}
    for kind, choice in tuner.choices.items():
        measured = ", ".join(f"{name} {ms:.3f} ms" for name, ms in choice.milliseconds.items())
        refused = "; ".join(f"{name}: {why[:80]}" for name, why in choice.refused.items())
        words[str(kind)] = f"{choice.name} ({measured})" + (f" [{refused}]" if refused else "")
    return words


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
    if "history" not in stages:  # one graph holds both
        least["transformer"] += least["history"]
    return {name: least[name] / stages[name] for name in least if name in stages}


def plain_network(renderer: FlashRenderer, size: tuple[int, int], steps: int, window: int) -> dict[str, float]:
    """Milliseconds of `steps` evaluations of diffusers' network, eager and compiled by block."""
    from diffusers.models.transformers.transformer_helios import HeliosTransformer3DModel

    config, device, dtype = renderer.transformer.config, renderer.device, renderer.transformer.dtype
    with torch.device(device):
        network: Any = HeliosTransformer3DModel(
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


COLUMNS = (
    "memory", "steps", "window", "variant", "FPS", "median ms", "p99 ms", "encode ms", "history ms", "transformer ms",
    "decode ms", "reached", "peak MiB", "growth MiB", "differs", "error", "ready s",
)  # fmt: skip


def row(result: Result) -> str:
    """Markdown, a row of the table."""
    what = [result.memory, str(result.steps), str(result.window), result.variant]
    if result.failure:
        return f"| {' | '.join(what)} | {result.failure} |" + " |" * (len(COLUMNS) - len(what) - 1)
    speeds = [f"{value:.1f}" for value in (result.frames_per_second, result.median_ms, result.p99_ms)]
    stages = [
        f"{result.stages_ms[name]:.1f}" if name in result.stages_ms else ""
        for name in ("encode", "history", "transformer", "decode")
    ]
    reached = f"{100 * result.reached['transformer']:.0f}%" if "transformer" in result.reached else ""
    sizes = [f"{result.peak_memory_mib:.0f}", f"{result.growth_mib:.1f}"]
    errors = [f"{result.differs:.1e}", "" if result.error is None else f"{result.error:.1e}"]
    cells = [*what, *speeds, *stages, reached, *sizes, *errors, f"{result.preparation_s:.0f}"]
    return f"| {' | '.join(cells)} |"


def table(results: list[Result]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS), *(row(result) for result in results)]
    seen: dict[str, str] = {}
    for result in results:
        seen |= {f"{result.variant}: {kind}": choice for kind, choice in result.choices.items() if "ms" in choice}
    return "\n".join(lines) + "".join(f"\n- {kind}: {choice}" for kind, choice in seen.items())


def measure_all(options: argparse.Namespace, device: torch.device) -> list[Result]:
    """Every row that there is time for; the results so far are kept in the file all along."""
    began, results = time.perf_counter(), []
    config = tiny() if options.tiny or device.type != "cuda" else FlashConfig()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rates, longest = measure_rates(device), 0.0
    for memory in options.memory:
        bench = Bench(build(config, memory, device, dtype), rates, exact=options.exact)
        for steps, window, variant in product(options.steps, options.window, options.variants):
            setting = Setting(
                memory=memory, steps=steps, window=window, size=options.size, windows=options.windows,
                seconds=options.seconds,
            )  # fmt: skip
            spent = time.perf_counter() - began
            if spent + longest > options.budget:
                results.append(failed(bench.renderer, setting, variant, f"not run: {spent:.0f} s are spent"))
                continue
            start = time.perf_counter()
            try:
                results.append(bench.run(setting, variant, profile=options.profile))
            except Exception as error:  # noqa: BLE001 - one variant that fails is a row; the others go on
                if not isinstance(error, FlowshadeError):  # those say all there is to say
                    traceback.print_exc()
                why = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
                results.append(failed(bench.renderer, setting, variant, f"failed: {why}"))
            longest = max(longest, time.perf_counter() - start)
            print(f"[{time.perf_counter() - began:4.0f} s] {row(results[-1])}", flush=True)
            keep(options.json, results)
        if options.plain:
            for steps, window in product(options.steps, options.window):
                for name, value in plain_network(bench.renderer, options.size, steps, window).items():
                    print(f"diffusers' network, {name}, {steps} steps, window {window}: {value:.2f} ms", flush=True)
        del bench
    return results


def failed(renderer: FlashRenderer, setting: Setting, variant: str, why: str) -> Result:
    return Result(**described(renderer, setting, variant, 0), failure=why, stages_ms={}, reached={}, choices={})


def keep(path: Path | None, results: list[Result]) -> None:
    if path is not None:
        path.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


def isolated(options: argparse.Namespace, arguments: list[str]) -> list[Result]:
    """Every row in a process of its own, so that one that breaks the device leaves the others whole."""
    began, results = time.perf_counter(), []
    for memory, steps, window, variant in product(options.memory, options.steps, options.window, options.variants):
        left = options.budget - (time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "row.json"
            own = ["--memory", memory, "--steps", str(steps), "--window", str(window), "--variants", variant]
            own += ["--budget", str(left), "--json", str(made)]
            subprocess.run([sys.executable, __file__, *arguments, *own], check=False)
            if made.is_file():
                results += [Result(**values) for values in json.loads(made.read_text())]
        keep(options.json, results)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="HxW in pixels; by default 448x832 on a GPU and 64x96 on a CPU")
    parser.add_argument("--device", help="by default a GPU when there is one")
    parser.add_argument("--tiny", action="store_true", help="a tiny network, as by default on a CPU")
    parser.add_argument(
        "--memory", nargs="+", choices=("full", "one_way"), default=["full"], help="how the past is seen"
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[4])
    parser.add_argument("--window", type=int, nargs="+", default=[16], help="frames a window, a multiple of 4")
    parser.add_argument("--windows", type=int, default=30, help="windows that are timed")
    parser.add_argument("--seconds", type=float, default=20, help="most time for the timed windows of a row")
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), help="rows; by default all, some on a CPU")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no row is started")
    parser.add_argument("--profile", action="store_true", help="also print the kernels that take longest")
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=None,
                        help="also compare with float32; by default on a GPU")  # fmt: skip
    parser.add_argument("--isolate", action="store_true", help="a process of its own for every row")
    parser.add_argument("--plain", action="store_true", help="also time diffusers' network")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cuda = device.type == "cuda"
    options.variants = options.variants or (list(VARIANTS) if cuda else list(ON_CPU))
    height, width = (int(text) for text in (options.size or ("448x832" if cuda else "64x96")).split("x"))
    options.size = height, width
    options.exact = cuda if options.exact is None else options.exact
    if options.isolate:
        arguments = [argument for argument in sys.argv[1:] if argument != "--isolate"]
        results = isolated(options, arguments)
    else:
        results = measure_all(options, device)
    name = "tiny" if options.tiny or not cuda else FlashConfig().name
    dtype = "bfloat16" if cuda else "float32"
    print(f"\n{date.today().isoformat()}, {hardware()}, torch {torch.__version__}, {name}, {height}x{width}, {dtype}\n")
    print(table(results))
    keep(options.json, results)


if __name__ == "__main__":
    main()
