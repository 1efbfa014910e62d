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
        """Log-probability of each token after the first, by sequence, each in a step of its own.

        None from ranks that hold no head. Raises `ValueError` where a sequence does not fit in one step.
        """
        rows = [self._everloop_score_one(ids) for ids in sequences]
        return None if any(row is None for row in rows) else rows  # type: ignore[return-value]

    def _everloop_score_one(self, ids: list[int]) -> list[float] | None:
        groups = self.model_runner.kv_cache_config.kv_cache_groups
        counts = [-(-(len(ids) + 1) // group.kv_cache_spec.block_size) for group in groups]
        if len(ids) < 2 or len(ids) > self.scheduler_config.max_num_batched_tokens:
            raise ValueError(f"a sequence of {len(ids)} tokens does not fit in one step of this engine")
        if sum(counts) >= self.model_runner.kv_cache_config.num_blocks:
            raise ValueError(f"a sequence of {len(ids)} tokens does not fit in this engine's cache")
        starts = [1 + sum(counts[:i]) for i in range(len(counts))]  # block 0 is vLLM's null block
        request = NewRequestData(
            req_id=REQUEST_ID,
            prompt_token_ids=ids,
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0),
            pooling_params=None,
            block_ids=tuple(list(range(start, start + n)) for start, n in zip(starts, counts, strict=True)),
            num_computed_tokens=0,
            lora_request=None,
            prefill_token_ids=ids,
        )
        step = SchedulerOutput.make_empty()
        step.scheduled_new_reqs = [request]
        step.scheduled_cached_reqs = CachedRequestData.make_empty()
        step.num_scheduled_tokens = {REQUEST_ID: len(ids)}
        step.total_num_scheduled_tokens = len(ids)
        try:
            output: Any = self.execute_model(step)
            if output is None:
                output = self.sample_tokens(None)
            if isinstance(output, AsyncModelRunnerOutput):
                output = output.get_output()
        finally:
            end = SchedulerOutput.make_empty()
            end.finished_req_ids = {REQUEST_ID}
            self.execute_model(end)
        scored = output.prompt_logprobs_dict.get(REQUEST_ID)
        return None if scored is None else [float(value) for value in scored.logprobs[:, 0].tolist()]
