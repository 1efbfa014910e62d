"""Fixtures that several files share. A broker and an engine per model serve a whole session, from the first test that
asks for them. No test depends on how fast the machine is: Hypothesis's own limits of time are off."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.agent_stage", "tests.engines", "tests.kafka", "tests.mlflow_server", "tests.s3"]

settings.register_profile("everloop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everloop")
