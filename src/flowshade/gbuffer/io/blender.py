"""EXR sequences as Blender writes them.

Blender 4.x puts every pass into one part (`ViewLayer.Depth.Z`, `ViewLayer.IndexOB.X`, `ViewLayer.DiffCol.R`), 5.x
one pass into each part (`ViewLayer.Object Index.X`, `ViewLayer.Diffuse Color.R`). Base colour, roughness and metallic
exist only as AOVs, which users name. Depth is planar, in metres, 1e10 for sky (65504 in half floats). Normals are in
world space and, being filtered, not quite of unit length. Vector's X and Y are where the pixel was one frame ago minus
where it is, in pixels, Y up. Cameras are not in the files: `cameras.json` beside them (see `cameras.py`).
"""

from __future__ import annotations

from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.multilayer import Dialect, MultilayerReader

BLENDER = Dialect(
    name="blender",
    tool="Blender",
    passes={
        "albedo": ("basecolor", "albedo", "diffcol", "diffusecolor"),
        "normal": ("normal",),
        "depth": ("depth",),
        "roughness": ("roughness", "rough"),
        "metallic": ("metallic", "metalness", "metal"),
        "emission": ("emit", "emission"),
        "motion": ("vector",),
        "instance": ("indexob", "objectindex"),
        "reference": ("combined",),
    },
    diffuse=("diffcol", "diffusecolor"),
    implied=ClipConventions(normals="world", depth_code="linear"),
    advice="some of Depth, Normal, and AOVs basecolor, roughness, metallic. Enable them in Blender's view layer.",
)


class BlenderReader(MultilayerReader):
    """Reads a folder of EXR files that Blender rendered. Options: `MultilayerReader`."""

    dialect = BLENDER
