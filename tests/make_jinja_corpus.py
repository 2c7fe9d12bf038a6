#!/usr/bin/env python3
"""Writes tests/corpus/jinja, the seeds of fuzz_jinja: the templates and expressions that the engine
is compared on, each file a template, a NUL and variables. Needs the tests' Python environment."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "blackbox"), str(ROOT / "oracle")]
import jinja_cases as cases  # noqa: E402  (lives in a folder just added)
import jinja_reference  # noqa: E402

PER_FILE = 12


def renders(template):
    return not isinstance(jinja_reference.render(template, cases.VARIABLES), Exception)


def seeds():
    """(name, template): whole templates alone, the others by the dozen."""
    for path in sorted((ROOT / "corpus/chat_templates").glob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")
    small = ["{{ " + e + " }}" for e in cases.EXPRESSIONS] + cases.TEMPLATES
    good = [t for t in small if renders(t)]
    for i in range(0, len(good), PER_FILE):
        yield f"good{i // PER_FILE:02}", "".join(good[i:i + PER_FILE])
    for i, template in enumerate([t for t in small if not renders(t)][::8]):
        yield f"bad{i:02}", template
    yield "formatting", "{{ s % 'x' }}"  # seen while it is rendered: s is no literal


def main():
    folder = ROOT / "corpus/jinja"
    folder.mkdir(parents=True, exist_ok=True)
    variables = json.dumps(cases.VARIABLES, ensure_ascii=False)
    for name, template in seeds():
        (folder / name).write_bytes(f"{template}\0{variables}".encode())


if __name__ == "__main__":
    main()
