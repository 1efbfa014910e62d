-- The windowed join. From `turn`, `retried` and `implicit`, and `lake_turns`, `lake_feedback`, `lake_erasures` and `used`
-- (turn_id, sample), to `attributed`: every turn of one policy with exactly one state. It never asks in which order
-- anything landed. The rules are told in `ingest/attribution.py`.

-- What was said by the cut, and of several events with one idempotency key which came first.
CREATE TEMP TABLE heard AS
WITH said AS (
    SELECT *
    FROM lake_feedback f
    WHERE f.received_at >= $since - $window AND f.received_at <= $cut
        AND NOT EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('subject', f.subject))
),
again AS (
    SELECT key_id, feedback_id FROM said GROUP BY key_id, feedback_id HAVING count(*) > 1
),
copied AS (
    SELECT
        f.spool_id, f.sequence,
        CASE
            WHEN row_number() OVER sent = 1 THEN 'first'
            WHEN f.target = first_value(f.target) OVER sent AND f.target_id = first_value(f.target_id) OVER sent
                AND f.sample = first_value(f.sample) OVER sent AND f.kind = first_value(f.kind) OVER sent
                AND f.value IS NOT DISTINCT FROM first_value(f.value) OVER sent
                AND f.text IS NOT DISTINCT FROM first_value(f.text) OVER sent
                AND f.source = first_value(f.source) OVER sent AND f.subject = first_value(f.subject) OVER sent
                THEN 'duplicate'
            ELSE 'conflicting'
        END AS copy
    FROM said f JOIN again a ON f.key_id = a.key_id AND f.feedback_id = a.feedback_id
    WINDOW sent AS (PARTITION BY f.key_id, f.feedback_id ORDER BY f.received_at, f.spool_id, f.sequence)
)
SELECT
    f.feedback_id, f.key_id AS sender, f.subject AS speaker, f.target, f.target_id, f.sample, f.kind, f.source, f.value, f.text,
    f.occurred_at, f.received_at, f.spool_id, f.sequence, coalesce(c.copy, 'first') AS copy
FROM said f LEFT JOIN copied c ON f.spool_id = c.spool_id AND f.sequence = c.sequence;

-- What users kept of an answer.
CREATE TEMP TABLE kept AS
SELECT h.spool_id, h.sequence, max(kept_share(t.dialect, t.answer, h.text)) AS share
FROM heard h JOIN lake_turns t ON h.target_id = t.turn_id AND h.sample = t.sample
WHERE h.kind = 'edit' AND h.target = 'turn' AND t.policy = $policy AND t.finished_at >= $since
GROUP BY h.spool_id, h.sequence;

-- Turns by which somebody named the session that they are part of.
CREATE TEMP TABLE meant AS
SELECT
    n.turn_id, n.sample, n.session_id, n.key_id, n.subject, n.answer_hash, n.prefix_hashes,
    array_contains(n.prefix_hashes, n.session_id) AS named_itself
FROM lake_turns n
JOIN (SELECT DISTINCT h.target_id, h.sample FROM heard h WHERE h.target = 'session_of_turn') h
    ON n.turn_id = h.target_id AND n.sample = h.sample
WHERE n.finished_at >= $since AND n.finished_at <= $cut;

-- The turns of that session. A session that named itself may hold conversations of several people, who began with the
-- same words (few-shot examples, a canned greeting): of those, the one that the turn is part of.
CREATE TEMP TABLE together AS
WITH pair AS (
    SELECT
        n.turn_id AS named_id, n.sample AS named_sample, t.turn_id, t.sample, n.answer_hash,
        NOT n.named_itself
            OR (n.turn_id = t.turn_id AND n.sample = t.sample)
            OR coalesce(array_contains(n.prefix_hashes, t.answer_hash), false) AS certain
    FROM meant n JOIN turn t ON n.session_id = t.session_id AND n.key_id = t.key_id AND n.subject = t.subject
)
SELECT named_id, named_sample, turn_id, sample FROM pair WHERE certain
UNION ALL
SELECT p.named_id, p.named_sample, p.turn_id, p.sample
FROM pair p JOIN lake_turns o ON p.turn_id = o.turn_id AND p.sample = o.sample
WHERE NOT p.certain AND o.finished_at >= $since AND array_contains(o.prefix_hashes, p.answer_hash);

-- Every signal beside every turn that it speaks of, and whether it counts: what was sent, and what is implicit.
CREATE TEMP TABLE signal AS
WITH aimed AS (
    SELECT
        t.turn_id, t.sample, t.key_id, t.subject, t.finished_at + $window AS closes_at, h.feedback_id, h.sender,
        h.speaker, h.target, h.kind, h.source, h.value, k.share, CAST(NULL AS DOUBLE) AS worth, h.occurred_at,
        h.received_at, h.spool_id, h.sequence, h.copy
    FROM heard h
    JOIN turn t ON h.target_id = t.turn_id AND h.sample = t.sample
    LEFT JOIN kept k ON h.spool_id = k.spool_id AND h.sequence = k.sequence
    WHERE h.target = 'turn'
    UNION ALL
    SELECT
        t.turn_id, t.sample, t.key_id, t.subject, t.finished_at + $window, h.feedback_id, h.sender,
        h.speaker, 'session', h.kind, h.source, h.value, CAST(NULL AS DOUBLE), CAST(NULL AS DOUBLE), h.occurred_at,
        h.received_at, h.spool_id, h.sequence, h.copy
    FROM heard h JOIN turn t ON h.target_id = t.session_id
    WHERE h.target = 'session' AND t.started_at <= h.received_at
    UNION ALL
    SELECT
        t.turn_id, t.sample, t.key_id, t.subject, t.finished_at + $window, h.feedback_id, h.sender,
        h.speaker, 'session', h.kind, h.source, h.value, CAST(NULL AS DOUBLE), CAST(NULL AS DOUBLE), h.occurred_at,
        h.received_at, h.spool_id, h.sequence, h.copy
    FROM heard h
    JOIN together b ON h.target_id = b.named_id AND h.sample = b.named_sample
    JOIN turn t ON b.turn_id = t.turn_id AND b.sample = t.sample
    WHERE h.target = 'session_of_turn' AND t.started_at <= h.received_at
    UNION ALL
    SELECT
        turn_id, sample, key_id, '', closes_at, feedback_id, key_id, '', 'turn', rule, source, value,
        CAST(NULL AS DOUBLE), worth, occurred_at, received_at, '', 0, 'first'
    FROM implicit
),
valued AS (
    SELECT
        *,
        CASE WHEN kind IN ('accept', 'reject') THEN 'verdict' ELSE kind END AS question,
        CASE kind
            WHEN 'accept' THEN $accept
            WHEN 'reject' THEN $reject
            WHEN 'score' THEN $score_scale * value
            WHEN 'outcome' THEN $outcome_scale * value
            WHEN 'edit' THEN $reject + ($accept - $reject) * share
            WHEN 'abstain' THEN $abstain
            ELSE worth
        END AS contribution
    FROM aimed
),
judged AS (
    SELECT
        *,
        CASE
            WHEN sender <> key_id AND sender NOT IN (SELECT t.key_id FROM trusted t) THEN 'unauthorised'
            WHEN copy <> 'first' THEN copy
            WHEN speaker <> '' AND subject <> '' AND speaker <> subject
                AND sender NOT IN (SELECT t.key_id FROM trusted t) THEN 'unauthorised'
            WHEN received_at > closes_at THEN 'late'
            WHEN contribution IS NULL THEN 'worthless'
            ELSE 'counted'
        END AS verdict
    FROM valued
),
ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY turn_id, sample, target, source, question
            ORDER BY received_at DESC, occurred_at DESC, spool_id DESC, sequence DESC
        ) AS place
    FROM judged WHERE verdict = 'counted'
)
SELECT
    turn_id, sample, feedback_id, kind, source, target, value, received_at,
    CASE WHEN place > 1 THEN 'revised' ELSE 'counted' END AS status,
    CAST(contribution AS DECIMAL(18, 6)) AS contribution
FROM ranked
UNION ALL
SELECT
    turn_id, sample, feedback_id, kind, source, target, value, received_at, verdict,
    CAST(contribution AS DECIMAL(18, 6))
FROM judged WHERE verdict <> 'counted';

-- Weight versions by their last use: 0 is the newest.
CREATE TEMP TABLE version_age AS
WITH mix AS (
    SELECT weight_versions, max(finished_at) AS last_seen, min(finished_at) AS first_seen
    FROM turn WHERE arm <> 'evaluation' GROUP BY weight_versions
),
span AS (
    SELECT last_seen, first_seen, explode(weight_versions) AS s FROM mix
),
seen AS (
    SELECT s.version AS version, max(last_seen) AS last_seen, min(first_seen) AS first_seen
    FROM span GROUP BY s.version
)
SELECT version, row_number() OVER (ORDER BY last_seen DESC, first_seen DESC, version DESC) - 1 AS age FROM seen;

CREATE TEMP TABLE attributed AS
WITH heard AS (
    SELECT
        turn_id, sample,
        count(*) AS revision,
        max(received_at) AS heard_at,
        max(CASE WHEN target = 'turn' THEN 1 ELSE 0 END) AS judged,
        sum(CASE WHEN status = 'counted' THEN contribution END) AS total
    FROM signal WHERE status IN ('counted', 'revised')
    GROUP BY turn_id, sample
),
-- Many turns have the same spans.
span AS (
    SELECT weight_versions, explode(weight_versions) AS s FROM (SELECT DISTINCT weight_versions FROM turn)
),
oldest AS (
    SELECT span.weight_versions, max(v.age) AS age
    FROM span JOIN version_age v ON span.s.version = v.version
    GROUP BY span.weight_versions
),
placed AS (
    SELECT
        t.turn_id, t.sample, t.key_id, t.subject, t.session_id, t.arm, t.version, t.segment, t.trainable,
        t.started_at, t.finished_at, t.spool_id, t.sequence,
        coalesce(h.revision, 0) AS revision,
        -- greatest and least skip NULL: without the CASE, silence would be clipped to a reward of $limit.
        CASE WHEN h.total IS NOT NULL THEN greatest(-$limit, least($limit, CAST(h.total AS DOUBLE))) END AS reward,
        coalesce(o.age, 0) AS version_age,
        CAST(least(4, floor(4 * ($cut - t.finished_at) / $window)) AS INTEGER) AS age,
        CASE
            WHEN t.censored THEN 'censored'
            WHEN r.turn_id IS NOT NULL AND coalesce(h.judged, 0) = 0 THEN 'superseded'
            WHEN h.heard_at + $settle <= $cut THEN 'settled'
            WHEN h.heard_at IS NOT NULL THEN 'open'
            WHEN t.finished_at + $window <= least($cut, $watermark) THEN 'silent'
            ELSE 'open'
        END AS state
    FROM turn t
    LEFT JOIN heard h ON t.turn_id = h.turn_id AND t.sample = h.sample
    LEFT JOIN retried r ON t.turn_id = r.turn_id AND t.sample = r.sample
    LEFT JOIN oldest o ON t.weight_versions = o.weight_versions
)
SELECT
    p.*,
    p.state = 'settled' AND p.trainable AND u.turn_id IS NULL
        AND p.started_at >= $cut - $fresh_seconds AND p.version_age <= $fresh_versions AS ready
FROM placed p
LEFT JOIN used u ON p.turn_id = u.turn_id AND p.sample = u.sample;
