"""What a person sees in the registry of an erasure: which versions learned from what is gone.

The weights stay: what they learned cannot be taken out of them. Whether they may serve on is for a person to decide.
"""

from collections.abc import Iterable

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from promotion.errors import PromotionError
from promotion.names import TAG_ERASED, source_of


def tag_erased(*, mlflow: str, checkpoints: Iterable[str], receipt_id: str) -> int:
    """Adds the receipt to the tag `everloop.erased` of each version that is one of these `policy/checkpoint`.

    Returns how many versions there are; a checkpoint that was never registered has none. May be called again. Raises
    `PromotionError` where the registry is away.
    """
    client = MlflowClient(tracking_uri=mlflow, registry_uri=mlflow)
    tagged = 0
    try:
        for checkpoint in checkpoints:
            policy, checkpoint_id = checkpoint.split("/")
            source = source_of(policy, checkpoint_id)
            for version in client.search_model_versions(f"name='{policy}' and source_path='{source}'"):
                told = version.tags.get(TAG_ERASED, "").split()
                if receipt_id not in told:
                    value = " ".join([*told, receipt_id])
                    client.set_model_version_tag(policy, str(version.version), TAG_ERASED, value)
                tagged += 1
    except MlflowException as error:
        raise PromotionError(f"the registry at {mlflow} refused or is away: {error.message}") from error
    return tagged
