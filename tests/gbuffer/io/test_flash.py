import numpy as np
import pytest
import torch

from flowshade.gbuffer.io import ClipError, open_clip

ORDER = ["albedo", "depth", "metallic", "normal", "roughness"]


@pytest.fixture
def windows(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (3, 16, 5, 4, 6, 3), dtype=np.uint8, endpoint=True)
    values[:, :, [1, 2, 4]] = values[:, :, [1, 2, 4], :, :, :1]  # grey buffers
    for index, window in enumerate(values):
        np.save(tmp_path / f"window-{index:02d}.npy", window)
    return tmp_path, np.concatenate(values)


def test_bytes_pass_untouched_across_windows(windows):
    path, values = windows
    clip = open_clip(path)
    assert (clip.info.format, clip.info.frames, clip.info.size) == ("flash", 48, (4, 6))
    coded = clip.coded(13, 35)
    assert list(coded) == ORDER
    for index, name in enumerate(ORDER):
        assert np.array_equal(coded[name].numpy(), values[13:35, index].transpose(0, 3, 1, 2)), name


def test_depth_stays_out_until_its_code_is_given(windows):
    path, values = windows
    honest = open_clip(path)
    assert honest.read(0, 2).depth is None and honest.info.missing == ("depth",)
    assert any("8-bit code, which is not stated" in text for text in honest.info.warnings)
    depth = open_clip(path, depth_code="inverse:10").read(0, 20).depth
    code = values[:20, 1, :, :, 0] / 255
    expected = np.where(code == 0, np.inf, 10 * (1 - code) / np.maximum(code, 1e-9))
    assert np.allclose(depth[:, 0].numpy(), expected, rtol=1e-6)


def test_a_shorter_last_window(windows):
    path, values = windows
    np.save(path / "window-02.npy", values[32:37].reshape(5, 5, 4, 6, 3))
    clip = open_clip(path)
    assert clip.info.frames == 37
    assert torch.equal(clip.read(30, 37).metallic[:, 0] * 255, torch.from_numpy(values[30:37, 2, :, :, 0]).float())


def test_wrong_windows(windows):
    path, values = windows
    np.save(path / "window-01.npy", values[:8])
    with pytest.raises(ClipError, match=r"window-01.npy is \(8, 5, 4, 6, 3\) and the first window \(16, 5, 4, 6, 3\)"):
        open_clip(path)
    np.save(path / "window-01.npy", values[:16].astype(np.float32))
    with pytest.raises(ClipError, match=r"window-01.npy is float32 .*expected uint8 \[frames, 5, height, width, 3\]"):
        open_clip(path)
    (path / "window-01.npy").write_bytes(b"junk")
    with pytest.raises(ClipError, match="cannot be read as a NumPy array"):
        open_clip(path)
    (path / "window-01.npy").unlink()
    with pytest.raises(ClipError, match="frames 1 are missing"):
        open_clip(path)


def test_pickled_windows_are_refused(tmp_path):
    np.save(tmp_path / "window-00.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ClipError, match="cannot be read as a NumPy array"):
        open_clip(tmp_path)
