"""What runs in vLLM's workers: the repair of a tied head after a reload, and scoring while the engine is paused.

Given to vLLM as `--worker-extension-cls`; the engine client reaches the methods through `collective_rpc`.

Scoring goes through the model runner's own `execute_model`, as one more request would, so that it exercises the
kernels and the attention that users' requests use. It may only run between `pause_generation(clear_cache=True)` and
`resume_generation`: the scheduler then holds no cache block, so any block may be written, and each request that
was running is added to the batch anew when it resumes (decision 0002).
"""

from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as _Worker
else:
    _Worker = object

REQUEST_ID = "everloop-score"


class WorkerExtension(_Worker):
    """Methods added to vLLM's worker class."""

    def everloop_repair(self) -> bool:
        """Renews a tied head's packed copy of the embedding, which the CPU build's reload leaves as it was.

        Returns whether there was one.
        """
        model: Any = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if not (current_platform.is_cpu() and model.config.tie_word_embeddings and hasattr(head, "cpu_linear")):
            return False
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        return True

    def everloop_score(self, sequences: list[list[int]]) -> list[list[float]] | None:
        """Log-probability of each token after the first, by sequence, in as few steps as they fit in.

        None from ranks that hold no head. Raises `ValueError` where a sequence does not fit in one step.
        """
        rows = [row for batch in self._everloop_batches(sequences) for row in self._everloop_score_batch(batch)]
        return None if any(row is None for row in rows) else rows  # type: ignore[return-value]

    def _everloop_batches(self, sequences: list[list[int]]) -> list[list[list[int]]]:
        """The sequences in order, in groups that one step and the empty cache take."""
        scheduler, blocks = self.scheduler_config, self.model_runner.kv_cache_config.num_blocks
        batches: list[list[list[int]]] = []
        for ids in sequences:
            if len(ids) < 2 or len(ids) > scheduler.max_num_batched_tokens:
                raise ValueError(f"a sequence of {len(ids)} tokens does not fit in one step of this engine")
            if 1 + sum(self._everloop_counts(ids)) > blocks:
                raise ValueError(f"a sequence of {len(ids)} tokens does not fit in this engine's cache")
            grown = [*batches[-1], ids] if batches else [ids]
            fits = (
                len(grown) <= scheduler.max_num_seqs
                and sum(map(len, grown)) <= scheduler.max_num_batched_tokens
                and 1 + sum(sum(self._everloop_counts(each)) for each in grown) <= blocks
            )
            batches = [*batches[:-1], grown] if batches and fits else [*batches, [ids]]
        return batches

    def _everloop_counts(self, ids: list[int]) -> list[int]:
        """Cache blocks that a sequence and one sampled token take, by group."""
        groups = self.model_runner.kv_cache_config.kv_cache_groups
        return [-(-(len(ids) + 1) // group.kv_cache_spec.block_size) for group in groups]

    def _everloop_score_batch(self, sequences: list[list[int]]) -> list[list[float] | None]:
        """One step over all of `sequences`, as the scheduler would have put it together."""
        free = 1  # block 0 is vLLM's null block
        requests = []
        for number, ids in enumerate(sequences):
            blocks = []
            for count in self._everloop_counts(ids):
                blocks.append(list(range(free, free + count)))
                free += count
            requests.append(
                NewRequestData(
                    req_id=f"{REQUEST_ID}-{number}",
                    prompt_token_ids=ids,
                    mm_features=[],
                    sampling_params=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0),
                    pooling_params=None,
                    block_ids=tuple(blocks),
                    num_computed_tokens=0,
                    lora_request=None,
                    prefill_token_ids=ids,
                )
            )
        names = [request.req_id for request in requests]
        step = SchedulerOutput.make_empty()
        step.scheduled_new_reqs = requests
        step.scheduled_cached_reqs = CachedRequestData.make_empty()
        step.num_scheduled_tokens = {name: len(ids) for name, ids in zip(names, sequences, strict=True)}
        step.total_num_scheduled_tokens = sum(map(len, sequences))
        try:
            output: Any = self.execute_model(step)
            if output is None:
                output = self.sample_tokens(None)
            if isinstance(output, AsyncModelRunnerOutput):
                output = output.get_output()
        finally:
            end = SchedulerOutput.make_empty()
            end.finished_req_ids = set(names)
            self.execute_model(end)
        scored = [output.prompt_logprobs_dict.get(name) for name in names]
        return [None if one is None else [float(value) for value in one.logprobs[:, 0].tolist()] for one in scored]
