import math

import torch

from flowshade.evaluation.perceptual import Trunk, lpips_of_features
from flowshade.training.losses import LARGEST_ERROR, PSNR_WEIGHT, change_loss, perceptual_loss, picture_loss


def test_a_constant_error_is_no_change():
    reference = torch.rand(2, 4, 3, 8, 8)
    assert change_loss(reference + 0.1, reference).item() < 1e-6


def test_picture_loss_grows_with_the_error_and_by_the_same_amount_for_each_halving_of_a_small_one():
    reference = torch.full((2, 4, 3, 8, 8), 0.5)
    perfect, small, large = (picture_loss(reference + error, reference).item() for error in (0.0, 0.1, 0.2))
    assert perfect < small < large
    logarithm = PSNR_WEIGHT * math.log((0.2**2 / LARGEST_ERROR + 1e-4) / (0.1**2 / LARGEST_ERROR + 1e-4))
    assert math.isclose(large - small, 0.1 + logarithm, rel_tol=1e-4)


def test_every_clip_counts_alike_in_psnr():
    reference = torch.full((2, 4, 3, 8, 8), 0.5)
    calm, contrasty = reference.clone(), reference.clone()
    calm[0] += 0.01
    contrasty[1] += 0.2
    together = calm + contrasty - reference
    apart = [picture_loss(part, reference) - picture_loss(reference, reference) for part in (calm, contrasty)]
    torch.testing.assert_close(picture_loss(together, reference) - picture_loss(reference, reference), sum(apart))


def test_a_step_at_the_border_of_a_window_counts_only_with_the_frame_before():
    reference = torch.rand(1, 4, 3, 8, 8)
    last = (reference[:, -1:], reference[:, -1:])
    assert change_loss(reference + 0.2, reference).item() < 1e-6
    torch.testing.assert_close(change_loss(reference + 0.2, reference, last).item(), 0.2 / 4)


def test_windows_with_their_past_add_up_to_the_whole_clip():
    prediction, reference = torch.rand(2, 1, 8, 3, 8, 8)
    last = (prediction[:, 3:4], reference[:, 3:4])
    second = change_loss(prediction[:, 4:], reference[:, 4:], last) * 4
    first = change_loss(prediction[:, :4], reference[:, :4]) * 3
    torch.testing.assert_close((first + second) / 7, change_loss(prediction, reference))


def test_steps_into_a_latent_frame_weigh_as_asked():
    reference = torch.zeros(1, 8, 3, 4, 4)
    inside, into = reference.clone(), reference.clone()
    inside[:, 6:], into[:, 4:] = 0.7, 0.7
    torch.testing.assert_close(change_loss(inside, reference, border=3.0).item(), 0.7 / (6 + 3))
    torch.testing.assert_close(change_loss(into, reference, border=3.0).item(), 3 * 0.7 / (6 + 3))
    last = (reference[:, :1] - 0.7, reference[:, :1])
    torch.testing.assert_close(change_loss(reference, reference, last, border=3.0).item(), 3 * 0.7 / (6 + 2 * 3))


def small_vgg() -> Trunk:
    generator = torch.Generator().manual_seed(0)
    widths = [3, 2, 2, 3, 3, 4, 4, 4]  # three blocks of VGG16's plan
    pairs = list(zip(widths[1:], widths[:-1]))
    convolutions = [(torch.randn(out, into, 3, 3, generator=generator) / 3, torch.zeros(out)) for out, into in pairs]
    return Trunk("vgg", convolutions, [torch.ones(width) for width in (2, 3, 4)])


def test_the_perceptual_loss_is_lpips_of_a_frame_and_pulls_towards_the_reference():
    trunk, reference = small_vgg(), torch.rand(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    prediction = (reference * 0.5).requires_grad_(True)
    loss = perceptual_loss(prediction, reference, trunk)
    plain = lpips_of_features(trunk.features(prediction.detach()[:, 0]), trunk.features(reference[:, 0]), trunk)
    torch.testing.assert_close(loss.detach(), plain.mean())
    (gradient,) = torch.autograd.grad(loss, prediction)
    assert perceptual_loss(prediction.detach() - 0.1 * gradient / gradient.abs().max(), reference, trunk) < loss
    assert perceptual_loss(reference, reference, trunk) == 0


def test_of_several_frames_one_is_drawn_for_each_clip():
    trunk, reference = small_vgg(), torch.rand(4, 1, 3, 16, 16).expand(-1, 4, -1, -1, -1)
    prediction = reference.clone()
    prediction[:, 1] = prediction[:, 1].flip(-1)
    whole = lpips_of_features(trunk.features(prediction[:, 1]), trunk.features(reference[:, 1]), trunk)
    sums = [(whole * mask).mean() for mask in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)]
    drawn = {round(float(perceptual_loss(prediction, reference, trunk)), 5) for _ in range(30)}
    assert len(drawn) > 1
    assert all(min(abs(value - float(total)) for total in sums) < 2e-5 for value in drawn)


def test_a_saved_trunk_gives_the_same_features_in_its_first_layers(tmp_path):
    trunk, picture = small_vgg(), torch.rand(1, 3, 16, 16)
    trunk.save(tmp_path / "trunk.safetensors", layers=2)
    loaded = Trunk.load_file(tmp_path / "trunk.safetensors")
    assert len(loaded.heads) == len(loaded.features(picture)) == 2
    for found, whole in zip(loaded.features(picture), trunk.features(picture)):
        torch.testing.assert_close(found, whole, atol=5e-3, rtol=5e-3)  # half precision on disk
