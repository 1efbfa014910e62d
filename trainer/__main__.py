"""`python -m trainer`: one training run from the command line; prints the checkpoint's manifest as JSON."""

import argparse
import json
import sys
from pathlib import Path

from trainer.config import TrainerSettings
from trainer.errors import TrainerError


def main() -> int:
    """Parses arguments, trains, and returns the exit status: 0 done, 1 not, with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train a checkpoint on a frozen dataset.")
    parser.add_argument("--dataset", type=Path, required=True, help="folder of a frozen dataset")
    parser.add_argument("--parent", type=Path, required=True, help="checkpoint folder to go on from")
    parser.add_argument("--reference", type=Path, required=True, help="checkpoint folder the divergence is measured to")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint folder to write; its name is the id")
    parser.add_argument("--settings", type=Path, help="JSON file of trainer settings; defaults where left out")
    parser.add_argument("--mlflow", help="tracking URI; no curves where left out")
    arguments = parser.parse_args()
    text = arguments.settings.read_text() if arguments.settings else "{}"
    settings = TrainerSettings.model_validate_json(text)

    import msgspec

    from trainer.checkpoints import read_checkpoint
    from trainer.stage import train

    try:
        manifest = train(
            settings=settings,
            policy=read_checkpoint(arguments.parent).policy,
            dataset=arguments.dataset,
            parent=arguments.parent,
            reference=arguments.reference,
            output=arguments.output,
            mlflow=arguments.mlflow,
            progress=lambda step: print(json.dumps(step), file=sys.stderr, flush=True),
        )
    except TrainerError as error:
        print(error, file=sys.stderr)
        return 1
    print(msgspec.json.encode(manifest).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
