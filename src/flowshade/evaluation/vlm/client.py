"""Asking an endpoint that speaks OpenAI's chat completions, with pictures, and living with how it fails.

Only the standard library. One request is bounded in time as a whole, so that a server that sends a byte now and then
cannot hold it; what may pass (408, 409, 425, 429, 5xx, broken connections) is tried again with growing pauses, and
what will not (400, 401, 404, ...) ends the run with what the server said. The key is sent and never kept.
"""

from __future__ import annotations

import base64
import email.utils
import http.client
import json
import math
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowshade.errors import FlowshadeError

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""Statuses after which the same request may succeed."""
MAX_REPLY_BYTES = 8 * 2**20
SHOWN = 300
"""Characters of a server's own words in a message."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
KEY_VARIABLE = "FLOWSHADE_VLM_KEY"


class EndpointError(FlowshadeError):
    """An endpoint that refuses for good, or that failed too often."""


class PassingError(Exception):
    """A failure that may pass.

    Args:
        said: what happened.
        wait: seconds that the server asks to wait, if it does.
    """

    def __init__(self, said: str, wait: float | None = None) -> None:
        self.said, self.wait = said, wait
        super().__init__(said)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a judge wrote."""

    text: str
    tokens_in: int | None = None
    """As the endpoint counts them; None where it does not say."""
    tokens_out: int | None = None
    refused: bool = False
    """The endpoint says that the model declined, or a filter stopped it."""
    model: str = ""
    """The model that answered, by the endpoint's own word."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: str
    text: str
    pictures: tuple[bytes, ...] = ()
    """PNG files."""


class Judge(Protocol):
    """Whoever answers: an endpoint, or a local model."""

    def ask(self, turns: Sequence[Turn]) -> Reply:
        """The reply to a conversation. Raises: EndpointError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where and how to ask.

    Raises:
        EndpointError: a base URL that cannot be used.
    """

    base_url: str
    """Up to and with the version, such as http://127.0.0.1:8000/v1."""
    model: str
    temperature: float | None = 0.0
    """None leaves it to the endpoint (some models take none)."""
    max_tokens: int = 400
    max_tokens_name: str = "max_tokens"
    """Some models want max_completion_tokens."""
    timeout: float = 120.0
    """Seconds for one request as a whole."""
    tries: int = 6
    """Requests before a failure that may pass counts as final."""
    pause: float = 1.0
    """Seconds before the second try; doubled after each, with a random part."""
    longest_pause: float = 60.0
    per_minute: float | None = None
    """Requests a minute, at most."""

    def __post_init__(self) -> None:
        url = urllib.parse.urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise EndpointError(
                f"--base-url {self.base_url[:80]!r} is no address; expected one such as http://127.0.0.1:8000/v1."
            )
        if url.username or url.password or url.query or url.fragment:
            raise EndpointError(
                "--base-url holds a user, a password, a query or a fragment; expected scheme, host, port and path "
                f"only. Put the key into the environment variable {KEY_VARIABLE}."
            )
        for name, value in (("timeout", self.timeout), ("tries", self.tries), ("max_tokens", self.max_tokens)):
            if not value > 0:
                raise EndpointError(f"{name} is {value}; expected more than 0.")
        if self.per_minute is not None and not self.per_minute > 0:
            raise EndpointError(f"--per-minute is {self.per_minute}; expected more than 0, or leave it out.")

    @property
    def is_local(self) -> bool:
        return urllib.parse.urlsplit(self.base_url).hostname in LOOPBACK


def key_from(environment: Mapping[str, str], variable: str, endpoint: Endpoint) -> str | None:
    """The key in an environment variable; None if there is none, which local servers accept.

    Raises:
        EndpointError: the key would travel unencrypted to another machine, or is no header value.
    """
    key = environment.get(variable, "").strip()
    if not key:
        return None
    if not endpoint.base_url.startswith("https:") and not endpoint.is_local:
        raise EndpointError(
            f"{variable} is set and {endpoint.base_url} is another machine without encryption, where the key could be "
            "read; expected https. Use https, or unset the variable."
        )
    if not key.isascii() or not key.isprintable():
        raise EndpointError(f"{variable} holds letters that no key has; set it again.")
    return key


class RateLimit:
    """Spaces requests evenly, over all threads."""

    def __init__(
        self,
        per_minute: float | None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap = 0.0 if per_minute is None else 60.0 / per_minute
        self._next = -math.inf
        self._lock = threading.Lock()
        self._now, self._sleep = now, sleep

    def wait(self) -> None:
        """Returns when the next request may go."""
        with self._lock:
            now = self._now()
            at = max(now, self._next)
            self._next = at + self._gap
        if at > now:
            self._sleep(at - now)


@dataclass
class HttpJudge:
    """Asks an `Endpoint`. May be used from several threads.

    Args:
        endpoint: where.
        key: sent as a bearer token; None sends none.
        sleep: for tests.
    """

    endpoint: Endpoint
    key: str | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._rate = RateLimit(self.endpoint.per_minute, sleep=self.sleep)

    def ask(self, turns: Sequence[Turn]) -> Reply:
        """Raises: EndpointError: refused for good, or failed `tries` times."""
        body = json.dumps(self._body(turns)).encode()
        said = ""
        for attempt in range(self.endpoint.tries):
            self._rate.wait()
            try:
                return self._reply(self._request(body))
            except PassingError as error:
                said = self._clean(error.said)
                if attempt + 1 < self.endpoint.tries:
                    self.sleep(self._pause(attempt, error.wait))
        raise EndpointError(
            f"{self.endpoint.base_url} failed {self.endpoint.tries} times, the last time: {said} What was answered is "
            "kept; run the same command again to go on."
        )

    def _pause(self, attempt: int, asked: float | None) -> float:
        """Seconds before the next try: what the server asks for, or doubling ones; up to half again by lot."""
        own = min(self.endpoint.longest_pause, self.endpoint.pause * 2**attempt)
        return max(own, asked or 0.0) * (1 + random.random() / 2)

    def _body(self, turns: Sequence[Turn]) -> dict[str, Any]:
        chosen = {} if self.endpoint.temperature is None else {"temperature": self.endpoint.temperature}
        return {
            "model": self.endpoint.model,
            "messages": [_message(turn) for turn in turns],
            self.endpoint.max_tokens_name: self.endpoint.max_tokens,
            **chosen,
        }

    def _request(self, body: bytes) -> Any:
        """One request; the parsed JSON of a reply of status 200."""
        url = urllib.parse.urlsplit(self.endpoint.base_url)
        connection = _connection(url, self.endpoint.timeout)
        deadline = _Deadline(self.endpoint.timeout)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            with deadline:
                connection.connect()
                deadline.watch(connection.sock)
                connection.request("POST", f"{url.path.rstrip('/')}/chat/completions", body, headers)
                answer = connection.getresponse()
                data = answer.read(MAX_REPLY_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise EndpointError(f"{self.endpoint.base_url}: its certificate is not trusted ({error}).") from error
            if deadline.passed or isinstance(error, TimeoutError):
                raise PassingError(f"no whole reply within {self.endpoint.timeout:g} s.") from error
            raise PassingError(f"the connection failed ({type(error).__name__}: {error}).") from error
        finally:
            connection.close()
        if deadline.passed:
            raise PassingError(f"no whole reply within {self.endpoint.timeout:g} s.")
        self._check_status(answer, data)
        if len(data) > MAX_REPLY_BYTES:
            raise PassingError(f"the reply is longer than {MAX_REPLY_BYTES} bytes.")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PassingError(f"the reply is no JSON ({self._words(data)}).") from error

    def _check_status(self, answer: http.client.HTTPResponse, data: bytes) -> None:
        if answer.status == 200:
            return
        said = f"status {answer.status} ({self._words(data) or answer.reason})."
        if answer.status in PASSING:
            raise PassingError(said, retry_after(answer.headers.get("Retry-After")))
        if 300 <= answer.status < 400:
            raise EndpointError(
                f"{self.endpoint.base_url} sends requests elsewhere, which is not followed because of the key; "
                "expected an address that answers itself. Give the final --base-url."
            )
        hints = {401: "Check the key's variable.", 403: "Check the key's rights.", 404: "Check --base-url and --judge."}
        hint = hints.get(answer.status, "Check the model's name, its limits and the options.")
        raise EndpointError(f"{self.endpoint.base_url} refused: {said} {hint}")

    def _reply(self, value: Any) -> Reply:
        """Picks the reply out of a completion; a completion of another form may pass, as broken proxies do."""
        try:
            choice = value["choices"][0]
            message = choice["message"]
            text, refusal = message.get("content"), message.get("refusal")
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise PassingError(
                f"the reply is no chat completion ({self._words(json.dumps(value).encode())})."
            ) from error
        if isinstance(text, list):  # some servers give parts
            text = "".join(str(part.get("text", "")) for part in text if isinstance(part, dict))
        usage = value.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return Reply(
            text=self._clean(str(text or refusal or "")),
            tokens_in=_count(usage.get("prompt_tokens")),
            tokens_out=_count(usage.get("completion_tokens")),
            refused=bool(refusal) or choice.get("finish_reason") == "content_filter",
            model=self._clean(str(value.get("model") or "")),
        )

    def _words(self, data: bytes) -> str:
        """A server's own words, on one line, printable and without the key."""
        text = " ".join(data[: 4 * SHOWN].decode("utf-8", "replace").split())
        return self._clean("".join(letter if letter.isprintable() else "?" for letter in text))[:SHOWN]

    def _clean(self, text: str) -> str:
        """Servers repeat keys in their messages."""
        return text if not self.key else text.replace(self.key, "[key]")


class _Deadline:
    """Ends a connection after a time, however it drips: a socket's own timeout starts anew with every byte."""

    def __init__(self, seconds: float) -> None:
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self.passed = False

    def watch(self, opened: socket.socket) -> None:
        """The socket to end. Raises: TimeoutError: it is too late already."""
        with self._lock:
            self._socket = opened
            if self.passed:
                raise TimeoutError

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            if self._socket is not None:
                with suppress(OSError):  # the other side was faster
                    self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *stopped: object) -> None:
        self._timer.cancel()


def _connection(url: urllib.parse.SplitResult, timeout: float) -> http.client.HTTPConnection:
    """A connection to the endpoint; for https through the proxy that the environment names, if it does."""
    host = url.hostname or ""
    if url.scheme == "http":
        return http.client.HTTPConnection(host, url.port, timeout=timeout)
    proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get("https")
    if proxy is None:
        return http.client.HTTPSConnection(host, url.port, timeout=timeout)
    through = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    connection = http.client.HTTPSConnection(through.hostname or "", through.port, timeout=timeout)
    connection.set_tunnel(host, url.port or 443)
    return connection


def _message(turn: Turn) -> dict[str, Any]:
    if not turn.pictures:
        return {"role": turn.role, "content": turn.text}
    pictures = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}
        for data in turn.pictures
    ]
    return {"role": turn.role, "content": [*pictures, {"type": "text", "text": turn.text}]}


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds that a Retry-After header asks for (a number or a date); None if it cannot be read."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
        except ValueError:
            return None
    return min(max(seconds, 0.0), 600.0) if math.isfinite(seconds) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def http_judge(endpoint: Endpoint, variable: str = KEY_VARIABLE) -> HttpJudge:
    """A judge with the key of an environment variable. Raises: EndpointError, see `key_from`."""
    return HttpJudge(endpoint, key_from(os.environ, variable, endpoint))
