#!/usr/bin/env python3
"""Plants one bug at a time, of the kinds that tensor parallelism is known for, and checks that the
integer-exact models (tests/test_exact.c) find each of them.

    mutants.py [--build DIR]     default build/mutants: a copy of the tree is made and built there

Takes some minutes, most of them for the first build. Exit code 1 when a bug survives, or when the
code it is planted in is no longer there.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM, SECONDS = "test_exact", 300

MUTANTS = [
    ("an all-reduce is left out", "engine/parallel/redistribute.c",
     "return comm_all_reduce(j->c, dst, src, (size_t)(j->rows * j->cols), err);",
     "memcpy(dst, src, (size_t)(j->rows * j->cols) * sizeof *dst); (void)err; return OK;"),
    ("the groups of two axes change places", "engine/parallel/groups.c",
     "comm_split(world, mesh_peer(m, g.rank, i, 0), mesh_coord(m, g.rank, i),",
     "comm_split(world, mesh_peer(m, g.rank, m->axes - 1 - i, 0),"
     " mesh_coord(m, g.rank, m->axes - 1 - i),"),
    ("a norm scales with the first columns' weights", "engine/parallel/parallel.c",
     "gain + mine.begin, eps, err", "gain, eps, err"),
    ("query heads read the first KV head of the rank", "engine/model/layout.c",
     "(int32_t)(h / group - l->kv_heads.begin)", "0 * group"),
    ("a table's rows start at the wrong token", "engine/parallel/parallel.c",
     "w.local, (int32_t)mine.begin, err", "w.local, (int32_t)mine.begin * (p->rank != 1), err"),
    ("a sum of squares is of the own columns only", "engine/parallel/parallel.c",
     "TRY(move(p, &sums, &p->now->sums, squares, &whole, err));",
     "TRY(move(p, &sums, &p->now->sums, squares, &whole, err)); whole.data = squares;"),
    ("the panels of summa come from the first rank", "engine/parallel/moving.c",
     "spread_out(m, &m->x, w->col, t,", "spread_out(m, &m->x, w->col, 0 * t,"),
    ("summa adds the last round only", "engine/parallel/moving.c",
     "if (t > 0) {", "if (t > w->rounds) {"),
]


def run(command, **options):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **options)


def build(directory):
    made = run(["cmake", "--build", directory / "build", "--target", PROGRAM])
    return made.stdout if made.returncode else None


def prepare(directory):
    """A copy of the files under version control, built."""
    listed = run(["git", "-C", ROOT, "ls-files", "-z"]).stdout
    for name in filter(None, listed.split("\0")):
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    run(["cmake", "-S", directory, "-B", directory / "build", "-G", "Ninja",
         "-DCMAKE_BUILD_TYPE=RelWithDebInfo"])
    failed = build(directory)
    if failed:
        raise SystemExit(failed)


def found(directory):
    """What the program says, or None when it finds nothing wrong."""
    try:
        done = run([directory / "build/tests" / PROGRAM], timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"hangs for {SECONDS} s"
    wrong = [line for line in done.stdout.splitlines() if "ERROR" in line or "CHECK" in line]
    return (wrong or [f"exit code {done.returncode}"])[0] if done.returncode else None


def try_one(directory, file, before, after):
    """What is wrong with the mutant, or None."""
    path = directory / file
    text = path.read_text()
    if text.count(before) != 1:
        raise SystemExit(f"{file}: there is no one \"{before}\" to change")
    path.write_text(text.replace(before, after))
    failed = build(directory)
    verdict = None if failed else found(directory)
    path.write_text(text)
    if failed:
        raise SystemExit(f"{file}: the bug does not compile\n{failed}")
    return verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build/mutants"))
    directory = pathlib.Path(parser.parse_args().build).resolve()
    prepare(directory)
    if found(directory):
        raise SystemExit(f"{PROGRAM} fails without a bug")
    survivors = 0
    for what, *change in MUTANTS:
        verdict = try_one(directory, *change)
        survivors += verdict is None
        print(f"{what}: {verdict or 'NOT FOUND'}", flush=True)
    return survivors > 0


if __name__ == "__main__":
    sys.exit(main())
