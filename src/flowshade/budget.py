"""What a render or an inverse needs: memory and time by stage, predicted by running the real networks without data.

Networks run on PyTorch's meta device, where tensors have shapes and no values, while one mode counts floating-point
operations and another adds up what is alive. Nothing here repeats a network's arithmetic, so nothing can drift from it.
"""

from __future__ import annotations

import dataclasses
import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from flowshade.checkpoints.inverse import DIFFUSION_INVERSES
from flowshade.codec.tiny import GroupedEncoder, TinyDecoder
from flowshade.codec.wan_vae import Tiling, WanVAE
from flowshade.errors import FlowshadeError
from flowshade.inverse.cosmos import (
    COSMOS_STRIDE,
    FRAMES_PER_COSMOS_LATENT,
    PIXEL_MULTIPLE,
    CosmosConfig,
    CosmosDecoder,
    CosmosEncoder,
    CosmosNetwork,
    TokenizerConfig,
)
from flowshade.inverse.diffusion import DiffusionConfig
from flowshade.provenance import hardware
from flowshade.renderer.flash import FlashConfig
from flowshade.renderer.memory import HistoryMemory
from flowshade.renderer.renderer import Renderer, RendererConfig
from flowshade.renderer.teacher import TeacherConfig, plan_windows
from flowshade.renderer.transformer import TextContext, TransformerConfig, WorldTransformer
from flowshade.renderer.upstream import BUFFERS, TEXT_TOKENS, forward_transformer
from flowshade.types import FRAMES_PER_LATENT, Planes

GIB = 2**30
CONTEXT_BYTES = int(0.7 * GIB)
"""What CUDA and its libraries take for themselves."""
FRAGMENTATION = 1.1
"""Allocated memory that cannot be used, of what is used."""
TEXT_ENCODER_VALUES = 5.681e9
TEXT_ENCODER = "text encoder"
MODELS = ("compact", "alaya-forward", "alaya-flash", *DIFFUSION_INVERSES)
WIDTH_OF_PROMPT = 24
"""Tokens of a typical caption, for the compact model."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Floating-point operations a second that a machine reaches, and where the numbers come from."""

    name: str
    linear: float
    conv: float
    attention: float
    memory: int | None = None
    """Bytes of the GPU's memory."""
    dtype: torch.dtype = torch.bfloat16


PEAKS = {
    "h200": (989, 141),
    "h100": (989, 80),
    "a100": (312, 80),
    "rtx-5090": (209, 32),
    "rtx-4090": (165, 24),
    "rtx-3090": (71, 24),
    "l40s": (362, 48),
    "a10": (125, 24),
}
"""Dense bfloat16 TFLOP/s and gigabytes of cards, from their makers' data sheets."""
REACHED = {"linear": 0.68, "conv": 0.3, "attention": 0.5}
"""Shares of the peak: measured on an H200 for linear layers (670 TFLOP/s) and attention (500); assumed for the rest."""


def card(name: str) -> Rates:
    """The rates of a named card.

    Raises:
        FlowshadeError: an unknown name.
    """
    if name not in PEAKS:
        raise FlowshadeError(f"unknown card {name!r}; expected one of {', '.join(PEAKS)}.")
    peak, gigabytes = PEAKS[name]
    linear, conv, attention = (REACHED[kind] * peak * 1e12 for kind in ("linear", "conv", "attention"))
    return Rates(name=name, linear=linear, conv=conv, attention=attention, memory=gigabytes * GIB)


def measure_rates(device: torch.device) -> Rates:
    """This machine's rates, from three short runs."""
    cuda = device.type == "cuda"
    dtype, size = (torch.bfloat16, 8192) if cuda else (torch.float32, 768)
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    picture = torch.randn(1, 128, size // 16, size // 16, device=device, dtype=dtype)
    kernel = torch.randn(128, 128, 3, 3, device=device, dtype=dtype)
    tokens = torch.randn(1, 8, size, 64, device=device, dtype=dtype)
    return Rates(
        name=hardware(),
        linear=2 * size**3 / _seconds(lambda: matrix @ matrix, device),
        conv=2 * 9 * 128 * picture.numel() / _seconds(lambda: F.conv2d(picture, kernel, padding=1), device),
        attention=4
        * 8
        * 64
        * size**2
        / _seconds(lambda: F.scaled_dot_product_attention(tokens, tokens, tokens), device),
        memory=torch.cuda.get_device_properties(device).total_memory if cuda else None,
        dtype=dtype,
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a piece of work takes, the weights not counted."""

    linear: float = 0.0
    conv: float = 0.0
    attention: float = 0.0
    """Floating-point operations."""
    peak: float = 0.0
    """Bytes alive at once."""

    def times(self, count: float) -> Cost:
        """The same work, one after another."""
        return Cost(
            linear=count * self.linear, conv=count * self.conv, attention=count * self.attention, peak=self.peak
        )

    @property
    def flops(self) -> float:
        return self.linear + self.conv + self.attention


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a render."""

    name: str
    cost: Cost
    weights: float
    """Bytes of the weights it uses."""
    resident: float
    """Bytes of everything that lies in memory meanwhile, its activations included."""

    def seconds(self, rates: Rates) -> float:
        return self.cost.linear / rates.linear + self.cost.conv / rates.conv + self.cost.attention / rates.attention


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a render would be run, and what each stage needs."""

    settings: dict[str, Any]
    stages: tuple[Stage, ...]
    frames: int

    @property
    def peak(self) -> float:
        """Bytes of GPU memory, CUDA's own and fragmentation included."""
        return FRAGMENTATION * max(stage.resident for stage in self.stages) + CONTEXT_BYTES

    def seconds(self, rates: Rates) -> float:
        return sum(stage.seconds(rates) for stage in self.stages)


def plan(
    model: str,
    *,
    size: tuple[int, int],
    frames: int,
    memory: float | None = None,
    dtype: torch.dtype = torch.bfloat16,
    steps: int | None = None,
) -> tuple[Plan, bool]:
    """The first way to run a render, from the best to the thriftiest, that fits into memory.

    Args:
        model: one of `MODELS`.
        size: height and width in pixels.
        frames: how many.
        memory: bytes of GPU memory; None = as much as it takes.
        dtype: type of weights and activations.
        steps: denoising steps; None takes the model's own.

    Returns:
        The plan, and whether it fits; if none does, the thriftiest.

    Raises:
        FlowshadeError: an unknown model, or a size that it cannot take.
    """
    if model not in MODELS:
        raise FlowshadeError(f"unknown model {model!r}; expected one of {', '.join(MODELS)}.")
    multiple = 16 if model != "compact" else 8
    if any(length < multiple or length % multiple for length in size) or frames < 1:
        raise FlowshadeError(
            f"{frames} frames of {size[0]}x{size[1]} were asked for; expected 1 or more frames, and sizes in "
            f"multiples of {multiple}."
        )
    makers = {"compact": compact_plans, "alaya-forward": forward_plans, "alaya-flash": flash_plans}
    makers |= dict.fromkeys(DIFFUSION_INVERSES, inverse_plans)  # one network, one cost
    last = None
    for last in makers[model](size, frames, dtype, steps):
        if memory is None or last.peak <= memory:
            return last, True
    assert last is not None
    return last, False


def forward_plans(
    size: tuple[int, int],
    frames: int,
    dtype: torch.dtype,
    steps: int | None = None,
    transformer: TransformerConfig | None = None,
) -> Iterator[Plan]:
    """The teacher's plans: the text encoder let go after use, then run on the CPU, then shorter windows."""
    config = TeacherConfig()
    ladder = [(81, "auto"), (81, "cpu"), *((window, "cpu") for window in (49, 33, 21) if window < frames)]
    for window, text_device in ladder:
        settings = dataclasses.replace(config, window=window, steps=steps or config.steps)
        yield _forward_plan(size, frames, dtype, settings, text_device, transformer or forward_transformer())


def _forward_plan(
    size: tuple[int, int],
    frames: int,
    dtype: torch.dtype,
    config: TeacherConfig,
    text_device: str,
    transformer: TransformerConfig,
) -> Plan:
    windows = plan_windows(frames, config.window, config.overlap)
    latents = (windows[0][1] - windows[0][0] - 1) // FRAMES_PER_LATENT + 1
    h, w = size[0] // 8, size[1] // 8
    step, transformer_bytes = _drawn_on(
        lambda layers: _step_cost(dataclasses.replace(transformer, layers=layers), latents, (h, w), dtype),
        transformer.layers,
    )
    tiles = Tiling().origins(h, w)
    tile = min(Tiling().size[0], h), min(Tiling().size[1], w)
    encode, _ = _drawn_on(lambda number: _vae_cost("encode", number, tile, dtype), latents)
    decode, vae_bytes = _drawn_on(lambda number: _vae_cost("decode", number, tile, dtype), latents)
    video = _bytes(dtype, 3, 4 * latents - 3, *size)
    prompts = 1 if config.cfg_scale == 1 else 2
    weights = {"transformer": transformer_bytes, "vae": vae_bytes}
    text_bytes = 0.0 if text_device == "cpu" else TEXT_ENCODER_VALUES * dtype.itemsize
    kept = sum(weights.values())
    conditions = _bytes(dtype, transformer.buffer_channels, latents, h, w)
    count_windows = len(windows)
    rows = (
        ("encode buffers", encode.times(len(BUFFERS) * len(tiles) * count_windows), weights["vae"], video + conditions),
        ("denoise", step.times(config.steps * prompts * count_windows), weights["transformer"], 4 * conditions),
        ("decode", decode.times(len(tiles) * count_windows), weights["vae"], 3 * video),
    )
    text = _text_cost(prompts, text_bytes)  # before anything else is loaded
    stages = (
        Stage(name=TEXT_ENCODER, cost=text, weights=text_bytes, resident=text_bytes + text.peak),
        *(Stage(name=name, cost=cost, weights=own, resident=kept + held + cost.peak) for name, cost, own, held in rows),
    )
    settings = {"window": config.window, "text-device": text_device, "tiles": "30x52", "steps": config.steps}
    return Plan(settings=settings, stages=stages, frames=frames)


def inverse_plans(
    size: tuple[int, int],
    frames: int,
    dtype: torch.dtype,
    steps: int | None = None,
    network: CosmosConfig | None = None,
    tokenizer: TokenizerConfig | None = None,
) -> Iterator[Plan]:
    """The 7B inverse's plans: all networks kept on the GPU, then each there for its turn only, then shorter chunks.

    `size` is what the network works at; pictures of other sizes are resized to it and back.

    Raises:
        FlowshadeError: a size beyond the network's positions.
        MissingDependencyError: diffusers cannot be imported.
    """
    network, tokenizer = network or CosmosConfig(), tokenizer or TokenizerConfig()
    most = tuple(COSMOS_STRIDE * length for length in network.max_size[1:])
    if any(length > limit for length, limit in zip(size, most)):
        raise FlowshadeError(
            f"the 7B inverse works at up to {most[0]}x{most[1]} pixels, and {size[0]}x{size[1]} were asked for; give "
            f"a smaller size in multiples of {PIXEL_MULTIPLE}."
        )
    defaults = DiffusionConfig()
    for chunk, overlap, offload in (
        (defaults.chunk, defaults.overlap, False),
        (defaults.chunk, defaults.overlap, True),
        (33, 9, True),
        (17, 9, True),
    ):
        config = dataclasses.replace(
            defaults, steps=steps or defaults.steps, chunk=chunk, overlap=overlap, offload=offload, size=size
        )
        yield _inverse_plan(frames, dtype, config, network, tokenizer)


def _inverse_plan(
    frames: int, dtype: torch.dtype, config: DiffusionConfig, network: CosmosConfig, tokenizer: TokenizerConfig
) -> Plan:
    assert config.size is not None
    h, w = (length // COSMOS_STRIDE for length in config.size)
    step, network_bytes = _drawn_on(
        lambda layers: _cosmos_step_cost(dataclasses.replace(network, layers=layers), config.latents, (h, w), dtype),
        network.layers,
    )
    encode, encoder_bytes = _tokenizer_cost("encode", tokenizer, config.latents, (h, w), dtype)
    decode, decoder_bytes = _tokenizer_cost("decode", tokenizer, config.latents, (h, w), dtype)
    chunks = 1 + max(math.ceil((frames - config.chunk) / (config.chunk - config.overlap)), 0)
    passes = len(config.buffers)
    video = _bytes(dtype, 3, config.chunk, *config.size)
    latents = _bytes(torch.float32, network.latent_channels, config.latents, h, w)
    rows = (
        ("encode video", encode.times(chunks), encoder_bytes, 3 * video),
        ("denoise", step.times(config.steps * passes * chunks), network_bytes, (passes + 5) * latents),
        ("decode", decode.times(passes * chunks), decoder_bytes, (passes + 1) * latents + 3 * video),
    )
    kept = sum(own for _, _, own, _ in rows)
    stages = tuple(
        Stage(name=name, cost=cost, weights=own, resident=(own if config.offload else kept) + held + cost.peak)
        for name, cost, own, held in rows
    )
    settings = {
        "chunk": config.chunk, "overlap": config.overlap, "steps": config.steps, "buffers": passes,
        "offload": "yes" if config.offload else "no",
    }  # fmt: skip
    return Plan(settings=settings, stages=stages, frames=frames)


def flash_plans(
    size: tuple[int, int], frames: int, dtype: torch.dtype, steps: int | None = None, config: FlashConfig | None = None
) -> Iterator[Plan]:
    """Flash's plans: windows of 16 frames with the text encoder kept, or on the CPU, then shorter windows."""
    config = config or FlashConfig()
    for window, text_device in ((16, "auto"), (16, "cpu"), (8, "cpu"), (4, "cpu")):
        yield _flash_plan(size, frames, dtype, steps or config.steps, window, text_device, config)


def _flash_plan(
    size: tuple[int, int],
    frames: int,
    dtype: torch.dtype,
    steps: int,
    window: int,
    text_device: str,
    config: FlashConfig,
) -> Plan:
    h, w = size[0] // config.encoder.patch, size[1] // config.encoder.patch
    latents = window // FRAMES_PER_LATENT
    with torch.device("meta"):
        encoder, decoder = GroupedEncoder(config.encoder).to(dtype), TinyDecoder(config.decoder).to(dtype)
    step, transformer_bytes = _drawn_on(
        lambda layers: _step_cost(dataclasses.replace(config.transformer, layers=layers), latents, (h, w), dtype),
        config.transformer.layers,
    )
    latent = _meta(dtype, 1, config.transformer.latent_channels, latents, h, w)
    planes = _meta(dtype, 1, window, 3 * config.encoder.buffers, *size)
    rows = (
        ("encode buffers", count(lambda: encoder(planes)), _weight_bytes(encoder), 1),
        ("denoise", step, transformer_bytes, steps),
        ("decode", count(lambda: decoder(latent)), _weight_bytes(decoder), 1),
    )
    text_bytes = 0.0 if text_device == "cpu" else TEXT_ENCODER_VALUES * dtype.itemsize
    kept = sum(own for _, _, own, _ in rows) + text_bytes
    kept += _decoder_state_bytes(decoder, latent) + planes.numel() * dtype.itemsize
    windows = math.ceil(frames / window)
    text = Stage(name=TEXT_ENCODER, cost=_text_cost(1, text_bytes), weights=text_bytes, resident=kept)
    stages = [
        Stage(name=name, cost=cost.times(times * windows), weights=own, resident=kept + cost.peak)
        for name, cost, own, times in rows
    ]
    return Plan(
        settings={"window": window, "text-device": text_device, "steps": steps}, stages=(text, *stages), frames=frames
    )


def compact_plans(
    size: tuple[int, int],
    frames: int,
    dtype: torch.dtype,
    steps: int | None = None,
    config: RendererConfig | None = None,
) -> Iterator[Plan]:
    """The compact model's plans: windows of 16 frames, then shorter ones."""
    config = config or RendererConfig()
    for window in (16, 8, 4):
        yield _compact_plan(size, frames, steps or config.steps, window, config)


def _compact_plan(size: tuple[int, int], frames: int, steps: int, window: int, config: RendererConfig) -> Plan:
    with torch.device("meta"):
        renderer = Renderer(config)  # its weights stay float32; matrix products run in `dtype`
    transformer, latents, dtype = renderer.transformer, window // FRAMES_PER_LATENT, torch.float32
    settings = transformer.config
    height, width = (length + -length % renderer.pixel_multiple for length in size)
    h, w = height // 8, width // 8
    planes = Planes(
        values=_meta(dtype, 1, window, config.profile.planes, height, width),
        present=torch.ones(1, len(config.profile.buffers), dtype=torch.bool, device="meta"),
    )
    buffers = _meta(dtype, 1, settings.buffer_channels, latents, h, w)
    latent = _meta(dtype, 1, settings.latent_channels, latents, h, w)
    length = transformer.history_frames
    memory = HistoryMemory(length)
    memory.append(latent[:, :, :1].expand(-1, -1, length, -1, -1), buffers[:, :, :1].expand(-1, -1, length, -1, -1))
    past = transformer.encode_history(memory.view())
    text = transformer.encode_text(TextContext(tokens=_meta(dtype, 1, WIDTH_OF_PROMPT, settings.text_dim)))
    step = count(lambda: transformer(latent, _meta(dtype, 1), text, buffers, None, past))
    rows = (
        ("encode buffers", count(lambda: renderer.encoder(planes)), renderer.encoder, 1),
        ("history", count(lambda: transformer.encode_history(memory.view())), transformer, 1),
        ("denoise", step, transformer, steps),
        ("decode", count(lambda: renderer.decoder(latent, planes)), renderer.decoder, 1),
    )
    kept = _weight_bytes(renderer) + planes.values.numel() * dtype.itemsize
    windows = math.ceil(frames / window)
    stages = tuple(
        Stage(name=name, cost=cost.times(times * windows), weights=_weight_bytes(part), resident=kept + cost.peak)
        for name, cost, part, times in rows
    )
    return Plan(settings={"window": window, "steps": steps}, stages=stages, frames=frames)


def count(function: Callable[[], Any]) -> Cost:
    """Runs a function over meta tensors and counts what it would take; attention as a fused kernel runs it."""
    counter, alive, attention = FlopCounterMode(display=False), _Alive(), _FusedAttention()
    with torch.no_grad(), counter, alive, attention:
        result = function()
    del result
    by_kind = {"linear": 0.0, "conv": 0.0}
    for operation, flops in counter.get_flop_counts().get("Global", {}).items():
        by_kind["conv" if "conv" in str(operation) else "linear"] += flops
    return Cost(**by_kind, attention=attention.flops, peak=alive.peak)


class _Alive(TorchDispatchMode):
    """Adds up the storages that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}  # views of weights and inputs are theirs
        result = function(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]


class _FusedAttention(TorchFunctionMode):
    """Attention without its matrix of weights, as GPUs run it; counts its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            queries, keys = (args[0], args[1]) if args else (kwargs["query"], kwargs["key"])
            self.flops += 4.0 * queries.numel() * keys.shape[-2]
            return torch.empty_like(queries)
        return function(*args, **(kwargs or {}))


def _drawn_on(cost_of: Callable[[int], tuple[Cost, float]], number: int) -> tuple[Cost, float]:
    """The cost and the weights' bytes of `number` equal layers or latents, from those of two and four.

    A clip's first latent and a network's ends are unlike the rest and are counted once either way.
    """
    if number <= 4:
        return cost_of(number)
    (two, bytes_two), (four, bytes_four) = cost_of(2), cost_of(4)

    def drawn(second: float, fourth: float) -> float:
        return second + (fourth - second) / 2 * (number - 2)

    names = ("linear", "conv", "attention", "peak")
    cost = Cost(**{name: drawn(getattr(two, name), getattr(four, name)) for name in names})
    return cost, drawn(bytes_two, bytes_four)


@cache
def _step_cost(
    config: TransformerConfig, latents: int, size: tuple[int, int], dtype: torch.dtype
) -> tuple[Cost, float]:
    """One network evaluation with a full past, and the bytes of the weights."""
    with torch.device("meta"):
        network = WorldTransformer(config).to(dtype)
    latent = _meta(dtype, 1, config.latent_channels, latents, *size)
    buffers = _meta(dtype, 1, config.buffer_channels, latents, *size)
    text = TextContext(tokens=_meta(dtype, 1, TEXT_TOKENS, config.text_dim))
    memory = HistoryMemory(network.history_frames, keep_first=config.keep_first)
    if config.memory != "none":
        memory.start_with_zeros(latent, buffers if config.history_buffers else None)

    def run() -> Tensor:
        past = network.encode_history(memory.view())
        return network(latent, _meta(torch.float32, 1), network.encode_text(text), buffers, None, past)

    return count(run), _weight_bytes(network)


@cache
def _vae_cost(what: str, latents: int, tile: tuple[int, int], dtype: torch.dtype) -> tuple[Cost, float]:
    """A tile of `latents` latent frames through Wan's VAE, and the bytes of its weights."""
    with torch.device("meta"):
        vae = WanVAE().to(dtype)
    if what == "decode":
        return count(lambda: vae.decode_next(_meta(dtype, 1, 16, latents, *tile), {})), _weight_bytes(vae)
    rgb = _meta(dtype, 1, 3, FRAMES_PER_LATENT * (latents - 1) + 1, tile[0] * 8, tile[1] * 8)
    return count(lambda: vae.encode_next(rgb, {})), _weight_bytes(vae)


@cache
def _cosmos_step_cost(
    config: CosmosConfig, latents: int, size: tuple[int, int], dtype: torch.dtype
) -> tuple[Cost, float]:
    """One evaluation of the 7B inverse's network, and the bytes of its weights."""
    with torch.device("meta"):
        network = CosmosNetwork(config).to(dtype)
    x = _meta(dtype, 1, config.latent_channels, latents, *size)
    return count(lambda: network(x, x, _meta(torch.float32, 1), "normal")), _weight_bytes(network)


@cache
def _tokenizer_cost(
    what: str, config: TokenizerConfig, latents: int, size: tuple[int, int], dtype: torch.dtype
) -> tuple[Cost, float]:
    """A chunk through one half of Cosmos' tokenizer, and the bytes of its weights."""
    if what == "decode":
        with torch.device("meta"):
            decoder = CosmosDecoder(config).to(dtype).to("meta")
        given = _meta(dtype, 1, config.latent_channels, latents, *size)
        return count(lambda: decoder(given)), _weight_bytes(decoder)
    with torch.device("meta"):
        encoder = CosmosEncoder(config).to(dtype).to("meta")
    frames = FRAMES_PER_COSMOS_LATENT * (latents - 1) + 1
    rgb = _meta(dtype, 1, 3, frames, *(COSMOS_STRIDE * length for length in size))
    return count(lambda: encoder(rgb)), _weight_bytes(encoder)


def _text_cost(prompts: int, resident: float) -> Cost:
    """umt5-xxl over whole prompts; nothing on the GPU where it runs elsewhere."""
    if not resident:
        return Cost()
    return Cost(linear=2 * TEXT_ENCODER_VALUES * TEXT_TOKENS * prompts, peak=0.3 * GIB)


def _decoder_state_bytes(decoder: TinyDecoder, latent: Tensor) -> float:
    state = {}
    with torch.no_grad():
        decoder.step(latent[:, :, :1], state)
    return sum(value.numel() * value.element_size() for value in state.values())


def _weight_bytes(network: nn.Module) -> float:
    return sum(value.numel() * value.element_size() for value in network.state_dict().values())


def _bytes(dtype: torch.dtype, *shape: int) -> float:
    return math.prod(shape) * dtype.itemsize


def _meta(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _seconds(function: Callable[[], Any], device: torch.device, least: float = 0.1) -> float:
    """Of one call, the best of runs that take `least` seconds together."""
    best, spent = math.inf, 0.0
    function()
    while spent < least:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
    return best
