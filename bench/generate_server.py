"""transformers' own `generate` in a process of its own, for `bench.decode` to measure against.

Reads one JSON line `{"prompt_ids", "new_tokens", "batch"}` a request on standard input and answers
with `{"first_seconds", "total_seconds", "token_ids"}`; both times are of whole `generate` calls
over a static batch of equal prompts, one with a single new token and one with all of them.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def main(folder: str, dtype: str, threads: int) -> None:
    """Answer requests until standard input ends."""
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    # Every answer has all its tokens, so that both sides do the same work.
    model.generation_config.eos_token_id = None
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids = torch.tensor([request["prompt_ids"]] * request["batch"])
        first_seconds, output = _generate(model, ids, 1)
        total_seconds = first_seconds
        if request["new_tokens"] > 1:
            total_seconds, output = _generate(model, ids, request["new_tokens"])
        answer = {
            "first_seconds": first_seconds,
            "total_seconds": total_seconds,
            "token_ids": output[0, ids.shape[1] :].tolist(),
        }
        print(json.dumps(answer), flush=True)


def _generate(model: torch.nn.Module, ids: torch.Tensor, tokens: int) -> tuple[float, torch.Tensor]:
    started = time.perf_counter()
    output = model.generate(  # type: ignore[operator]  # transformers' mixin
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
    )
    return time.perf_counter() - started, output


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
