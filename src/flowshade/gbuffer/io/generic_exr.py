"""EXR sequences of no known renderer: passes by their usual names, and what else they mean is asked for."""

from __future__ import annotations

from flowshade.gbuffer.io.multilayer import Dialect, MultilayerReader, PassLayout

MOTION_ATTRIBUTE = "motionConvention"
MOTION = "previous minus now, pixels, y down"
"""Header attribute of files whose motion pass is ours; without it a motion pass stays unread."""

GENERIC = Dialect(
    name="exr",
    tool="these EXR",
    passes={
        "albedo": ("basecolor", "albedo", "diffusealbedo", "diffusecolor", "diffuse"),
        "normal": ("normal", "normals", "n", "worldnormal", "cameranormal"),
        "depth": ("depth", "z", "zdepth", "distance", ""),
        "roughness": ("roughness", "rough"),
        "metallic": ("metallic", "metalness", "metal"),
        "emission": ("emission", "emissive", "emit"),
        "motion": ("motion",),
        "instance": ("instance", "objectid", "instanceid", "id"),
        "reference": ("", "beauty", "rgb", "rgba", "combined"),
    },
    motion_signs=(1.0, 1.0),
    diffuse=("diffusealbedo", "diffusecolor", "diffuse"),
    asked={"normal": ("normals",), "depth": ("unit", "depth_code")},
    advice="passes named depth, normal, basecolor, roughness, metallic. Rename them, or name the format.",
)


class GenericExrReader(MultilayerReader):
    """Reads a folder of multilayer EXR files by usual pass names. Options: `MultilayerReader`."""

    dialect = GENERIC

    def _find_passes(self) -> PassLayout:
        layout = super()._find_passes()
        if self._header.attributes.get(MOTION_ATTRIBUTE) != MOTION and layout.names.pop("motion", None):
            layout.unused.append("motion (its scale and direction are not stated)")
        return layout
