import torch

from flowshade.training.losses import change_loss, picture_loss


def test_a_constant_error_is_no_change():
    reference = torch.rand(2, 4, 3, 8, 8)
    assert change_loss(reference + 0.1, reference).item() < 1e-6
    assert picture_loss(reference + 0.1, reference).item() > 0.1


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
