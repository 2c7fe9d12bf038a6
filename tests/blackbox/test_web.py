"""The chat page that browsers get at /, and the functions of its script under node."""

import html.parser
import json
import re
import shutil
import subprocess

import pytest

import checkpoint
import harness

SCRIPT = harness.ROOT / "server/web/script.js"
CHROME = ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,"
          "*/*;q=0.8,application/signed-exchange;v=b3;q=0.7")
FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
OTHERS = [None, "*/*", "", "application/json", "text/*", "text/plain, text/html;q=0"]
PARTS = {"/index.html": "text/html; charset=utf-8", "/style.css": "text/css; charset=utf-8",
         "/script.js": "text/javascript; charset=utf-8"}
KEY = "sk-of-a-reader-0123456789"


def fetch(server, path="/", accept=None, method="GET"):
    return server.request(method, path, headers={} if accept is None else {"Accept": accept})


def test_who_gets_the_page(demo):
    for accept in (CHROME, FIREFOX):
        page = fetch(demo, accept=accept)
        assert (page.status, page.headers["content-type"]) == (200, PARTS["/index.html"])
        assert page.body == fetch(demo, "/index.html").body
        assert page.body == fetch(demo, "/?from=here", accept).body
        head = fetch(demo, accept=accept, method="HEAD")
        assert (head.body, head.headers["content-length"]) == (b"", str(len(page.body)))
        assert head.headers["content-type"] == page.headers["content-type"]
        assert fetch(demo, "/nowhere", accept).error["code"] == "not_found"
        assert fetch(demo, accept=accept, method="POST").status in (405, 411)
    for accept in OTHERS:
        text = fetch(demo, accept=accept)
        assert text.headers["content-type"] == "text/plain; charset=utf-8", accept
        assert text.body.startswith(b"tessera ") and b"POST /v1/completions " in text.body
        assert "content-security-policy" not in text.headers
        head = fetch(demo, accept=accept, method="HEAD")
        assert head.headers["content-length"] == str(len(text.body))
    assert f"or open http://127.0.0.1:{demo.port}/ in a browser" in demo.log


class Links(html.parser.HTMLParser):
    """What a page loads, and what of it its policy forbids."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.inline = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action"):
                self.loads.append(value)
            if name.startswith("on") or name == "style":
                self.inline.append(f"{tag} {name}")
        if tag in ("style", "base", "iframe") or (tag == "script" and not dict(attrs).get("src")):
            self.inline.append(tag)


def test_policy(demo):
    """Each part comes with the headers, and needs nothing that they forbid."""
    texts = {}
    for path, kind in PARTS.items():
        reply = fetch(demo, path)
        policy = dict(rule.split(" ", 1) for rule in
                      reply.headers["content-security-policy"].split("; "))
        assert policy == {"default-src": "'none'", "script-src": "'self'", "style-src": "'self'",
                          "img-src": "data:", "connect-src": "'self'", "base-uri": "'none'",
                          "form-action": "'none'", "frame-ancestors": "'none'"}
        wanted = {"content-type": kind, "x-content-type-options": "nosniff", "vary": "Accept",
                  "referrer-policy": "no-referrer", "cache-control": "no-cache"}
        assert {name: reply.headers[name] for name in wanted} == wanted
        texts[path] = reply.body.decode()
        assert not re.search(r"\w+://|@import|url\(", texts[path])
    links = Links(texts["/index.html"])
    assert links.inline == []
    assert sorted(links.loads) == ["data:,", "script.js", "style.css"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function",
                         texts["/script.js"])
    asked = set(re.findall(r'(?:call|answer)\("([^"]+)"', texts["/script.js"]))
    assert asked == {"v1/models", "tokenize", "v1/chat/completions", "v1/completions"}
    ids = set(re.findall(r'byId\("([^"]+)"\)', texts["/script.js"]))
    assert ids <= set(re.findall(r' id="([^"]+)"', texts["/index.html"]))


def test_keys(serve, tmp_path):
    """The page needs none; what it shows does."""
    keys = tmp_path / "keys"
    keys.write_text(KEY + "\n")
    keys.chmod(0o600)
    server = serve(checkpoint.DEMO, "--api-key-file", keys)
    for path in ["/", *PARTS]:
        for method in ("GET", "HEAD"):
            assert fetch(server, path, CHROME, method).status == 200
    for method, path in [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/index.html/"),
                         ("GET", "//"), ("GET", "/nowhere"), ("POST", "/"), ("OPTIONS", "/"),
                         ("POST", "/v1/chat/completions"), ("POST", "/tokenize")]:
        body = b"{}" if method == "POST" else None
        reply = server.request(method, path, body, {"Accept": CHROME})
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key"), path
    for accept in OTHERS:
        assert fetch(server, accept=accept).status == 401
    text = server.request("GET", "/", headers={"Authorization": f"Bearer {KEY}"})
    assert (text.status, text.headers["content-type"]) == (200, "text/plain; charset=utf-8")


def test_no_page(serve):
    server = serve(checkpoint.DEMO, "--no-webui")
    assert fetch(server, accept=CHROME).body == fetch(server).body
    assert fetch(server, accept=CHROME).headers["content-type"].startswith("text/plain")
    for path in PARTS:
        assert fetch(server, path, CHROME).error["code"] == "not_found"
    assert "in a browser" not in server.log


# ---- the script's functions -------------------------------------------------------------------


def run_script(program, value):
    """What the program, which knows the script's functions as `page`, makes of the value."""
    node = shutil.which("node")
    if not node:
        pytest.skip("node is not installed")
    program = f"""const page = require({json.dumps(str(SCRIPT))});
        const value = JSON.parse(require("fs").readFileSync(0, "utf8"));
        console.log(JSON.stringify(({program})(value)));"""
    done = subprocess.run([node, "-e", program], input=json.dumps(value), capture_output=True,
                          text=True, timeout=30 * harness.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


READ_CUT = """(text) => { // all that comes of it, cut in two at each byte and then at all of them
    const bytes = Buffer.from(text), found = new Set();
    for (let i = 0; i <= bytes.length; i++) {
        const read = page.eventReader();
        const [first, second] = [read(bytes.subarray(0, i)), read(bytes.subarray(i))];
        found.add(JSON.stringify([...first, ...second]));
    }
    const read = page.eventReader();
    found.add(JSON.stringify([...bytes].flatMap((byte) => read(Uint8Array.of(byte)))));
    return [...found].map((one) => JSON.parse(one));
}"""


def test_events():
    text = ('data: {"a": "é漢🙂"}\n\n: ping\n\ndata:tight\r\n\r\nevent: x\nid: 7\ndata: two\n'
            "data:  lines\n\n\n\ndata\n\ndata: [DONE]\n\ndata: no end")
    assert run_script(READ_CUT, text) == [['{"a": "é漢🙂"}', "tight", "two\n lines", "[DONE]"]]


def test_events_of_the_server(demo):
    body = demo.post("/v1/completions", {"prompt": "Once", "max_tokens": 4, "stream": True,
                                         "stream_options": {"include_usage": True}}).body.decode()
    (events,) = run_script(READ_CUT, body)
    assert [f"data: {event}" for event in events] == body.split("\n\n")[:-1]
    assert events.pop() == "[DONE]"
    assert json.loads(events[-1])["usage"]["completion_tokens"] == 4


def text_of(text):
    return {"code": False, "language": "", "text": text}


def code_of(text, language=""):
    return {"code": True, "language": language, "text": text}


FENCES = [
    ("", []),
    (" \n", []),
    ("a\nb", [text_of("a\nb")]),
    ("a\n```py\nx = 1\n\n  y\n```\nb", [text_of("a"), code_of("x = 1\n\n  y", "py"), text_of("b")]),
    ("```\n```\n\n````\n```\n````", [code_of(""), code_of("```")]),
    ("   ```c ++\r\na", [code_of("a", "c ++")]),
    ("    ```\nno", [text_of("    ```\nno")]),
    ("```a`b\n`x` ``` y\n``", [text_of("```a`b\n`x` ``` y\n``")]),
    ("```\na\n```b\n``` \nend", [code_of("a\n```b"), text_of("end")]),
]


def test_fences():
    program = """(texts) => texts.map((text) => [...Array(text.length + 1).keys()].map(
        (n) => page.splitFences(text.slice(0, n))))"""
    states = run_script(program, [text for text, _ in FENCES])
    for (text, parts), prefixes in zip(FENCES, states):
        assert prefixes[-1] == parts, text
        for prefix in prefixes:  # what comes next changes the last part only
            if "```a`b" not in text:
                assert prefix[:-1] == parts[:max(0, len(prefix) - 1)], text


def test_figures():
    nothing = {"begin": 5, "first": 0, "last": 0, "usage": None, "reason": None}
    cases = [
        (nothing, ""),
        ({**nothing, "reason": "stopped"}, "stopped"),
        ({**nothing, "first": 255, "last": 255, "usage": {"completion_tokens": 1}},
         "1 token, first token after 0.25 s"),
        ({**nothing, "first": 105, "last": 2105, "usage": {"completion_tokens": 41},
          "reason": "length"},
         "41 tokens, 20.0 tokens/s, first token after 0.10 s, cut at the limit of tokens"),
    ]
    lines = run_script("(ends) => ends.map(page.figures)", [end for end, _ in cases])
    assert lines == [line for _, line in cases]
