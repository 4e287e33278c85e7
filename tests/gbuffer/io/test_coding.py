import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from flowshade.gbuffer.io import ClipError
from flowshade.gbuffer.io.coding import CODING_FILE, Coding, CodingFile, DepthCode


@given(metres=st.floats(0.01, 5000), scale=st.floats(0.5, 100))
def test_inverse_code_inverts_within_half_a_step(metres, scale):
    code = DepthCode("inverse", scale)
    depth = torch.tensor([metres]).reshape(1, 1, 1, 1)
    stored = code.encode(depth, 65535)
    expected = 65535 * scale / (metres + scale)
    assert abs(int(stored) - expected) <= 0.51
    if int(stored) > 0:
        again = code.encode(code.decode(stored, 65535), 65535)
        assert int(again) == int(stored)


def test_known_depth_values():
    values = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    assert DepthCode.parse("inverse:10").decode(values, 255).flatten().tolist() == pytest.approx([torch.inf, 40.0, 0.0])
    assert DepthCode.parse("far:100").decode(values, 255).flatten().tolist() == pytest.approx([0.0, 20.0, torch.inf])
    millimetres = torch.tensor([0, 2500, 65535], dtype=torch.int32).reshape(1, 1, 1, 3)
    decoded = DepthCode.parse("unit:0.001").decode(millimetres, 65535).flatten()
    assert decoded.tolist() == pytest.approx([torch.inf, 2.5, torch.inf])


@pytest.mark.parametrize("text", ["inverse:10", "far:100", "unit:0.002"])
@pytest.mark.parametrize("top", [255, 65535])
def test_every_stored_depth_is_kept(text, top):
    """Decoding and encoding again gives the same integers, so a file survives a round trip byte for byte."""
    code = DepthCode.parse(text)
    values = torch.arange(top + 1, dtype=torch.int32).reshape(1, 1, 1, -1)
    kept = code.encode(code.decode(values, top), top)
    if text.startswith("unit"):
        values = values.clone()
        values[..., 0] = top  # both ends mean "nothing was hit"
    assert torch.equal(kept, values)


@pytest.mark.parametrize("text", ["inverse", "inverse:", "inverse:-1", "log:3", "far:x", "far:nan"])
def test_unknown_depth_codes(text):
    with pytest.raises(ClipError, match="expected inverse:METRES"):
        DepthCode.parse(text)


@pytest.mark.parametrize("channel", ["albedo", "roughness", "metallic"])
@pytest.mark.parametrize("top", [255, 65535])
def test_every_stored_material_value_is_kept(channel, top):
    planes = 3 if channel == "albedo" else 1
    values = torch.arange(top + 1, dtype=torch.int32).expand(1, planes, 1, -1)
    assert torch.equal(Coding().encode(channel, Coding().decode(channel, values, top), top), values)


def test_normals_in_both_axes():
    normal = normalize(torch.rand(1, 3, 9, 9) - 0.5, dim=1)
    normal[..., 0] = 0
    opengl, directx = Coding(), Coding(normal_axes="directx")
    for coding in (opengl, directx):
        found = coding.decode("normal", coding.encode("normal", normal, 65535), 65535)
        assert (found - normal).abs().max() < 5e-5 and (found[..., 0] == 0).all()
        assert (coding.decode("normal", coding.encode("normal", normal, 255), 255) - normal).abs().max() < 0.01
    flipped = opengl.decode("normal", directx.encode("normal", normal, 65535), 65535)
    assert (flipped * torch.tensor([1.0, -1, 1])[:, None, None] - normal).abs().max() < 5e-5


def test_albedo_codes():
    grey = torch.full((1, 3, 1, 1), 188, dtype=torch.uint8)
    assert float(Coding().decode("albedo", grey, 255)[0, 0, 0, 0]) == pytest.approx(0.5029, abs=1e-3)
    assert float(Coding(albedo_code="linear").decode("albedo", grey, 255)[0, 0, 0, 0]) == pytest.approx(188 / 255)


def test_options_and_files_that_make_no_sense(tmp_path):
    with pytest.raises(ClipError, match="albedo_code='gamma' is unknown; expected one of srgb, linear"):
        Coding(albedo_code="gamma")
    with pytest.raises(ClipError, match="instance ids reach 70000 and the file holds 65535"):
        Coding().encode("instance", torch.full((1, 1, 1, 1), 70000, dtype=torch.int32), 65535)
    (tmp_path / CODING_FILE).write_text(json.dumps({"fps": 3}))
    with pytest.raises(ClipError, match="coding.json: 'frames' is missing; expected a whole number"):
        CodingFile.find(tmp_path)
    (tmp_path / CODING_FILE).unlink()
    assert CodingFile.find(tmp_path) is None
    file = CodingFile(coding=Coding(depth_code="far:9"), fps=12.5, frames=3, caption="x")
    file.save(tmp_path)
    assert CodingFile.find(tmp_path) == file
