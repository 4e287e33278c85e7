"""Answers on disk: one JSON object a line, written as they come, so that a stopped run goes on where it was."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from flowshade.errors import FlowshadeError
from flowshade.evaluation.vlm.protocol import Question

Status = Literal["ranked", "malformed", "refused"]
STATUSES = ("ranked", "malformed", "refused")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of one question."""

    key: str
    status: Status
    ranks: dict[str, float] | None
    """Method -> mid-rank, 1 is best; None unless ranked."""
    question: dict[str, Any]
    attempts: tuple[dict[str, Any], ...]
    """Every reply: its text, and what was wrong with it (null if nothing)."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    model: str = ""


def answer_of(question: Question, attempts: list[dict[str, Any]], ranks: dict[str, float] | None) -> Answer:
    """The record of a question from its replies; `ranks` are by label, or None when no reply could be read."""
    named = None if ranks is None else dict(sorted(zip(question.order, (ranks[x] for x in question.labels))))
    last = attempts[-1]
    status: Status = "ranked" if named is not None else "refused" if last["refused"] else "malformed"
    return Answer(
        key=question.key,
        status=status,
        ranks=named,
        question=question.record(),
        attempts=tuple(attempts),
        tokens_in=_total(attempts, "tokens_in"),
        tokens_out=_total(attempts, "tokens_out"),
        model=last["model"],
    )


def _total(attempts: list[dict[str, Any]], name: str) -> int | None:
    counts = [attempt[name] for attempt in attempts if attempt[name] is not None]
    return sum(counts) if counts else None


class AnswerFile:
    """`answers.jsonl`. One process at a time may hold it; several threads may add.

    A last line without its end, as a kill during writing leaves it, is cut off.

    Args:
        path: the file, made if absent.

    Raises:
        FlowshadeError: another process holds it, or a line is no answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a+b")
        try:
            self._hold()
            self.answers = self._read()
        except BaseException:
            self._file.close()
            raise

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FlowshadeError(
                f"{self.path} is being written by another run; expected one at a time. Wait, or give another --output."
            ) from error

    def _read(self) -> dict[str, Answer]:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        lines = data[:whole].splitlines()
        answers = (self._parse(line, number) for number, line in enumerate(lines, 1))
        return {answer.key: answer for answer in answers}

    def _parse(self, line: bytes, number: int) -> Answer:
        try:
            values = json.loads(line)
            answer = Answer(**(values | {"attempts": tuple(values["attempts"])}))
            if answer.status not in STATUSES or (answer.ranks is None) == (answer.status == "ranked"):
                raise ValueError("status and ranks disagree")
        except (ValueError, TypeError, KeyError) as error:
            raise FlowshadeError(
                f"{self.path}, line {number} is no answer ({error}); expected what this command writes. Remove the "
                "line to have its question asked again."
            ) from error
        return answer

    def add(self, answer: Answer) -> None:
        """Writes an answer and waits until the disk has it."""
        line = json.dumps(asdict(answer), ensure_ascii=False) + "\n"
        with self._lock:
            self._file.write(line.encode("utf-8", "replace"))
            self._file.flush()
            os.fsync(self._file.fileno())
            self.answers[answer.key] = answer

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
