"""The 7B inverse from its files: AlayaRenderer's fine-tune, or NVIDIA's Cosmos DiffusionRenderer itself."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import torch

from flowshade.checkpoints.catalogue import MODELS, Model
from flowshade.checkpoints.loading import find_parts, load_part
from flowshade.device import choose_device, free_memory
from flowshade.errors import FlowshadeError, MissingDependencyError
from flowshade.inverse.cosmos import CosmosDecoder, CosmosEncoder, CosmosNetwork, LatentStatistics
from flowshade.inverse.diffusion import DiffusionConfig, DiffusionInverse
from flowshade.progress import Progress

DIFFUSION_INVERSES = ("alaya-inverse", "cosmos-inverse")
"""Names of inverses that `load_diffusion_inverse` loads."""


def load_diffusion_inverse(
    model: Model | str,
    path: Path | str | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    config: DiffusionConfig | None = None,
    progress: Progress | None = None,
) -> DiffusionInverse:
    """Loads a 7B inverse, strictly.

    Args:
        model: one of `DIFFUSION_INVERSES`, or a model of the same parts.
        path: the folder of its files (upstream's `checkpoints`, too), or its transformer's file with the tokenizer's
            folder beside it; None looks where `models pull` puts them.
        device: where it runs; None takes a GPU when there is one.
        dtype: type of weights and activations; None takes bfloat16 on a GPU and float32 on a CPU. The tokenizer stays
            float32 on a CPU, where PyTorch lacks a pooling that it needs in other types.
        config: how it is run, by default as upstream runs it; its name is replaced by the model's.
        progress: see `DiffusionInverse`.

    Raises:
        CheckpointError: files that are missing, or are not what they should be.
        MissingDependencyError: a package that it needs is not installed.
        FlowshadeError: an unknown device, or one with less free memory than the weights take.
    """
    model = MODELS[model] if isinstance(model, str) else model
    config = dataclasses.replace(config or DiffusionConfig(), name=model.name)
    chosen = choose_device(device)
    dtype = dtype or default_dtype(chosen)
    check_requirements(model)
    paths = find_parts(model, None if path is None else Path(path))
    home = torch.device("cpu") if config.offload else chosen
    codec_dtype = torch.float32 if chosen.type == "cpu" else dtype
    check_memory(model, chosen, dtype, codec_dtype, offload=config.offload)
    network = load_part(model.part("transformer"), paths["transformer"], device=home, dtype=dtype)
    encoder = load_part(model.part("encoder"), paths["encoder"], device=home, dtype=codec_dtype)
    decoder = load_part(model.part("decoder"), paths["decoder"], device=home, dtype=codec_dtype)
    statistics = load_part(model.part("statistics"), paths["statistics"], dtype=torch.float32)
    assert isinstance(network, CosmosNetwork) and isinstance(encoder, CosmosEncoder)
    assert isinstance(decoder, CosmosDecoder) and isinstance(statistics, LatentStatistics)
    return DiffusionInverse(network, encoder, decoder, statistics, config, device=chosen, progress=progress)


def default_dtype(device: torch.device) -> torch.dtype:
    """Of weights and activations: bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def check_requirements(model: Model) -> None:
    """Raises MissingDependencyError if a package that a model's networks need is not installed."""
    for package, extra in model.requires:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"{model.name} needs {package}, which is not installed; install it with: pip install "
                f"'flowshade[{extra}]'"
            )


def check_memory(
    model: Model, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype, *, offload: bool
) -> None:
    """Refuses to load what cannot fit; what is computed with comes on top.

    Args:
        model: a diffusion inverse.
        device: where it runs.
        dtype: of its transformer.
        codec_dtype: of its tokenizer.
        offload: networks lie in host memory and come to the device in turn.

    Raises:
        FlowshadeError: weights that exceed the free memory of the device, or with `offload` of the host.
    """
    sizes = {
        "transformer": _bytes_of(model, "transformer", dtype),
        "encoder": _bytes_of(model, "encoder", codec_dtype),
        "decoder": _bytes_of(model, "decoder", codec_dtype),
    }
    needs = [(device, max(sizes.values()) if offload else sum(sizes.values()))]
    needs += [(torch.device("cpu"), sum(sizes.values()))] if offload and device.type != "cpu" else []
    for where, needed in needs:
        free = free_memory(where)
        if free is not None and needed > free:
            remedy = (
                "with offload (--offload) they lie in host memory, " if where.type == "cuda" and not offload else ""
            )
            raise FlowshadeError(
                f"the weights of {model.name} take {needed / 2**30:.1f} GiB in {str(dtype).removeprefix('torch.')}, "
                f"and {where} has {free / 2**30:.1f} GiB free; {remedy}or use the compact inverse. What it needs in "
                f"all: flowshade budget --model {model.name}"
            )


def _bytes_of(model: Model, role: str, dtype: torch.dtype) -> int:
    build = model.part(role).build
    assert build is not None
    with torch.device("meta"):
        network = build({})
    return sum(value.numel() for value in network.state_dict().values()) * dtype.itemsize
