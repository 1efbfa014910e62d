-- Functions of ours, for Spark. Those for DuckDB are in `functions.sql`.

CREATE OR REPLACE TEMPORARY FUNCTION erasure_digest(target STRING, id STRING) RETURNS STRING
RETURN sha2(concat(target, ':', id), 256);

CREATE OR REPLACE TEMPORARY FUNCTION first_version(spans ARRAY<STRUCT<version: STRING, start: INT, end: INT>>)
RETURNS STRING
RETURN try_element_at(spans, 1).version;
