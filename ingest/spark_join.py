"""The attribution join on Spark, for lakes that one machine cannot look at: the same SQL, the same results.

Spark reads the lake's Delta tables at the versions that are asked for, runs the statements, and writes what they end in
as Parquet; DuckDB goes on from there, for datasets, rates and reports are small. Delta's jars are fetched by Maven into
`deploy/spark/libs`, once; `spark.jars` in the properties names others. Where Spark runs on a cluster, everloop must be
installed there (it judges texts), and the scratch folder must be one that all its machines share.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ingest.config import LakePlace, RewardSettings
from ingest.implicit import text_functions
from ingest.lake import table_uri
from ingest.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = Path(__file__).parent.parent / "deploy" / "spark"
RESULTS = ("turn", "implicit", "signal", "version_age", "attributed")
"""Tables of the join that are handed on."""

_SCRIPTS = ("turns.sql", "implicit.sql", "attribution.sql")
_PROPERTIES = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
"""For one machine; the settings' properties come on top."""


class SparkError(Exception):
    """Spark cannot be used here: says what is missing and what to do."""


def join_on_spark(
    lake: LakePlace,
    versions: Mapping[str, int],
    parameters: Mapping[str, Any],
    given: Mapping[str, pa.Table],
    rewards: RewardSettings,
    properties: Mapping[str, str],
    into: Path,
) -> None:
    """Runs the join over the lake's tables at `versions`, and writes each of `RESULTS` as Parquet into a folder of its
    name below `into`. `given` are the small tables that the SQL reads beside them.

    Raises `SparkError` where Spark, Java or Delta's jars are missing, `ClassifierError`."""
    with _session(properties, into) as spark:
        for name, version in versions.items():
            table = spark.read.format("delta").option("versionAsOf", version).load(table_uri(lake, name))
            table.createOrReplaceTempView(f"lake_{name}")
        for name, rows in given.items():
            _frame(spark, rows).createOrReplaceTempView(name)
        for statement, _ in statements("spark_functions.sql", {}):
            spark.sql(statement)
        for function, judge, kind in text_functions(rewards.implicit):
            spark.udf.register(function, judge, kind)
        for script in _SCRIPTS:
            for statement, named in statements(script, parameters):
                head, _, select = statement.partition(" AS\n")
                # Made here and now: a plan of all the statements together takes Spark minutes to think about.
                table = spark.sql(_with_colons(select, named), args=dict(named)).localCheckpoint()
                table.createOrReplaceTempView(head.rpartition(" ")[2])
        for name in RESULTS:
            spark.table(name).write.mode("overwrite").parquet(str(into / name))


@contextmanager
def _session(properties: Mapping[str, str], scratch: Path) -> Iterator["SparkSession"]:
    """The session that runs in this process; else one of its own, which ends with the join, as its files do."""
    if shutil.which("java") is None:
        raise SparkError("Spark needs Java 17 or newer, and there is no `java` on the path")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkError("pyspark is not installed here: install everloop[spark]") from error
    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    wanted = {**_PROPERTIES, "spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch), **properties}
    if "spark.jars" not in wanted and "spark.jars.packages" not in wanted:
        wanted["spark.jars"] = ",".join(map(str, jars()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # which its workers start; no property says it in time
    builder = SparkSession.builder.appName("everloop")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def jars(source: Path = SOURCE) -> list[Path]:
    """Delta's jars, fetched where they are not there yet. Raises `SparkError`."""
    libs = source / "libs"
    if not (libs / ".complete").exists():
        if not (source / "pom.xml").is_file():
            raise SparkError(f"{source} has no pom.xml: run from a checkout of the repository, or name `spark.jars`")
        if shutil.which("mvn") is None:
            raise SparkError("Delta's jars are fetched with Maven, and there is no `mvn` on the path")
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        run = subprocess.run(command, cwd=source, capture_output=True, text=True)
        if run.returncode:
            raise SparkError(f"Maven could not fetch Delta's jars: {(run.stdout + run.stderr).strip()[-2000:]}")
        (libs / ".complete").touch()
    return sorted(libs.glob("*.jar"))


def _with_colons(statement: str, names: Iterable[str]) -> str:
    """DuckDB writes a parameter as `$name`, Spark as `:name`."""
    for name in names:
        statement = statement.replace(f"${name}", f":{name}")
    return statement


def _frame(spark: "SparkSession", rows: pa.Table) -> Any:
    kinds: dict[pa.DataType, str] = {pa.string(): "string", pa.int32(): "int", pa.float64(): "double"}
    schema = ", ".join(f"{field.name} {kinds[field.type]}" for field in rows.schema)
    return spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], schema)
