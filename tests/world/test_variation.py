"""Materials drawn anew."""

import mujoco
import numpy as np
import pytest

from flowshade.gbuffer.trace import Tracer
from flowshade.world import camera_at, make_world
from flowshade.world.variation import MaterialVariation, vary_materials

EVERYTHING = MaterialVariation(colour=1.0, roughness=1.0, metal=1.0)
NOTHING = MaterialVariation(colour=0.0, roughness=0.0, metal=0.0)


@pytest.fixture
def model() -> mujoco.MjModel:
    return make_world("street", 3).model


def _materials(model: mujoco.MjModel) -> list[np.ndarray]:
    fields = ("mat_rgba", "mat_metallic", "mat_roughness", "mat_emission", "tex_data", "geom_rgba")
    return [getattr(model, name).copy() for name in fields]


def test_the_same_draws_give_the_same_materials(model: mujoco.MjModel) -> None:
    again = make_world("street", 3).model
    vary_materials(model, np.random.default_rng(5))
    vary_materials(again, np.random.default_rng(5))
    for one, other in zip(_materials(model), _materials(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_drawn_is_nothing_changed(model: mujoco.MjModel) -> None:
    before = _materials(model)
    vary_materials(model, np.random.default_rng(5), NOTHING)
    for one, other in zip(before, _materials(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_all_that_does_not_glow_becomes_metal(model: mujoco.MjModel) -> None:
    glows = model.mat_emission > 0
    assert glows.any() and not glows.all()
    before = model.mat_rgba.copy(), model.mat_roughness.copy(), model.mat_metallic.copy(), model.mat_emission.copy()
    vary_materials(model, np.random.default_rng(5), EVERYTHING)
    assert (model.mat_metallic[~glows] == 1).all()
    assert ((model.mat_roughness[~glows] >= EVERYTHING.smoothest) & (model.mat_roughness[~glows] <= 0.6)).all()
    after = model.mat_rgba, model.mat_roughness, model.mat_metallic
    for old, new in zip(before, after, strict=False):
        np.testing.assert_array_equal(old[glows], new[glows])
    np.testing.assert_array_equal(before[3], model.mat_emission)


def test_patterns_keep_their_alpha_and_geoms_of_one_colour_stay_alike(model: mujoco.MjModel) -> None:
    bare = np.flatnonzero(model.geom_matid < 0)
    _, before = np.unique(model.geom_rgba[bare], axis=0, return_inverse=True)
    pixels, colours = model.tex_data.copy(), model.geom_rgba[bare].copy()
    vary_materials(model, np.random.default_rng(5), EVERYTHING)
    _, after = np.unique(model.geom_rgba[bare], axis=0, return_inverse=True)
    np.testing.assert_array_equal(before.ravel()[:, None] == before.ravel(), after.ravel()[:, None] == after.ravel())
    assert (model.geom_rgba[bare, :3] != colours[:, :3]).any(1).all()
    assert (model.tex_data != pixels).mean() > 0.3
    np.testing.assert_array_equal(model.geom_rgba[bare, 3], colours[:, 3])


def test_the_tracer_sees_the_new_materials_on_the_same_shapes() -> None:
    world, varied = make_world("yard", 3), make_world("yard", 3)
    vary_materials(varied.model, np.random.default_rng(5), EVERYTHING)
    camera = camera_at(world.camera_path, [0.0], 24, 40)
    buffers = []
    for each in (world, varied):
        tracer = Tracer(each.model, size=(24, 40), device="cpu", samples=1)
        tracer.update(each.reset())
        buffers.append(tracer.gbuffer(camera, None))
    plain, new = buffers
    np.testing.assert_array_equal(plain.depth.numpy(), new.depth.numpy())
    np.testing.assert_array_equal(plain.normal.numpy(), new.normal.numpy())
    assert new.metallic.mean() > plain.metallic.mean() + 0.3
    assert (new.albedo - plain.albedo).abs().mean() > 0.05
