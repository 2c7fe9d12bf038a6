"""PyTorch's own tensor parallelism beside ours: the demo model under DTensor's parallelize_module
over gloo, with the styles that our 1d plan has. Its CommDebugMode says which collectives a forward
pass takes, our counters which ones ours took, and both give the same log-probabilities. Prints a
markdown table; the exit code is 1 when something differs.

    python tests/clients/dtensor_twin.py [--ranks N]     # from the top of the repository
"""

import argparse
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "deploy/demo/model"
PROMPT = [1] + [37 * i % 1900 + 3 for i in range(31)]
BEST, TOLERANCE = 20, 1e-3

sys.path.insert(0, str(ROOT / "tests/blackbox"))
import harness  # noqa: E402

STYLES = {
    "model.embed_tokens": lambda: RowwiseParallel(input_layouts=Replicate(),
                                                  output_layouts=Replicate()),
    "model.layers.*.self_attn.q_proj": ColwiseParallel,
    "model.layers.*.self_attn.k_proj": ColwiseParallel,
    "model.layers.*.self_attn.v_proj": ColwiseParallel,
    "model.layers.*.self_attn.o_proj": RowwiseParallel,
    "model.layers.*.mlp.gate_proj": ColwiseParallel,
    "model.layers.*.mlp.up_proj": ColwiseParallel,
    "model.layers.*.mlp.down_proj": RowwiseParallel,
    "lm_head": lambda: ColwiseParallel(output_layouts=Replicate()),
}


def twin(rank, ranks, meeting, result):
    """One rank of PyTorch's."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    # a table that is tied would be split twice
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(model, mesh, {name: style() for name, style in STYLES.items()})
    counting = CommDebugMode()
    with torch.no_grad(), counting:
        logits = model(torch.tensor([PROMPT]), use_cache=False, logits_to_keep=1).logits[0, -1]
    if rank == 0:
        counts = {str(op): n for op, n in counting.get_comm_counts().items()}
        torch.save((counts, torch.log_softmax(logits, -1)), result)
    dist.destroy_process_group()


def ours(ranks, scratch):
    """({collective: calls of rank 0 in one step}, {token: log-probability})."""
    server = harness.Server(MODEL, "-tp", ranks, "--dtype", "float32", log=scratch / "server.log")
    try:
        server.wait_ready()
        before = calls(server)
        reply = server.complete(PROMPT, max_tokens=1, temperature=0, logprobs=BEST,
                                return_tokens_as_token_ids=True)
        harness.eventually(lambda: calls(server)["all_gather"] > before["all_gather"])
        after = calls(server)
    finally:
        server.stop()
    best = reply["choices"][0]["logprobs"]["top_logprobs"][0]
    return ({op: n - before.get(op, 0) for op, n in after.items()},
            {int(name.removeprefix("token_id:")): value for name, value in best.items()})


def calls(server):
    counted = {"all_reduce": 0, "all_gather": 0}
    for name, labels, value in server.metrics().samples:
        if name == "tessera:comm_calls_total" and labels["rank"] == "0":
            counted[labels["op"]] = counted.get(labels["op"], 0) + int(value)
    return counted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        torch.multiprocessing.spawn(twin, (ranks, scratch / "meeting", scratch / "twin.pt"), ranks)
        theirs, logprobs = torch.load(scratch / "twin.pt")
        mine, best = ours(ranks, scratch)
    layers = transformers.AutoConfig.from_pretrained(MODEL).num_hidden_layers
    worst = max(abs(value - logprobs[token].item()) for token, value in best.items())
    good = worst < TOLERANCE
    print(f"| {ranks} ranks, {layers} layers | DTensor | ours |\n| --- | --- | --- |")
    for op in ("all_reduce", "all_gather"):
        count = sum(n for name, n in theirs.items() if op in name)
        print(f"| {op} | {count} | {mine[op]} |")
        good = good and count == mine[op]
    print(f"| logprobs of the {BEST} best: largest difference | {worst:.1e} | |")
    if not good:
        print(theirs, mine)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
