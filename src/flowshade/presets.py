"""Every named configuration, as a function that returns it whole."""

from __future__ import annotations

from flowshade.codec.decoder import DecoderConfig
from flowshade.codec.encoder import BufferEncoderConfig, PictureEncoderConfig
from flowshade.inverse.network import InverseConfig
from flowshade.renderer.memory import HistoryBand
from flowshade.renderer.renderer import RendererConfig
from flowshade.renderer.transformer import TransformerConfig
from flowshade.training.distill.loop import LoopConfig
from flowshade.training.inverse import InverseModelsConfig
from flowshade.training.pool import ClipSpec
from flowshade.training.stages import ModelsConfig, StageConfig, StageName
from flowshade.training.trainer import TrainConfig


def compact_renderer() -> RendererConfig:
    """The model that ships: runs on two CPU cores, streams at 240x416. Weights from before `refined` begin it where
    they were."""
    return RendererConfig(name="compact", decoder=DecoderConfig(refined=True))


def compact_picture_encoder() -> PictureEncoderConfig:
    """Makes the compact model's training targets."""
    return PictureEncoderConfig()


def debug_renderer() -> RendererConfig:
    """The compact model's shape at a size that trains in seconds, for 48x80 pictures."""
    return RendererConfig(
        name="debug",
        encoder=BufferEncoderConfig(branches=(4, 4, 4, 4, 4, 4, 4), width=16, channels=16),
        decoder=DecoderConfig(
            latent_channels=8,
            width=16,
            carry=8,
            quarter=16,
            carry_half=8,
            half=16,
            guide_quarter=8,
            guide_half=8,
            refined=True,
        ),
        transformer=TransformerConfig(
            latent_channels=8,
            buffer_channels=16,
            heads=2,
            head_dim=16,
            rope_dims=(4, 6, 6),
            layers=2,
            ffn_dim=64,
            freq_dim=32,
            long=HistoryBand(frames=4, patch=(2, 2, 2), pool=(2, 2, 2)),
            mid=HistoryBand(frames=2, patch=(2, 2, 2)),
            short=HistoryBand(frames=1, patch=(1, 2, 2)),
            history_width=8,
            cross_attention_heads=1,
        ),
        steps=2,
        window=8,
    )


def debug_picture_encoder() -> PictureEncoderConfig:
    """Makes the debug model's training targets."""
    return PictureEncoderConfig(width=16, blocks=1, latent_channels=8)


def compact_inverse() -> InverseConfig:
    """The inverse that ships: about 2.7M parameters. Weights from before `refined` begin it where they were."""
    return InverseConfig(refined=True)


def debug_inverse() -> InverseConfig:
    """The inverse's shape at a size that trains in seconds."""
    return InverseConfig(
        name="debug-inverse", half=8, quarter=12, eighth=16, kept=8, heads=2, head_dim=16, rope_dims=(4, 6, 6),
        layers=2, refined=True,
    )  # fmt: skip


def debug_training() -> TrainConfig:
    """Every stage on two CPU cores in about a minute."""
    stages: tuple[tuple[StageName, int], ...] = (("codec", 40), ("regression", 30), ("flow", 30), ("rollout", 30))
    return TrainConfig(
        name="debug",
        models=ModelsConfig(renderer=debug_renderer(), picture_encoder=debug_picture_encoder()),
        stages=tuple(
            StageConfig(name=name, steps=steps, batch=2, latents=4, windows=(1, 2), learning_rate=2e-3, ema=0.9)
            for name, steps in stages
        ),
        clips=ClipSpec(size=(48, 80), frames=16, looks=2, samples=1),
        capacity=8,
        first_clips=4,
        refresh=40,
        warmup=10,
        log_every=10,
    )


def compact_training() -> TrainConfig:
    """All stages of the model that ships; a second GPU, if there is one, traces the clips.

    The rollouts need no picture encoder, so that training goes on from a file of weights:
    `--start src/flowshade/weights/compact.safetensors --stages rollout` takes about twenty minutes on one GPU, which
    first traces for itself and is lent a clip's time every few seconds from then on. The shipped weights had the stage
    three times over, on direct light (docs/log.md).
    """
    return TrainConfig(
        name="compact",
        models=ModelsConfig(renderer=compact_renderer(), picture_encoder=compact_picture_encoder()),
        stages=(
            StageConfig(name="codec", steps=6000, seconds=160, batch=8, latents=4, learning_rate=1e-3, switch=0.0),
            StageConfig(name="regression", steps=4000, seconds=120, batch=4, learning_rate=6e-4),
            StageConfig(name="flow", steps=10000, seconds=150, batch=6, learning_rate=5e-4),
            StageConfig(
                name="rollout",
                steps=20000,
                seconds=880,
                batch=24,
                learning_rate=4e-4,
                latent=0.0,
                lpips=0.2,
                border=2.0,
                drop=0.25,
                drop_sun=0.6,
                large=0.25,
            ),
        ),
        clips=ClipSpec(
            kinds=("street", "hills", "yard", "rooms", "harbour"), path_traced=1.0, paths=8, large_share=0.12
        ),
        capacity=240,
        first_clips=48,
        first_seconds=240,
        interval=5.0,
        workers=8,
        device="cuda",
        autocast=True,
        tune=False,
    )


def debug_inverse_training() -> TrainConfig:
    """The inverse on two CPU cores in half a minute."""
    return TrainConfig(
        name="debug-inverse",
        models=InverseModelsConfig(inverse=debug_inverse()),
        stages=(StageConfig(name="inverse", steps=120, batch=2, latents=4, windows=(1,), learning_rate=2e-3, ema=0.9),),
        clips=ClipSpec(size=(48, 80), frames=16, looks=2, samples=1),
        capacity=8,
        first_clips=4,
        refresh=40,
        warmup=10,
        log_every=10,
    )


def compact_inverse_training() -> TrainConfig:
    """The inverse that ships, in about twenty minutes; clips are traced first, or by a second GPU if there is one.

    Meant to go on from the shipped weights: `--start src/flowshade/weights/compact-inverse.safetensors`. Clips are no
    longer than the runs that are drawn from them, since more worlds teach it more than more moments of the same.
    """
    return TrainConfig(
        name="compact-inverse",
        models=InverseModelsConfig(inverse=compact_inverse()),
        stages=(
            StageConfig(
                name="inverse",
                steps=40000,
                seconds=1150,
                batch=16,
                latents=6,
                windows=(1, 2),
                learning_rate=7e-4,
                switch=0.0,
            ),
        ),
        clips=ClipSpec(
            kinds=("street", "hills", "yard", "rooms", "harbour"), frames=24, path_traced=0.3, paths=8, varied=0.35
        ),
        capacity=1100,
        first_clips=48,
        first_seconds=150,
        interval=0.7,
        workers=10,
        device="cuda",
        autocast=True,
        tune=False,
    )


def codec_distillation() -> dict[str, LoopConfig]:
    """The small codecs from Wan's VAE, at Flash's size: the stages in order."""
    return {
        "encoder": LoopConfig(updates=30_000, batch=16, learning_rate=3e-4),
        "decoder": LoopConfig(updates=30_000, batch=8, learning_rate=2e-4),
    }


def flash_distillation() -> dict[str, LoopConfig]:
    """The few-step student from the forward teacher, at Flash's size: the stages in order."""
    return {
        "flow": LoopConfig(updates=6_000, batch=32, learning_rate=5e-5, ema=0.995),
        "rollout": LoopConfig(updates=3_000, batch=16, learning_rate=2e-5, ema=0.995, evaluate_every=500),
    }


TRAININGS = {
    "debug": debug_training,
    "compact": compact_training,
    "debug-inverse": debug_inverse_training,
    "compact-inverse": compact_inverse_training,
}
"""Training presets by name."""
