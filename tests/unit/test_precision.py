"""Which arithmetic a run computes in."""

import pytest

from trainer import precision
from trainer.config import TrainerSettings
from trainer.precision import resolve


@pytest.mark.parametrize(
    ("gpu", "processor", "dtype"),
    [(False, False, "float32"), (False, True, "bfloat16"), (True, False, "bfloat16")],
)
def test_bfloat16_needs_instructions_or_a_gpu(monkeypatch, gpu, processor, dtype):
    monkeypatch.setattr(precision.torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(precision, "native_bfloat16", lambda: processor)
    assert resolve(TrainerSettings()).compute_dtype == dtype


def test_only_auto_is_replaced():
    for dtype in ("bfloat16", "float32"):
        assert resolve(TrainerSettings(compute_dtype=dtype)).compute_dtype == dtype
