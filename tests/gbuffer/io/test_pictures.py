"""Single pictures of every kind, and clips made of them."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from flowshade.gbuffer.io import ClipError, open_clip
from flowshade.gbuffer.io.exr import write_exr
from flowshade.gbuffer.io.pictures import PNG_MAGIC, read_picture, write_png

SIZE = (5, 7)


def values(dtype: str, planes: int = 3) -> np.ndarray:
    shape = SIZE if planes == 1 else (*SIZE, planes)
    random = np.random.default_rng(0)
    if dtype.startswith("f"):
        return random.random(shape).astype(dtype)
    return random.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
@pytest.mark.parametrize("planes", [1, 3])
def test_tiff_files_are_exact_and_red_first(tmp_path, dtype, planes):
    stored = values(dtype, planes)
    assert cv2.imwrite(str(tmp_path / "a.tiff"), stored if planes == 1 else stored[..., ::-1])
    found = read_picture(tmp_path / "a.tiff")
    assert found.dtype == stored.dtype and np.array_equal(found, stored)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_deflate"])
def test_tiff_files_of_another_writer(tmp_path, compression):
    stored = values("u1")
    Image.fromarray(stored).save(tmp_path / "a.tif", compression=compression)
    assert np.array_equal(read_picture(tmp_path / "a.tif"), stored)


def test_jpeg_files_are_close_and_said_to_be_lossy(tmp_path):
    grey = np.full((16, 16), 100, np.uint8)
    Image.fromarray(np.stack([grey, grey, grey], -1)).save(tmp_path / "roughness_1.jpg", quality=90)
    Image.fromarray(np.full((16, 16, 3), (200, 100, 50), np.uint8)).save(tmp_path / "albedo_1.jpeg", quality=95)
    clip = open_clip(tmp_path, albedo_code="linear")
    found = clip.read()
    assert any("albedo, roughness: stored as JPEG" in text for text in clip.info.warnings)
    assert (found.roughness - 100 / 255).abs().max() < 3 / 255
    assert (found.albedo[0, :, 8, 8] * 255 - torch.tensor([200, 100, 50])).abs().max() < 4  # red first


def test_one_channel_exr_and_numpy_files(tmp_path):
    depth, normal = values("f4", 1) + 1, np.zeros((*SIZE, 3), np.float32)
    normal[..., 2] = 1
    write_exr(tmp_path / "depth_1.exr", {"R": depth, "G": depth, "B": depth})
    write_exr(tmp_path / "albedo_1.exr", dict(zip("RGB", np.moveaxis(values("f4"), -1, 0), strict=True)))
    np.save(tmp_path / "normal_1.npy", normal)
    np.save(tmp_path / "roughness_1.npy", values("f8", 1))
    clip = open_clip(tmp_path, unit="cm", normal_axes="opencv")
    found = clip.read()
    assert clip.info.format == "pictures"
    assert torch.allclose(found.depth[0, 0], torch.from_numpy(depth) / 100)
    assert torch.equal(found.albedo[0], torch.from_numpy(values("f4").transpose(2, 0, 1)))  # linear, as EXR is
    assert (found.normal[0, 2] == -1).all() and torch.allclose(
        found.roughness[0, 0], torch.from_numpy(values("f8", 1)).float()
    )
    assert "depth" not in open_clip(tmp_path).info.channels  # no unit, no metres


def test_one_picture_exr_of_other_primaries(tmp_path, write_layers):
    """ACES AP1's red, of which Rec.709 holds a redder red; normals in such a file stay as they are."""
    ap1 = (0.713, 0.293, 0.165, 0.83, 0.128, 0.044, 0.32168, 0.33767)
    planes = {name: np.full(SIZE, value, np.float32) for name, value in zip("RGB", (0.4, 0.1, 0.1), strict=True)}
    write_layers(tmp_path / "albedo_1.exr", planes, chromaticities=ap1)
    facing = {name: np.full(SIZE, value, np.float32) for name, value in zip("XYZ", (0.6, 0, 0.8), strict=True)}
    write_layers(tmp_path / "normal_1.exr", facing, chromaticities=ap1)
    found = open_clip(tmp_path).read()
    expected = torch.tensor([0.4 * 1.70505 - 0.0705, -0.4 * 0.13026 + 0.1130, -0.4 * 0.02400 + 0.1024])
    assert torch.allclose(found.albedo[0, :, 0, 0], expected, atol=2e-3)
    assert torch.allclose(found.normal[0, :, 0, 0], torch.tensor([0.6, 0, 0.8]))


def test_floating_point_depth_marks_sky_in_every_way(tmp_path):
    depth = np.full(SIZE, 5, np.float32)
    depth[0] = [0, np.nan, np.inf, 1e10, 65504, -1, 5]
    np.save(tmp_path / "depth_1.npy", depth)
    found = open_clip(tmp_path, unit="m").read().depth[0, 0, 0]
    assert found[:6].isinf().all() and found[6] == 5


def test_integer_depth_by_its_unit(tmp_path):
    write_png(tmp_path / "depth_1.png", np.array([[0, 2500], [65535, 1]], np.uint16))
    found = open_clip(tmp_path, unit="mm").read().depth[0, 0]
    assert torch.allclose(found, torch.tensor([[torch.inf, 2.5], [torch.inf, 0.001]]))
    with pytest.raises(ClipError, match="stored as integers, and depth_code='linear' has no unit"):
        open_clip(tmp_path, depth_code="linear")


def test_fewer_bits_than_the_file(tmp_path):
    """10-bit normals in a 16-bit file would read as almost black: refused, or scaled on request."""
    normal = np.broadcast_to(np.round((np.array([0, 0, 1]) + 1) / 2 * 1023).astype(np.uint16), (*SIZE, 3))
    write_png(tmp_path / "normal_1.png", normal.copy())
    with pytest.raises(ClipError, match="values reach 1023 only; .* give bits=10"):
        open_clip(tmp_path)
    found = open_clip(tmp_path, bits=10).read().normal
    assert torch.allclose(found[0, :, 0, 0], torch.tensor([0.0, 0, 1]), atol=2e-3)
    assert "normal" in open_clip(tmp_path, bits=16).info.channels


def test_coded_floating_point_normals_are_asked_about(tmp_path):
    np.save(tmp_path / "normal_1.npy", np.broadcast_to(np.float32([0.5, 0.5, 1]), (*SIZE, 3)))
    with pytest.raises(ClipError, match="give normal_code='half'"):
        open_clip(tmp_path).read()
    assert (open_clip(tmp_path, normal_code="half").read().normal[0, 2] == 1).all()


def exif_turned(path) -> None:
    picture = Image.fromarray(values("u1"))
    exif = picture.getexif()
    exif[274] = 6
    picture.save(path, exif=exif)


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_turned_pictures_are_refused(tmp_path, suffix):
    exif_turned(tmp_path / f"a.{suffix}")
    with pytest.raises(ClipError, match="stored turned .orientation 6"):
        read_picture(tmp_path / f"a.{suffix}")


def png_bomb(width: int, height: int) -> bytes:
    """A valid PNG header for a picture of any size, and a few bytes of data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    return PNG_MAGIC + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def tiff_bomb(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(stream, "TIFF")
    data = bytearray(stream.getvalue())
    directory = struct.unpack_from("<I", data, 4)[0]
    for entry in range(struct.unpack_from("<H", data, directory)[0]):
        at = directory + 2 + 12 * entry
        tag = struct.unpack_from("<H", data, at)[0]
        if tag in (256, 257):
            struct.pack_into("<HHII", data, at, tag, 4, 1, width if tag == 256 else height)
    return bytes(data)


def jpeg_bomb(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(stream, "JPEG")
    data = bytearray(stream.getvalue())
    at = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, at + 5, min(height, 65535), min(width, 65535))
    return bytes(data)


def npy_bomb(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (height, width, 3)})
    return stream.getvalue() + b"\0" * 64


@pytest.mark.parametrize("size", [(2**31 - 1, 2**31 - 1), (40_000, 40_000), (32_768, 32_768), (0, 5)])
@pytest.mark.parametrize(
    ("suffix", "bomb"), [("png", png_bomb), ("tif", tiff_bomb), ("jpg", jpeg_bomb), ("npy", npy_bomb)]
)
def test_decompression_bombs_are_refused_before_room_is_made(tmp_path, suffix, bomb, size):
    import tracemalloc

    path = tmp_path / f"a.{suffix}"
    path.write_bytes(bomb(*size))
    tracemalloc.start()
    try:
        with pytest.raises(ClipError):
            read_picture(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_every_changed_byte_of_a_png_is_found(tmp_path):
    write_png(tmp_path / "a.png", values("u2"))
    data = (tmp_path / "a.png").read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x11
        (tmp_path / "b.png").write_bytes(changed)
        with pytest.raises(ClipError):
            read_picture(tmp_path / "b.png")


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "npy", "exr"])
@pytest.mark.parametrize("share", [0, 0.2, 0.5, 0.9])
def test_cut_files_say_so(tmp_path, suffix, share):
    whole, cut = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    if suffix == "npy":
        np.save(whole, values("f4"))
    elif suffix == "exr":
        write_exr(whole, {"R": values("f4", 1)})
    else:
        cv2.imwrite(str(whole), values("u1"))
    data = whole.read_bytes()
    cut.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ClipError, match=r"b\."):
        read_picture(cut)


def test_numpy_files_run_nothing(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ClipError, match="cannot be read as a NumPy array"):
        read_picture(tmp_path / "a.npy")
