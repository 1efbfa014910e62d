"""A random model with a long context that says some words and ends, so that a harness's turn ends, too."""

import json
from pathlib import Path

from tests.e2e.babbler import make_babbler, words
from tests.tiny_models import tokenizer

CONTEXT = 65536
SPOKEN = 8
"""Of so many words, each about as likely as the others."""


def make_talker(folder: Path) -> Path:
    """Writes the model to `folder`, a Hugging Face folder; an answer has about six tokens, and never none.

    A second number of each hidden state says whether its token is a spoken one: only then can the end follow.
    """
    from safetensors.torch import load_file, save_file

    make_babbler(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if name.endswith(("layernorm.weight", "o_proj.weight", "down_proj.weight")):
            weight[1] = 0
    spoken, end = words()[:SPOKEN], tokenizer().eos_token_id
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    embedding[:, 1] = 0.0
    embedding[spoken, 1] = 16.0
    head[:, 1] = 0.0
    head[words()[SPOKEN:], 0] = -4.0
    head[end, 1] = 4.0625  # 0.0625 above what holds it back
    save_file(weights, path, metadata={"format": "pt"})
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    return folder
