-- What the join needs and DuckDB names otherwise: the names are Spark's, or ours where Spark has none
-- (`spark_functions.sql`). What reads texts is Python's (`ingest/implicit.py`): kept_share, complaint, is_error.

CREATE MACRO get_json_object(document, path) AS
    CASE WHEN json_valid(document) THEN json_extract_string(document, path) END;

CREATE MACRO explode(list) AS unnest(list);

-- As `ingest.contracts.erasure` has it.
CREATE MACRO erasure_digest(target, id) AS sha256(target || ':' || id);

CREATE MACRO first_version(spans) AS spans[1].version;
