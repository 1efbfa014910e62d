"""Fixtures that several files share. A broker and an engine per model serve a whole session, from the first test that
asks for them."""

pytest_plugins = ["tests.agent_stage", "tests.engines", "tests.kafka", "tests.mlflow_server"]
