"""A tiny random policy and datasets sampled from it: what trainer tests train, in a second a run.

Rows are sampled in torch from an export folder, so their logprobs are exact, and rewarded by a function of
the sampled ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.dataset import Baseline, DatasetManifest
from ingest.contracts.files import FileEntry, digest_file, write_manifest
from trainer.checkpoints import import_model

POLICY = "assistant"
VOCABULARY = 64
CUT_AT = 1_000_000.0


def make_source(folder: Path, seed: int = 0, *, tied: bool = True) -> Path:
    """A random bf16 Llama of 64 tokens with stand-ins for tokenizer files, as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"stand-in": true}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return folder


@dataclass(frozen=True)
class Place:
    """`checkpoints/<policy>/` with its base, and where datasets go."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints" / POLICY

    @property
    def base(self) -> Path:
        return self.checkpoints / "base"

    def dataset(self, name: str) -> Path:
        return self.root / "datasets" / POLICY / name


def make_place(root: Path, seed: int = 0, *, tied: bool = True) -> Place:
    """A place with an imported base."""
    import_model(make_source(root / "source", seed, tied=tied), root / "checkpoints", POLICY, now=1.0)
    return Place(root)


def prefers_even(ids: np.ndarray) -> float:
    """The hidden preference of these tests: the share of even tokens, less a half."""
    return float(np.mean(ids % 2 == 0)) - 0.5


def make_dataset(
    folder: Path,
    checkpoint: Path,
    *,
    rows: int = 48,
    output: int = 6,
    seed: int = 0,
    reward: Callable[[np.ndarray], float] = prefers_even,
    version: str | None = None,
    finished_at: float = CUT_AT - 60,
    dtype: str = "bfloat16",
) -> Path:
    """A frozen dataset of answers sampled from `checkpoint`, computed in `dtype` and labelled with
    `version` (default: its own id)."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint / EXPORT, dtype=getattr(torch, dtype)).eval()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (rows, 5), generator=generator)
    logprobs = []
    with torch.no_grad():
        for _ in range(output):
            distribution = model(ids).logits[:, -1].float().log_softmax(-1)
            token = torch.multinomial(distribution.exp(), 1, generator=generator)
            logprobs.append(distribution.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
    scores = torch.cat(logprobs, dim=1).numpy()
    records = []
    for i, row in enumerate(ids.numpy()):
        length = output - i % 2
        answer = row[5 : 5 + length]
        records.append(
            {
                "turn_id": f"chatcmpl-{seed}-{i}",
                "sample": 0,
                "feedback_revision": 1,
                "policy": POLICY,
                "segment": "even" if i % 4 < 2 else "odd",
                "prompt_ids": row[:5].tolist(),
                "output_ids": answer.tolist(),
                "logprobs": scores[i, :length].tolist(),
                "weight_versions": [{"version": version or checkpoint.name, "start": 0, "end": length}],
                "reward": reward(answer),
                "weight": 1.0,
                "started_at": finished_at - 1,
                "finished_at": finished_at,
            }
        )
    folder.mkdir(parents=True)
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(records), path)
    manifest = DatasetManifest(
        dataset_id=folder.name,
        policy=POLICY,
        created_at=CUT_AT,
        cut_at=CUT_AT,
        lake_versions={},
        log_ranges={},
        pairs=tuple((record["turn_id"], 0, 1) for record in records),
        counts={"settled": rows},
        reward_specification={},
        reward_digest="",
        baselines={"even": Baseline(mean=0.1, count=8.0)},
        rows=FileEntry("rows.parquet", path.stat().st_size, digest_file(path)),
        statistics={},
    )
    write_manifest(folder, manifest)
    return folder
