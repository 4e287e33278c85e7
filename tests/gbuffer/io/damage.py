"""Damaged clips, made from seeds, and what reading them does. Run as a program by `test_damage.py`, in a process of its
own, so that a crash or a hang of some decoder is a result and not the end of the tests.

    python damage.py FOLDER FIRST          reads case FIRST and those after it, one line of JSON a case
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import random
import resource
import shutil
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import OpenEXR
import torch

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import VideoWriter, convert, open_clip, write_clip
from flowshade.gbuffer.io.cameras import save_cameras
from flowshade.gbuffer.io.exr import write_exr
from flowshade.gbuffer.io.pictures import write_png
from flowshade.types import Camera, GBuffer

SIZE = (16, 18)
CASES_A_FORMAT = 24
SECONDS_A_CASE = 60
"""On a busy machine; alone a case takes 0.2 at most."""
SPARE_BYTES = 2**31
"""What a process may take beyond what it has once every format was read undamaged."""


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def cameras(folder: Path, frames: int, first: int = 1) -> None:
    pose = torch.eye(4).repeat(frames, 1, 1)
    save_cameras(
        folder / "cameras.json", Camera(intrinsics=torch.full((frames, 4), 9.0), pose=pose), 24, SIZE, first=first
    )


def own_clip(folder: Path) -> None:
    albedo, depth = torch.from_numpy(noise(2, 3, *SIZE)), torch.from_numpy(noise(2, 1, *SIZE)) + 1
    write_clip(folder, GBuffer(albedo=albedo, depth=depth), 24.0, rgb=torch.from_numpy(noise(2, 3, *SIZE)))


def blender(folder: Path) -> None:
    folder.mkdir()
    for number in (1, 2):
        parts = []
        for name, components in (("Depth", "Z"), ("Normal", "XYZ"), ("basecolor", "RGBA"), ("roughness", "X")):
            planes = {f"ViewLayer.{name}.{component}": noise(*SIZE) + 1 for component in components}
            parts.append(OpenEXR.Part({"compression": OpenEXR.ZIP_COMPRESSION}, planes, name=f"ViewLayer.{name}"))
        OpenEXR.File(parts).write(str(folder / f"a_{number}.exr"))
    cameras(folder, 2)


def unreal(folder: Path) -> None:
    folder.mkdir()
    prefix = "FinalImageMovieRenderQueue_"
    for number in (1, 2):
        planes = {f"{prefix}WorldDepth.R": noise(*SIZE) * 500 + 1}
        planes |= {f"{prefix}BaseColor.{name}": noise(*SIZE).astype(np.float16) for name in "RGB"}
        header = {
            "compression": OpenEXR.PIZ_COMPRESSION,
            "type": OpenEXR.tiledimage,
            "tiles": OpenEXR.TileDescription(),
        }
        OpenEXR.File(header, planes).write(str(folder / f"a.{number:04d}.exr"))


def pictures(suffix: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        for number in (1, 2):
            colour, grey = (noise(*SIZE, 3) * 255).astype(np.uint8), (noise(*SIZE) * 255).astype(np.uint8)
            if suffix == "npy":
                np.save(folder / f"albedo_{number}.npy", noise(*SIZE, 3))
                np.save(folder / f"depth_{number}.npy", noise(*SIZE))
            elif suffix == "exr":
                write_exr(folder / f"albedo_{number}.exr", {name: noise(*SIZE) for name in "RGB"})
                write_exr(folder / f"depth_{number}.exr", {"Z": noise(*SIZE)})
            else:
                cv2.imwrite(str(folder / f"albedo_{number}.{suffix}"), colour)
                cv2.imwrite(str(folder / f"roughness_{number}.{suffix}"), grey)

    return make


def png16(folder: Path) -> None:
    for number in (1, 2):
        for name, planes in (("albedo", 3), ("depth", 1)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            values = (noise(*SIZE, planes) * 65535).astype(np.uint16)
            write_png(folder / name / f"{number}.png", values if planes == 3 else values[..., 0])
    (folder / "gbuffer.json").write_text(json.dumps({"unit": "mm", "fps": 24, "albedo_code": "srgb"}))
    cameras(folder, 2)


def flash(folder: Path) -> None:
    folder.mkdir()
    for number in (0, 1):
        np.save(folder / f"window-{number:02d}.npy", (noise(4, 5, *SIZE, 3) * 255).astype(np.uint8))


def videos(lossless: bool, name: str = "{}.mp4") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        for channel in ("albedo", "roughness"):
            with VideoWriter(folder / name.format(channel), fps=24, size=SIZE, lossless=lossless) as video:
                video.append((noise(4, *SIZE, 3) * 255).astype(np.uint8))

    return make


def upstream(folder: Path) -> None:
    videos(True, "clip_0001_{}.mp4")(folder)
    (folder / "metadata_with_captions.csv").write_text("video,prompt\nclip_0001_albedo.mp4,low sun\n")


def mosaic(folder: Path) -> None:
    folder.mkdir()
    with VideoWriter(folder / "screen.mp4", fps=24, size=(SIZE[0], 2 * SIZE[1]), lossless=True) as video:
        video.append((noise(3, SIZE[0], 2 * SIZE[1], 1).repeat(3, -1) * 255).astype(np.uint8))
    tiles = {
        name: {"left": left, "top": 0, "height": SIZE[0], "width": SIZE[1]}
        for name, left in (("roughness", 0), ("metallic", SIZE[1]))
    }
    (folder / "mosaic.json").write_text(json.dumps({"videos": ["screen.mp4"], "tiles": tiles, "check": False}))


def infinigen(folder: Path) -> None:
    for kind in ("Depth", "camview"):
        (folder / "frames" / kind / "camera_0").mkdir(parents=True)
    for frame in (1, 2):
        np.save(folder / f"frames/Depth/camera_0/Depth_0_0_{frame:04d}_0.npy", noise(*SIZE) + 1)
        np.savez(
            folder / f"frames/camview/camera_0/camview_0_0_{frame:04d}_0.npz",
            K=np.eye(3) * 9,
            T=np.eye(4),
            HW=np.array(SIZE),
        )


def hypersim(folder: Path) -> None:
    import h5py

    geometry = folder / "images" / "scene_cam_00_geometry_hdf5"
    geometry.mkdir(parents=True)
    for frame in (0, 1):
        with h5py.File(geometry / f"frame.{frame:04d}.depth_meters.hdf5", "w") as file:
            file.create_dataset("dataset", data=noise(*SIZE).astype(np.float16) + 1, compression="gzip")


FORMATS: dict[str, Callable[[Path], None]] = {
    "clip": own_clip,
    "blender": blender,
    "unreal": unreal,
    "png": pictures("png"),
    "png16": png16,
    "tiff": pictures("tiff"),
    "jpeg": pictures("jpg"),
    "npy": pictures("npy"),
    "exr-pictures": pictures("exr"),
    "flash": flash,
    "video": videos(lossless=False),
    "video-lossless": videos(lossless=True),
    "upstream": upstream,
    "mosaic": mosaic,
    "infinigen": infinigen,
}
try:
    import h5py  # noqa: F401

    FORMATS["hypersim"] = hypersim
except ImportError:  # without the extra, its format cannot be made either
    pass

EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 0x10000)


def damaged(data: bytes, seed: random.Random) -> bytes:
    """The same bytes with one kind of damage: cut, flipped, blanked, overwritten by extreme numbers, doubled, ..."""
    if not data:
        return b"\0"
    at = seed.randrange(len(data)) if seed.random() < 0.5 else seed.randrange(min(len(data), 400))  # headers more often
    length = min(seed.choice((1, 2, 4, 16, 200)), len(data) - at)
    kind = seed.randrange(8)
    if kind == 0:
        return data[:at]
    if kind == 1:
        changed = bytearray(data)
        for place in (seed.randrange(at, min(at + 64, len(data))) for _ in range(seed.randint(1, 6))):
            changed[place] ^= 1 << seed.randrange(8)
        return bytes(changed)
    if kind == 2:
        return data[:at] + b"\0" * length + data[at + length :]
    if kind in (3, 4):
        number = struct.pack(seed.choice((">I", "<I")), seed.choice(EXTREMES))
        return data[:at] + number + data[at + 4 :]
    if kind == 5:
        return data[:at] + data[at + length :]
    if kind == 6:
        return data[: at + length] + data[at:]
    return data[:at] + seed.randbytes(length) + data[at + length :]


def cases() -> list[tuple[str, int]]:
    return [(name, number) for name in FORMATS for number in range(CASES_A_FORMAT)]


def make_case(folder: Path, originals: Path, name: str, number: int) -> tuple[Path, bytes]:
    """A clip with one damaged file, and that file's bytes."""
    target = folder / f"{name}-{number}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(originals / name, target)
    files = sorted(path for path in target.rglob("*") if path.is_file())
    seed = random.Random(f"{name} {number}")
    chosen = files[number % len(files)]
    before = chosen.read_bytes()
    after = before
    while after == before:
        after = damaged(before, seed)
    chosen.write_bytes(after)
    return target, after


OPTIONS = {"npy": {"unit": "m"}, "exr-pictures": {"unit": "m"}, "blender": {"normals": "skip"}}


def read(path: Path, name: str) -> str:
    """Reads a clip in full, and converts it. "read", or the name of the refusal."""
    output = path.with_name(f"{path.name}.out")
    options = OPTIONS.get(name, {})
    try:
        with open_clip(path, **options) as clip:
            for window in clip.windows(2):
                assert window.size == clip.info.size and 0 < window.frames <= 2
            clip.reference()
        convert(path, output, format="clip", **options)
        result = "read"
    except FlowshadeError as error:
        assert len(str(error)) > 20 and str(error).isprintable(), repr(str(error))
        assert not output.exists(), "half an output was left behind"
        result = type(error).__name__
    left = [entry.name for entry in path.parent.iterdir() if entry.name.startswith(f".{output.name}")]
    assert not left, left
    shutil.rmtree(output, ignore_errors=True)
    return result


def run(folder: Path, first: int) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    originals = folder / "originals"
    originals.mkdir(exist_ok=True)
    for name, make in FORMATS.items():
        if not (originals / name).exists():
            make(originals / name)
        assert read(originals / name, name) == "read", name
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
    for index, (name, number) in list(enumerate(cases()))[first:]:
        print(json.dumps({"begin": index}), flush=True)
        faulthandler.dump_traceback_later(SECONDS_A_CASE, exit=True)  # a hang ends this process, and is seen
        began, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        target, after = make_case(folder, originals, name, number)
        try:
            result = read(target, name)
        except BaseException:  # noqa: BLE001 (whatever it is, it is the finding)
            result = "UNEXPECTED " + traceback.format_exc(limit=-6)
        shutil.rmtree(target, ignore_errors=True)
        record = {
            "case": index,
            "result": result,
            "digest": hashlib.sha256(after).hexdigest(),
            "seconds": time.monotonic() - began,
            "grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024,
        }
        print(json.dumps(record), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
