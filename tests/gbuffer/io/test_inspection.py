import pytest
import torch

from flowshade.gbuffer.io import ClipError, inspect_clip, write_clip
from flowshade.gbuffer.io.pictures import read_png
from flowshade.types import GBuffer


def test_ranges_are_those_of_the_whole_clip(tmp_path, make_clip):
    clip = make_clip(19)
    write_clip(tmp_path / "c", clip, 24.0, precision="float32")
    found = inspect_clip(tmp_path / "c")
    for name, value in clip.channels().items():
        finite = value[value.isfinite()].double()
        range_ = found.ranges[name]
        assert (range_.lowest, range_.highest) == (float(finite.min()), float(finite.max())), name
        assert range_.mean == pytest.approx(float(finite.mean()), rel=1e-9)
    assert found.ranges["depth"].infinite_share == pytest.approx(2 / 18)
    assert found.warnings == ()


def test_report_of_the_sample(sample):
    text = str(inspect_clip(sample))
    for part in ("blender", "16 (0.67 s at 24 fps)", "176x320", "missing   none", "camera, rgb", "% sky", "metallic"):
        assert part in text, part
    assert "warning" not in text


def test_sheet(tmp_path, make_clip):
    write_clip(tmp_path / "c", make_clip(9), 24.0, rgb=torch.rand(9, 3, 12, 18))
    found = inspect_clip(tmp_path / "c")
    found.save_sheet(tmp_path / "sheet.png")
    sheet = read_png(tmp_path / "sheet.png")
    assert sheet.shape == tuple(found.sheet.shape)
    assert sheet.shape[1] == 9 * (208 + 4) + 4  # eight channels and the picture in each row
    assert sheet.std() > 10


def test_values_against_the_convention_are_found(tmp_path):
    ones = torch.ones(2, 1, 4, 4)
    clip = GBuffer(
        albedo=torch.full((2, 3, 4, 4), 1.5),
        normal=torch.full((2, 3, 4, 4), 1.0),
        depth=ones * 5000,
        roughness=ones * torch.nan,
        metallic=-ones,
    )
    write_clip(tmp_path / "c", clip, 24.0)
    text = "\n".join(inspect_clip(tmp_path / "c").warnings)
    for part in (
        "albedo leaves [0, 1]",
        "metallic leaves [0, 1]",
        "depth starts at 5000 m",
        "normals are up to 1.73 long",
        "roughness holds 32 NaN",
        "albedo is the same everywhere",
    ):
        assert part in text, part
    write_clip(tmp_path / "sky", GBuffer(depth=ones * torch.inf), 24.0)
    assert "depth is sky everywhere" in inspect_clip(tmp_path / "sky").warnings[0]
    write_clip(tmp_path / "behind", GBuffer(depth=-ones), 24.0)
    assert "depth goes down to -1 m" in inspect_clip(tmp_path / "behind").warnings[0]


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ClipError, match="nothing is there"):
        inspect_clip(tmp_path / "absent")
