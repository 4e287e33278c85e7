"""Values in place of a preset's, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from flowshade.errors import FlowshadeError
from flowshade.presets import compact_training
from flowshade.training.settings import changed


def test_values_are_replaced_by_path() -> None:
    config = compact_training()
    new = changed(
        config,
        [
            "interval=2",
            "compile=true",
            "clips.path_traced=0",
            'clips.kinds=["rooms"]',
            "clips.size=[48,80]",
            "rollout.lpips=0.5",
            "codec.seconds=null",
            "flow.seconds=9",
            "models.renderer.decoder.refined=false",
            "device=cpu",
        ],
    )
    assert new.interval == 2.0 and isinstance(new.interval, float)
    assert new.compile is True and new.device == "cpu"
    assert new.clips == dataclasses.replace(config.clips, path_traced=0.0, kinds=("rooms",), size=(48, 80))
    codec, regression, flow, rollout = config.stages
    assert new.stages == (
        dataclasses.replace(codec, seconds=None),
        regression,
        dataclasses.replace(flow, seconds=9.0),
        dataclasses.replace(rollout, lpips=0.5),
    )
    renderer = config.models.renderer  # pyright: ignore[reportAttributeAccessIssue]
    expected = dataclasses.replace(renderer, decoder=dataclasses.replace(renderer.decoder, refined=False))
    assert new.models.renderer == expected  # pyright: ignore[reportAttributeAccessIssue]
    assert changed(config, []) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("interval", "NAME=VALUE"),
        ("=2", "NAME=VALUE"),
        ("intervall=2", "no setting 'intervall'.*interval"),
        ("rollout.lpipz=2", "no setting 'rollout.lpipz'.*lpips"),
        ("clips=2", "no setting 'clips'"),
        ("rollout=2", "no setting 'rollout'"),
        ("interval.seconds=2", "no setting"),
        ("stages.lpips=2", "no setting"),
        ("stages=[]", "expected"),
        ("interval=often", 'got "often"; expected float'),
        ("compile=1", "got 1; expected bool"),
        ("capacity=2.5", "got 2.5; expected int"),
        ("capacity=true", "got true; expected int"),
        ("capacity=null", "got null; expected int"),
        ("clips.size=[48]", "expected tuple"),
        ('clips.kinds=["rooms",3]', "got 3; expected str"),
        ("rollout.name=flaw", 'got "flaw"; expected'),
    ],
)
def test_what_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(FlowshadeError, match=message):
        changed(compact_training(), [assignment])
