"""Malformed requests, byte by byte: one JSON answer, then the connection is closed."""

import pathlib
import re

import pytest

from raw import Raw

pytestmark = pytest.mark.sanitized

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"prompt": [5], "max_tokens": 1}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)

# What two parties could read differently: refused wherever on a connection it comes.
AMBIGUOUS = {
    "two lengths": (POST + LENGTH + LENGTH + b"\r\n" + BODY, 400),
    "two different lengths": (POST + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY, 400),
    "length and coding": (POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two codings": (POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n", 400),
    "unknown coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "list of codings": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "coding in 1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two hosts": (GET + b"Host: y\r\n\r\n", 400),
    "host with a path": (b"GET / HTTP/1.1\r\nHost: a/?\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\nAccept: x\r\n\r\n", 400),
    "space before colon": (POST + b"Content-Length : 5\r\n\r\nhello", 400),
    "control byte in a value": (GET + b"A: a\x01b\r\n\r\n", 400),
    "byte of no name": (GET + b"A(: b\r\n\r\n", 400),
    "percent NUL": (b"GET /v1/models%00x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "control byte in the target": (b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target": (b"GET http://x/v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "two keys": (GET + b"Authorization: Bearer a\r\n" * 2 + b"\r\n", 400),
    "long target": (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "compressed": (POST + LENGTH + b"Content-Encoding: gzip\r\n\r\n" + BODY, 415),
    "expectation": (POST + LENGTH + b"Expect: a miracle\r\n\r\n" + BODY, 417),
    "many headers": (GET + b"".join(b"h%d: x\r\n" % i for i in range(200)) + b"\r\n", 431),
    "large headers": (GET + b"A: " + b"a" * 20000 + b"\r\n\r\n", 431),
    "no length": (POST + b"\r\n", 411),
    "unknown method": (b"BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "small method": (b"get /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 501),
}

# What the HTTP library answers or mends by itself once a connection is open: refused at the gate.
MALFORMED = {
    "bare LF": (b"GET /v1/models HTTP/1.1\nHost: x\n\n", 400),
    "bare LF in a header": (GET + b"A: b\n\r\n", 400),
    "bare CR": (GET + b"A: b\rc\r\n\r\n", 400),
    "folded header": (GET + b"A: b\r\n c\r\n\r\n", 400),
    "folded first header": (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    "no colon": (GET + b"A\r\n\r\n", 400),
    "no name": (GET + b": b\r\n\r\n", 400),
    "NUL in a value": (GET + b"A: a\0b\r\n\r\n", 400),
    "NUL in the target": (b"GET /v1/mod\0els HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "space in the target": (b"GET /v1/ models HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "empty first line": (b"\r\n" + GET + b"\r\n", 400),
    "length is a word": (POST + b"Content-Length: five\r\n\r\nhello", 400),
    "length is negative": (POST + b"Content-Length: -1\r\n\r\nhello", 400),
    "length has a sign": (POST + b"Content-Length: +5\r\n\r\nhello", 400),
    "length is a list": (POST + b"Content-Length: 5, 5\r\n\r\nhello", 400),
    "length is huge": (POST + b"Content-Length: 18446744073709551621\r\n\r\nhello", 400),
    "HTTP/0.9": (b"GET /\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "TLS": (bytes.fromhex("16030100f1010000ed0303") + bytes(range(200)), 400),
    "JSON": (BODY, 400),
    "long method": (b"A" * 100, 501),
    "endless target": (b"GET /" + b"a" * 30000, 414),
    "endless header": (GET + b"A: " + b"a" * 30000, 431),
}


def check_refused(connection, wanted):
    status, headers, error = connection.error()
    assert status == wanted, error
    assert headers["connection"].lower() == "close"
    assert error["code"]
    assert connection.is_closed(), "something comes after the answer"


# Of those, what a newer HTTP library (1.0) refuses by itself in a later request, with a page of its
# own: strict is worth more than JSON there.
STRICT = {"length and coding", "unknown coding", "list of codings", "no host", "space before colon"}


def library_is_strict(server):
    """True from libmicrohttpd 1.0 on; 0.9.75 is libmicrohttpd.so.12.60."""
    maps = pathlib.Path(f"/proc/{server.pid}/maps").read_text()
    return int(re.search(r"libmicrohttpd\.so\.12\.(\d+)", maps)[1]) > 60


def check_serves(server):
    assert server.get("/v1/models").status == 200


@pytest.mark.parametrize("name", [*AMBIGUOUS, *MALFORMED])
def test_first_request(demo, name):
    data, wanted = {**AMBIGUOUS, **MALFORMED}[name]
    with Raw(demo) as connection:
        check_refused(connection.send(data), wanted)
    check_serves(demo)


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_later_request(demo, name):
    data, wanted = AMBIGUOUS[name]
    with Raw(demo) as connection:
        assert connection.send(GET + b"\r\n").answer()[0] == 200
        connection.send(data)
        if name in STRICT and library_is_strict(demo):
            assert connection.answer()[0] == 400
            assert connection.is_closed()
        else:
            check_refused(connection, wanted)
    check_serves(demo)


# Legal for the library (RFC 9112 2.2), or without an end: the deadline of a head ends those.
UNDECIDED = {"empty first line", "TLS", "JSON", "long method", "endless target", "endless header"}


@pytest.mark.parametrize("name", sorted(MALFORMED.keys() - UNDECIDED))
def test_later_malformed_request(demo, name):
    """The library judges these first. Whether it refuses or mends one, nothing comes after it."""
    with Raw(demo) as connection:
        assert connection.send(GET + b"\r\n").answer()[0] == 200
        connection.send(MALFORMED[name][0] + GET + b"X-Request-Id: smuggled\r\n\r\n")
        said = b"".join(iter(connection.more, b""))
        assert said.startswith(b"HTTP/1.1 ") or name == "NUL in the target"
        assert b"smuggled" not in said
    check_serves(demo)


def test_unusual_spacing(demo):
    """Legal, but not told from what the library mended: served, as the last of its connection."""
    for header in (b"A:b\r\n", b"A:  b\r\n", b"A:\r\n"):
        with Raw(demo) as connection:
            assert connection.send(GET + b"\r\n").answer()[0] == 200
            status, headers, _ = connection.send(GET + header + b"\r\n").answer()
            assert (status, headers["connection"].lower()) == (200, "close")


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_smuggled_request(demo, name):
    """What follows a refused request on the connection is never served."""
    with Raw(demo) as connection:
        connection.send(AMBIGUOUS[name][0] + GET + b"X-Request-Id: smuggled\r\n\r\n")
        connection.error()
        assert connection.is_closed()


def test_bytes_one_by_one(demo):
    """How the bytes come does not matter."""
    with Raw(demo) as connection:
        for byte in POST + LENGTH + b"\r\n" + BODY:
            connection.send(bytes([byte]))
        assert connection.answer()[0] == 200
    with Raw(demo) as connection:
        for byte in AMBIGUOUS["two lengths"][0]:
            connection.send(bytes([byte]))
        check_refused(connection, 400)


def test_pipelined_requests(demo):
    with Raw(demo) as connection:
        connection.send((POST + LENGTH + b"\r\n" + BODY + GET + b"\r\n") * 3)
        for _ in range(3):
            assert b'"text_completion"' in connection.answer()[2]
            assert b'"list"' in connection.answer()[2]


def test_methods(demo):
    for path in ("/v1/models", "/health", "/metrics", "/version", "/"):
        assert demo.request("HEAD", path).status == 200
        assert demo.request("HEAD", path).body == b""
        options = demo.request("OPTIONS", path)
        assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        refused = demo.request("DELETE", path)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        assert refused.error["code"] == "method_not_allowed"
    assert demo.request("OPTIONS", "/v1/completions").headers["allow"] == "POST, OPTIONS"
    for method in ("GET", "OPTIONS", "DELETE"):
        assert demo.request(method, "/nowhere").error["code"] == "not_found"


def test_request_id(demo):
    ids = {demo.get("/v1/models").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20
    for sent, kept in (("mine-7", True), ("x" * 128, True), ("x" * 129, False), ("", False),
                       ("two words", False), ("caf\xe9", False)):
        reply = demo.request("GET", "/nowhere", headers={"X-Request-Id": sent})
        assert (reply.headers["x-request-id"] == sent) is kept
