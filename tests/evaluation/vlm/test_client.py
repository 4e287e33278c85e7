"""The client against a server that misbehaves."""

from __future__ import annotations

import time

import pytest

from flowshade.evaluation.vlm.client import (
    Endpoint,
    EndpointError,
    HttpJudge,
    RateLimit,
    Turn,
    key_from,
    retry_after,
)
from tests.evaluation.vlm.conftest import Stub, completion, drips, fails, hangs_up, says

KEY = "sk-very-secret-123"
TURNS = [Turn("system", "be good"), Turn("user", "look", (b"PNG1", b"PNG2"))]


class Asked(HttpJudge):
    """A judge that notes its pauses instead of sleeping."""

    def __init__(self, url: str, key: str | None = None, **options) -> None:
        self.pauses: list[float] = []
        endpoint = Endpoint(base_url=url, model="m", **({"timeout": 5.0, "tries": 3} | options))
        super().__init__(endpoint, key, sleep=self.pauses.append)


def test_a_request_is_a_chat_completion_with_pictures(stub: Stub) -> None:
    stub.script = [says("fine")]
    reply = Asked(stub.url + "/", KEY).ask(TURNS)
    assert (reply.text, reply.tokens_in, reply.tokens_out, reply.model) == ("fine", 1000, 20, "stub-1")
    path, headers, body = stub.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["messages"][0] == {"role": "system", "content": "be good"}
    parts = body["messages"][1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert parts[0]["image_url"]["url"] == "data:image/png;base64,UE5HMQ=="
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 400)


def test_without_a_key_none_is_sent_and_options_change_names(stub: Stub) -> None:
    Asked(stub.url, temperature=None, max_tokens_name="max_completion_tokens").ask(TURNS_ONLY_TEXT)
    _, headers, body = stub.requests[0]
    assert "Authorization" not in headers
    assert "temperature" not in body
    assert body["max_completion_tokens"] == 400


TURNS_ONLY_TEXT = [Turn("user", "look", (b"x",))]


@pytest.fixture(autouse=True)
def plain_answer(stub: Stub) -> None:
    stub.default = says("late but fine")


@pytest.mark.parametrize(
    "wrong",
    [
        fails(500),
        fails(503, b"<html>busy</html>"),
        fails(408),
        fails(200, b'{"choices": [{"mess'),
        fails(200, b""),
        fails(200, b"\xff\xfe not text"),
        fails(200, {"choices": []}),
        fails(200, [1, 2]),
        fails(200, {"error": {"message": "overloaded"}}),
        hangs_up,
    ],
)
def test_what_may_pass_is_tried_again(stub: Stub, wrong) -> None:
    stub.script = [wrong, wrong]
    judge = Asked(stub.url)
    assert judge.ask(TURNS).text == "late but fine"
    assert len(stub.requests) == 3
    assert 1 <= judge.pauses[0] <= 1.5
    assert 2 <= judge.pauses[1] <= 3


def test_a_server_says_how_long_to_wait(stub: Stub) -> None:
    stub.script = [fails(429, Retry_After="17")]
    judge = Asked(stub.url)
    assert judge.ask(TURNS).text == "late but fine"
    assert 17 <= judge.pauses[0] <= 26


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after("2.5") == 2.5
    assert retry_after("Wed, 21 Oct 2015 07:28:10 GMT", now=1445412480) == 10
    assert retry_after("-3") == 0
    assert retry_after("1e9") == 600
    assert [retry_after(text) for text in (None, "soon", "nan", "inf")] == [None] * 4


def test_a_slow_drip_ends_at_the_deadline(stub: Stub) -> None:
    stub.script = [drips]
    assert Asked(stub.url, timeout=0.4).ask(TURNS).text == "late but fine"
    assert len(stub.requests) == 2


def test_silence_ends_at_the_deadline(stub: Stub) -> None:
    stub.script = [lambda handler, body: time.sleep(1.5)]
    assert Asked(stub.url, timeout=0.3).ask(TURNS).text == "late but fine"


def test_too_many_failures_end_with_the_last_words_and_without_the_key(stub: Stub) -> None:
    stub.default = fails(500, {"error": f"bad key {KEY} on fire"})
    with pytest.raises(
        EndpointError, match=r"failed 3 times.*status 500.*on fire.*run the same command again"
    ) as caught:
        Asked(stub.url, KEY).ask(TURNS)
    assert KEY not in str(caught.value)
    assert len(stub.requests) == 3


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "model's name"), (401, "key"), (403, "rights"), (404, "--base-url"), (413, "limits")]
)
def test_what_will_not_pass_ends_at_once_and_without_the_key(stub: Stub, status: int, hint: str) -> None:
    stub.default = fails(status, {"error": f"no: {KEY}"})
    with pytest.raises(EndpointError, match=rf"status {status}.*{hint}") as caught:
        Asked(stub.url, KEY).ask(TURNS)
    assert KEY not in str(caught.value)
    assert len(stub.requests) == 1


def test_redirects_are_not_followed(stub: Stub) -> None:
    stub.default = fails(307, Location=f"{stub.url}/elsewhere")
    with pytest.raises(EndpointError, match="elsewhere"):
        Asked(stub.url, KEY).ask(TURNS)
    assert len(stub.requests) == 1


def test_nobody_listens() -> None:
    with pytest.raises(EndpointError, match="connection failed"):
        Asked("http://127.0.0.1:9/v1").ask(TURNS)


def test_refusals_and_filters_are_told_apart(stub: Stub) -> None:
    filtered = completion(None)
    filtered["choices"][0]["finish_reason"] = "content_filter"
    stub.script = [says("", refusal="I will not"), fails(200, filtered)]
    judge = Asked(stub.url)
    assert judge.ask(TURNS).refused
    assert judge.ask(TURNS).refused
    assert not judge.ask(TURNS).refused


def test_the_key_is_not_shown_and_never_leaves_unencrypted() -> None:
    local = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")
    far = Endpoint(base_url="http://example.org/v1", model="m")
    safe = Endpoint(base_url="https://example.org/v1", model="m")
    assert KEY not in repr(HttpJudge(local, KEY))
    assert key_from({}, "K", far) is None
    assert key_from({"K": KEY}, "K", local) == key_from({"K": f" {KEY}\n"}, "K", safe) == KEY
    with pytest.raises(EndpointError, match="without encryption") as caught:
        key_from({"K": KEY}, "K", far)
    assert KEY not in str(caught.value)
    with pytest.raises(EndpointError, match="letters that no key has"):
        key_from({"K": "a\nb"}, "K", safe)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x/v1", "http://user:pw@x/v1", "https://x/v1?key=1"])
def test_addresses_that_cannot_be_used(url: str) -> None:
    with pytest.raises(EndpointError, match="--base-url") as caught:
        Endpoint(base_url=url, model="m")
    assert "pw" not in str(caught.value)


def test_the_rate_limit_spaces_requests() -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    limit = RateLimit(30, now=lambda: clock[0], sleep=sleep)
    times = []
    for _ in range(4):
        limit.wait()
        times.append(clock[0])
    assert times == pytest.approx([0, 2, 4, 6])
