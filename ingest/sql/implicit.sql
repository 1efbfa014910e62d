-- What the traffic itself tells about an answer. The rules are told in `ingest/implicit.py`.

-- The request that goes on from each turn. A turn's samples share its request.
CREATE TEMP TABLE follow_up AS
WITH child AS (
    SELECT
        turn_id AS child_id, started_at, finished_at,
        from_end(prefix_hashes, CASE WHEN answer <> '' THEN 3 ELSE 2 END) AS after_answer
    FROM lake_turns
    WHERE sample = 0 AND arm <> 'evaluation' AND finished_at <= least($cut, $watermark)
),
placed AS (
    SELECT
        p.turn_id, p.sample, c.child_id, c.started_at, c.finished_at,
        row_number() OVER (
            PARTITION BY c.child_id ORDER BY abs(c.started_at - p.finished_at), p.turn_id, p.sample
        ) AS place
    FROM child c JOIN turn p ON c.after_answer = p.said
    WHERE NOT p.unread AND p.turn_id <> c.child_id AND p.finished_at <= c.finished_at
)
SELECT
    p.turn_id, p.sample, p.started_at, p.finished_at,
    CASE
        WHEN coalesce(t.untrainable_reason, '') <> 'opted out'
            AND NOT EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('subject', t.subject))
            AND NOT EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('session', t.session_id))
            THEN read_tail(t.dialect, t.request)
    END AS tail
FROM placed p JOIN lake_turns t ON p.child_id = t.turn_id AND t.sample = 0
WHERE p.place = 1;

-- When a turn that called a tool was first followed by anything, in its session or by the chain: once that was answered.
CREATE TEMP TABLE followed AS
WITH calling AS (
    SELECT turn_id, sample, session_id, key_id, subject, finished_at FROM turn WHERE calls IS NOT NULL
),
moment AS (
    SELECT t.session_id, t.key_id, t.subject, t.turn_id, t.started_at AS clock, t.finished_at, 0 AS is_end
    FROM lake_turns t
    WHERE t.arm <> 'evaluation' AND t.finished_at <= $cut AND t.session_id IN (SELECT c.session_id FROM calling c)
    UNION ALL
    SELECT session_id, key_id, subject, turn_id, finished_at AS clock, finished_at, 1 AS is_end FROM calling
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
SELECT turn_id, min(answered_at) AS answered_at
FROM (
    SELECT turn_id, answered_at FROM ahead WHERE is_end = 1
    UNION ALL
    SELECT turn_id, finished_at AS answered_at FROM follow_up
) GROUP BY turn_id;

CREATE TEMP TABLE implicit AS
WITH found AS (
    SELECT turn_id, sample, 'regenerated' AS rule, NULL AS value, began_at AS occurred_at, answered_at AS received_at
    FROM retried
    UNION ALL
    SELECT turn_id, sample, 'abandoned', NULL, finished_at, finished_at FROM turn WHERE finish = 'abort'
    UNION ALL
    SELECT t.turn_id, t.sample, 'abandoned', NULL, t.finished_at + $window, t.finished_at + $window
    FROM turn t LEFT JOIN followed f ON t.turn_id = f.turn_id
    WHERE t.calls IS NOT NULL AND t.finished_at + $window <= least($cut, $watermark)
        AND (f.answered_at IS NULL OR f.answered_at > t.finished_at + $window)
    UNION ALL
    SELECT turn_id, sample, 'dissatisfied', max(tail.dissatisfied), min(started_at), min(finished_at)
    FROM follow_up WHERE tail.dissatisfied >= 0.5 GROUP BY turn_id, sample
    UNION ALL
    SELECT turn_id, sample, 'invalid_tool_call', NULL, finished_at, finished_at FROM turn WHERE calls = 'invalid'
    UNION ALL
    SELECT turn_id, sample, 'tool_error', NULL, min(started_at), min(finished_at)
    FROM follow_up WHERE tail.failed GROUP BY turn_id, sample
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
