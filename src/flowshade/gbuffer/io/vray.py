"""EXR sequences as V-Ray writes them: `normals.X`, `zDepth.red`, `diffuse.red`, or `VRayNormals.R`, `VRayZDepth.R`.

The Z-depth element is clamped to a range and may be turned round (white = near) unless the user switches that off,
and normals come relative to the camera, the screen or the world, by element and host program: both are asked for.
Metallic and roughness are user elements (ExtraTex, or reflection glossiness, which is 1 - roughness and stays unread).
"""

from __future__ import annotations

from flowshade.gbuffer.io.multilayer import Dialect, MultilayerReader

VRAY = Dialect(
    name="vray",
    tool="V-Ray",
    passes={
        "albedo": ("basecolor", "albedo", "vraydiffusefilter", "diffusefilter", "diffuse", "vraydiffuse"),
        "normal": ("normals", "vraynormals", "normal", "bumpnormals", "vraybumpnormals"),
        "depth": ("zdepth", "vrayzdepth", "depth", ""),
        "roughness": ("roughness", "vraymtlroughness"),
        "metallic": ("metalness", "vraymtlmetalness", "metallic"),
        "emission": ("selfillumination", "vrayselfillumination"),
        "instance": ("objectid", "vrayobjectid", "nodeid", "vraynodeid", "renderid"),
        "reference": ("",),
    },
    diffuse=("vraydiffusefilter", "diffusefilter", "diffuse", "vraydiffuse"),
    asked={"normal": ("normals",), "depth": ("depth_code", "unit")},
    advice="zDepth, normals, diffuse and ExtraTex elements named roughness and metalness. Add them as render elements.",
)


class VRayReader(MultilayerReader):
    """Reads a folder of EXR files from V-Ray. Options: `MultilayerReader`."""

    dialect = VRAY
