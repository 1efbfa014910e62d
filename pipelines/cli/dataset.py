"""`everloop dataset`: what the trainer reads. It works while nothing runs; texts only are looked for in the lake."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.loop import PolicyOption
from pipelines.cli.output import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, print_table, utf8, when

if TYPE_CHECKING:
    from ingest.contracts.dataset import DatasetManifest
    from pipelines.home import Home

app = typer.Typer(no_args_is_help=True)
_BAR = 40
_SHOWN = 10


def _ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids to complete a word with; none where there is no configuration."""
    from pipelines.cli.parts import open_home
    from pipelines.errors import PipelineError

    try:
        home = open_home(ctx.params.get("config") or DEFAULT_CONFIG)[1]
    except PipelineError:
        return []
    return sorted(path.name for path in _folders(home) if path.name.startswith(incomplete))


DatasetArgument = Annotated[
    str, typer.Argument(help="Its id, as `everloop dataset list` shows it.", autocompletion=_ids)
]


@app.command("list")
def list_(policy: PolicyOption = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """List the datasets, the newest first, with the candidates that their gate did not accept."""
    from ingest.profiles import open_dataset
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    named = policy_named(found, policy) if policy else "*"
    read = [(m := open_dataset(f), _state(f, m)) for f in _folders(home, named)]
    read.sort(key=lambda pair: (pair[0].cut_at, pair[0].dataset_id), reverse=True)
    listed: list[dict[str, Any]] = [
        {
            "dataset_id": m.dataset_id,
            "policy": m.policy,
            "state": state,
            "cut_at": m.cut_at,
            "rows": len(m.pairs),
            "tokens": m.statistics.get("tokens"),
            "reward_mean": m.statistics.get("reward_mean"),
            "accept_rate": m.statistics.get("accept_rate"),
        }
        for m, state in read
    ]
    if as_json:
        print_json(listed)
        return
    numbers = ("rows", "tokens", "reward_mean", "accept_rate")
    print_table(
        ("dataset", "policy", "state", "cut", "rows", "tokens", "mean reward", "accepted"),
        (
            (d["dataset_id"], d["policy"], d["state"], when(d["cut_at"]), *(_number(d[name]) for name in numbers))
            for d in listed
        ),
    )


@app.command()
def show(
    dataset: DatasetArgument,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the histograms into this file: .png, .svg or .pdf.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Draw the histograms and open the picture.")] = False,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Show a dataset: where it comes from, its statistics, its gate, and how its rows are spread."""
    import msgspec

    _, folder = _dataset(config, policy, dataset)
    from ingest.profiles import histograms, open_dataset

    manifest = open_dataset(folder)
    drawn = histograms(folder, manifest)
    if picture is not None or open_:
        from ingest.pictures import KINDS, draw

        picture = picture or Path(tempfile.gettempdir()) / f"{dataset}.png"
        if picture.suffix not in KINDS:
            raise typer.BadParameter(f"{picture} must end in one of {', '.join(KINDS)}", param_hint="--picture")
        draw(f"Dataset {dataset} of {manifest.policy}: {len(manifest.pairs)} rows", drawn, picture)
    if as_json:
        kept = {k: v for k, v in msgspec.to_builtins(manifest).items() if k != "pairs"}
        print_json(kept | {"state": _state(folder, manifest), "histograms": msgspec.to_builtins(drawn)})
    else:
        _print(manifest, _state(folder, manifest), msgspec.to_builtins(drawn))
        if picture is not None:
            print(f"\nThe picture is {picture}")
    if open_:
        typer.launch(str(picture))


@app.command()
def diff(
    first: DatasetArgument,
    second: DatasetArgument,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Show what sets two datasets apart: rows, statistics, and what made them."""
    import msgspec

    folders = [_dataset(config, policy, dataset)[1] for dataset in (first, second)]
    from ingest.profiles import compare, open_dataset

    found = compare(*(open_dataset(folder) for folder in folders))
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for what, pairs in (
        (f"only in {first}", found.only_first),
        (f"only in {second}", found.only_second),
        ("in both with other feedback", found.revised),
    ):
        some = ", ".join(f"{turn}/{sample}" for turn, sample in pairs[:_SHOWN])
        more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        print(f"{len(pairs)} rows {what}{': ' if pairs else ''}{some}{more}")
    print(f"{found.both} rows in both\n")
    values = ((name, _number(a), _number(b), _number(None if a is None or b is None else b - a))
              for name, (a, b) in found.statistics.items())  # fmt: skip
    print_table(("", first, second, "change"), values)
    if found.made:
        print()
        print_table(("made from", first, second), ((name, *map(str, pair)) for name, pair in found.made.items()))


@app.command()
def rows(
    dataset: DatasetArgument,
    turn: Annotated[str | None, typer.Option("--turn", callback=utf8, help="Of this turn only.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The first so many.")] = 20,
    text: Annotated[
        bool, typer.Option("--text", help="With what the user said last and the answer, where the lake still has them.")
    ] = False,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Show rows of a dataset, in its order. For operators: with --text it shows what users wrote."""
    import msgspec

    home, folder = _dataset(config, policy, dataset)
    from ingest.profiles import open_dataset
    from ingest.profiles import rows as read

    manifest = open_dataset(folder)
    found: list[dict[str, Any]] = [msgspec.to_builtins(row) for row in read(folder, manifest, turn, limit)]
    if turn is not None and not found:
        from pipelines.errors import PipelineError

        raise PipelineError(f"dataset {dataset} has no row of the turn {turn}")
    if text:
        from ingest.texts import texts

        said = texts(home.lake, [row["turn_id"] for row in found])
        for row in found:
            row["said"], row["answered"] = said.get((row["turn_id"], row["sample"]), (None, None))
    if as_json:
        print_json(found)
        return
    columns = ["turn", "sample", "revision", "reward", "weight", "prompt", "output", "versions", "finish", "language"]
    columns += ["key", "segment", "ended"]
    lines = (
        (*(", ".join(v) if isinstance(v, tuple) else v for v in list(row.values())[:12]), when(row["finished_at"]))
        for row in found
    )
    print_table(columns, lines)
    for row in found if text else ():
        print(f"\n{row['turn_id']}/{row['sample']}")
        print_table(("", ""), (("said", row["said"]), ("answered", row["answered"])))


@app.command("refreeze")
def refreeze_(
    dataset: DatasetArgument,
    into: Annotated[
        Path | None, typer.Option(help="Keep the rows in this folder; default: they are only compared.")
    ] = None,
    policy: PolicyOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Make a dataset again from its manifest and the lake, and compare the bytes."""
    home, folder = _dataset(config, policy, dataset)
    from ingest.profiles import open_dataset
    from ingest.refreeze import refreeze

    with tempfile.TemporaryDirectory() as scratch:
        made = refreeze(open_dataset(folder), lake=home.lake, datasets=home.datasets, into=into or Path(scratch))
    print(f"{dataset} was made again, the same bytes: SHA-256 {made.sha256}")


@app.command()
def suites(policy: PolicyOption = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show what the gate asks of a policy's next dataset, with the changes of suites.toml; say what is wrong there."""
    from pipelines.cli.parts import open_home, policy_named

    found, home = open_home(config)
    name = policy_named(found, policy)
    settings = found.policies[name].gate
    from ingest.suites import read_suites

    changes = read_suites(home.suites(settings.suites), required=settings.suites is not None)
    from ingest.datasets import newest_dataset  # the gate imports Great Expectations: seconds
    from ingest.gate import whole_suites

    last = newest_dataset(home.datasets, name)
    listed = [
        {
            "table": table,
            "name": (one := expectation.configuration).meta["name"],
            "yours": table in changes and one.meta["name"] in changes[table].expect,
            "class": type(expectation).__name__,
            "arguments": {key: value for key, value in one.kwargs.items() if value is not None},
        }
        for table, suite in whole_suites(name, settings, changes, last).items()
        for expectation in suite
    ]
    if as_json:
        print_json(listed)
        return
    lines = (
        (
            e["table"],
            e["name"],
            "yours" if e["yours"] else "",
            e["class"],
            ", ".join(f"{k}={v}" for k, v in e["arguments"].items()),
        )
        for e in listed
    )
    print_table(("table", "name", "", "class", "arguments"), lines)


def _dataset(config: Path, policy: str | None, dataset: str) -> "tuple[Home, Path]":
    """The home and the dataset's folder; raises with the ids there are."""
    from pipelines.cli.parts import open_home, policy_named
    from pipelines.errors import PipelineError

    found, home = open_home(config)
    folders = _folders(home, policy_named(found, policy) if policy else "*")
    named = [path for path in folders if path.name == dataset]
    if len(named) == 1:
        return home, named[0]
    if named:
        raise PipelineError(f"several policies have a dataset {dataset}: choose one with --policy")
    newest = sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[:5]
    there_are = f"the newest are {', '.join(path.name for path in newest)}" if newest else "there is none yet"
    raise PipelineError(f"there is no dataset {dataset}: {there_are}")


def _folders(home: "Home", policy: str = "*") -> list[Path]:
    names = {
        path.parent for name in ("manifest.json", "candidate.json") for path in home.datasets.glob(f"{policy}/*/{name}")
    }
    return sorted(names)


def _state(folder: Path, manifest: "DatasetManifest") -> str:
    """`accepted`; `refused`, where its gate ran; or `candidate`."""
    if (folder / "manifest.json").exists():
        return "accepted"
    return "refused" if manifest.gate else "candidate"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def _print(manifest: "DatasetManifest", state: str, histograms: list[dict[str, Any]]) -> None:
    """A dataset for people."""
    facts = {
        "policy": manifest.policy,
        "state": state,
        "cut": when(manifest.cut_at),
        "log complete to": when(manifest.watermark),
        "lake": ", ".join(f"{name} {version}" for name, version in manifest.lake_versions.items()),
        "without the turns of": ", ".join(manifest.subtracted),
        "reward specification": manifest.reward_digest[:12],
        "rows' SHA-256": manifest.rows.sha256,
        "bytes": f"{manifest.rows.size:,}",
    }
    print_table(("dataset", manifest.dataset_id), facts.items())
    print()
    print_table(("statistics", ""), ((name, _number(value)) for name, value in manifest.statistics.items()))
    for histogram in histograms:
        top = max(histogram["counts"], default=0)
        bars = (
            (label, count, "█" * round(_BAR * count / top) if top else "")
            for label, count in zip(histogram["labels"], histogram["counts"], strict=True)
        )
        print()
        print_table((histogram["name"], histogram["unit"], ""), bars)
    if manifest.gate:
        print()
        checks = (
            (check.name, "held" if check.passed else "failed", check.observed, ", ".join(check.rows[:_SHOWN]))
            for check in manifest.gate
        )
        print_table(("gate", "", "saw", "turns, the first"), checks)
