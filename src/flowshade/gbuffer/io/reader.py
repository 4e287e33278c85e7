"""What every clip reader offers, and how one is chosen for a path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from flowshade.gbuffer.io.conventions import SIDECAR, ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_fps
from flowshade.gbuffer.io.outputs import MAX_NAME_BYTES
from flowshade.types import CORE_CHANNELS, GBuffer

DEFAULT_FPS = 24.0


@dataclass(frozen=True, kw_only=True)
class ClipInfo:
    """What a reader found when it opened a path, before any pixel is decoded."""

    path: Path
    format: str
    """One of `FORMATS`."""
    frames: int
    size: tuple[int, int]
    """Height and width in pixels."""
    fps: float
    channels: tuple[str, ...]
    """Channels that `read` gives."""
    axes: str
    """In words: how the file's values become the in-memory convention."""
    has_camera: bool = False
    has_reference: bool = False
    """Whether a picture of the scene comes with the buffers."""
    caption: str = ""
    warnings: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    """How it came about, as JSON holds it; kept by what is written from it."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Core channels that the clip does not give."""
        return tuple(name for name in CORE_CHANNELS if name not in self.channels)


class ClipReader(ABC):
    """A clip on disk. Frames are decoded when asked for; nothing is kept between calls.

    A subclass is made from a path and what is stated about it; `options` names the conventions it can use.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    info: ClipInfo

    def __len__(self) -> int:
        return self.info.frames

    def read(self, start: int = 0, stop: int | None = None) -> GBuffer:
        """Frames `start` to `stop` (excluded) in the one convention of `flowshade.types`."""
        return self._read(*self.bounds(start, stop))

    def reference(self, start: int = 0, stop: int | None = None) -> Float[Tensor, "T 3 H W"] | None:
        """The pictures that came with the buffers, display sRGB in [0, 1]; None when there are none."""
        return self._reference(*self.bounds(start, stop)) if self.info.has_reference else None

    def coded(self, start: int = 0, stop: int | None = None) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
        """The file's own 8-bit planes, untouched, by channel: what upstream's models take byte for byte."""
        return self._coded(*self.bounds(start, stop))

    def stored(self, start: int = 0, stop: int | None = None) -> dict[str, tuple[Tensor, int]]:
        """Normals and depth as the files hold them, [T, C, H, W], each with its largest number (1 if floating-point).

        For finding out what they mean (`guess_conventions`); only readers of files that do not say it have them.
        """
        return self._stored(*self.bounds(start, stop))

    def windows(self, frames: int, start: int = 0, stop: int | None = None) -> Iterator[GBuffer]:
        """Consecutive runs of `frames` frames, one in memory at a time; the last may be shorter."""
        if frames < 1:
            raise ClipError(f"a window of {frames} frames was asked for; expected 1 or more. Give a positive number.")
        first, last = self.bounds(start, stop)
        return (self._read(low, min(low + frames, last)) for low in range(first, last, frames))

    def close(self) -> None:  # noqa: B027 (most readers hold no file open)
        """Releases what the reader holds open; most hold nothing."""

    def __enter__(self) -> ClipReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def bounds(self, start: int, stop: int | None) -> tuple[int, int]:
        """A run of frames that the clip has. Raises: ClipError if it has none, or not all."""
        stop = len(self) if stop is None else stop
        if not 0 <= start < stop <= len(self):
            raise ClipError(
                f"{self.info.path}: frames {start} to {stop} were asked for, the clip has {len(self)}; "
                "expected one or more of those it has. Give another start, or another number of frames."
            )
        return start, stop

    @abstractmethod
    def _read(self, start: int, stop: int) -> GBuffer: ...

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        raise NotImplementedError

    def _stored(self, start: int, stop: int) -> dict[str, tuple[Tensor, int]]:
        raise ClipError(
            f"{self.info.path}: format {self.info.format!r} says what its numbers mean; there is nothing to guess."
        )

    def _coded(self, start: int, stop: int) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
        raise ClipError(
            f"{self.info.path}: format {self.info.format!r} holds no 8-bit planes; upstream's models take PNG folders "
            "(8 bit), videos or Flash windows. Convert the clip first: flowshade convert."
        )


@dataclass(frozen=True)
class Format:
    """A clip format: how it is recognised and which class reads it (imported only when used)."""

    name: str
    hint: str
    """What a folder of this format looks like, for error messages."""
    recognises: Callable[[Path], bool]
    reader: str
    """`module:class` below this package."""

    def _class(self) -> type[ClipReader]:
        module, name = self.reader.split(":")
        return getattr(import_module(f"{__package__}.{module}"), name)

    def options(self) -> frozenset[str]:
        """Names of `ClipConventions` that its reader takes."""
        return self._class().options | {"format", "fps"}

    def open(self, path: Path, given: ClipConventions, beside: ClipConventions) -> ClipReader:
        """Opens a path with what was given by the caller and what its `gbuffer.json` states."""
        if path.is_file() and self.name in FOLDERS_ONLY:
            raise ClipError(
                f"{path} is a file; format {self.name!r} is read from {self.hint}; expected a folder. Give it, or name "
                "another format."
            )
        takes = self.options()
        for source, conventions in (("", given), (f"{SIDECAR}: ", beside)):
            unknown = [name for name in conventions.stated() if name not in takes]
            if unknown:
                raise ClipError(
                    f"{path}: {source}option {unknown[0]!r} is not one of format {self.name!r}, which takes "
                    f"{', '.join(sorted(takes))}. Leave it out, or name another format."
                )
        return self._class()(path, given.over(beside))  # pyright: ignore[reportCallIssue]


FOLDERS_ONLY = frozenset(
    ("clip", "flash", "interiorverse", "replicator", "unreal", "arnold", "vray", "blender", "exr", "pictures")
)
"""Formats whose clips cannot be named by one of their files."""


def _has(*patterns: str) -> Callable[[Path], bool]:
    return lambda path: path.is_dir() and any(next(path.glob(pattern), None) for pattern in patterns)


def _seen(finder: str) -> Callable[[Path], bool]:
    """Recognition by a function of a reader's module (`module:function`), imported only when it comes to that."""
    module, name = finder.split(":")
    return lambda path: bool(getattr(import_module(f"{__package__}.{module}"), name)(path))


def _is_video_clip(path: Path) -> bool:
    suffixes = ("mp4", "mov", "mkv", "webm", "avi")
    return path.suffix[1:].lower() in suffixes if path.is_file() else _has(*(f"*.{s}" for s in suffixes))(path)


PICTURES = tuple(
    f"{where}*.{suffix}" for suffix in ("png", "tif", "tiff", "jpg", "jpeg", "exr", "npy") for where in ("", "*/")
)


BLENDER_LAYERS = ("viewlayer.", "view layer.", "view_layer.", "renderlayer.")
"""What Blender calls its first view layer unless the user does."""


def _exr_dialect(path: Path) -> str | None:
    """Which renderer wrote a folder of EXR files, from the first one's header; None where there are none."""
    first = min(path.glob("*.exr"), default=None) if path.is_dir() else None
    if first is None:
        return None
    from flowshade.gbuffer.io.exr import read_header

    header = read_header(first)
    names = [name.lower() for name in header.attributes]
    software = str(header.attributes.get("Software", header.attributes.get("software", ""))).lower()
    channels = [name.lower() for name in header.channels]

    def says(word: str) -> bool:
        """By name of an attribute or of the software; values such as paths may hold any word."""
        return word in software or any(name.startswith(word) for name in names)

    if says("unreal") or any(name.startswith("finalimage") for name in channels):
        return "unreal"
    if says("arnold") or ("z" in channels and {"n.x", "n.r", "n.red"} & set(channels)):
        return "arnold"
    if says("vray") or says("v-ray") or any(name.startswith("vray") or name.endswith(".red") for name in channels):
        return "vray"
    if says("blender") or says("cycles") or any(name.startswith(BLENDER_LAYERS) for name in channels):
        return "blender"
    return None if _one_channel_a_file(path) else "exr"


def _one_channel_a_file(path: Path) -> bool:
    """Whether EXR files carry the names of channels (`depth_0001.exr`), so that each holds one."""
    from flowshade.gbuffer.io.picture_folder import channel_in_name

    named = [channel_in_name(entry.stem) for entry in path.glob("*.exr")]
    return bool(named) and all(named) and len({name[0] for name in named if name}) > 1


def _is_exr(dialect: str) -> Callable[[Path], bool]:
    return lambda path: _exr_dialect(path) == dialect


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("clip", "a folder with clip.json", _has("clip.json"), "folder:ClipFolderReader"),
        Format("flash", "a folder of window-NN.npy", _has("window-*.npy"), "flash:FlashReader"),
        Format("mosaic", "a folder with mosaic.json", _has("mosaic.json"), "mosaic:MosaicReader"),
        Format(
            "upstream",
            "clip folders with metadata_with_captions.csv",
            _seen("upstream:is_upstream"),
            "upstream:UpstreamReader",
        ),
        Format(
            "hypersim",
            "Hypersim's scene_cam_00_geometry_hdf5",
            _seen("hypersim:camera_folders"),
            "hypersim:HypersimReader",
        ),
        Format("infinigen", "Infinigen's frames", _seen("infinigen:frames_folder"), "infinigen:InfinigenReader"),
        Format(
            "interiorverse",
            "InteriorVerse's 000_albedo.exr, ...",
            _seen("interiorverse:is_interiorverse"),
            "interiorverse:InteriorVerseReader",
        ),
        Format(
            "diffusion-renderer",
            "DiffusionRenderer's gbuffer_frames",
            _seen("diffusion_renderer:find_clip"),
            "diffusion_renderer:DiffusionRendererReader",
        ),
        Format(
            "replicator",
            "Replicator's distance_to_image_plane_0000.npy, ...",
            _seen("replicator:is_replicator"),
            "replicator:ReplicatorReader",
        ),
        Format("unreal", "Movie Render Queue's .exr files", _is_exr("unreal"), "unreal:UnrealReader"),
        Format("arnold", "Arnold's .exr files", _is_exr("arnold"), "arnold:ArnoldReader"),
        Format("vray", "V-Ray's .exr files", _is_exr("vray"), "vray:VRayReader"),
        Format("blender", "Blender's .exr files", _is_exr("blender"), "blender:BlenderReader"),
        Format("exr", "a folder of numbered .exr files", _is_exr("exr"), "generic_exr:GenericExrReader"),
        Format(
            "pictures",
            "a folder of albedo/0001.png or albedo_0001.png (or .tif, .jpg, .exr, .npy)",
            _has(*PICTURES),
            "picture_folder:PictureFolderReader",
        ),
        Format("video", "a folder of albedo.mp4, depth.mp4, ...", _is_video_clip, "channel_video:ChannelVideoReader"),
    )
}
"""Every format that can be read, in the order in which a path is tried."""


def open_clip(path: Path | str, *, format: str | None = None, fps: float | None = None, **options: Any) -> ClipReader:
    """Opens a G-buffer clip of any known format.

    Args:
        path: the clip's folder, or a file of it.
        format: a name of `FORMATS`; None takes what `gbuffer.json` states, else looks at what the folder holds.
        fps: frames per second; None takes what the clip states, else 24 with a warning.
        options: what the files do not say about themselves, by the names of `ClipConventions`; they go before
            `gbuffer.json` in the clip's folder. None = not stated.

    Raises:
        ClipError: nothing there, an unknown layout, or a layout that contradicts itself.
    """
    path = Path(path)
    check_name(path)
    if not path.exists():
        raise ClipError(f"{path}: nothing is there; expected a clip folder. Check the path.")
    stated = {"format": format, "fps": fps, **options}
    given = ClipConventions.of({name: value for name, value in stated.items() if value is not None}, "")
    beside = ClipConventions.beside(path)
    named = format or beside.format
    chosen = _named_format(named) if named is not None else look_for_format(path)
    return chosen.open(path, given, beside)


def open_windows(paths: Sequence[Path], *, fps: float | None = None, **options: Any) -> ClipReader:
    """Opens some of a folder's Flash windows as a clip.

    Args:
        paths: `window-NN.npy` files of one folder.
        fps: see `open_clip`.
        options: see `open_clip`.

    Raises:
        ClipError: files that are not windows or do not fit together.
    """
    from flowshade.gbuffer.io.flash import FlashReader

    folder = paths[0].parent
    stated = {"fps": fps, **options}
    given = ClipConventions.of({name: value for name, value in stated.items() if value is not None}, "")
    beside = ClipConventions.beside(folder)
    return FlashReader(folder, given.over(beside), windows=paths)


def check_name(path: Path) -> None:
    """Refuses a path that no system has: not UTF-8, or with a part that is too long. Raises: ClipError."""
    try:
        longest = max((len(part.encode()) for part in path.parts), default=0)
    except UnicodeEncodeError as error:
        raise ClipError(f"{str(path)!a} is a name that is not UTF-8; rename it.") from error
    if longest > MAX_NAME_BYTES:
        raise ClipError(f"{str(path)[:60]}... has a name of {longest} bytes; at most {MAX_NAME_BYTES} can be there.")


def read_clip(path: Path | str, *, format: str | None = None, **options: Any) -> GBuffer:
    """The whole clip in memory. For long clips use `open_clip(path).windows(n)`."""
    with open_clip(path, format=format, **options) as reader:
        return reader.read()


def _named_format(name: str) -> Format:
    if name not in FORMATS:
        raise ClipError(f"format {name!r} is unknown; expected one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def look_for_format(path: Path) -> Format:
    """The format that a path looks like.

    Raises:
        ClipError: none.
    """
    for format in FORMATS.values():
        if format.recognises(path):
            return format
    if path.is_dir():
        found = sorted({entry.suffix.lower() or entry.name for entry in path.iterdir()})[:6]
        holds = f"holds {', '.join(found)}" if found else "is empty"
    else:
        holds = f"is a single {path.suffix or 'nameless'} file"
    expected = "; ".join(format.hint for format in FORMATS.values())
    raise ClipError(f"{path} {holds}; expected one of: {expected}. Give the folder of a clip, or name its format.")


def settle_fps(given: float | None, stated: float | None, warnings: list[str]) -> float:
    """Frames per second: as given, else as the clip states it, else a default that is said."""
    fps = given if given is not None else stated
    if fps is None:
        warnings.append(f"frames per second are not stated; {DEFAULT_FPS:g} assumed. Give fps=... to change it.")
        return DEFAULT_FPS
    return check_fps(fps, "fps" if given is not None else "fps as stated in the clip")


def stack(frames: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Frames as dictionaries of [C, H, W] -> one dictionary of [T, C, H, W]."""
    return {name: torch.stack([frame[name] for frame in frames]) for name in frames[0]}
