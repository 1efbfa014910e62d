"""Which arithmetic a processor is good at, from the kernel's own list."""

from pathlib import Path

import pytest

from ingest.machine import native_bfloat16


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile", True),
        ("flags\t\t: fpu avx2 f16c", False),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("model name\t: bf16 wonder", False),
    ],
)
def test_bfloat16_is_native_where_the_kernel_lists_it(tmp_path: Path, line: str, native: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert native_bfloat16(tmp_path / "cpuinfo") is native


def test_nothing_is_claimed_of_a_machine_that_does_not_say(tmp_path: Path) -> None:
    assert not native_bfloat16(tmp_path / "absent")
