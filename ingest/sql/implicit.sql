-- What the traffic itself tells about an answer. The rules are told in `ingest/implicit.py`.

-- The request that goes on from each turn. A turn's samples share its request. Where several turns have the same words
-- and answer, the one is meant whose end was nearest to the request's start.
CREATE TEMP TABLE follow_up AS
WITH child AS (
    SELECT
        turn_id AS child_id, started_at, finished_at, parent_hash, tail_said AS said, tail_failed AS failed,
        tail_results AS results,
        EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('subject', t.subject))
            OR EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('session', t.session_id))
            AS erased
    FROM lake_turns t
    WHERE sample = 0 AND arm <> 'evaluation' AND parent_hash IS NOT NULL AND started_at >= $since
        AND finished_at <= least($cut, $watermark)
),
twin AS (
    SELECT answer_hash FROM turn WHERE answer_hash IS NOT NULL GROUP BY answer_hash HAVING count(*) > 1
),
candidate AS (
    SELECT p.turn_id, p.sample, p.answer_hash, abs(c.started_at - p.finished_at) AS distance, c.*
    FROM child c JOIN turn p ON c.parent_hash = p.answer_hash
    WHERE NOT p.unread AND p.turn_id <> c.child_id AND p.finished_at <= c.finished_at
),
placed AS (
    SELECT c.*, row_number() OVER (PARTITION BY child_id ORDER BY distance, turn_id, sample) AS place
    FROM candidate c JOIN twin t ON c.answer_hash = t.answer_hash
)
SELECT turn_id, sample, started_at, finished_at, said, failed, results, erased
FROM candidate c WHERE NOT EXISTS (SELECT 1 FROM twin t WHERE t.answer_hash = c.answer_hash)
UNION ALL
SELECT turn_id, sample, started_at, finished_at, said, failed, results, erased FROM placed WHERE place = 1;

-- Each text is judged once, however often it was said.
CREATE TEMP TABLE words AS
SELECT said, complaint(said) AS dissatisfied
FROM (SELECT DISTINCT said FROM follow_up WHERE said IS NOT NULL AND NOT erased);

CREATE TEMP TABLE outcome AS
SELECT result, is_error(result) AS failed
FROM (SELECT DISTINCT explode(results) AS result FROM follow_up WHERE NOT erased);

-- Turns that called a tool, and that no request went on from in time, though the log is complete up to there.
CREATE TEMP TABLE waiting AS
SELECT t.turn_id, t.sample, t.session_id, t.key_id, t.subject, t.finished_at, t.finished_at + $window AS closes_at
FROM turn t
WHERE t.calls IS NOT NULL AND t.finished_at + $window <= least($cut, $watermark)
    AND NOT EXISTS (
        SELECT 1 FROM follow_up f WHERE f.turn_id = t.turn_id AND f.finished_at <= t.finished_at + $window
    );

-- When those were first followed by anything in their session: once that was answered.
CREATE TEMP TABLE followed AS
WITH moment AS (
    SELECT t.session_id, t.key_id, t.subject, t.turn_id, t.started_at AS clock, t.finished_at, 0 AS is_end
    FROM lake_turns t
    WHERE t.arm <> 'evaluation' AND t.finished_at >= $since AND t.finished_at <= $cut
        AND t.session_id IN (SELECT w.session_id FROM waiting w)
    UNION ALL
    SELECT session_id, key_id, subject, turn_id, finished_at AS clock, finished_at, 1 AS is_end FROM waiting
),
ahead AS (
    SELECT
        turn_id, is_end,
        min(CASE WHEN is_end = 0 THEN finished_at END) OVER (
            PARTITION BY session_id, key_id, subject ORDER BY clock, is_end
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS answered_at
    FROM moment
)
SELECT turn_id, min(answered_at) AS answered_at FROM ahead WHERE is_end = 1 GROUP BY turn_id;

CREATE TEMP TABLE implicit AS
WITH found AS (
    SELECT turn_id, sample, 'regenerated' AS rule, NULL AS value, began_at AS occurred_at, answered_at AS received_at
    FROM retried
    UNION ALL
    SELECT turn_id, sample, 'abandoned', NULL, finished_at, finished_at FROM turn WHERE finish = 'abort'
    UNION ALL
    SELECT w.turn_id, w.sample, 'abandoned', NULL, w.closes_at, w.closes_at
    FROM waiting w LEFT JOIN followed f ON w.turn_id = f.turn_id
    WHERE f.answered_at IS NULL OR f.answered_at > w.closes_at
    UNION ALL
    SELECT f.turn_id, f.sample, 'dissatisfied', max(w.dissatisfied), min(f.started_at), min(f.finished_at)
    FROM follow_up f JOIN words w ON f.said = w.said
    WHERE w.dissatisfied >= 0.5 AND NOT f.erased GROUP BY f.turn_id, f.sample
    UNION ALL
    SELECT turn_id, sample, 'invalid_tool_call', NULL, finished_at, finished_at FROM turn WHERE calls = 'invalid'
    UNION ALL
    SELECT turn_id, sample, 'tool_error', NULL, min(started_at), min(finished_at)
    FROM (
        SELECT turn_id, sample, started_at, finished_at FROM follow_up WHERE failed AND NOT erased
        UNION ALL
        SELECT r.turn_id, r.sample, r.started_at, r.finished_at
        FROM (
            SELECT turn_id, sample, started_at, finished_at, explode(results) AS result
            FROM follow_up WHERE NOT erased
        ) r
        JOIN outcome o ON r.result = o.result
        WHERE o.failed
    ) GROUP BY turn_id, sample
)
SELECT
    f.turn_id, f.sample, f.rule, concat('implicit:', f.rule) AS source,
    concat('implicit:', f.rule, ':', f.turn_id, ':', f.sample) AS feedback_id,
    CAST(f.value AS DOUBLE) AS value, f.occurred_at, f.received_at, t.key_id, t.finished_at + $window AS closes_at,
    w.worth
FROM found f
JOIN turn t ON f.turn_id = t.turn_id AND f.sample = t.sample
LEFT JOIN implicit_worth w ON f.rule = w.rule
WHERE NOT t.unread;
