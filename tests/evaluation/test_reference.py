"""Which picture a renderer is compared with and trained on: one parameter, direct light or path-traced."""

from __future__ import annotations

import dataclasses

import torch

from flowshade.evaluation.worlds import WorldSuite, reference_clip
from flowshade.gbuffer.look import LOOKS
from flowshade.presets import debug_renderer
from flowshade.training.captions import LookBank
from flowshade.training.pool import ClipSpec, trace_clip

SIZE = (16, 32)


def test_evaluation_compares_with_either_reference() -> None:
    suite = WorldSuite(size=SIZE, frames=2, looks=("overcast", "night"))
    direct = reference_clip(suite, 0, "cpu")
    paths = reference_clip(dataclasses.replace(suite, reference="paths"), 0, "cpu")
    assert list(direct.pictures) == list(paths.pictures) == ["overcast", "night"]
    for name in suite.looks:
        difference = (direct.pictures[name] - paths.pictures[name]).abs().mean()
        assert 1e-3 < difference < 0.1, (name, difference)
    for name, channel in direct.gbuffer.channels().items():
        assert torch.equal(channel, paths.gbuffer.channels()[name]), name


def test_training_pairs_come_with_either_reference() -> None:
    bank = LookBank(looks=(LOOKS["overcast"],), captions=((0,),), kinds=(None,))
    profile = debug_renderer().profile
    spec = ClipSpec(size=SIZE, frames=4, looks=1)
    direct, paths = (
        trace_clip("street", 3, bank, dataclasses.replace(spec, path_traced=share), profile, "cpu")
        for share in (0.0, 1.0)
    )
    assert torch.equal(direct.surface, paths.surface) and torch.equal(direct.depth, paths.depth)
    assert 0.3 < (direct.rgb.float() - paths.rgb.float()).abs().mean() < 25
