"""Reads the demo model with transformers, checks it, and prints what it tells greedily.

    python sample.py --model model "Once upon a time"
"""

import argparse
from pathlib import Path

import sentencepiece
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

PROMPTS = ["Once upon a time", "One day, a little fox named Pip", "There once was a",
           "Lily was a", "It was a warm afternoon.", "In a village by the sea,"]
LARGEST = 6_000_000


def greedy(model, tokenizer, prompt, count):
    ids = torch.tensor([[tokenizer.bos_id(), *tokenizer.encode(prompt)]])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                             do_sample=False, pad_token_id=tokenizer.eos_id())
    return tokenizer.decode(out[0].tolist())


def check_size(directory):
    size = sum(path.stat().st_size for path in directory.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{directory} has {size} bytes; at most {LARGEST} are allowed")
    return size


def check_tokenizers(directory, tokenizer, texts):
    """Both readers of tokenizer.model have to agree, or chat clients and servers would not."""
    other = AutoTokenizer.from_pretrained(directory)
    for text in texts:
        if other(text)["input_ids"] != [tokenizer.bos_id(), *tokenizer.encode(text)]:
            raise SystemExit(f"transformers and sentencepiece disagree on {text!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("--model", type=Path, default=Path(__file__).with_name("model"))
    parser.add_argument("--tokens", type=int, default=130)
    args = parser.parse_args()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(args.model / "tokenizer.model"))
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    print(f"{check_size(args.model)} bytes, {model.num_parameters()} parameters\n")
    check_tokenizers(args.model, tokenizer, args.prompts)
    for prompt in args.prompts:
        print(greedy(model, tokenizer, prompt, args.tokens), end="\n\n")


if __name__ == "__main__":
    main()
