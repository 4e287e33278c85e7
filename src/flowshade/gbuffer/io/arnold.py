"""EXR sequences as Arnold writes them: tiled, `N.X` (world space), `Z` (0 or 1e30 for sky), `diffuse_albedo.R`.

Lengths and the up axis are those of the scene, which the files do not state: `unit` is asked for, and `up` where there
are normals. Roughness and metallic are AOVs of the user's own.
"""

from __future__ import annotations

from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.multilayer import Dialect, MultilayerReader

ARNOLD = Dialect(
    name="arnold",
    tool="Arnold",
    passes={
        "albedo": ("basecolor", "albedo", "diffusealbedo"),
        "normal": ("n", "normal"),
        "depth": ("z", "depth", ""),
        "roughness": ("roughness", "specularroughness"),
        "metallic": ("metalness", "metallic"),
        "emission": ("emission",),
        "instance": ("id",),
        "reference": ("", "rgba", "beauty"),
    },
    diffuse=("diffusealbedo",),
    implied=ClipConventions(normals="world", handedness="right", depth_code="linear"),
    asked={"normal": ("up",), "depth": ("unit",)},
    zero_is_sky=True,
    advice="the AOVs Z, N, albedo, and AOVs of your own named roughness and metalness. Add them to your render.",
)


class ArnoldReader(MultilayerReader):
    """Reads a folder of EXR files from Arnold. Options: `MultilayerReader`."""

    dialect = ARNOLD
