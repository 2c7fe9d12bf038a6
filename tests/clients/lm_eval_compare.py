"""Runs lm-evaluation-harness on the demo model twice, over HTTP through Tessera and in-process
through Hugging Face transformers, and compares every number. Prints a markdown table; the exit
code is 1 when a number differs.

    python tests/clients/lm_eval_compare.py --ranks 2     # from the top of the repository
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "deploy/demo/model"
TASKS = ("story_choice", "story_finish")
# Both sides compute in fp32 and add in different orders; a continuation has some twenty tokens.
TOLERANCE = 2e-3

sys.path.insert(0, str(ROOT / "tests/blackbox"))
import harness  # noqa: E402


def evaluate(kind, arguments, out):
    """The samples of one run: task -> list of documents."""
    command = [sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", arguments,
               "--tasks", ",".join(TASKS), "--include_path", "tests/clients/tasks",
               "--output_path", str(out), "--log_samples", "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"lm_eval --model {kind} failed:\n{done.stderr[-4000:]}")
    samples = {}
    for task in TASKS:
        path, = out.rglob(f"samples_{task}_*.jsonl")
        documents = [json.loads(line) for line in path.read_text().splitlines()]
        samples[task] = sorted(documents, key=lambda document: document["doc_id"])
    return samples


def compare_choices(mine, theirs):
    """Largest difference of a log-likelihood; how many greedy flags and accuracies differ."""
    worst, flags, scores, count = 0.0, 0, 0, 0
    for a, b in zip(mine, theirs, strict=True):
        scores += a["acc"] != b["acc"] or a["acc_norm"] != b["acc_norm"]
        for (x, x_greedy), (y, y_greedy) in zip(a["filtered_resps"], b["filtered_resps"],
                                                strict=True):
            worst = max(worst, abs(float(x) - float(y)))
            flags += x_greedy != y_greedy
            count += 1
    return worst, flags, scores, count


# How the tokens of a text are found: the harness's tokenizer over HTTP adds no start token, the one
# it loads itself does; the other side is told to do the same.
WAYS = (("our /tokenize", "tokenizer_backend=remote", "add_bos_token=False"),
        ("its own tokenizer", f"tokenizer_backend=huggingface,tokenizer={MODEL},add_bos_token=True",
         "add_bos_token=True"))


def compare_texts(mine, theirs):
    """How many differ. In-process a continuation is decoded by itself, which costs it the space it
    begins with."""
    pairs = zip(mine, theirs, strict=True)
    return sum(a["filtered_resps"][0].lstrip() != b["filtered_resps"][0].lstrip() for a, b in pairs)


def compare(way, url, scratch):
    """Prints the table's row of one way; whether it is good."""
    name, remote, local = way
    theirs = evaluate("hf", f"pretrained={MODEL},dtype=float32,{local}", scratch / "hf")
    mine = evaluate("local-completions", f"model=model,base_url={url},num_concurrent=4,"
                    f"max_retries=1,{remote}", scratch / "tessera")
    worst, flags, scores, count = compare_choices(mine["story_choice"], theirs["story_choice"])
    texts = compare_texts(mine["story_finish"], theirs["story_finish"])
    print(f"| {name} | {worst:.1e} of {count} | {flags} of {count} "
          f"| {scores} of {len(theirs['story_choice'])} "
          f"| {texts} of {len(theirs['story_finish'])} |")
    return count > 0 and worst <= TOLERANCE and flags + scores + texts == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    print(f"lm-evaluation-harness on the demo model, fp32, {args.ranks} ranks over HTTP against "
          "transformers in-process:\n")
    print("| tokens come from | log-likelihood: largest difference | is greedy: differ "
          "| acc, acc_norm: differ | greedy text up to a stop: differ |\n"
          "| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        server = harness.Server(MODEL, "-tp", args.ranks, "--dtype", "float32",
                                log=scratch / "server.log")
        try:
            url = f"{server.wait_ready().url}/v1/completions"
            good = [compare(way, url, scratch / str(i)) for i, way in enumerate(WAYS)]
        finally:
            server.stop()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
