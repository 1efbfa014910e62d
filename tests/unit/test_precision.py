"""Which arithmetic a run computes in."""

import pytest

from trainer.config import TrainerSettings
from trainer.precision import computes_bfloat16, resolve


@pytest.mark.parametrize(
    ("capabilities", "gpu", "native"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, False, False),
        ({"avx2": True, "avx512_bf16": True}, False, True),
        ({"amx_bf16": True}, False, True),
        ({"neon": True, "bf16": True}, False, True),
        ({"avx2": True}, True, True),
        ({}, False, False),
    ],
)
def test_bfloat16_needs_instructions_or_a_gpu(capabilities, gpu, native):
    assert computes_bfloat16(capabilities, gpu=gpu) is native


def test_only_auto_is_replaced():
    assert resolve(TrainerSettings()).compute_dtype in ("bfloat16", "float32")
    for dtype in ("bfloat16", "float32"):
        assert resolve(TrainerSettings(compute_dtype=dtype)).compute_dtype == dtype
