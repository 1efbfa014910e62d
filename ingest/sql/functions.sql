-- What the join needs and DuckDB names otherwise: the names are Spark's, or ours where Spark has none.
-- Spark registers `fingerprint` (xxhash64) and `first_version` in the same way.

CREATE MACRO get_json_object(document, path) AS
    CASE WHEN json_valid(document) THEN json_extract_string(document, path) END;

CREATE MACRO explode(list) AS unnest(list);

CREATE MACRO fingerprint(bytes) AS hash(bytes);

CREATE MACRO first_version(spans) AS spans[1].version;
