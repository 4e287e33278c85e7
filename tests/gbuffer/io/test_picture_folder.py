import numpy as np
import pytest
import torch

from flowshade.gbuffer.io import ClipError, open_clip
from flowshade.gbuffer.io.pictures import read_png, write_png

SIZE = (5, 7)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "clip"


def picture(seed: int, planes: int = 3, dtype=np.uint8, size=SIZE) -> np.ndarray:
    shape = size if planes == 1 else (*size, planes)
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def save(path, values) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, values)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("planes", [1, 3])
def test_png_files_are_exact_and_red_first(tmp_path, dtype, planes):
    values = picture(0, planes, dtype)
    write_png(tmp_path / "a.png", values)
    assert np.array_equal(read_png(tmp_path / "a.png"), values) and read_png(tmp_path / "a.png").dtype == dtype
    from PIL import Image

    if dtype == np.uint8:
        assert np.array_equal(np.array(Image.open(tmp_path / "a.png")), values)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(
    "name", ["{c}/{n:04d}.png", "{c}_{n:04d}.png", "{c}/{n}.png", "{n}.{c}.png", "shot3_{c}_{n}.png"]
)
def test_layouts_and_number_order(folder, name):
    for number in range(8, 12):
        save(folder / name.format(c="Roughness", n=number), picture(number, 1))
        save(folder / name.format(c="basecolor", n=number), picture(number, 3))
    clip = open_clip(folder)
    assert clip.info.channels == ("albedo", "roughness") and clip.info.frames == 4
    expected = np.stack([picture(number, 1) for number in range(8, 12)])
    assert np.array_equal((clip.read().roughness[:, 0] * 255).round().numpy(), expected)


@pytest.mark.parametrize(("dtype", "top"), [(np.uint8, 255), (np.uint16, 65535)])
def test_both_bit_depths_reach_one(folder, dtype, top):
    save(folder / "metallic" / "1.png", np.full(SIZE, top, dtype))
    save(folder / "roughness" / "1.png", np.full(SIZE, top // 5, dtype))
    found = open_clip(folder).read()
    assert (found.metallic == 1).all() and torch.allclose(found.roughness, torch.tensor(0.2))


def test_depth_needs_its_code(folder):
    save(folder / "depth" / "1.png", np.full(SIZE, 2500, np.uint16))
    with pytest.raises(ClipError, match="only depth, whose code is not stated; expected depth_code='inverse:10'"):
        open_clip(folder)
    save(folder / "metallic" / "1.png", picture(0, 1))
    without = open_clip(folder)
    assert without.read().depth is None and "depth" in without.info.missing
    assert any("16-bit code, which is not stated" in text for text in without.info.warnings)
    assert (open_clip(folder, depth_code="unit:0.001").read().depth == 2.5).all()


def test_grey_stored_as_colour(folder):
    grey = picture(0, 1)
    save(folder / "roughness" / "1.png", np.repeat(grey[..., None], 3, 2))
    assert np.array_equal((open_clip(folder).read().roughness[0, 0] * 255).round().numpy(), grey)
    save(folder / "roughness" / "1.png", picture(0, 3))
    with pytest.raises(ClipError, match="three different planes; roughness expected one"):
        open_clip(folder).read()


def test_colour_stored_as_grey(folder):
    save(folder / "albedo" / "1.png", picture(0, 1))
    with pytest.raises(ClipError, match="'albedo' has 1 planes; expected 3"):
        open_clip(folder).read()


def test_alpha_is_dropped_and_said(folder):
    from PIL import Image

    (folder / "albedo").mkdir(parents=True)
    Image.fromarray(picture(0, 4), "RGBA").save(folder / "albedo" / "1.png")
    clip = open_clip(folder)
    assert any("alpha plane, which is dropped" in text for text in clip.info.warnings)
    assert np.array_equal(clip.coded()["albedo"][0].numpy(), picture(0, 4)[..., :3].transpose(2, 0, 1))


def test_reference_pictures(folder):
    save(folder / "albedo_1.png", picture(1))
    save(folder / "rgb_1.png", picture(2))
    found = open_clip(folder).reference()
    assert np.array_equal((found[0] * 255).round().numpy(), picture(2).transpose(2, 0, 1))


def test_assumptions_are_said_until_they_are_given(folder):
    save(folder / "albedo_1.png", picture(1))
    save(folder / "normal_1.png", picture(2))
    assert len(open_clip(folder).info.warnings) == 3  # albedo, normals, frame rate
    assert open_clip(folder, albedo_code="linear", normal_axes="directx", fps=30).info.warnings == ()
    with pytest.raises(ClipError, match="normal_axes='left' is unknown"):
        open_clip(folder, normal_axes="left")


def test_channels_must_agree(folder):
    for number in (1, 2, 3):
        save(folder / f"albedo_{number}.png", picture(number))
    save(folder / "roughness_1.png", picture(1, 1))
    with pytest.raises(ClipError, match=r"albedo 3 frames \(1 to 3\); roughness 1 frames \(1 to 1\)"):
        open_clip(folder)
    for number in (1, 2, 3):
        save(folder / f"roughness_{number}.png", picture(1, 1, size=(5, 9)))
    with pytest.raises(ClipError, match=r"differ in size \(albedo 5x7, roughness 5x9\)"):
        open_clip(folder)


def test_files_must_agree_within_a_channel(folder):
    save(folder / "roughness_1.png", picture(1, 1))
    save(folder / "roughness_2.png", picture(1, 1, np.uint16))
    save(folder / "roughness_3.png", picture(1, 1, size=(6, 7)))
    clip = open_clip(folder)
    with pytest.raises(ClipError, match="is uint16 and the first roughness file uint8"):
        clip.read(1, 2)
    with pytest.raises(ClipError, match=r"is \(6, 7\) and the clip \(5, 7\)"):
        clip.read(2, 3)
    (folder / "roughness_2.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(ClipError, match="cannot be read as a PNG"):
        clip.read(1, 2)


def test_gaps_and_unknown_names(folder):
    save(folder / "albedo_1.png", picture(1))
    save(folder / "albedo_3.png", picture(1))
    with pytest.raises(ClipError, match="frames 2 are missing between 1 and 3"):
        open_clip(folder)
    save(folder.parent / "holiday" / "beach.png", picture(1))
    with pytest.raises(ClipError, match="such as beach.png, none named after a channel"):
        open_clip(folder.parent / "holiday")
    save(folder.parent / "rgbs" / "rgb_1.png", picture(1))
    with pytest.raises(ClipError, match="holds only pictures"):
        open_clip(folder.parent / "rgbs")


def test_smoothness_is_turned_round(folder):
    save(folder / "smoothness_1.png", np.full(SIZE, 51, np.uint8))
    clip = open_clip(folder)
    assert clip.info.channels == ("roughness",) and torch.allclose(clip.read().roughness, torch.tensor(0.8))
    assert (clip.coded()["roughness"] == 204).all() and "roughness is one minus smoothness." in clip.info.warnings
    save(folder / "roughness_1.png", np.full(SIZE, 51, np.uint8))
    assert torch.allclose(open_clip(folder).read().roughness, torch.tensor(0.2))


def test_a_channel_twice(folder):
    save(folder / "albedo" / "1.png", picture(1))
    save(folder / "basecolor" / "1.png", picture(1))
    with pytest.raises(ClipError, match="holds albedo twice"):
        open_clip(folder)


def test_upstream_planes_are_bytes_or_an_error(folder):
    save(folder / "roughness_1.png", picture(1, 1))
    coded = open_clip(folder).coded()["roughness"]
    assert coded.dtype == torch.uint8 and np.array_equal(coded[0].numpy(), np.stack([picture(1, 1)] * 3))
    save(folder / "roughness_1.png", picture(1, 1, np.uint16))
    with pytest.raises(ClipError, match="roughness are not 8 bit"):
        open_clip(folder).coded()
