import pytest
import torch

from flowshade.gbuffer.view import (
    channel_picture,
    contact_sheet,
    resize_pictures,
    side_by_side,
)
from flowshade.types import CHANNELS, GBuffer


def one(channel: str, values: list[float]) -> GBuffer:
    value = torch.tensor(values).reshape(1, -1, 1, 1)
    return GBuffer(**{channel: value.int() if channel == "instance" else value})


@pytest.mark.parametrize(
    ("channel", "values", "expected"),
    [
        ("albedo", [0.0, 0.214, 1.0], [0, 127, 255]),
        ("normal", [0.0, 0.0, 1.0], [128, 128, 255]),
        ("normal", [0.0, 0.0, 0.0], [0, 0, 0]),
        ("depth", [0.0], [255] * 3),
        ("depth", [10.0], [128] * 3),
        ("depth", [30.0], [64] * 3),
        ("depth", [float("inf")], [0] * 3),
        ("roughness", [0.2], [51] * 3),
        ("metallic", [1.0], [255] * 3),
        ("metallic", [float("nan")], [0] * 3),
        ("emission", [0.0, 1.0, 900.0], [0, 255, 255]),
        ("motion", [0.0, 0.0], [128, 128, 128]),
        ("motion", [16.0, -16.0], [255, 0, 255]),
        ("instance", [0], [0, 0, 0]),
    ],
)
def test_codes_are_fixed(channel, values, expected):
    picture = channel_picture(one(channel, values), channel)
    assert picture.dtype == torch.uint8
    assert picture.flatten().tolist() == expected


def test_instances_differ_in_colour():
    ids = torch.arange(1, 65, dtype=torch.int32).reshape(1, 1, 8, 8)
    colours = channel_picture(GBuffer(instance=ids), "instance").reshape(-1, 3)
    assert len(colours.unique(dim=0)) == 64
    assert colours.min() >= 32
    huge = GBuffer(instance=torch.full((1, 1, 1, 1), 2**31 - 1, dtype=torch.int32))
    assert channel_picture(huge, "instance").min() >= 32


def test_depth_does_not_depend_on_the_rest_of_the_clip():
    near = GBuffer(depth=torch.tensor([2.0, 3.0]).reshape(2, 1, 1, 1))
    far = GBuffer(depth=torch.tensor([2.0, 900.0]).reshape(2, 1, 1, 1))
    assert torch.equal(channel_picture(near, "depth")[0], channel_picture(far, "depth")[0])


def test_channels_that_are_not_there():
    with pytest.raises(ValueError, match="'colour' does not exist; expected one of albedo"):
        channel_picture(one("depth", [1.0]), "colour")
    with pytest.raises(ValueError, match=r"no 'normal' \(it has depth\)"):
        channel_picture(one("depth", [1.0]), "normal")


@pytest.fixture
def clip() -> GBuffer:
    return GBuffer(
        albedo=torch.ones(2, 3, 30, 45),
        normal=torch.tensor([0.0, 0.0, 1.0])[:, None, None].expand(2, 3, 30, 45),
        depth=torch.full((2, 1, 30, 45), 10.0),
        roughness=torch.full((2, 1, 30, 45), 0.2),
    )


@pytest.mark.parametrize("size", [(30, 45), (31, 46), (64, 80)])
def test_side_by_side(clip, size):
    rgb = torch.rand(2, 3, *size)
    shown = side_by_side(clip, rgb, reference=torch.zeros(2, 3, *size))
    height, width = size
    assert shown.shape == (2, height, width + 2 * (width // 3), 3)
    assert torch.equal(shown[:, :, :width], (rgb * 255).round().byte().permute(0, 2, 3, 1))
    tile_height, tile_width = height // 3, width // 3
    centres = [
        shown[0, row * tile_height + tile_height // 2, width + column * tile_width + tile_width // 2].tolist()
        for row in range(3)
        for column in range(2)
    ]
    white, normal, depth, roughness = [255] * 3, [128, 128, 255], [128] * 3, [51] * 3
    assert centres == [white, normal, depth, roughness, [0] * 3, [0] * 3]
    bytes_ = (rgb * 255).round().byte().permute(0, 2, 3, 1)
    assert torch.equal(side_by_side(clip, bytes_), side_by_side(clip, rgb))


def test_side_by_side_errors(clip):
    with pytest.raises(ValueError, match="2 frames of buffers and 3 of rgb"):
        side_by_side(clip, torch.rand(3, 3, 30, 45))
    with pytest.raises(ValueError, match=r"expected float \[T, 3, H, W\] or uint8"):
        side_by_side(clip, torch.zeros(2, 30, 45, 3, dtype=torch.int32))


def test_contact_sheet_places_pictures_row_by_row():
    pictures = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1).expand(5, 8, 10, 3) * 40 + 60
    sheet = contact_sheet(pictures, 2, gap=2)
    assert sheet.shape == (3 * 10 + 2, 2 * 12 + 2, 3)
    for index in range(5):
        row, column = divmod(index, 2)
        top, left = 2 + row * 10, 2 + column * 12
        assert (sheet[top : top + 8, left : left + 10] == 60 + 40 * index).all()
    assert (sheet[22:30, 14:24] == 24).all()  # the sixth place stays empty
    labelled = contact_sheet(pictures, 2, [f"n{i}" for i in range(5)], gap=2)
    assert labelled.shape[0] == sheet.shape[0] + 3 * 14
    assert (labelled[2:16, 2:12] > 100).any()  # ink


def test_contact_sheet_errors():
    tiles = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="2 pictures of 2 sizes"):
        contact_sheet([tiles[0], tiles[1, :3]], 2)
    with pytest.raises(ValueError, match="1 labels for 2 pictures"):
        contact_sheet(tiles, 2, ["a"])


def test_resize_pictures_keeps_flat_colours():
    flat = torch.full((2, 9, 7, 3), 77, dtype=torch.uint8)
    assert (resize_pictures(flat, (4, 12)) == 77).all()


def test_every_channel_has_a_picture():
    for name, planes in CHANNELS.items():
        value = torch.ones(1, planes, 2, 2)
        clip = GBuffer(**{name: value.int() if name == "instance" else value})
        assert channel_picture(clip, name).shape == (1, 2, 2, 3)
