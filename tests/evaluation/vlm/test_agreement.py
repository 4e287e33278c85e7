"""Agreement with people."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowshade.errors import FlowshadeError
from flowshade.evaluation.vlm.agreement import human_agreement, read_human_ranks, self_agreement

HEAD = "clip,channel,axis,method,rank,rater\n"


def written(path: Path, lines: str, head: str = HEAD) -> Path:
    path.write_text(head + lines)
    return path


def people(tmp_path: Path, *orders: str, clip: str = "one") -> Path:
    """Each rater an order of methods, best first."""
    lines = [
        f"{clip},roughness,semantic,{method},{rank},{rater}\n"
        for rater, order in enumerate(orders)
        for rank, method in enumerate(order, 1)
    ]
    return written(tmp_path / "people.csv", "".join(lines))


BLOCKS = {"one": {"x": 1.0, "y": 2.0, "z": 3.0}, "two": {"x": 2.0, "y": 1.0, "z": 3.0}}


def test_agreement_is_one_minus_one_or_between(tmp_path: Path) -> None:
    for order, tau in (("xyz", 1.0), ("zyx", -1.0), ("yxz", pytest.approx(1 / 3))):
        found = human_agreement(read_human_ranks(people(tmp_path, order)), "roughness", "semantic", BLOCKS, seed=0)
        assert found is not None
        assert found["clips"] == 1
        assert found["kendall"]["mean"] == tau
        assert found["overall_kendall"] == tau
        assert "between_raters" not in found


def test_raters_are_averaged_and_compared(tmp_path: Path) -> None:
    found = human_agreement(
        read_human_ranks(people(tmp_path, "xyz", "xyz", "yxz")), "roughness", "semantic", BLOCKS, seed=0
    )
    assert found is not None
    assert found["kendall"]["mean"] == 1
    assert found["raters"] == 3
    assert found["between_raters"] == pytest.approx((1 + 1 / 3 + 1 / 3) / 3)


def test_other_channels_axes_and_clips_do_not_count(tmp_path: Path) -> None:
    ranks = read_human_ranks(people(tmp_path, "xyz"))
    assert human_agreement(ranks, "metallic", "semantic", BLOCKS, seed=0) is None
    assert human_agreement(ranks, "roughness", "temporal", BLOCKS, seed=0) is None
    assert human_agreement(ranks, "roughness", "semantic", {"else": BLOCKS["one"]}, seed=0) is None


@pytest.mark.parametrize(
    ("head", "lines", "said"),
    [
        ("clip,channel,axis,method\n", "one,roughness,semantic,x\n", "no column 'rank'"),
        (HEAD, "one,gloss,semantic,x,1,\n", "line 2: channel 'gloss'"),
        (HEAD, "one,roughness,beauty,x,1,\n", "line 2: axis 'beauty'"),
        (HEAD, "one,roughness,semantic,x,first,\n", "line 2: rank 'first'"),
        (HEAD, "one,roughness,semantic,x,0,\n", "line 2: rank '0'"),
        (HEAD, "one,roughness,semantic,x,nan,\n", "line 2: rank 'nan'"),
        (HEAD, "one,roughness,semantic,x,1,a\none,roughness,semantic,x,2,a\n", "twice"),
        ("", "", "no column 'clip'"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, head: str, lines: str, said: str) -> None:
    with pytest.raises(FlowshadeError, match=said):
        read_human_ranks(written(tmp_path / "people.csv", lines, head))


def test_repeats_agree_or_do_not() -> None:
    same = {"a": 1.0, "b": 2.0}
    turned = {"a": 2.0, "b": 1.0}
    assert self_agreement({"one": [same, same], "two": [same, turned]}, 0)["mean"] == 0  # pyright: ignore
    assert self_agreement({"one": [same]}, 0) is None
