"""The forward teacher, tiny and random: upstream's order of steps, against diffusers' classes and scheduler."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flowshade.codec.wan_vae import Tiling, WanVAE, WanVAEConfig
from flowshade.errors import PromptError
from flowshade.renderer.teacher import (
    NEGATIVE_PROMPT,
    STYLES,
    ForwardTeacher,
    TeacherConfig,
    fit,
    plan_windows,
    style_prompt,
    to_signed,
)
from flowshade.renderer.transformer import TextContext, WorldTransformer
from flowshade.renderer.umt5 import Umt5Encoder, clean
from flowshade.renderer.upstream import BUFFERS, TextEncoderConfig, forward_transformer, text_encoder

TRANSFORMER = forward_transformer(
    latent_channels=4,
    buffer_channels=20,
    heads=2,
    head_dim=24,
    rope_dims=(8, 8, 8),
    layers=2,
    ffn_dim=32,
    text_dim=16,
    freq_dim=16,
)
VAE = WanVAEConfig(
    base_dim=4, z_dim=4, num_res_blocks=1, latents_mean=(0.1, 0.0, -0.1, 0.2), latents_std=(1.0, 2.0, 1.5, 0.5)
)
STEPS = TeacherConfig(steps=4, tiling=None, window=9, overlap=5)


def shaken(model: nn.Module, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else scale / parameter[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def teacher() -> ForwardTeacher:
    return ForwardTeacher(shaken(WorldTransformer(TRANSFORMER)), shaken(WanVAE(VAE), 1.5), STEPS)


def planes(frames: int = 9, size: tuple[int, int] = (32, 48), seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(0, 256, (frames, 3, *size), generator=generator, dtype=torch.uint8) for name in BUFFERS}


def text(seed: int, batch: int = 1) -> TextContext:
    return TextContext(tokens=torch.randn(batch, 6, 16, generator=torch.Generator().manual_seed(seed)))


def test_the_whole_loop_equals_diffusers(teacher: ForwardTeacher) -> None:
    pytest.importorskip("diffusers")
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

    network = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, in_channels=24, out_channels=4, num_layers=2, ffn_dim=32,
        text_dim=16, freq_dim=16,
    ).eval()  # fmt: skip
    state = teacher.transformer.state_dict()
    state["scale_shift_table"] = state.pop("norm_out.scale_shift_table")
    network.load_state_dict(state, strict=True)
    vae = AutoencoderKLWan(base_dim=4, z_dim=4, num_res_blocks=1).eval()
    vae.load_state_dict(teacher.vae.state_dict(), strict=True)
    mean, std = (torch.tensor(values)[:, None, None, None] for values in (VAE.latents_mean, VAE.latents_std))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=5)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 0, 5)[:-1].tolist())
    given, positive, negative = planes(), text(1), text(2)
    with torch.no_grad():
        videos = [to_signed(given[name], torch.float32) for name in BUFFERS]
        condition = torch.cat([(vae.encode(video).latent_dist.mode() - mean) / std for video in videos], 1)
        x = noise = torch.randn(1, 4, 3, 4, 6, generator=torch.Generator().manual_seed(3))
        for timestep in scheduler.timesteps:
            told = timestep[None].bfloat16().float()
            pair = [
                network(torch.cat([x, condition], 1), told, context.tokens, return_dict=False)[0]
                for context in (positive, negative)
            ]
            x = scheduler.step(pair[1] + 5 * (pair[0] - pair[1]), timestep, x, return_dict=False)[0]
        pictures = vae.decode(x * std + mean, return_dict=False)[0]
    buffers = teacher.encode(given)
    latents = teacher.denoise(noise, buffers, positive, negative)
    torch.testing.assert_close(buffers, condition, atol=1e-5, rtol=1e-5)
    # Four steps at guidance 5 multiply one step's 4e-6.
    torch.testing.assert_close(latents, x, atol=2e-4 * x.std().item(), rtol=1e-4)
    actual = teacher.decode(latents)[0].permute(3, 0, 1, 2)[None].float()
    expected = ((pictures + 1) * 127.5).clamp(0, 255).floor()
    assert (actual - expected).abs().max() <= 1  # a fraction next to a whole number


def test_timesteps_are_rounded_and_sigmas_are_not(teacher: ForwardTeacher, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    original = WorldTransformer.forward

    def listening(self, latents, timestep, *args, **kwargs):
        told.append(float(timestep[0]))
        return original(self, latents, timestep, *args, **kwargs)

    monkeypatch.setattr(WorldTransformer, "forward", listening)
    config = dataclasses.replace(STEPS, steps=50, cfg_scale=1.0)
    noise = torch.zeros(1, 4, 1, 4, 6)
    ForwardTeacher(teacher.transformer, teacher.vae, config).denoise(noise, torch.zeros(1, 20, 1, 4, 6), text(1), None)
    assert told[:4] == [1000, 996, 992, 988]  # as the released script's bfloat16 has them
    assert len(set(told)) == 50
    sigmas = config.schedule.sigmas(50)
    assert sigmas[49] == pytest.approx(0.0926, abs=1e-4)  # 0.0244 where the shift is applied twice
    assert sigmas[-1] == 0


def test_reference_mode_keeps_latents_in_the_networks_type(teacher: ForwardTeacher) -> None:
    network = WorldTransformer(TRANSFORMER).bfloat16()
    network.load_state_dict(teacher.transformer.state_dict())
    noise, buffers = torch.randn(1, 4, 3, 4, 6), torch.randn(1, 20, 3, 4, 6)
    results = {}
    for reference in (False, True):
        config = dataclasses.replace(STEPS, reference=reference)
        results[reference] = ForwardTeacher(network, teacher.vae, config).denoise(noise, buffers, text(1), text(2))
    assert (results[False].dtype, results[True].dtype) == (torch.float32, torch.bfloat16)
    error = (results[True].float() - results[False]).abs().max() / results[False].std()
    assert 0 < error < 0.5  # rounding, amplified by guidance


def test_a_batch_of_prompts_equals_one_by_one(teacher: ForwardTeacher) -> None:
    given, negative = planes(), text(9)
    both = TextContext(tokens=torch.cat([text(1).tokens, text(2).tokens]))
    together = torch.cat(list(teacher.render(lambda a, b: given, 9, both, negative)), 1)
    for index in range(2):
        alone = torch.cat(list(teacher.render(lambda a, b: given, 9, text(index + 1), negative)), 1)
        assert (together[index].int() - alone[0].int()).abs().max() <= 1


@pytest.mark.parametrize("frames", [5, 8, 9, 11, 20])
def test_any_length_comes_out_whole(teacher: ForwardTeacher, frames: int) -> None:
    clip, asked = planes(frames), []

    def read(start: int, stop: int) -> dict[str, Tensor]:
        asked.append((start, stop))
        return {name: value[start:stop] for name, value in clip.items()}

    steps: list[tuple[int, int]] = []
    runs = list(teacher.render(read, frames, text(1), text(2), progress=lambda *call: steps.append(call)))
    assert sum(run.shape[1] for run in runs) == frames
    assert max(stop - start for start, stop in asked) <= 9
    assert steps[-1][0] == steps[-1][1] == 4 * len(asked)


def test_windows_overlap_and_reach_the_end() -> None:
    assert plan_windows(81, 81, 17) == [(0, 81)]
    assert plan_windows(80, 81, 17) == [(0, 81)]
    assert plan_windows(82, 81, 17) == [(0, 81), (64, 85)]
    assert plan_windows(200, 81, 17) == [(0, 81), (64, 145), (128, 201)]


def test_a_window_keeps_to_the_one_before(teacher: ForwardTeacher) -> None:
    buffers, noise = torch.randn(1, 20, 4, 4, 6), torch.randn(1, 4, 4, 4, 6)
    held = torch.randn(1, 4, 2, 4, 6)
    free = teacher.denoise(noise, buffers, text(1), text(2))
    kept = teacher.denoise(noise, buffers, text(1), text(2), held=held)
    torch.testing.assert_close(kept[:, :, 1], held[:, :, 0])  # the first shared latent in full
    assert (kept[:, :, 2] - held[:, :, 1]).abs().mean() < (free[:, :, 2] - held[:, :, 1]).abs().mean()


def test_buffers_reach_the_vae_byte_for_byte_at_their_own_size() -> None:
    given = planes(2)["depth"]
    assert fit(given, (32, 48)) is given
    assert torch.equal(((to_signed(given, torch.float32) + 1) * 127.5).round()[0].transpose(0, 1).byte(), given)
    rounding = (to_signed(given, torch.bfloat16).float() - to_signed(given, torch.float32)).abs().max()
    assert rounding <= 0.0040  # upstream's bfloat16
    assert fit(given, (16, 24)).shape == (2, 3, 16, 24)


def test_tiles_are_used(teacher: ForwardTeacher) -> None:
    given = planes()
    tiled = dataclasses.replace(STEPS, tiling=Tiling(size=(2, 4), stride=(1, 2)))
    other = ForwardTeacher(teacher.transformer, teacher.vae, tiled).encode(given)
    assert not torch.allclose(other, teacher.encode(given))


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man walks; the scene is dim, creating a tense atmosphere.", "A man walks; S"),
        ("A man walks, the scene feels cold and grey.", "A man walks; S"),
        ("A road at noon, under low, diffuse lighting, creating a calm mood.", "A road at noon; S"),
        ("A road at noon, creating an eerie atmosphere.", "A road at noon; S"),
        ("A quiet village.", "A quiet village; S"),
    ],
)
def test_captions_take_a_style_by_upstreams_rules(caption: str, expected: str) -> None:
    assert style_prompt(caption, "S") == expected
    assert style_prompt(caption, None) == caption
    assert len(STYLES) == 8 and STYLES["original"] is None


def test_mistakes(teacher: ForwardTeacher) -> None:
    given = planes()
    del given["normal"]
    with pytest.raises(ValueError, match="lacks normal; the teacher takes all of albedo"):
        teacher.encode(given)
    with pytest.raises(ValueError, match="cfg_scale is 5.0; it needs a negative prompt"):
        teacher.denoise(torch.zeros(1, 4, 1, 4, 6), torch.zeros(1, 20, 1, 4, 6), text(1), None)
    with pytest.raises(ValueError, match=r"window is 80 frames; expected 4 n \+ 1"):
        TeacherConfig(window=80)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Umt5Encoder:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    words = ["<pad>", "</s>", "<unk>", "a", "street", "in", "snow", "&"]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = TextEncoderConfig(vocab_size=16, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)
    return Umt5Encoder(shaken(text_encoder(config)), folder)


def test_prompts_are_512_rows_zero_past_their_end(prompts: Umt5Encoder) -> None:
    context = prompts.encode(["a street in snow", "a"])
    assert context.tokens.shape == (2, 512, 16)
    assert context.mask is None  # the zero rows are looked at
    assert [int(row.abs().sum(-1).gt(0).sum()) for row in context.tokens] == [5, 2]
    assert torch.equal(context.tokens[:1], prompts.encode(["a street in snow"]).tokens)
    short = prompts._model(input_ids=torch.tensor([[3, 4, 5, 6, 1]])).last_hidden_state  # padding changes nothing
    torch.testing.assert_close(context.tokens[0, :5], short[0], atol=1e-5, rtol=1e-5)
    with pytest.raises(PromptError, match="513 tokens and the encoder takes 512"):
        prompts.encode(["a " * 512])
    with pytest.raises(PromptError, match="is not a tokenizer"):
        Umt5Encoder(prompts._model, Path("nowhere"))


def test_prompts_are_cleaned_as_ftfy_does() -> None:
    assert clean(NEGATIVE_PROMPT).startswith("色调艳丽,过曝,静态,")  # full-width commas become plain
    assert clean("a\n  b &amp;lt; c") == "a b < c"
    assert clean("\u201cquoted\u201d \ufb01ne e\u0301 \u3000x") == '"quoted" fine \u00e9 x'
