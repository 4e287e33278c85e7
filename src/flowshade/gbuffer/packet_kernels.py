# type: ignore  (kernels are written in Warp's language, which type checkers do not know)
"""What the pixels of a tile see, found together: the CPU's way through the trees of `kernels.closest_hit`.

The rays of 4x4 pixels are nearly parallel and visit nearly the same nodes, so that a node is read once and its box, or
a triangle, is tested against all 16 rays in vector instructions (Wald et al. 2001, "Interactive Rendering with Coherent
Ray Tracing"). On a GPU neighbouring threads do the same by themselves.

The searches are C++, since they read Warp's trees node by node: those of `VERSIONS`, and with any other rays are traced
one by one. The tests are Warp's own, term by term: slabs, and the
watertight test of Woop, Benthin and Wald 2013. What is found is what single rays find; only where two surfaces coincide
exactly may it be the other one of them.
"""

from __future__ import annotations

import warp as wp

from flowshade.gbuffer.kernels import (
    Hit,
    Hits,
    Scene,
    Solids,
    View,
    camera_ray,
    fixed_face,
    keep_centre,
    nearer_bounded,
    nearer_plane,
    nearer_shape,
)

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

VERSIONS = ("1.19.",)
"""Of Warp whose trees are known, as the beginnings of their names."""
TILE = 4
"""Pixels along a side of a tile."""
LISTED = TILE * TILE - 1
"""Most shapes that are listed for a tile, behind their number. Where there are more, rays search the tree."""

vec16 = wp.types.vector(length=TILE * TILE, dtype=wp.float32)

_TILE = wp.constant(TILE)
_LISTED = wp.constant(LISTED)
_MISS = wp.constant(1.0e30)


@wp.struct
class Seen:
    """What the tiles of a picture see, row by row of tiles, 16 values a tile."""

    t: wp.array(dtype=float)  # to the fixed surfaces
    face: wp.array(dtype=int)  # of the fixed mesh, -1 without a hit
    shapes: wp.array(dtype=int)  # how many bounded shapes its rays may meet, and which


_VECTORS = """
    typedef float F __attribute__((ext_vector_type(16)));
    typedef int I __attribute__((ext_vector_type(16)));
    typedef bool B __attribute__((ext_vector_type(16)));
    auto bits = [](I mask) { return __builtin_bit_cast(unsigned short, __builtin_convertvector(mask, B)); };
    auto lesser = [](F a, F b) { return a < b ? a : b; };
    auto greater = [](F a, F b) { return a < b ? b : a; };

    F d[3], inverse[3], best;
    for (int k = 0; k < 16; ++k) {
        d[0][k] = dx[k];
        d[1][k] = dy[k];
        d[2][k] = dz[k];
        best[k] = limit[k];
    }
    for (int axis = 0; axis < 3; ++axis)
        inverse[axis] = 1.0f / (d[axis] == 0.0f ? F(1.0e-20f) : d[axis]);

    // Lanes that enter a box before `best`, and where.
    auto enters = [&](float x0, float y0, float z0, float x1, float y1, float z1, F& entry) {
        F a = (x0 - o[0]) * inverse[0], b = (x1 - o[0]) * inverse[0];
        F first = lesser(a, b), last = greater(a, b);
        a = (y0 - o[1]) * inverse[1], b = (y1 - o[1]) * inverse[1];
        first = greater(first, lesser(a, b)), last = lesser(last, greater(a, b));
        a = (z0 - o[2]) * inverse[2], b = (z1 - o[2]) * inverse[2];
        first = greater(first, lesser(a, b)), last = lesser(last, greater(a, b));
        entry = first;
        return (last >= 0.0f) & (last >= first) & (first < best);
    };

    struct Waiting {
        F entry;
        wp::BVHPackedNodeHalf lower, upper;
    };
    Waiting stack[64];
    int waiting = 0;

    // Calls `visit(first item, end)` for every leaf that a lane enters, the nearer child first.
    auto search = [&](const wp::BVH& tree, auto&& visit) {
        F entry;
        wp::BVHPackedNodeHalf lower = tree.node_lowers[*tree.root], upper = tree.node_uppers[*tree.root];
        if (!bits(enters(lower.x, lower.y, lower.z, upper.x, upper.y, upper.z, entry)))
            return;
        while (true) {
            bool inner = !lower.b;
            if (inner) {
                const wp::BVHPackedNodeHalf ll = tree.node_lowers[lower.i], lu = tree.node_uppers[lower.i];
                const wp::BVHPackedNodeHalf rl = tree.node_lowers[upper.i], ru = tree.node_uppers[upper.i];
                F left, right;
                const I in_left = enters(ll.x, ll.y, ll.z, lu.x, lu.y, lu.z, left);
                const I in_right = enters(rl.x, rl.y, rl.z, ru.x, ru.y, ru.z, right);
                const bool go_left = bits(in_left), go_right = bits(in_right);
                if (go_left && go_right) {
                    const int both = bits(in_left & in_right);
                    const int left_first = bits(in_left & in_right & (left < right));
                    const bool near_left = 2 * __builtin_popcount(left_first) >= __builtin_popcount(both);
                    if (waiting < 64) {
                        Waiting& later = stack[waiting++];
                        later.entry = near_left ? (in_right ? right : F(1.0e30f)) : (in_left ? left : F(1.0e30f));
                        later.lower = near_left ? rl : ll;
                        later.upper = near_left ? ru : lu;
                    }
                    lower = near_left ? ll : rl;
                    upper = near_left ? lu : ru;
                    continue;
                }
                if (go_left || go_right) {
                    lower = go_left ? ll : rl;
                    upper = go_left ? lu : ru;
                    continue;
                }
            } else {
                visit((int)lower.i, (int)upper.i);
            }
            do {
                if (waiting == 0)
                    return;
                --waiting;
            } while (!bits(stack[waiting].entry < best));
            lower = stack[waiting].lower;
            upper = stack[waiting].upper;
        }
    };
"""

_NEAREST_FACES = (
    _VECTORS
    + """
    const wp::Mesh& mesh = *(const wp::Mesh*)id;
    const int kz = wp::max_dim(wp::vec3(dx[0], dy[0], dz[0]));
    const bool turned = d[kz][0] < 0.0f;
    bool alike = true;
    for (int k = 1; k < 16; ++k)
        alike = alike && wp::max_dim(wp::vec3(dx[k], dy[k], dz[k])) == kz && (d[kz][k] < 0.0f) == turned;
    I found = -1;
    if (!alike) {  // the test works in other planes for some of the rays: one by one
        for (int k = 0; k < 16; ++k) {
            float t, u, v, sign;
            int face;
            wp::vec3 normal;
            if (wp::mesh_query_ray(id, o, wp::vec3(dx[k], dy[k], dz[k]), limit[k], t, u, v, sign, normal, face)) {
                best[k] = t;
                found[k] = face;
            }
        }
    } else {
        const int kx = (kz + (turned ? 2 : 1)) % 3, ky = (kz + (turned ? 1 : 2)) % 3;
        const F sx = d[kx] / d[kz], sy = d[ky] / d[kz], sz = 1.0f / d[kz];
        auto product = [](F a, F b, F c, F d) {  // a b - c d
            const F cd = c * d;
            return __builtin_elementwise_fma(a, b, -cd) + __builtin_elementwise_fma(-c, d, cd);
        };
        auto meet = [&](int face) {
            const wp::vec3 a = mesh.points[mesh.indices[3 * face]] - o;
            const wp::vec3 b = mesh.points[mesh.indices[3 * face + 1]] - o;
            const wp::vec3 c = mesh.points[mesh.indices[3 * face + 2]] - o;
            const F ax = a[kx] - sx * a[kz], ay = a[ky] - sy * a[kz];
            const F bx = b[kx] - sx * b[kz], by = b[ky] - sy * b[kz];
            const F cx = c[kx] - sx * c[kz], cy = c[ky] - sy * c[kz];
            F u = product(cx, by, cy, bx), v = product(ax, cy, ay, cx), w = product(bx, ay, by, ax);
            const int on_edge = bits((u == 0.0f) | (v == 0.0f) | (w == 0.0f));
            for (int k = 0; on_edge >> k; ++k) {
                if (on_edge >> k & 1) {
                    u[k] = (float)((double)cx[k] * by[k] - (double)cy[k] * bx[k]);
                    v[k] = (float)((double)ax[k] * cy[k] - (double)ay[k] * cx[k]);
                    w[k] = (float)((double)bx[k] * ay[k] - (double)by[k] * ax[k]);
                }
            }
            const I outside = ((u < 0.0f) | (v < 0.0f) | (w < 0.0f)) & ((u > 0.0f) | (v > 0.0f) | (w > 0.0f));
            const F det = u + v + w;
            const F t = (u * (sz * a[kz]) + v * (sz * b[kz]) + w * (sz * c[kz])) * (1.0f / det);
            const I met = ~outside & (det != 0.0f) & (t >= 0.0f) & (t < best);
            best = met ? t : best;
            found = met ? I(face) : found;
        };
        search(mesh.bvh, [&](int begin, int end) {
            for (int item = begin; item < end; ++item)
                meet(mesh.bvh.primitive_indices[item]);
        });
    }
    for (int k = 0; k < 16; ++k) {
        distance[16 * tile + k] = best[k];
        face[16 * tile + k] = found[k];
    }
"""
)

_LIST_SHAPES = (
    _VECTORS
    + f"""
    const int most = {LISTED};
"""
    + """
    int* list = &shapes[(most + 1) * tile];
    int count = 0;
    const wp::BVH& tree = *(const wp::BVH*)id;
    search(tree, [&](int begin, int end) {
        for (int place = begin; place < end; ++place) {
            const int item = tree.primitive_indices[place];
            const wp::vec3 lower = tree.item_lowers[item], upper = tree.item_uppers[item];
            F entry;
            if (bits(enters(lower[0], lower[1], lower[2], upper[0], upper[1], upper[2], entry))) {
                if (count < most)
                    list[1 + count] = item;
                ++count;
            }
        }
    });
    list[0] = count;
"""
)


@wp.func_native(_NEAREST_FACES)
def nearest_faces(
    id: wp.uint64,
    o: wp.vec3,
    dx: vec16,
    dy: vec16,
    dz: vec16,
    limit: vec16,
    tile: int,
    distance: wp.array(dtype=float),
    face: wp.array(dtype=int),
):
    """The nearest face of a mesh along each of 16 rays from one point; -1 and `limit` where there is none."""


@wp.func_native(_LIST_SHAPES)
def list_shapes(
    id: wp.uint64,
    o: wp.vec3,
    dx: vec16,
    dy: vec16,
    dz: vec16,
    limit: vec16,
    tile: int,
    shapes: wp.array(dtype=int),
):
    """How many boxes of a tree any of 16 rays enters before its limit, and the first of them."""


@wp.kernel
def trace_tiles(
    solids: Solids,
    view: View,
    row: int,
    seen: Seen,
):
    """Rays through the centres of a tile's pixels: the fixed faces that they meet and the shapes that they may meet."""
    across = (view.width + _TILE - 1) / _TILE
    tile = row / _TILE * across + wp.tid()
    dx = vec16()
    dy = vec16()
    dz = vec16()
    limit = vec16()
    for k in range(_TILE * _TILE):
        x = wp.min(tile % across * _TILE + k % _TILE, view.width - 1)
        y = wp.min(tile / across * _TILE + k / _TILE, view.height - 1)
        d = camera_ray(view, float(x) + 0.5, float(y) + 0.5)
        d = d / wp.length(d)
        dx[k] = d[0]
        dy[k] = d[1]
        dz[k] = d[2]
        limit[k] = float(_MISS)
        seen.t[16 * tile + k] = float(_MISS)
        seen.face[16 * tile + k] = -1
    if solids.fixed != wp.uint64(0):
        nearest_faces(solids.fixed, view.pos, dx, dy, dz, limit, tile, seen.t, seen.face)
        for k in range(_TILE * _TILE):
            limit[k] = seen.t[16 * tile + k]
    seen.shapes[(_LISTED + 1) * tile] = 0
    if solids.bounded > 0:
        list_shapes(solids.bvh, view.pos, dx, dy, dz, limit, tile, seen.shapes)


@wp.func
def nearest_seen(solids: Solids, view: View, seen: Seen, i: int, d: wp.vec3) -> Hit:
    """`kernels.closest_hit` through the centre of pixel `i`, by what its tile sees."""
    x = i % view.width
    y = i / view.width
    tile = y / _TILE * ((view.width + _TILE - 1) / _TILE) + x / _TILE
    k = 16 * tile + y % _TILE * _TILE + x % _TILE
    best = fixed_face(solids, seen.face[k], seen.t[k])
    best = nearer_plane(solids, view.pos, d, best)
    listed = (_LISTED + 1) * tile
    count = seen.shapes[listed]
    if count > _LISTED:
        best = nearer_bounded(solids, view.pos, d, best)
    else:
        for j in range(count):
            best = nearer_shape(solids, seen.shapes[listed + 1 + j], view.pos, d, best)
    if best.geom < 0:
        best.t = float(_MISS)
    return best


@wp.kernel
def trace_seen(
    scene: Scene,
    view: View,
    last: View,
    start: int,
    seen: Seen,
    hits: Hits,
    depth: wp.array(dtype=float),
    instance: wp.array(dtype=int),
    motion: wp.array(dtype=float),
):
    """`kernels.trace_centres`, after `trace_tiles`."""
    i = start + wp.tid()
    along = camera_ray(view, float(i % view.width) + 0.5, float(i / view.width) + 0.5)
    stretch = wp.length(along)
    d = along / stretch
    hit = nearest_seen(scene.solids, view, seen, i, d)
    keep_centre(scene, view, last, i, d, stretch, hit, hits, depth, instance, motion)
