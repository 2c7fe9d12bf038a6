"""Generated requests, good and bad, against what the server's own /openapi.json promises."""

import os
import re
import subprocess
import sys

import pytest

import checkpoint
import harness
from conftest import shared

TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
            "{% if tools %}{{ tools | tojson }}{% endif %}")

# Per operation and kind; a release is worth a thousand.
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "10"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo model, and a template with which conversations are answered, too."""
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    yield from shared(tmp_path_factory, checkpoint.DEMO, "-tp", 2, "--served-model-name", "demo",
                      "--chat-template", template)


def test_document_names_every_route(demo):
    """The page for people and the document for programs list the same."""
    page = demo.get("/").body.decode()
    listed = {path.rstrip(":;,)") for path in re.findall(r"/[a-z_0-9/.]+[:;,)]?", page)}
    paths = set(demo.get("/openapi.json").json()["paths"])
    assert paths - {"/v1/models/{model}"} == listed - {"/openapi.json"}


def check_generated(server, tmp_path, operations, examples, *more):
    pytest.importorskip("schemathesis")
    folder = harness.ROOT / "tests/schema"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file",
               folder / "schemathesis.toml", "run", f"{server.url}/openapi.json",
               "--max-examples", examples, "--seed", 1, *more]
    environment = {**harness.environment(), "SCHEMATHESIS_HOOKS": str(folder / "checks.py")}
    done = subprocess.run([str(word) for word in command], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{operations} selected" in done.stdout, done.stdout[:2000]


@pytest.mark.timeout((60 + EXAMPLES) * harness.PATIENCE)
def test_generated_requests(demo, tmp_path):
    check_generated(demo, tmp_path, "Operations:       17", EXAMPLES)
    assert demo.complete("Once", max_tokens=1)["choices"]


@pytest.mark.timeout((60 + EXAMPLES) * harness.PATIENCE)
def test_generated_requests_for_vectors(serve, tmp_path):
    server = serve(checkpoint.DEMO, "--runner", "pooling")
    check_generated(server, tmp_path, "Operations:       1", min(EXAMPLES, 100),
                    "--include-path", "/v1/embeddings")
    assert server.post("/v1/embeddings", {"input": "Once"}).status == 200
