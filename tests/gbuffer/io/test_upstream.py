"""Upstream's dataset layout, and captured mosaics."""

import csv
import json

import pytest
import torch

from flowshade.gbuffer.io import ClipError, VideoWriter, open_clip
from flowshade.gbuffer.io.coding import Coding
from flowshade.gbuffer.io.mosaic import LAYOUT_FILE, find_faults
from flowshade.gbuffer.io.upstream import METADATA
from flowshade.gbuffer.view import to_uint8

CHANNELS = ("albedo", "depth", "metallic", "normal", "roughness")


def save_video(path, pictures: torch.Tensor, lossless: bool = True) -> None:
    with VideoWriter(path, fps=30, size=tuple(pictures.shape[1:3]), lossless=lossless, crf=4) as video:
        video.append(pictures)


def write_table(path, rows, columns=("video", "prompt")) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([columns, *rows])


@pytest.fixture
def dataset(tmp_path):
    """A session of two clips, with the table one level up."""
    for clip in ("clip_0001", "clip_0002"):
        folder = tmp_path / "session_a" / clip
        folder.mkdir(parents=True)
        for index, name in enumerate((*CHANNELS, "rgb")):
            save_video(folder / f"{clip}_{name}.mp4", torch.full((3, 16, 18, 3), 40 * index, dtype=torch.uint8))
    rows = [
        ("session_a/clip_0001/clip_0001_rgb.mp4", "Low sun, long shadows"),
        ("session_a/clip_0002/clip_0002_rgb.mp4", 'Rain, "neon"\nand fog'),
    ]
    write_table(tmp_path / METADATA, rows)
    return tmp_path


def test_upstream_captions_and_bytes(dataset):
    clip = open_clip(dataset / "session_a" / "clip_0002")
    assert (clip.info.format, clip.info.caption) == ("upstream", 'Rain, "neon"\nand fog')
    assert clip.info.fps == 30 and clip.info.has_reference and clip.info.missing == ("depth",)
    coded = clip.coded()
    assert {name: int(planes.max()) for name, planes in coded.items()} == {
        name: 40 * index for index, name in enumerate(CHANNELS)
    }
    by_video = open_clip(dataset / "session_a" / "clip_0001" / "clip_0001_normal.mp4")
    assert by_video.info.caption == "Low sun, long shadows"


@pytest.mark.parametrize(
    "named", ["clip_0001", "clip_0001/", "./session_a/clip_0001/clip_0001_rgb.mp4", "clip_0001.mp4"]
)
def test_upstream_rows_name_clips_in_several_ways(dataset, named):
    write_table(dataset / METADATA, [("elsewhere.mp4", "no"), (named, "yes")])
    assert open_clip(dataset / "session_a" / "clip_0001").info.caption == "yes"
    assert open_clip(dataset / "session_a" / "clip_0002").info.caption == ""


def test_upstream_clips_of_one_name_in_several_sessions(dataset):
    rows = [("session_b/clip_0001/clip_0001_rgb.mp4", "b"), ("session_a/clip_0001/clip_0001_rgb.mp4", "a")]
    write_table(dataset / METADATA, rows)
    assert open_clip(dataset / "session_a" / "clip_0001").info.caption == "a"
    write_table(dataset / METADATA, [("x/clip_0001.mp4", "x"), ("y/clip_0001.mp4", "y")])
    assert open_clip(dataset / "session_a" / "clip_0001").info.caption == ""  # either may be meant


def test_a_table_beside_the_videos_of_several_clips(tmp_path):
    for clip in ("clip_0001", "clip_0002"):
        save_video(tmp_path / f"{clip}_albedo.mp4", torch.zeros(2, 16, 18, 3, dtype=torch.uint8))
    write_table(tmp_path / METADATA, [("clip_0001_rgb.mp4", "one"), ("clip_0002_rgb.mp4", "two")])
    assert open_clip(tmp_path / "clip_0002_albedo.mp4").info.caption == "two"


def test_upstream_session_must_name_its_clip(dataset):
    for path in (dataset, dataset / "session_a"):
        with pytest.raises(ClipError, match=r"holds 2 clips \(.*clip_0001, .*clip_0002\); expected one. Name it"):
            open_clip(path)


def test_upstream_tables_of_another_kind(dataset):
    write_table(dataset / METADATA, [("a", "b")], ("file", "text"))
    with pytest.raises(ClipError, match="has no column 'video'; expected video, prompt"):
        open_clip(dataset / "session_a" / "clip_0001")
    (dataset / METADATA).write_bytes(b"video,prompt\n\xff\xfe\x00")
    with pytest.raises(ClipError, match="is no table of text"):
        open_clip(dataset / "session_a" / "clip_0001")


@pytest.fixture
def mosaic(tmp_path, sample):
    """The plaza clip's channels on two screens, 2 x 2 and 1 x 2 tiles, as upstream captured its games."""
    with open_clip(sample) as clip:
        gbuffer, rgb = clip.read(0, 2), clip.reference(0, 2)
    coding = Coding(depth_code="inverse:10")
    tiles = {name: coding.encode(name, gbuffer.channels()[name], 255).to(torch.uint8) for name in CHANNELS}
    tiles = {name: value.expand(-1, 3, -1, -1).permute(0, 2, 3, 1) for name, value in tiles.items()}
    tiles["rgb"] = to_uint8(rgb)
    height, width = gbuffer.size
    first = torch.cat(
        [torch.cat([tiles["rgb"], tiles["albedo"]], 2), torch.cat([tiles["normal"], tiles["depth"]], 2)], 1
    )
    second = torch.cat([tiles["roughness"], tiles["metallic"]], 2)

    def make(lossless=True, move=(0, 0), swap=(), **more):
        save_video(tmp_path / "screen0.mp4", first, lossless)
        save_video(tmp_path / "screen1.mp4", second, lossless)
        places = {
            "rgb": (0, 0, 0),
            "albedo": (0, 0, width),
            "normal": (0, height, 0),
            "depth": (0, height, width),
            "roughness": (1, 0, 0),
            "metallic": (1, 0, width),
        }
        if swap:
            places[swap[0]], places[swap[1]] = places[swap[1]], places[swap[0]]
        layout = {"videos": ["screen0.mp4", "screen1.mp4"], "tiles": {}, **more}
        for name, (video, top, left) in places.items():
            layout["tiles"][name] = {"video": video, "top": top, "left": left, "height": height, "width": width}
        for name in ("height", "width"):  # room to move tiles in
            for tile in layout["tiles"].values():
                tile[name] -= 16
        for tile in layout["tiles"].values() if move else ():
            tile["left"] += 8
            tile["top"] += 8
        if move != (0, 0):
            layout["tiles"]["depth"]["left"] += move[0]
            layout["tiles"]["depth"]["top"] += move[1]
        (tmp_path / LAYOUT_FILE).write_text(json.dumps(layout))
        return tmp_path

    return make, tiles


def test_a_mosaic_is_split_byte_for_byte(mosaic):
    make, tiles = mosaic
    clip = open_clip(make(), depth_code="inverse:10")
    assert clip.info.format == "mosaic" and clip.info.missing == () and clip.info.fps == 30
    for name, planes in clip.coded().items():
        assert torch.equal(planes.permute(0, 2, 3, 1), tiles[name][:, 8:-8, 8:-8]), name
    assert torch.equal((clip.reference() * 255).round().byte().permute(0, 2, 3, 1), tiles["rgb"][:, 8:-8, 8:-8])
    assert torch.equal(clip.read(1, 2).depth, clip.read().depth[1:])


def test_a_lossy_mosaic_with_the_right_layout_passes(mosaic):
    clip = open_clip(mosaic[0](lossless=False), depth_code="inverse:10")
    assert any("half colour resolution" in text for text in clip.info.warnings)


@pytest.mark.parametrize("move", [(3, 0), (0, -5), (-8, 8)])
def test_a_tile_beside_its_place_is_found(mosaic, move):
    with pytest.raises(ClipError, match="does not fit the video: tile depth lies .* of normal"):
        open_clip(mosaic[0](move=move))


@pytest.mark.parametrize(
    ("swap", "fault"), [(("normal", "albedo"), "unit vectors"), (("roughness", "normal"), "roughness is coloured")]
)
def test_a_wrong_tile_is_found(mosaic, swap, fault):
    with pytest.raises(ClipError, match=fault):
        open_clip(mosaic[0](swap=swap))


def test_a_wrong_layout_may_be_insisted_on(mosaic):
    clip = open_clip(mosaic[0](move=(3, 0), check=False))
    assert any("the layout may be wrong: tile depth lies -3 pixels right" in text for text in clip.info.warnings)


def test_all_tiles_off_alike_show_a_seam(mosaic):
    """Every tile four pixels too far to the left holds a strip of its neighbour."""
    _, tiles = mosaic
    left_of = {"albedo": "rgb", "depth": "normal", "metallic": "roughness"}  # the others lie at the screen's border
    strips = {}
    for name, tile in tiles.items():
        other = tiles[left_of[name]][0] if name in left_of else torch.zeros_like(tile[0])
        strips[name] = torch.cat([other[:, -4:], tile[0][:, :-4]], 1)
    faults = find_faults(strips)
    assert any("a seam runs along column 4" in fault for fault in faults)
    assert find_faults({name: tile[0] for name, tile in tiles.items()}) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda layout: layout.pop("videos"), "is no layout"),
        (lambda layout: layout["tiles"]["rgb"].update(left=1.5), "no whole number"),
        (lambda layout: layout["tiles"]["rgb"].update(left=-1), "expected it within"),
        (lambda layout: layout["tiles"]["rgb"].update(video=7), "expected it within"),
        (lambda layout: layout["tiles"]["rgb"].update(width=5), "differ in size"),
        (lambda layout: layout["tiles"]["rgb"].update(top=100), "tiles rgb and normal overlap"),
        (lambda layout: layout["tiles"]["metallic"].update(left=10_000), "and the video at"),
        (lambda layout: layout["tiles"].update(sound=layout["tiles"]["rgb"]), "expected some of albedo"),
        (lambda layout: layout["videos"].append("absent.mp4"), "cannot be opened as a video"),
    ],
)
def test_layouts_that_make_no_sense(mosaic, change, sentence):
    folder = mosaic[0]()
    layout = json.loads((folder / LAYOUT_FILE).read_text())
    change(layout)
    (folder / LAYOUT_FILE).write_text(json.dumps(layout))
    with pytest.raises(ClipError, match=sentence):
        open_clip(folder)
