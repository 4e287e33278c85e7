"""Omniverse Replicator's folders: `distance_to_image_plane_0000.npy`, `DiffuseAlbedo_0000.png`, `rgb_0000.png`, ...

`distance_to_image_plane` is planar depth, `distance_to_camera` ray distance, both in metres, infinite for sky; where
both are there the planar one is taken. Normals exist in several spaces and are left out until `normals` is stated.
There is no metallic. Files may carry the name of the annotator before the number, or lie in a folder of that name.
"""

from __future__ import annotations

from pathlib import Path

from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.picture_folder import PictureFolderReader, channel_in_name, pictures_in

PLANAR, RAY = "distance_to_image_plane", "distance_to_camera"
NAMES = {
    PLANAR: "depth",
    RAY: "ray",
    "diffusealbedo": "albedo",
    "diffuse_albedo": "albedo",
    "roughness": "roughness",
    "smoothnormal": "normal",
    "smooth_normal": "normal",
    "bumpnormal": "bump",
    "bump_normal": "bump",
    "normals": "plain",
    "rgb": "rgb",
    "ldrcolor": "rgb",
}
"""Annotators -> channel; "ray", "bump" and "plain" stand in for depth and normal where those are missing."""
SUBSTITUTES = {"ray": "depth", "bump": "normal", "plain": "normal"}
TELLING = (PLANAR, RAY, "diffusealbedo", "diffuse_albedo", "smoothnormal", "smooth_normal")


def is_replicator(path: Path) -> bool:
    """Whether a folder holds files or folders named after an annotator that no other tool has."""
    if not path.is_dir():
        return False
    return any(channel_in_name(entry.stem, dict.fromkeys(TELLING, "")) for entry in path.iterdir())


class ReplicatorReader(PictureFolderReader):
    """Reads what Replicator's writers wrote, see this module. Options: `CodedReader`."""

    format = "replicator"
    names = NAMES
    asks_normals = True

    def _implied(self) -> ClipConventions:
        by_ray = "ray" in self._all_names() and "depth" not in self._all_names()
        return ClipConventions(unit="m", depth_kind="ray" if by_ray else "planar")

    def _all_names(self) -> set[str]:
        """Channels by `NAMES` of what is there."""
        entries = [entry.stem for entry in (*pictures_in(self._path), *filter(Path.is_dir, self._path.iterdir()))]
        return {named[0] for named in (channel_in_name(entry, NAMES) for entry in entries) if named}

    def _by_channel(self) -> dict[str, list[Path]]:
        found = super()._by_channel()
        for substitute, channel in SUBSTITUTES.items():
            files = found.pop(substitute, None)
            if files is not None:
                found.setdefault(channel, files)
        return found

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        found = super()._find(warnings)
        if "albedo" in self.top:
            warnings.append("albedo is the diffuse albedo, which is black for metals.")
        return found
