"""What several commands need of an installation. Imported inside commands: it reads the configuration."""

from pathlib import Path

from pipelines.config import Config, load
from pipelines.control import Control
from pipelines.errors import PipelineError
from pipelines.home import Home
from pipelines.stack import addresses, secrets


def open_home(config_path: Path) -> tuple[Config, Home]:
    """The configuration and its home folder."""
    config = load(config_path)
    return config, Home.of(config)


def control_of(config_path: Path) -> Control:
    """The control process of the stack; raises where nothing ever ran."""
    _, home = open_home(config_path)
    where = addresses.load(home)
    return Control(where.control, secrets.load_or_create(home.run / "secrets.json").control_token)


def policy_named(config: Config, name: str | None) -> str:
    """The policy of this name, or the only one; raises with the names there are."""
    if name is None and len(config.policies) == 1:
        return next(iter(config.policies))
    if name in config.policies:
        return str(name)
    there_are = ", ".join(config.policies) or "none"
    said = "name a policy" if name is None else f'there is no policy "{name}"'
    raise PipelineError(f"{said}: the configuration has {there_are}")
