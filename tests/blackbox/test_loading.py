"""A rank that stands still while it loads: said with rank, file and offset, then given up."""

import signal
import subprocess

import pytest

import harness
from harness import eventually, is_running

# Reads of the weights of rank 1 end at a certain byte, as on a file server that is gone; the first
# of them leaves its offset in a file.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_rank_1(void)
{
    char text[8192];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    for (ssize_t i = 0; i < n; i += (ssize_t)strlen(text + i) + 1)
        if (strcmp(text + i, "--rank=1") == 0)
            return 1;
    return 0;
}

ssize_t pread64(int fd, void *dst, size_t n, off64_t offset)
{
    ssize_t (*real)(int, void *, size_t, off64_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    if (offset >= atoll(getenv("HANGS_FROM")) && is_rank_1()) {
        FILE *told = fopen(getenv("HANGS_TELL"), "wx");
        if (told) {
            fprintf(told, "%lld", (long long)offset);
            fclose(told);
        }
        for (;;)
            pause();
    }
    return real(fd, dst, n, offset);
}

ssize_t pread(int fd, void *dst, size_t n, off_t offset)
{
    return pread64(fd, dst, n, offset);
}
"""


@pytest.fixture
def hanging_disk(tmp_path, monkeypatch):
    """Rank 1 of servers that start now reads up to a place in its files, and no further. The value
    is a path: the offset of that read is in it."""
    if harness.is_sanitized():
        pytest.skip("sanitizers want to be the first library")
    source, library = tmp_path / "hangs.c", tmp_path / "hangs.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("HANGS_FROM", "6000000")
    monkeypatch.setenv("HANGS_TELL", str(tmp_path / "offset"))
    return tmp_path / "offset"


def check_given_up(server, ranks):
    assert server.wait(20) == 5
    eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")


def test_hanging_read(serve, synthetic, hanging_disk):
    server = serve(synthetic, "-tp", 2, "--load-timeout", 2, wait=False)
    ranks = eventually(server.ranks, 5, "ranks")
    offset = eventually(lambda: hanging_disk.exists() and hanging_disk.read_text(), 10, "hangs")
    place = f"rank 1, at byte {offset} of model.safetensors, has read nothing for"
    eventually(lambda: f"{place} 1 s; after 2 s (--load-timeout)" in server.log, 10, "warning")
    check_given_up(server, ranks)
    assert f"{place} 2 s (--load-timeout)" in server.log
    assert "rank 0 has read nothing" not in server.log


def test_hanging_header(serve, synthetic, hanging_disk, monkeypatch):
    """Before the first byte of a weight there is no place to name."""
    monkeypatch.setenv("HANGS_FROM", "0")
    server = serve(synthetic, "-tp", 2, "--load-timeout", 1, wait=False)
    ranks = eventually(server.ranks, 5, "ranks")
    eventually(hanging_disk.exists, 10, "hangs")
    check_given_up(server, ranks)
    assert "rank 1 has read nothing for 1 s (--load-timeout)" in server.log


def test_sigterm_while_a_read_hangs(serve, synthetic, hanging_disk):
    server = serve(synthetic, "-tp", 2, wait=False)
    ranks = eventually(server.ranks, 5, "ranks")
    eventually(hanging_disk.exists, 10, "hangs")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(5) == 0
    eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")
