"""Settings of promotion: how often the registry is compared with the fleet."""

from pydantic import BaseModel, ConfigDict, Field


class PromotionSettings(BaseModel):
    """Shared by all policies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    poll_seconds: float = Field(default=0.5, gt=0, description="Time between two looks at the registry.")
    request_timeout_seconds: float = Field(
        default=5.0, gt=0, description="Longest wait for one answer of the registry or the control process."
    )
