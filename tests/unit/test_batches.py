"""Padding, cutting and dealing rows."""

import numpy as np
import pytest
import torch

from trainer.batches import Example, cut, minibatches, sequences


def example(prompt: list[int], output: list[int], advantage: float = 1.0, reward: float = 0.5) -> Example:
    values = np.arange(len(output), dtype=np.float32)
    return Example(np.array(prompt), np.array(output), -values, -values - 0.5, -values - 1, advantage, 1.0, reward)


def steps_of(rows: list[Example], minibatch: int, epochs: int, seed: tuple[int, int], normalize: str = "constant"):
    return minibatches(rows, minibatch, epochs, 64, seed, normalize)


def test_positions_point_at_the_states_that_predict_each_output_token():
    batch = sequences([np.array([1, 2, 3]), np.array([4])], [np.array([5, 6]), np.array([7])])
    assert batch.input_ids.tolist() == [[1, 2, 3, 5, 6], [4, 7, 0, 0, 0]]
    assert batch.positions.tolist() == [2, 3, 5]
    assert batch.targets.tolist() == [5, 6, 7]
    assert [batch.input_ids.flatten()[p + 1].item() for p in batch.positions] == [5, 6, 7]


def test_groups_stay_within_the_budget_and_hold_every_row_once():
    lengths = [5, 100, 7, 30, 31, 6, 250, 8]
    groups = cut(lengths, 100)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= 100
    assert groups[0] == [6], "a row beyond the budget goes alone"


def test_short_rows_are_not_padded_to_a_long_one():
    assert cut([20] * 8 + [200], 4096) == [[8], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert cut([20, 21, 22, 23], 4096) == [[3, 2, 1, 0]], "a pass costs more than a little padding"
    assert cut([], 4096) == []


def test_minibatches_are_even_seeded_and_complete():
    rows = [example([1, 2], list(range(3, 4 + i % 5)), reward=float(i)) for i in range(37)]
    steps = steps_of(rows, 16, 2, (0, 0))
    assert [step.rows for step in steps] == [19, 18, 19, 18]
    again = steps_of(rows, 16, 2, (0, 0))
    other = steps_of(rows, 16, 2, (0, 8))
    assert [step.reward for step in steps] == [step.reward for step in again]
    assert [step.reward for step in steps] != [step.reward for step in other]
    total = sum(step.reward * step.rows for step in steps[:2])
    assert total == pytest.approx(sum(range(37)))


def test_a_part_lines_up_ids_logprobs_and_advantages():
    (step,) = steps_of([example([1], [2, 3], 0.5), example([1, 4], [5], -2.0)], 16, 1, (0, 0))
    (part,) = step.parts
    by_token = dict(zip(part.sequences.targets.tolist(), part.advantages.tolist(), strict=True))
    assert by_token == {2: 0.5, 3: 0.5, 5: -2.0}
    assert dict(zip(part.sequences.targets.tolist(), part.behaviour.tolist(), strict=True)) == {2: 0.0, 3: -1.0, 5: 0.0}
    assert part.rows.tolist() == [0, 0, 1]
    assert part.divergence == pytest.approx((2 * 0.5 + 0.5) / 2)


@pytest.mark.parametrize(
    ("normalize", "long", "short"),
    [("constant", 1 / (2 * 2), 1 / (2 * 2)), ("token", 1 / 4, 1 / 4), ("sequence", 1 / 6, 1 / 2)],
)
def test_what_a_token_counts_in_its_step(normalize, long, short):
    rows = [example([1], [2, 3, 4]), example([1, 4], [5])]
    (step,) = steps_of(rows, 16, 1, (0, 0), normalize)
    by_token = {
        token: weight
        for part in step.parts
        for token, weight in zip(part.sequences.targets.tolist(), part.weights.tolist(), strict=True)
    }
    assert by_token == pytest.approx({2: long, 3: long, 4: long, 5: short})


def test_a_constant_is_of_all_rows_and_the_tokens_of_the_step():
    rows = [example([1], [2] * n) for n in (1, 1, 1, 9)]

    def weights(normalize: str) -> list[float]:
        return sorted(float(part.weights[0]) for step in steps_of(rows, 2, 1, (0, 0), normalize) for part in step.parts)

    assert set(weights("constant")) == set(torch.tensor([1.0]).div(2 * 3).tolist())
    assert (weights("token")[0], weights("token")[-1]) == pytest.approx((1 / 10, 1 / 2))
