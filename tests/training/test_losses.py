import math

import torch

from flowshade.training.losses import LARGEST_ERROR, PSNR_WEIGHT, change_loss, picture_loss


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
