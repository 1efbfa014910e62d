"""A model that babbles: it says 48 words at random, half of them with an a and half with an o.

Its weights are random, save that one number of every hidden state is a constant which the head holds against all other
tokens. With so few words a single run of the loop learns from 160 answers what people like (`taste.py`).
"""

import re
from pathlib import Path

from tests.tiny_models import make_model, tokenizer

WORDS = 24
"""So many words with an a and no o, and so many with an o and no a."""


def make_babbler(folder: Path) -> Path:
    """Writes the model to `folder`, a Hugging Face folder."""
    from safetensors.torch import load_file, save_file

    make_model(folder, 0, tied=False)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            weight[0] = 0  # no layer reads the constant …
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0  # … and none changes it
    weights["model.embed_tokens.weight"][:, 0] = 16.0
    head, spoken = weights["lm_head.weight"], words()
    head[:, 0] = -4.0
    head[spoken, 0] = 0.0
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def words() -> list[int]:
    """The tokens that the model says."""
    reader = tokenizer()
    texts = {token: reader.decode([token]) for token in range(len(reader))}
    short = {token: text for token, text in texts.items() if re.fullmatch(r" [a-z]{4,6}", text)}
    liked = [token for token, text in short.items() if "a" in text and "o" not in text]
    other = [token for token, text in short.items() if "o" in text and "a" not in text]
    return [*liked[:WORDS], *other[:WORDS]]
