"""A rank that stands still while it loads: said with rank, file and offset, then given up."""

import signal

from harness import PATIENCE, eventually, is_running

SECONDS = max(1, round(PATIENCE / 2))  # after which a rank that is well has read something


def check_given_up(server, ranks):
    assert server.wait(20) == 5
    eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")


def test_hanging_read(serve, synthetic, hanging_disk):
    server = serve(synthetic, "-tp", 2, "--load-timeout", 2 * SECONDS, wait=False)
    ranks = eventually(server.ranks, 5, "ranks")
    offset = eventually(lambda: hanging_disk.exists() and hanging_disk.read_text(), 10, "hangs")
    place = f"rank 1, at byte {offset} of model.safetensors, has read nothing for"
    eventually(lambda: f"{place} {SECONDS} s; after {2 * SECONDS} s (--load-timeout)" in server.log,
               10, "warning")
    check_given_up(server, ranks)
    assert f"{place} {2 * SECONDS} s (--load-timeout)" in server.log
    assert "rank 0 has read nothing" not in server.log


def test_hanging_header(serve, synthetic, hanging_disk, monkeypatch):
    """Before the first byte of a weight there is no place to name."""
    monkeypatch.setenv("HANGS_FROM", "0")
    server = serve(synthetic, "-tp", 2, "--load-timeout", SECONDS, wait=False)
    ranks = eventually(server.ranks, 5, "ranks")
    eventually(hanging_disk.exists, 10, "hangs")
    check_given_up(server, ranks)
    assert f"rank 1 has read nothing for {SECONDS} s (--load-timeout)" in server.log


def test_sigterm_while_a_read_hangs(serve, synthetic, hanging_disk):
    server = serve(synthetic, "-tp", 2, wait=False)
    ranks = eventually(server.ranks, 5, "ranks")
    eventually(hanging_disk.exists, 10, "hangs")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(5) == 0
    eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")
