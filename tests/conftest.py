"""Session-wide fixtures: one broker, one engine per model; each is started by the first test that asks for it."""

pytest_plugins = ["tests.engines", "tests.kafka", "tests.mlflow_server"]
