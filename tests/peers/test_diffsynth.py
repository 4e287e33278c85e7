"""Our networks against DiffSynth's, which upstream runs; only where DiffSynth is installed beside the project.

    pip install --no-deps diffsynth ftfy wcwidth

Its import wants torchvision, modelscope and others that nothing here uses: empty modules stand in for them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flowshade.checkpoints.catalogue import Model, alaya_forward
from flowshade.checkpoints.loading import load_part
from flowshade.codec.wan_vae import Tiling, WanVAEConfig
from flowshade.renderer.teacher import STYLES, ForwardTeacher, TeacherConfig, to_signed
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.umt5 import clean
from flowshade.renderer.upstream import TEXT_TOKENS, TextEncoderConfig, forward_transformer

if importlib.util.find_spec("diffsynth") is None:
    pytest.skip("DiffSynth is not installed", allow_module_level=True)

UNUSED = ("torchvision", "modelscope", "imageio", "pandas", "peft")
MODEL: Model = alaya_forward(
    forward_transformer(heads=2, head_dim=24, rope_dims=(8, 8, 8), layers=2, ffn_dim=64, text_dim=32, freq_dim=32),
    WanVAEConfig(base_dim=8),
    TextEncoderConfig(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
)


class _Anything(ModuleType):
    """A module whose every name is a class."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@pytest.fixture(scope="module", autouse=True)
def stand_ins() -> Iterator[None]:
    import transformers

    assert transformers.Wav2Vec2Processor  # looks for torchvision when first used, so before anything stands in
    added = [name for name in UNUSED if name not in sys.modules and importlib.util.find_spec(name) is None]
    for name in added:
        sys.modules[name] = _Anything(name)
        sys.modules[name].__spec__ = importlib.util.spec_from_loader(name, None)
    sys.meta_path.append(_Finder())  # pyright: ignore[reportArgumentType]
    yield
    sys.meta_path.pop()
    for name in [name for name in sys.modules if name.partition(".")[0] in added]:
        del sys.modules[name]


class _Finder:
    """Finds modules below those that stand in."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None):
        if name.partition(".")[0] in UNUSED and isinstance(sys.modules.get(name.partition(".")[0]), _Anything):
            return importlib.util.spec_from_loader(name, _Loader())
        return None


class _Loader:
    @staticmethod
    def create_module(spec) -> ModuleType:
        return _Anything(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing to run."""


def shaken(model: nn.Module, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else scale / parameter[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


def saved(model: nn.Module, path: Path) -> Path:
    """Their weights under their own names: what our key maps must know."""
    save_file({name: value.contiguous().clone() for name, value in model.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory):
    from diffsynth.models.wan_video_dit import WanModel

    theirs = shaken(
        WanModel(
            dim=48, in_dim=96, ffn_dim=64, out_dim=16, text_dim=32, freq_dim=32, eps=1e-6, patch_size=(1, 2, 2),
            num_heads=2, num_layers=2, has_image_input=False,
        )
    )  # fmt: skip
    path = saved(theirs, tmp_path_factory.mktemp("dit") / "model.safetensors")
    return theirs, load_part(MODEL.part("transformer"), path)


@pytest.fixture(scope="module")
def vaes(tmp_path_factory: pytest.TempPathFactory):
    from diffsynth.models.wan_video_vae import VideoVAE_, WanVideoVAE

    theirs = WanVideoVAE()
    theirs.model = VideoVAE_(dim=8)
    shaken(theirs, 1.5)
    path = saved(theirs, tmp_path_factory.mktemp("vae") / "vae.safetensors")  # with the prefix `model.`
    return theirs, load_part(MODEL.part("vae"), path)


@pytest.mark.parametrize("timestep", [1000.0, 833.3333, 3.125])
def test_transformer(transformers, timestep: float) -> None:
    from diffsynth.pipelines.wan_video import model_fn_wan_video

    theirs, ours = transformers
    noise, buffers, text = torch.randn(1, 16, 3, 6, 8), torch.randn(1, 80, 3, 6, 8), torch.randn(1, 512, 32)
    told = torch.tensor([timestep])
    expected = model_fn_wan_video(dit=theirs, latents=noise, timestep=told, context=text, y=buffers)
    actual = ours(noise, told, TextContext(tokens=text), buffers)
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)  # they take sines in float64


def test_vae_whole_and_tiled(vaes) -> None:
    theirs, ours = vaes
    rgb = torch.rand(1, 3, 9, 64, 96) * 2 - 1
    size, stride = (4, 6), (2, 3)
    for tiling in (None, Tiling(size=size, stride=stride)):
        options = {"tiled": tiling is not None, "tile_size": size, "tile_stride": stride}
        latents = theirs.encode(rgb, "cpu", **options)
        torch.testing.assert_close(ours.encode(rgb, tiling=tiling), latents, atol=5e-6, rtol=1e-5)
        pictures = theirs.decode(latents, "cpu", **options)
        assert latents.std() > 0.05 and pictures.std() > 0.05
        torch.testing.assert_close(ours.decode(latents, tiling=tiling), pictures, atol=2e-5, rtol=1e-5)


def test_text_encoder(tmp_path: Path) -> None:
    from diffsynth.models.wan_video_text_encoder import WanTextEncoder

    theirs = shaken(WanTextEncoder(vocab=64, dim=32, dim_attn=32, dim_ffn=48, num_heads=4, num_layers=2, dropout=0.0))
    ours = load_part(MODEL.part("text_encoder"), saved(theirs, tmp_path / "t5.safetensors"))
    ids = torch.randint(2, 64, (1, TEXT_TOKENS))
    for real in (41, 300):
        mask = (torch.arange(TEXT_TOKENS) < real).long()[None]
        expected = theirs(ids, mask)[:, :real]
        actual = ours(input_ids=ids, attention_mask=mask).last_hidden_state[:, :real]
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


def test_whole_loop_with_injected_noise(transformers, vaes) -> None:
    from diffsynth.diffusion.flow_match import FlowMatchScheduler
    from diffsynth.pipelines.wan_video import model_fn_wan_video

    scheduler = FlowMatchScheduler("Wan")
    scheduler.set_timesteps(5, denoising_strength=1.0, shift=5.0)
    noise, positive, negative = torch.randn(1, 16, 2, 4, 6), torch.randn(1, 512, 32), torch.randn(1, 512, 32)
    planes = {
        name: torch.randint(0, 256, (5, 3, 32, 48), dtype=torch.uint8)
        for name in ("albedo", "depth", "metallic", "normal", "roughness")
    }
    videos = [to_signed(value, torch.float32) for value in planes.values()]
    y = torch.cat([vaes[0].encode(video, "cpu") for video in videos], 1)
    x = noise
    for step, timestep in enumerate(scheduler.timesteps):
        told = timestep[None].bfloat16().float()
        pair = [
            model_fn_wan_video(dit=transformers[0], latents=x, timestep=told, context=context, y=y)
            for context in (positive, negative)
        ]
        x = scheduler.step(pair[1] + 5 * (pair[0] - pair[1]), scheduler.timesteps[step], x)
    teacher = ForwardTeacher(transformers[1], vaes[1], TeacherConfig(steps=5, tiling=None))
    buffers = teacher.encode(planes)
    latents = teacher.denoise(noise, buffers, TextContext(tokens=positive), TextContext(tokens=negative))
    torch.testing.assert_close(buffers, y, atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(latents, x, atol=2e-4 * x.std().item(), rtol=1e-4)
    assert torch.tensor(teacher.config.schedule.sigmas(5)[:-1]).allclose(scheduler.sigmas, atol=1e-6)


def test_prompts_are_cleaned_alike() -> None:
    from diffsynth.models.wan_video_text_encoder import basic_clean, whitespace_clean

    texts = [
        "a &amp;lt; b  \n\t c",
        "\u201cquotes\u201d \ufb01ne e\u0301",
        "\u3000wide\uff21\uff01",
        "d\u2026 &lt;b&gt;",
    ]
    for text in [*texts, *(style for style in STYLES.values() if style)]:
        assert clean(text) == whitespace_clean(basic_clean(text))
