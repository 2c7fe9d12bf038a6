"""API keys, exposure, and what browsers may read."""

import json
import os
import re
import signal

import pytest

import checkpoint
import harness
from harness import eventually
from raw import Raw

KEY, OTHER = "sk-first-0123456789", "sk-other-9876543210"
OPEN = ["/health", "/livez", "/readyz", "/startupz", "/version"]
CLOSED = ["/", "/v1/models", "/v1/models/demo", "/v1/completions",
          "/v1/chat/completions", "/metrics", "/nowhere",
          "//v1/models", "/v1/../metrics", "/%2e%2e/metrics", "/v1/models?", "/health/",
          "/health/../v1/models", "/HEALTH", "/livez/x"]


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(name="key_file")
def fixture_key_file(tmp_path):
    return write(tmp_path / "keys", f"# ours\n{KEY}\n\n{OTHER}\n")


@pytest.fixture(name="guarded")
def fixture_guarded(serve, key_file):
    return serve(checkpoint.DEMO, "--api-key-file", key_file, "--served-model-name", "demo",
                 "--cors-origins", "https://a.example,https://b.example")


def check_denied(reply):
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.error["type"] == "authentication_error"
    assert reply.error["code"] == "invalid_api_key"
    return reply.body


def test_every_path(guarded):
    for path in OPEN:
        assert guarded.get(path).status == 200
    bodies = set()
    for path in CLOSED:
        for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
            body = b"{}" if method == "POST" else None
            for headers in ({}, bearer("sk-wrong-0123456789"), bearer(""), bearer(KEY[:-1]),
                            bearer(KEY + "x"), {"Authorization": KEY},
                            {"Authorization": f"Basic {KEY}"}, {"X-Api-Key": KEY[:-1]},
                            {"X-Api-Key": f"Bearer {KEY}"}, {"Api-Key": KEY}):
                reply = guarded.request(method, path, body, headers)
                if method == "HEAD":
                    assert reply.status == 401
                else:
                    bodies.add(check_denied(reply))
    assert len(bodies) == 1, "the answer tells what was wrong"
    for host in ("a/?", "127.0.0.1/health?", "x\\"):
        assert guarded.request("GET", "/v1/models", headers={"Host": host}).status == 400


def test_good_keys(guarded):
    for key in (KEY, OTHER):
        assert guarded.request("GET", "/v1/models", headers=bearer(key)).status == 200
        assert guarded.request("GET", "/metrics", headers=bearer(key)).status == 200
        assert guarded.request("GET", "/nowhere", headers=bearer(key)).status == 404
        for more in {}, {"Authorization": "Bearer none"}:
            reply = guarded.request("GET", "/v1/models", headers={"x-api-key": key, **more})
            assert reply.status == 200
    reply = guarded.request("POST", "/v1/completions", '{"prompt": "Once", "max_tokens": 2}',
                            {"Authorization": f"bearer  {KEY}"})
    assert reply.status == 200
    assert KEY not in guarded.log


def test_denied_body_is_not_kept(guarded):
    """A client without a key is not asked for its body."""
    with Raw(guarded) as connection:
        connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
                        b"Expect: 100-continue\r\n\r\n")
        assert connection.error()[0] == 401
        assert connection.is_closed()


def test_reload(guarded, key_file):
    def status(key):
        return guarded.request("GET", "/v1/models", headers=bearer(key)).status

    def reload(word):
        before = guarded.log.count("SIGHUP")
        os.kill(guarded.pid, signal.SIGHUP)
        eventually(lambda: guarded.log.count("SIGHUP") > before, what="the reload")
        assert word in guarded.log.splitlines()[-1]

    write(key_file, "sk-third-0123456789\n")
    reload("1 key")
    assert [status(KEY), status("sk-third-0123456789")] == [401, 200]
    write(key_file, "short\n")
    reload("the old keys stay")
    write(key_file, KEY, 0o644)
    reload("chmod 600")
    key_file.unlink()
    reload("the old keys stay")
    assert [status(KEY), status("sk-third-0123456789")] == [401, 200]


def test_metrics_without_key(serve, key_file):
    server = serve(checkpoint.DEMO, "--api-key-file", key_file, "--metrics-without-key")
    assert server.get("/metrics").status == 200
    assert server.get("/v1/models").status == 401


@pytest.mark.parametrize("options", [(), ("--shared-prefix-cache",)])
def test_prefixes_of_other_keys(serve, key_file, options):
    server = serve(checkpoint.DEMO, "--api-key-file", key_file, *options)
    cached = []
    for key in KEY, KEY, OTHER:
        reply = server.request(
            "POST", "/v1/completions", json.dumps({"prompt": [7] * 40, "max_tokens": 1}).encode(),
            {"Content-Type": "application/json", **bearer(key)})
        cached.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32, 32 if options else 0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_exposed_without_keys(host):
    done = harness.run("serve", checkpoint.DEMO, "--host", host, "--port", 0)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--api-key-file" in done.stderr and "--insecure-no-auth" in done.stderr


def test_blanks_behind_a_key(guarded):
    for blanks in (" ", "\t "):
        assert guarded.request("GET", "/v1/models",
                               headers={"Authorization": f"Bearer {KEY}{blanks}"}).status == 200


def test_exposed_on_purpose(serve, key_file):
    for arguments in (["--insecure-no-auth"], ["--api-key-file", key_file]):
        server = serve(checkpoint.DEMO, "--host", "0.0.0.0", *arguments, wait=False)
        eventually(lambda log=server: "ready: listening" in log.log, 30, "ready")
        server.port = int(re.search(r"on http://0\.0\.0\.0:(\d+)", server.log)[1])
        reply = server.request("GET", "/livez", headers={"Host": "any.example"})
        assert reply.status == 200


@pytest.mark.parametrize("variable", ["TESSERA_API_KEY", "VLLM_API_KEY"])
@pytest.mark.parametrize("more", [(), ("--insecure-no-auth",)])
def test_key_in_the_environment(variable, more):
    """Whoever set it believes that the server is closed."""
    done = harness.run("serve", checkpoint.DEMO, "--port", 0, *more, variables={variable: KEY})
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert variable in done.stderr and "--api-key-file FILE" in done.stderr
    assert KEY not in done.stderr


def test_key_in_the_configuration(tmp_path):
    path = write(tmp_path / "options.yaml", f"api_key: {KEY}\n", 0o600)
    done = harness.run("serve", checkpoint.DEMO, "--port", 0, "--config", path)
    assert done.returncode == 2
    assert "api-key" in done.stderr and "--api-key-file FILE" in done.stderr
    assert KEY not in done.stderr


def test_key_in_the_environment_beside_a_file(serve, key_file, monkeypatch):
    """A shell that has it for clients; also for those that start a server of their own."""
    monkeypatch.setattr(harness, "environment",
                        lambda real=harness.environment: {**real(), "TESSERA_API_KEY": "other",
                                                          "VLLM_API_KEY": "other"})
    server = serve(checkpoint.DEMO, "--api-key-file", key_file)
    assert server.get("/v1/models").status == 401
    assert "TESSERA_API_KEY is ignored: keys come from" in server.log
    done = harness.run("complete", checkpoint.DEMO, "x", "--max-tokens", 2)
    assert done.returncode == 0, done.stderr


def test_bad_key_file(tmp_path):
    for text, mode, words in (("", 0o600, "no key"), (KEY, 0o640, "chmod 600"),
                              ("a b c d e f", 0o600, "line 1")):
        path = write(tmp_path / "bad", text, mode)
        done = harness.run("serve", checkpoint.DEMO, "--api-key-file", path, "--port", 0)
        assert done.returncode == 2
        assert words in done.stderr and str(path) in done.stderr
        assert KEY not in done.stderr
        path.unlink()


# ---- CORS (the Fetch standard, section 3.3) -----------------------------------------------------


def preflight(server, origin, path="/v1/completions"):
    return server.request("OPTIONS", path, headers={
        "Origin": origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"})


def test_preflight(guarded):
    for path in ("/v1/completions", "/nowhere"):
        reply = preflight(guarded, "https://b.example", path)
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["access-control-allow-origin"] == "https://b.example"
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert (reply.headers["access-control-allow-headers"]
                == "authorization,content-type,x-stainless-os")
        assert "Origin" in reply.headers["vary"]
    for origin in ("https://evil.example", "null", "https://b.example:444", "http://b.example"):
        reply = preflight(guarded, origin)
        assert reply.status == 204
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_cors_answers(guarded):
    for headers, status in ((bearer(KEY), 200), ({}, 401)):
        reply = guarded.request("GET", "/v1/models",
                                headers={**headers, "Origin": "https://a.example"})
        assert reply.status == status
        assert reply.headers["access-control-allow-origin"] == "https://a.example"
        assert reply.headers["access-control-expose-headers"] == \
            "X-Request-Id, Request-Id, Retry-After"
        assert reply.headers["vary"] == "Origin"


def test_no_cors_by_default(demo):
    for reply in (preflight(demo, "https://a.example"),
                  demo.request("GET", "/v1/models", headers={"Origin": "https://a.example"})):
        assert not [name for name in reply.headers if name.startswith("access-control")]
