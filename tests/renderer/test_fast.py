"""The fast path gives what the plain path gives; its graphs' bookkeeping runs here with a capture that replays."""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import pytest
import torch
from torch import Tensor, nn

from flowshade.codec.tiny import GroupedConv, GroupedEncoder, GroupedEncoderConfig, TinyDecoder, TinyDecoderConfig
from flowshade.errors import FlowshadeError, MissingDependencyError
from flowshade.nn.graphs import Graphs
from flowshade.nn.kernels import Kernels
from flowshade.nn.tuning import disagreement
from flowshade.presets import debug_renderer
from flowshade.renderer.batch import push_together
from flowshade.renderer.fast import FusedLayers, KernelName, TimedAttention, _kernels, _Tools, slow_down, speed_up
from flowshade.renderer.flash import FlashConfig, FlashRenderer
from flowshade.renderer.memory import History, HistoryMemory
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.transformer import TextContext, TransformerConfig, WorldTransformer
from flowshade.renderer.upstream import BUFFERS, flash_transformer
from tests.conftest import make_gbuffer
from tests.nn.replay import replaying

COMPACT = debug_renderer().transformer
FLASH = flash_transformer(
    latent_channels=4, buffer_channels=20, heads=2, head_dim=12, rope_dims=(4, 4, 4), layers=3, ffn_dim=32,
    text_dim=16, freq_dim=16, amplify_history=True,
)  # fmt: skip
CONFIGS = {
    "one_way": COMPACT,
    "one_way amplified": dataclasses.replace(COMPACT, amplify_history=True),
    "full": dataclasses.replace(COMPACT, memory="full"),
    "flash": FLASH,
    "flash reading": dataclasses.replace(FLASH, history_reads_text=True, keep_first=False),
}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}
"""Of float32; sums run in another order."""


def awake(config: TransformerConfig) -> WorldTransformer:
    torch.manual_seed(0)
    model = WorldTransformer(config).requires_grad_(False)
    _wake(model)
    return model


def _wake(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else 1.2 / parameter[0].numel() ** 0.5)


def given(config: TransformerConfig, batch: int) -> dict:
    generator = torch.Generator().manual_seed(1)

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "latents": rand(batch, config.latent_channels, 2, 6, 10),
        "timestep": torch.linspace(300, 900, batch),
        "text": TextContext(tokens=rand(batch, 5, config.text_dim), mask=torch.arange(5).expand(batch, 5) < 4),
        "buffers": rand(batch, config.buffer_channels, 2, 6, 10),
    }


def past(config: TransformerConfig, batch: int, exist: int | None) -> History | None:
    """The last `exist` frames; None = all, with no mask."""
    total = config.history_frames
    generator = torch.Generator().manual_seed(2)
    latents, buffers = (
        torch.randn(batch, channels, total, 6, 10, generator=generator)
        for channels in (config.latent_channels, config.buffer_channels)
    )
    memory = HistoryMemory(total, keep_first=config.keep_first)
    valid = None if exist is None else torch.arange(total).expand(batch, total) >= total - exist
    memory.append(latents, buffers, valid)
    return memory.view()


@pytest.mark.parametrize("exist", [None, 3], ids=["whole past", "short past"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "kernels",
    ["torch", pytest.param("triton", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1"))],
)
@torch.no_grad()
def test_fused_layers_equal_plain_ones(kernels: KernelName, name: str, exist: int | None) -> None:
    config = CONFIGS[name]
    model, inputs = awake(config), given(config, 2)
    history = past(config, 2, exist)
    plain = model(**inputs, history_kv=model.encode_history(history))
    alone = model(**inputs)
    tools = _Tools(_kernels(kernels, torch.device("cpu")), torch.float32, False, TimedAttention("timed"))
    model.fast = FusedLayers(model, tools)
    fast = model(**inputs, history_kv=model.encode_history(history))
    torch.testing.assert_close(fast, plain, **TOLERANCE)
    torch.testing.assert_close(model(**inputs), alone, **TOLERANCE)
    assert plain.std() > 0.1 and not torch.allclose(plain, alone, atol=1e-2)


@torch.no_grad()
def test_without_a_memory() -> None:
    config = dataclasses.replace(FLASH, memory="none", keep_first=False, amplify_history=False)
    model, inputs = awake(config), given(config, 2)
    plain = model(**inputs)
    model.fast = FusedLayers(model, _Tools(Kernels(), torch.float32, False, TimedAttention("default")))
    torch.testing.assert_close(model(**inputs), plain, **TOLERANCE)


@torch.no_grad()
def test_eight_bits_stay_close() -> None:
    config = dataclasses.replace(FLASH, head_dim=16, rope_dims=(4, 6, 6), memory="full")
    model, inputs, history = awake(config), given(config, 1), past(config, 1, None)
    plain = model(**inputs, history_kv=model.encode_history(history))
    model.fast = FusedLayers(model, _Tools(Kernels(), torch.float32, True, TimedAttention("timed")))
    eight = model(**inputs, history_kv=model.encode_history(history))
    assert 1e-4 < disagreement(eight, plain) < 0.15


def compact() -> Renderer:
    torch.manual_seed(0)
    renderer = Renderer(debug_renderer()).eval().requires_grad_(False)
    _wake(renderer)
    return renderer


def flash() -> FlashRenderer:
    config = FlashConfig(
        transformer=FLASH,
        encoder=GroupedEncoderConfig(width=4, blocks=1, latent_channels=4),
        decoder=TinyDecoderConfig(latent_channels=4, widths=(8, 6, 4, 4), blocks=1),
        steps=2,
    )
    torch.manual_seed(0)
    renderer = FlashRenderer(config).eval().requires_grad_(False)
    _wake(renderer)
    renderer.set_text(TextContext(tokens=torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))))
    return renderer


def planes(window: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(window)
    return {name: torch.randint(0, 256, (8, 3, 32, 48), generator=generator, dtype=torch.uint8) for name in BUFFERS}


def streamed_flash(renderer: FlashRenderer, windows: int) -> Tensor:
    renderer.reset(3)
    return torch.cat([renderer.push(planes(window)).rgb for window in range(windows)])


def streamed_compact(renderer: Renderer, windows: int, tokens: int = 5) -> Tensor:
    clip = make_gbuffer(4 * windows)
    renderer.reset(3)
    frames = []
    for window in range(windows):
        if window in (0, windows // 2):  # a new and longer prompt half way
            shape = (1, tokens + window, COMPACT.text_dim)
            renderer.set_text(TextContext(tokens=torch.randn(shape, generator=torch.Generator().manual_seed(window))))
        renderer.set_sun(torch.tensor([0.6, 0, 0.8]) if window > 1 else None)
        frames.append(renderer.push(clip[4 * window : 4 * window + 4]).rgb)
    return torch.cat(frames)


def test_streams_of_both_renderers() -> None:
    for renderer, streamed in ((flash(), streamed_flash), (compact(), streamed_compact)):
        plain = streamed(renderer, 4)
        speed = speed_up(renderer)
        assert (speed.kernels, speed.graphs, speed.fp8) == ("torch", False, False)
        torch.testing.assert_close(streamed(renderer, 4), plain, **TOLERANCE)
        slow_down(renderer)
        assert renderer.transformer.fast is None
        assert torch.equal(streamed(renderer, 4), plain)
        assert plain.std() > 0.01


def test_lower_precision_is_as_precise_as_the_plain_path_s() -> None:
    """In bfloat16 equal sums round differently, so both are compared with float32."""
    for make, streamed in ((flash, streamed_flash), (compact, streamed_compact)):
        exact = streamed(make(), 2)
        renderer = make()
        if isinstance(renderer, Renderer):
            renderer.autocast_dtype = torch.bfloat16
        else:
            renderer.bfloat16()
            renderer.set_text(TextContext(tokens=torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))))
        plain = disagreement(streamed(renderer, 2), exact)
        speed_up(renderer)
        assert 0 < disagreement(streamed(renderer, 2), exact) < 1.25 * plain < 0.1


def test_names_and_values_of_parameters_stay() -> None:
    renderer, untouched = flash(), flash()
    speed_up(renderer)
    state = renderer.state_dict()
    assert list(state) == list(untouched.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in untouched.state_dict().items())
    # Weights that are loaded afterwards arrive too, since the joined ones are what the parameters are views of.
    with torch.no_grad():
        for parameter in untouched.transformer.parameters():
            parameter.mul_(0.9)
    renderer.transformer.load_state_dict(untouched.transformer.state_dict(), strict=True)
    layer = renderer.transformer.fast._layers[0]
    assert torch.equal(layer.qkv._weight[:24], untouched.transformer.blocks[0].attn1.to_q.weight)
    speed_up(renderer)
    untouched.set_text(TextContext(tokens=torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))))
    renderer.set_text(TextContext(tokens=torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))))
    expected = streamed_flash(untouched, 2)
    torch.testing.assert_close(streamed_flash(renderer, 2), expected, **TOLERANCE)


def test_gradients_take_the_plain_path() -> None:
    renderer = compact().requires_grad_(True)
    speed_up(renderer)
    inputs = given(COMPACT, 1)
    renderer.transformer(
        **inputs, history_kv=renderer.transformer.encode_history(past(COMPACT, 1, None))
    ).sum().backward()
    gradient = renderer.transformer.blocks[0].attn1.to_q.weight.grad
    assert gradient is not None and gradient.abs().sum() > 0


@pytest.mark.parametrize("fused", [False, True], ids=["plain layers", "fused layers"])
def test_graphs_of_streams(fused: bool) -> None:
    """Captured stages give what the stages give, over first windows, new prompts, other steps and a new stream."""
    for renderer, streamed in ((flash(), streamed_flash), (compact(), streamed_compact)):
        plain = streamed(renderer, 6)
        if fused:
            speed_up(renderer)
        captures: list[int] = []
        renderer.graphs = Graphs(replaying(captures), keep=renderer.transformer.rotations.tensors)
        for _ in range(2):
            torch.testing.assert_close(streamed(renderer, 6), plain, **TOLERANCE)
        known = len(captures)
        assert known >= 3  # encoder, transformer, decoder
        torch.testing.assert_close(streamed(renderer, 6), plain, **TOLERANCE)
        assert len(captures) == known  # nothing new is captured for a stream like the last


def test_graphs_of_several_streams() -> None:
    renderer = compact()
    clip = make_gbuffer(12)

    def run() -> list[Tensor]:
        streams = [renderer.open_stream(seed) for seed in range(2)]
        for index, stream in enumerate(streams):
            tokens = torch.randn(1, 3 + index, COMPACT.text_dim, generator=torch.Generator().manual_seed(index))
            stream.set_text(TextContext(tokens=tokens))
        made = [push_together(renderer, streams, [clip[s : s + 4]] * 2) for s in (0, 4, 8)]
        return [frames.rgb for pair in made for frames in pair]

    plain, captures = run(), []
    renderer.graphs = Graphs(replaying(captures))
    for _ in range(3):
        for actual, expected in zip(run(), plain):
            torch.testing.assert_close(actual, expected, **TOLERANCE)
    assert captures


def test_codecs_keep_their_results_in_the_other_order_of_memory() -> None:
    torch.manual_seed(0)
    encoder = GroupedEncoder(GroupedEncoderConfig(width=4, blocks=2, latent_channels=4)).requires_grad_(False)
    decoder = TinyDecoder(TinyDecoderConfig(latent_channels=4, widths=(8, 6, 4, 4), blocks=2)).requires_grad_(False)
    clip, latents = torch.randn(2, 8, 15, 16, 24), torch.randn(2, 4, 3, 2, 3)
    plain = encoder(clip), decoder(latents)
    for codec in (encoder, decoder):
        codec.to(memory_format=torch.channels_last)
    torch.testing.assert_close(encoder(clip), plain[0], **TOLERANCE)
    torch.testing.assert_close(decoder(latents), plain[1], **TOLERANCE)


def test_the_order_of_memory_lasts_through_the_codecs() -> None:
    """A convolution that finds the other order copies its input and its output."""
    torch.manual_seed(0)
    encoder = GroupedEncoder(GroupedEncoderConfig(width=4, blocks=2, latent_channels=4)).requires_grad_(False)
    decoder = TinyDecoder(TinyDecoderConfig(latent_channels=4, widths=(8, 6, 4, 4), blocks=2)).requires_grad_(False)
    seen: list[bool] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    for codec in (encoder, decoder):
        codec.to(memory_format=torch.channels_last)
        for name, module in codec.named_modules():
            if isinstance(module, nn.Conv2d) and name != "conv_in":
                module.register_forward_pre_hook(look)
    state: dict = {}
    for _ in range(2):
        encoder(torch.randn(1, 8, 15, 16, 24), state)
        decoder.step(torch.randn(1, 4, 2, 4, 6), state)
    assert len(seen) > 20 and all(seen)


def test_a_convolution_in_groups_may_run_apart() -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        conv = GroupedConv(15, 10, 3, padding=1, groups=5, bias=bias).requires_grad_(False)
        x = torch.randn(2, 15, 7, 6)
        torch.testing.assert_close(conv.apart(x), conv(x), **TOLERANCE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_what_a_cpu_cannot_do() -> None:
    renderer = compact()
    with pytest.raises(FlowshadeError, match="CUDA graphs need an NVIDIA GPU, and the renderer is on cpu"):
        speed_up(renderer, graphs=True)
    with pytest.raises(FlowshadeError, match="fp8 needs an NVIDIA GPU"):
        speed_up(renderer, fp8=True)
    with pytest.raises(FlowshadeError, match="unknown attention 'fast'; expected timed, default, cudnn"):
        speed_up(renderer, attention="fast")  # pyright: ignore[reportArgumentType]
    if importlib.util.find_spec("triton") is None:
        with pytest.raises(MissingDependencyError, match="pip install triton, or give kernels='inductor'"):
            speed_up(renderer, kernels="triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kernels", ["torch", "inductor", "triton"])
def test_on_a_gpu(kernels: str) -> None:
    for make, streamed in ((flash, streamed_flash), (compact, streamed_compact)):
        renderer = make().cuda()
        if isinstance(renderer, FlashRenderer):
            renderer.set_text(TextContext(tokens=torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))))
        plain = streamed(renderer, 6)
        speed_up(renderer, kernels=kernels, graphs=True)  # pyright: ignore[reportArgumentType]
        for _ in range(2):
            actual = streamed(renderer, 6)
            assert (actual - plain).norm() / plain.norm() < 2e-3  # TF32 may round products
