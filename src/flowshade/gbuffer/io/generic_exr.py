"""EXR sequences of no known renderer: passes by their usual names, and what else they mean is asked for."""

from __future__ import annotations

from flowshade.gbuffer.io.multilayer import Dialect, MultilayerReader

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
        "instance": ("instance", "objectid", "instanceid", "id"),
        "reference": ("", "beauty", "rgb", "rgba", "combined"),
    },
    diffuse=("diffusealbedo", "diffusecolor", "diffuse"),
    asked={"normal": ("normals",), "depth": ("unit", "depth_code")},
    advice="passes named depth, normal, basecolor, roughness, metallic. Rename them, or name the format.",
)


class GenericExrReader(MultilayerReader):
    """Reads a folder of multilayer EXR files by usual pass names. Options: `MultilayerReader`."""

    dialect = GENERIC
