"""Malformed requests wherever on a connection and however cut into packets: one JSON answer after
those to the requests before it, then the connection is closed."""

import os
import random
import socket
import struct
import subprocess
import time

import pytest

import checkpoint
import harness
from raw import Raw

pytestmark = pytest.mark.sanitized

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"prompt": [5], "max_tokens": 1}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# Heads that are whole.
HEADS = {
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
    "absolute target of no host": (b"GET http:///v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "two keys": (GET + b"Authorization: Bearer a\r\n" * 2 + b"\r\n", 400),
    "long target": (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "compressed": (POST + LENGTH + b"Content-Encoding: gzip\r\n\r\n" + BODY, 415),
    "expectation": (POST + LENGTH + b"Expect: a miracle\r\n\r\n" + BODY, 417),
    "many headers": (GET + b"".join(b"h%d: x\r\n" % i for i in range(200)) + b"\r\n", 431),
    "large headers": (GET + b"A: " + b"a" * 20000 + b"\r\n\r\n", 431),
    "no length": (POST + b"\r\n", 411),
    "unknown method": (b"BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "small method": (b"get /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 501),
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


# Bodies in chunks: how they are framed, after a good head and a good first chunk or none.
BODIES = {
    "size is a word": b"five\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "signed size": b"+5\r\nhello\r\n0\r\n\r\n",
    "size with a prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "space before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "space behind the size": b"5 \r\nhello\r\n0\r\n\r\n",
    "size is huge": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "size with many zeros": b"00000000000000005\r\nhello\r\n0\r\n\r\n",
    "bare LF behind the size": b"5\nhello\r\n0\r\n\r\n",
    "bare CR behind the size": b"5\rhello\r\n0\r\n\r\n",
    "extension": b"5;a=b\r\nhello\r\n0\r\n\r\n",
    "extension of the last chunk": b"5\r\nhello\r\n0;a\r\n\r\n",
    "data too long": b"5\r\nhello!\r\n0\r\n\r\n",
    "data too short": b"5\r\nhell\r\n0\r\n\r\n",
    "bare LF behind the data": b"5\r\nhello\n0\r\n\r\n",
    "two other bytes behind the data": b"5\r\nhelloXX0\r\n\r\n",
    "no CRLF behind the data": b"5\r\nhello0\r\n\r\n",
    "trailer": b"5\r\nhello\r\n0\r\nA: b\r\n\r\n",
    "bare LF at the end": b"5\r\nhello\r\n0\r\n\n",
}

REFUSED = {
    **HEADS,
    **{name: (CHUNKED + body, 400) for name, body in BODIES.items()},
    **{f"{name}, second": (CHUNKED + b"a\r\n0123456789\r\n" + body, 400)
       for name, body in BODIES.items() if name != "no size"},
}


def check_refused(connection, wanted):
    status, headers, error = connection.error()
    assert status == wanted, error
    assert headers["connection"].lower() == "close"
    assert error["code"]
    assert connection.is_closed(), "something comes after the answer"


def check_serves(server):
    assert server.get("/v1/models").status == 200


def open_at_once(server):
    """A connection whose every send is a packet."""
    connection = Raw(server)
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send_in_bytes(connection, data):
    """Byte by byte, what is long in somewhat larger pieces."""
    step = 1 if len(data) < 1000 else 97
    for at in range(0, len(data), step):
        connection.send(data[at:at + step])


SMUGGLED = GET + b"X-Request-Id: smuggled\r\n\r\n"
each_refused = pytest.mark.parametrize("name", REFUSED)


@each_refused
def test_first_request(demo, name):
    data, wanted = REFUSED[name]
    with Raw(demo) as connection:
        check_refused(connection.send(data + SMUGGLED), wanted)
    check_serves(demo)


@each_refused
def test_later_request(demo, name):
    data, wanted = REFUSED[name]
    with Raw(demo) as connection:
        assert connection.send(GET + b"\r\n").answer()[0] == 200
        check_refused(connection.send(data + SMUGGLED), wanted)
    check_serves(demo)


@each_refused
def test_pipelined_request(demo, name):
    """The requests before it, in the same packet, are answered first."""
    data, wanted = REFUSED[name]
    with Raw(demo) as connection:
        connection.send(GET + b"\r\n" + POST + LENGTH + b"\r\n" + BODY + data + SMUGGLED)
        assert b'"list"' in connection.answer()[2]
        assert b'"text_completion"' in connection.answer()[2]
        check_refused(connection, wanted)
    check_serves(demo)


@each_refused
def test_bytes_one_by_one(demo, name):
    data, wanted = REFUSED[name]
    with open_at_once(demo) as connection:
        send_in_bytes(connection, GET + b"\r\n")
        assert connection.answer()[0] == 200
        send_in_bytes(connection, data)
        check_refused(connection, wanted)
    check_serves(demo)


def in_chunks(body, sizes):
    """A body in chunks of these sizes, the last one the rest."""
    framed, at = b"", 0
    for n in sizes:
        framed += b"%x\r\n%s\r\n" % (len(body[at:at + n]), body[at:at + n])
        at += n
        if at >= len(body):
            break
    return framed + b"0\r\n\r\n"


def test_good_bytes_one_by_one(demo):
    """How the bytes come does not matter."""
    for request in (GET + b"\r\n", POST + LENGTH + b"\r\n" + BODY,
                    CHUNKED + in_chunks(BODY, [1] * 99), CHUNKED + in_chunks(BODY, [7] * 99),
                    CHUNKED + b"0000" + in_chunks(BODY, [99]).upper().replace(b"PROMPT", b"prompt")
                    .replace(b"MAX_TOKENS", b"max_tokens").replace(b"\r\n0\r", b"\r\n000\r")):
        with open_at_once(demo) as connection:
            for _ in range(2):
                send_in_bytes(connection, request)
                assert connection.answer()[0] == 200


@pytest.mark.parametrize("seed", range(60))
def test_cuts_do_not_matter(demo, seed):
    """A random sequence of requests, often with a fault at its end, in random pieces: each answer
    in its order, told by its id."""
    draw = random.Random(seed)
    data, wanted = b"", []
    for k in range(draw.randrange(1, 8)):
        name = b"X-Request-Id: s%d-%d\r\n" % (seed, k)
        framed = in_chunks(BODY, [draw.randrange(1, 12) for _ in range(99)])
        request, status = draw.choice([
            (GET + name + b"\r\n", 200),
            (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n" + name + b"\r\n", 404),
            (POST + name + LENGTH + b"\r\n" + BODY, 200),
            (POST + name + b"Transfer-Encoding: chunked\r\n\r\n" + framed, 200),
            (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n" + name
             + b"\r\nabc", 405),
        ])
        data += request
        wanted.append((status, f"s{seed}-{k}"))
    fault = draw.choice([None, *REFUSED])
    if fault:
        data += REFUSED[fault][0] + SMUGGLED
    with open_at_once(demo) as connection:
        if draw.random() < 0.8:
            cuts = sorted(draw.sample(range(1, len(data)), min(draw.randrange(12), len(data) - 1)))
            for start, end in zip([0, *cuts], [*cuts, len(data)]):
                connection.send(data[start:end])
        else:
            send_in_bytes(connection, data)
        for status, name in wanted:
            got, headers, _ = connection.answer()
            assert (got, headers["x-request-id"]) == (status, name)
        if fault:
            check_refused(connection, REFUSED[fault][1])
        else:
            assert connection.send(GET + b"\r\n").answer()[0] == 200


def test_largest_heads(demo):
    """The library has room for whatever is within the limits."""
    many = GET + b"".join(b"h%d: x\r\n" % i for i in range(99)) + b"\r\n"
    large = GET + b"A: " + b"a" * (16384 - len(GET) - 7) + b"\r\n\r\n"
    both = GET + b"".join(b"h%02d: %s\r\n" % (i, b"a" * 150) for i in range(99)) + b"\r\n"
    for heads in ([many], [large], [both], [GET + b"\r\n", large], [large] * 4, [many] * 9,
                  [both] * 4, [many, large, both] * 3):
        with Raw(demo) as connection:
            connection.send(b"".join(heads))
            for _ in heads:
                assert b'"list"' in connection.answer()[2]


ARGUMENTS = b"GET /v1/models?" + b"a&" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
CRUMBS = GET + b"Cookie: " + b"a=b; " * 3200 + b"\r\n\r\n"


def test_heads_of_many_parts(demo):
    """What the library would keep one by one, though nobody asks for it."""
    for heads in ([ARGUMENTS], [CRUMBS], [ARGUMENTS, CRUMBS] * 3):
        with Raw(demo) as connection:
            connection.send(b"".join(heads))
            for _ in heads:
                assert b'"list"' in connection.answer()[2]


def test_most_headers(serve):
    """As many as the option can allow."""
    server = serve(checkpoint.DEMO, "--http-max-headers", "1000")
    head = GET + b"".join(b"h%d: x\r\n" % i for i in range(999)) + b"\r\n"
    assert len(head) <= 16384
    with Raw(server) as connection:
        for _ in range(3):
            assert b'"list"' in connection.send(head).answer()[2]


@pytest.mark.parametrize("blanks", [b" ", b"\t", b" \t  "])
def test_blanks_behind_values(demo, blanks):
    """They are no part of a value (RFC 9110 section 5.5)."""
    length = POST + b"Content-Length: %d" % len(BODY) + blanks + b"\r\n\r\n" + BODY
    chunked = (POST + b"Transfer-Encoding: chunked" + blanks + b"\r\n\r\n%x\r\n" % len(BODY) + BODY
               + b"\r\n0\r\n\r\n")
    named = GET + b"X-Request-Id:named" + blanks + b"\r\n\r\n"
    for send in (Raw.send, send_in_bytes):
        with open_at_once(demo) as connection:
            for request in (length, chunked, named) * 2:
                send(connection, request)
                status, headers, _ = connection.answer()
                assert status == 200
            assert headers["x-request-id"] == "named"


def test_last_request(demo):
    """What a client sends after it has said that it goes is neither served nor answered."""
    for head in (GET + b"Connection: close\r\n", b"GET /v1/models HTTP/1.0\r\n"):
        for more in (b"", SMUGGLED, b"\r\n", b"{}", POST):
            with Raw(demo) as connection:
                assert connection.send(head + b"\r\n" + more).answer()[0] == 200
                assert connection.is_closed()


def test_refused_and_sending_on(demo):
    """A client that does not stop at once is not reset, which could take the answer with it."""
    with Raw(demo) as connection:
        assert connection.send(GET + b"\r\n").answer()[0] == 200
        connection.send(GET + b"no colon\r\n\r\n" + b"x" * 50000)
        check_refused(connection, 400)
        for _ in range(4):
            connection.socket.sendall(b"x" * 50000)
            time.sleep(0.01)
    check_serves(demo)


def with_other_reading(library):
    """The bytes of a libmicrohttpd that reads sockets with read() where it had recv()."""
    data = bytearray(library)
    shoff, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * size) for i in range(count)]
    symbols = next(s for s in sections if s[1] == 11)  # SHT_DYNSYM
    text = sections[symbols[6]][4]
    at = {data[text + name:data.index(0, text + name)].decode(): entry
          for entry in range(symbols[4], symbols[4] + symbols[5], 24)
          for name in struct.unpack_from("<I", data, entry)}
    data[at["recv"]:at["recv"] + 4] = data[at["read"]:at["read"] + 4]
    return bytes(data)


def test_library_that_reads_differently(serve, tmp_path, monkeypatch):
    """A way past the guard is noticed, and said."""
    linked = subprocess.run(["ldd", harness.BINARY], capture_output=True, text=True, check=True)
    path = next(line.split()[2] for line in linked.stdout.splitlines() if "microhttpd" in line)
    with open(path, "rb") as library:
        (tmp_path / os.path.basename(path)).write_bytes(with_other_reading(library.read()))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    port = harness.free_port()
    server = serve(checkpoint.DEMO, "--port", port, wait=False)
    server.port = port
    harness.eventually(lambda: "listening on" in server.log, 30, "listening")
    with Raw(server) as connection:
        status, headers, error = connection.send(GET + b"\r\n").error()
        assert (status, error["code"]) == (500, "internal_error")
        assert headers["connection"] == "close"
        assert connection.is_closed()
    assert "past the guard" in server.log


@pytest.mark.parametrize("count", [3, 600])
def test_pipelined_requests(demo, count):
    """Also when they are more than any buffer holds."""
    with Raw(demo) as connection:
        connection.send((POST + LENGTH + b"\r\n" + BODY + GET + b"\r\n") * count)
        for _ in range(count):
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
