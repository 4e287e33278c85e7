# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""What a GPU can do with the tracer's trees, for `trace.py`: rays that need nothing but the tree."""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import View, camera_ray
from flowshade.gbuffer.light_kernels import dealt

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

LANES = 16
"""Rays a pixel, side by side."""

_LANES = wp.constant(LANES)


@wp.kernel
def trace_peak(mesh: wp.uint64, view: View, first_row: int, rows: int, found: wp.array(dtype=int)):
    """Whether a camera's rays meet anything of a mesh; `found` has LANES entries a pixel."""
    where = dealt(wp.tid(), rows, view.width)
    if where[2] < 0:
        return
    across = (float(where[2]) + 0.5) / float(_LANES)
    along = camera_ray(view, float(where[0]) + across, float(first_row + where[1]) + 0.5)
    slot = (where[2] * view.height + first_row + where[1]) * view.width + where[0]
    found[slot] = wp.where(wp.mesh_query_ray_anyhit(mesh, view.pos, wp.normalize(along), 1.0e30), 1, 0)
