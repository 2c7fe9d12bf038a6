"""slowhttptest (a Debian package) holds a thousand connections with requests that never end; the
others are served all the while."""

import concurrent.futures
import csv
import shutil
import subprocess

import pytest

import checkpoint
from harness import PATIENCE

pytestmark = pytest.mark.skipif(not shutil.which("slowhttptest"),
                                reason="slowhttptest is not installed")

CONNECTIONS, SECONDS = 1000, 20


def attack(server, prefix, *mode):
    command = ["slowhttptest", *mode, "-c", CONNECTIONS, "-r", 500, "-i", 1, "-l", SECONDS,
               "-p", 5, "-g", "-o", prefix, "-u", f"{server.url}/v1/completions"]
    return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60 * PATIENCE, check=False)


@pytest.mark.parametrize("mode", [("-H",), ("-B", "-s", "100000", "-f", "application/json")],
                         ids=["heads", "bodies"])
def test_service_is_available(serve, tmp_path, mode):
    server = serve(checkpoint.DEMO, "--http-header-timeout", 4, "--http-body-timeout", 4)
    served = 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(attack, server, tmp_path / "slow", *mode)
        while not running.done():
            assert server.get("/health").status == 200
            assert server.complete("Once", max_tokens=2)["usage"]["completion_tokens"] == 2
            served += 1
    assert running.result().returncode == 0, running.result().stdout[-2000:]
    with open(tmp_path / "slow.csv", encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    assert served > 10
    assert all(int(row["Service Available"]) for row in rows[1:]), rows
    assert max(int(row["Connected"]) for row in rows) > CONNECTIONS / 2, "it was no attack"
    assert "No open connections left" in running.result().stdout, "the slow were not cut"
