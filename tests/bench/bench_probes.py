#!/usr/bin/env python3
"""How long probes wait while the server and its ranks have all cores.

    bench_probes.py [--build build/release] [--model deploy/demo/model] [--probes 2000]

A closed loop keeps all seats and half of the queue taken. Meanwhile each of a few paths is asked
again and again, over a new connection each time and over one that is kept. The probing process is
scheduled before all others (SCHED_FIFO, where that is allowed), so that what is measured is the
server's part: from the request in its socket, or the call to connect, to the answer. Exit code 1
when an answer took longer than --limit ms. Prints markdown.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import bench_serve

SEATS, QUEUE = 16, 32
PATHS = ["/livez", "/readyz"]
PAUSE_SECONDS = 0.005


def first_in_line():
    """True when this process need not wait for a core."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        return True
    except PermissionError:
        return False


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection, request):
    """Until the whole answer is there: it comes in one piece."""
    connection.sendall(request)
    if not connection.recv(4096).startswith(b"HTTP/1.1 200 "):
        raise SystemExit("a probe was not answered with 200")


def probe(port, path, count, kept):
    """Milliseconds of each of so many probes."""
    end = "" if kept else "Connection: close\r\n"
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\n{end}\r\n".encode()
    connection = connect(port) if kept else None
    times = []
    for _ in range(count):
        time.sleep(PAUSE_SECONDS)
        begin = time.perf_counter()
        if kept:
            ask(connection, request)
        else:
            with connect(port) as fresh:
                ask(fresh, request)
        times.append(1e3 * (time.perf_counter() - begin))
    if kept:
        connection.close()
    return times


def row(name, times, limit):
    times = sorted(times)
    values = [times[int(share * (len(times) - 1))] for share in (0.5, 0.99, 0.999, 1)]
    over = sum(value > limit for value in times)
    print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + f" | {over} |")
    return over


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("deploy/demo/model"))
    parser.add_argument("--serve", default="-tp 2 --threads-per-rank 1", help="options of serve")
    parser.add_argument("--probes", type=int, default=2000, help="of each kind")
    parser.add_argument("--limit", type=float, default=5, help="milliseconds")
    args = parser.parse_args()
    binary = args.build / "tessera"
    serve = [*args.serve.split(), "--max-num-seqs", SEATS, "--max-num-queued-reqs", QUEUE]
    with tempfile.TemporaryDirectory() as scratch, \
            bench_serve.Server(binary, args.model, serve) as server:
        server.wait_ready()
        load = [binary, "bench", f"http://127.0.0.1:{server.port}", "--ignore-eos",
                "--random-input-len", 64, "--random-output-len", 64, "--max-concurrency",
                SEATS + QUEUE // 2, "--num-prompts", 1000000, "--output-json",
                pathlib.Path(scratch) / "out.json"]
        client = subprocess.Popen(list(map(str, load)), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            time.sleep(2)
            if not first_in_line():
                print("No right to SCHED_FIFO: the client's own waiting is in the figures.\n")
            print("| ms | p50 | p99 | p99.9 | slowest | over the limit |\n"
                  "| --- | --- | --- | --- | --- | --- |")
            over = sum(row(f"{path}, {'kept' if kept else 'new'} connection",
                           probe(server.port, path, args.probes, kept), args.limit)
                       for path in PATHS for kept in (False, True))
            print(f"\n{args.probes} probes of each kind; load average "
                  f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
        finally:
            client.terminate()
            client.wait()
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
