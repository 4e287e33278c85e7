"""Progress where stderr is no terminal: lines with rate and time left, and silence for all processes but one."""

from types import SimpleNamespace

import pytest

from flowshade import progress


def test_lines_say_how_far_work_has_come(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=iter([0.0, 2.0, 4.0, 8.0]).__next__))
    with progress.progress_bar("rendering", "windows") as told:
        for done in (0, 1, 4):  # nothing to say at the start, nor at the end
            told(done, 4)
    assert capsys.readouterr().err == "rendering 1/4, 0.25 windows/s, 12 s left\n"


def test_what_is_not_shown_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.progress_bar("teaching", shown=False) as told:
        told(1, 4)
    assert capsys.readouterr().err == ""
