"""Greedy continuations of the demo model in several layouts, over HTTP, against Hugging Face
transformers in-process, both in fp32: 24 prompts of 256 tokens each. Every distribution is compared
too, by its best tokens. Prints a markdown table; the exit code is 1 when something differs that
rounding does not explain.

    python tests/clients/greedy_compare.py     # from the top of the repository
"""

import json
import math
import pathlib
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "deploy/demo/model"
TASK = ROOT / "tests/clients/tasks/story_choice.jsonl"
PROMPTS, PROMPT, TOKENS, BEST = 24, 48, 256, 20
LAYOUTS = [("1d", 1), ("1d", 3), ("1d_sp", 4), ("2d", 4), ("2.5d", 8), ("3d", 8)]
# fp32 sums in another order: a tie is two logits closer than this, and logprobs agree to it.
TOLERANCE = 1e-3

sys.path.insert(0, str(ROOT / "tests/blackbox"))
import harness  # noqa: E402


def reference():
    """[(prompt, continuation, log-probabilities [tokens, vocabulary])] by transformers."""
    torch.set_num_threads(1)  # threads wait for each other in every small operation
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    texts = [json.loads(line)["context"] for line in TASK.read_text().splitlines()]
    prompts = [tokenizer(text)["input_ids"][:PROMPT] for text in texts]
    ids = torch.tensor([prompt for prompt in prompts if len(prompt) == PROMPT][:PROMPTS])
    assert ids.shape == (PROMPTS, PROMPT)
    # past the end of a story too, as the arithmetic is compared: no token ends one
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS,
                               do_sample=False, pad_token_id=0)
        logprobs = torch.log_softmax(model(whole).logits[:, PROMPT - 1:-1], -1)
    assert whole.shape == (PROMPTS, PROMPT + TOKENS)
    return list(zip(ids.tolist(), whole[:, PROMPT:].tolist(), logprobs))


def ask(server, prompt):
    """(tokens, [{token: log-probability of the best}])."""
    reply = server.post("/v1/completions", {
        "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
        "logprobs": BEST, "return_token_ids": True, "return_tokens_as_token_ids": True})
    choice = reply.json()["choices"][0]
    best = [{int(name.removeprefix("token_id:")): value for name, value in place.items()}
            for place in choice["logprobs"]["top_logprobs"]]
    return choice["token_ids"], best


def divergence(ours, theirs):
    """Kullback-Leibler divergence of the best tokens and all others together."""
    total, rest_ours, rest_theirs = 0.0, 1.0, 1.0
    for token, value in ours.items():
        p, q = math.exp(theirs[token]), math.exp(value)
        total += p * (math.log(p) - math.log(q)) if p > 0 else 0
        rest_theirs, rest_ours = rest_theirs - p, rest_ours - q
    if rest_theirs > 1e-9 and rest_ours > 1e-9:
        total += rest_theirs * math.log(rest_theirs / rest_ours)
    return total


def compare(server, runs):
    """(equal texts, ties, unexplained, tokens, worst difference of a logprob, mean KL, top-1)"""
    equal = ties = unexplained = tokens = same_best = 0
    worst = kl = 0.0
    for prompt, wanted, logprobs in runs:
        got, best = ask(server, prompt)
        assert len(got) == TOKENS
        equal += got == wanted
        for i, place in enumerate(best):
            theirs = logprobs[i].tolist()
            worst = max(worst, *(abs(value - theirs[token]) for token, value in place.items()))
            kl += divergence(place, theirs)
            same_best += got[i] == wanted[i]
            tokens += 1
            if got[i] != wanted[i]:  # what follows continues another text
                first, second = torch.topk(logprobs[i], 2).values.tolist()
                ties += first - second < TOLERANCE
                unexplained += first - second >= TOLERANCE
                break
    return equal, ties, unexplained, tokens, worst, kl / tokens, same_best / tokens


def main():
    runs, good = reference(), True
    print(f"Demo model, fp32, {PROMPTS} prompts of {PROMPT} tokens, {TOKENS} tokens each, over HTTP"
          " against transformers in-process:\n")
    print("| layout, ranks | equal texts | ties, unexplained | tokens compared | logprobs of the "
          f"{BEST} best: largest difference | mean KL | same best token |")
    print("| --- |" + " --- |" * 6)
    for mode, ranks in LAYOUTS:
        with tempfile.TemporaryDirectory() as scratch:
            server = harness.Server(MODEL, "-tp", ranks, "--parallel-mode", mode, "--dtype",
                                    "float32", log=pathlib.Path(scratch) / "server.log")
            try:
                server.wait_ready()
                equal, ties, bad, tokens, worst, kl, same = compare(server, runs)
            finally:
                server.stop()
        print(f"| {mode}, {ranks} | {equal} of {len(runs)} | {ties}, {bad} | {tokens} "
              f"| {worst:.1e} | {kl:.1e} | {100 * same:.2f} % |", flush=True)
        good = good and bad == 0 and worst < TOLERANCE
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
