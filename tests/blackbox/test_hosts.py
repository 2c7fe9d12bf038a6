"""Whom a request is meant for. A page whose name is resolved to the reader's own machine sends that
name, and must not get at a server that has no keys."""

import checkpoint
from raw import Raw

PATHS = ["/", "/livez", "/v1/models", "/v1/completions", "/nowhere"]


def ask(server, host, method="GET", path="/v1/models", body=None, **headers):
    return server.request(method, path, body, {"Host": host, **headers})


def check_misdirected(reply):
    assert reply.status == 421
    assert reply.error["code"] == "misdirected_request"
    assert "--allowed-hosts" in reply.error["message"]


def test_other_names_are_refused(demo):
    for host in ("evil.example", f"evil.example:{demo.port}", "127.0.0.1.evil.example",
                 "localhost.evil.example", "evil.example."):
        for path in PATHS:
            check_misdirected(ask(demo, host, path=path))
        body = b'{"prompt": "x", "max_tokens": 1}'
        check_misdirected(ask(demo, host, "POST", "/v1/completions", body))
        check_misdirected(ask(demo, host, "OPTIONS", Origin=f"http://{host}",
                              **{"Access-Control-Request-Method": "POST"}))
    reply = ask(demo, "evil.example", "POST", "/v1/messages", b"{}")
    assert (reply.status, reply.json()["type"]) == (421, "error")


def test_names_of_this_machine(demo):
    for host in ("127.0.0.1", f"127.0.0.1:{demo.port}", "[::1]:80", "10.0.0.1", "localhost",
                 f"LOCALHOST:{demo.port}", "gpu-1", "api.localhost", "host.docker.internal", ""):
        assert ask(demo, host).status == 200, host


def test_names_that_are_said(serve):
    server = serve(checkpoint.DEMO, "--allowed-hosts", "llm.example,*.cluster.example")
    for host in ("llm.example", "LLM.example:443", "a.b.cluster.example", "localhost"):
        assert ask(server, host).status == 200, host
    for host in ("a.llm.example", "cluster.example", "xcluster.example", "api.localhost"):
        check_misdirected(ask(server, host))


def test_any_name(serve, tmp_path):
    """A page of another site has no key."""
    key = "sk-hosts-0123456789"
    keys = tmp_path / "keys"
    keys.write_text(key + "\n")
    keys.chmod(0o600)
    assert ask(serve(checkpoint.DEMO, "--allowed-hosts", "*"), "any.example").status == 200
    server = serve(checkpoint.DEMO, "--api-key-file", keys)
    assert ask(server, "any.example", Authorization=f"Bearer {key}").status == 200
    assert ask(server, "any.example").status == 401


def test_targets_with_a_host(demo):
    """What proxies send (RFC 9112 section 3.2.2), and what counts where they say it."""
    for target, host, status in (("http://x/v1/models", "x", 200),
                                 ("HTTP://localhost:80/v1/models?a=b", "localhost:80", 200),
                                 ("http://x", "x", 200),
                                 ("http://x/nowhere", "x", 404),
                                 ("http://x/v1/models", "evil.example", 200),
                                 ("http://evil.example/v1/models", "localhost", 421),
                                 ("http://evil.example/v1/models", "evil.example", 421)):
        with Raw(demo) as connection:
            connection.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert connection.answer()[0] == status, target
    with Raw(demo) as connection:
        connection.send(b"GET http://evil.example/ HTTP/1.0\r\n\r\n")
        assert connection.answer()[0] == 421
