"""`everloop config`: is the file right, and what may it say."""

import typer

from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json

app = typer.Typer(no_args_is_help=True)


@app.command()
def check(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Read the configuration and say what is wrong with it. With --json, print it as it is understood."""
    from pipelines.config import load

    found = load(config)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print(f"{config} is right. Policies: {', '.join(found.policies)}. Engines: {len(found.engines)}.")


@app.command()
def reference() -> None:
    """Print the configuration reference, in Markdown."""
    from pipelines.config import Config
    from pipelines.config.reference import render

    print(render(Config), end="")
