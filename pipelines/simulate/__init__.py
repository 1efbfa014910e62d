"""Simulated users: people who ask, read and judge, through the same public API as everyone else.

A simulator is traffic with a known truth. It finds out whether the loop learns what people want, because here,
unlike in production, the probability that a person accepts an answer is known and can be asked for any answer.

- `words`: which words of a text carry content
- `acceptance`: the demo's truth: the probability that a person accepts an answer
- `questions`: the question files, and how alike two questions are
- `users`: the `User` protocol (what a person asks, how they judge) and the demo's everyday people
- `traffic`: users' requests and feedback over HTTP with the unmodified `openai` client, and an honest tally
- `command`: `everloop simulate`

To simulate your own users, write a class with `ask` and `judge` and give it to `traffic.Crowd`; to let the gate
judge by your truth, name your function in `[policies.X.evaluation]` as this package's `acceptance` is named.
"""

from pipelines.simulate.acceptance import acceptance

__all__ = ["acceptance"]
