-- The rows of a dataset, and what each weighs. From `attributed` to `chosen`. The rules are told in `ingest/weights.py`.

CREATE TEMP TABLE candidate AS
WITH owned AS (
    SELECT
        a.*,
        CASE WHEN a.subject <> '' THEN concat('subject ', a.subject) ELSE concat('key ', a.key_id) END AS owner,
        CASE WHEN a.subject <> '' THEN $subject_turns ELSE $key_turns END AS cap
    FROM attributed a WHERE a.ready
)
SELECT
    o.*,
    row_number() OVER (
        PARTITION BY o.owner ORDER BY o.finished_at DESC, o.turn_id DESC, o.sample DESC
    ) > o.cap AS crowds
FROM owned o;

-- How often users answer, by what it may depend on. Exact numbers: a sum of doubles depends on its order.
CREATE TEMP TABLE propensity AS
WITH cell AS (
    SELECT arm, segment, age, count(*) AS turns, sum(CASE WHEN revision > 0 THEN 1 ELSE 0 END) AS answered
    FROM attributed WHERE state NOT IN ('censored', 'superseded')
    GROUP BY arm, segment, age
),
whole AS (
    SELECT sum(turns) AS turns, sum(answered) AS answered FROM cell
)
SELECT
    c.arm, c.segment, c.age,
    CAST(
        greatest(
            1 / $propensity_clip,
            least(
                $propensity_clip,
                CAST(w.answered AS DOUBLE) / w.turns * (CAST(c.turns AS DOUBLE) / greatest(c.answered, 1))
            )
        ) AS DECIMAL(18, 6)
    ) AS factor
FROM cell c CROSS JOIN whole w;

CREATE TEMP TABLE chosen AS
WITH picked AS (
    SELECT * FROM candidate
    ORDER BY crowds, finished_at DESC, turn_id DESC, sample DESC LIMIT $max_turns
),
drawn AS (
    SELECT p.*, f.factor
    FROM picked p JOIN propensity f ON p.arm = f.arm AND p.segment = f.segment AND p.age = f.age
),
owned AS (
    SELECT owner, CAST(sum(factor) AS DOUBLE) AS total FROM drawn GROUP BY owner
)
SELECT
    d.turn_id, d.sample, d.revision, d.reward, d.segment, d.finished_at, d.spool_id, d.sequence,
    CAST(d.factor AS DOUBLE) * least(1.0, d.cap / o.total) AS weight,
    row_number() OVER (ORDER BY d.finished_at, d.turn_id, d.sample) AS place
FROM drawn d JOIN owned o ON d.owner = o.owner;
