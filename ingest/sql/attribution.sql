-- The windowed join. From `turn`, `retried` and `implicit`, and `lake_turns`, `lake_feedback`, `lake_erasures` and `used`
-- (turn_id, sample), to `attributed`: every turn of one policy with exactly one state. It never asks in which order
-- anything landed. The rules are told in `ingest/attribution.py`.

-- What users kept of an answer: 1 − edit distance / length of the longer text.
CREATE TEMP TABLE kept AS
WITH edit AS (
    SELECT
        f.spool_id, f.sequence,
        left(answer_text(t.dialect, t.answer), 2000) AS answer,
        left(f.text, 2000) AS text
    FROM lake_feedback f
    JOIN lake_turns t ON f.target_id = t.turn_id AND f.sample = t.sample
    WHERE f.kind = 'edit' AND f.target = 'turn' AND t.policy = $policy
)
SELECT spool_id, sequence, max(1.0 - levenshtein(answer, text) / greatest(length(answer), length(text), 1)) AS share
FROM edit WHERE answer IS NOT NULL GROUP BY spool_id, sequence;

-- Every signal beside every turn that it speaks of, and whether it counts: what was sent, and what is implicit.
CREATE TEMP TABLE signal AS
WITH heard AS (
    SELECT
        f.feedback_id, f.key_id AS sender, f.target, f.target_id, f.sample, f.kind, f.source, f.value,
        f.occurred_at, f.received_at, f.spool_id, f.sequence, k.share,
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
    FROM lake_feedback f
    LEFT JOIN kept k ON f.spool_id = k.spool_id AND f.sequence = k.sequence
    WHERE f.received_at <= $cut
        AND NOT EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('subject', f.subject))
    WINDOW sent AS (PARTITION BY f.key_id, f.feedback_id ORDER BY f.received_at, f.spool_id, f.sequence)
),
aimed AS (
    SELECT
        t.turn_id, t.sample, t.key_id, t.finished_at + $window AS closes_at, h.feedback_id, h.sender, h.target, h.kind,
        h.source, h.value, h.share, CAST(NULL AS DOUBLE) AS worth, h.occurred_at, h.received_at, h.spool_id, h.sequence,
        h.copy
    FROM heard h JOIN turn t ON h.target_id = t.turn_id AND h.sample = t.sample
    WHERE h.target = 'turn'
    UNION ALL
    SELECT
        t.turn_id, t.sample, t.key_id, t.finished_at + $window AS closes_at, h.feedback_id, h.sender,
        'session' AS target, h.kind, h.source, h.value, h.share, CAST(NULL AS DOUBLE) AS worth, h.occurred_at,
        h.received_at, h.spool_id, h.sequence, h.copy
    FROM heard h JOIN turn t ON h.target_id = t.session_id
    WHERE h.target = 'session' AND t.started_at <= h.received_at
    UNION ALL
    -- A session that named itself may hold conversations of several people, who began with the same words (few-shot
    -- examples, a canned greeting): of those, the one that the turn is part of.
    SELECT
        t.turn_id, t.sample, t.key_id, t.finished_at + $window AS closes_at, h.feedback_id, h.sender,
        'session' AS target, h.kind, h.source, h.value, h.share, CAST(NULL AS DOUBLE) AS worth, h.occurred_at,
        h.received_at, h.spool_id, h.sequence, h.copy
    FROM heard h
    JOIN lake_turns n ON h.target_id = n.turn_id AND h.sample = n.sample AND n.finished_at <= $cut
    JOIN lake_turns o ON n.session_id = o.session_id AND n.key_id = o.key_id AND n.subject = o.subject
    JOIN turn t ON o.turn_id = t.turn_id AND o.sample = t.sample
    WHERE h.target = 'session_of_turn' AND t.started_at <= h.received_at
        AND (
            NOT array_contains(n.prefix_hashes, n.session_id)
            OR (n.turn_id = o.turn_id AND n.sample = o.sample)
            OR (n.answer <> '' AND array_contains(o.prefix_hashes, from_end(n.prefix_hashes, 1)))
            OR (o.answer <> '' AND array_contains(n.prefix_hashes, from_end(o.prefix_hashes, 1)))
        )
    UNION ALL
    SELECT
        turn_id, sample, key_id, closes_at, feedback_id, key_id AS sender, 'turn' AS target, rule AS kind,
        source, value, CAST(NULL AS DOUBLE) AS share, worth, occurred_at, received_at, '' AS spool_id, 0 AS sequence,
        'first' AS copy
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
            PARTITION BY turn_id, sample, target, source, question, verdict
            ORDER BY received_at DESC, occurred_at DESC, spool_id DESC, sequence DESC
        ) AS place
    FROM judged
)
SELECT
    turn_id, sample, feedback_id, kind, source, target, value, received_at,
    CASE WHEN verdict = 'counted' AND place > 1 THEN 'revised' ELSE verdict END AS status,
    CAST(contribution AS DECIMAL(18, 6)) AS contribution
FROM ranked;

-- Weight versions by their last use: 0 is the newest.
CREATE TEMP TABLE version_age AS
WITH span AS (
    SELECT finished_at, explode(weight_versions) AS s FROM turn WHERE arm <> 'evaluation'
),
seen AS (
    SELECT s.version AS version, max(finished_at) AS last_seen, min(finished_at) AS first_seen
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
span AS (
    SELECT turn_id, sample, explode(weight_versions) AS s FROM turn
),
oldest AS (
    SELECT span.turn_id, span.sample, max(v.age) AS age
    FROM span JOIN version_age v ON span.s.version = v.version
    GROUP BY span.turn_id, span.sample
),
placed AS (
    SELECT
        t.turn_id, t.sample, t.key_id, t.subject, t.session_id, t.arm, t.version, t.segment, t.trainable,
        t.started_at, t.finished_at, t.spool_id, t.sequence,
        coalesce(h.revision, 0) AS revision,
        -- greatest and least skip NULL: without the CASE, silence would be clipped to a reward of $limit.
        CASE WHEN h.total IS NOT NULL THEN greatest(-$limit, least($limit, CAST(h.total AS DOUBLE))) END AS reward,
        coalesce(o.age, 0) AS version_age,
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
    LEFT JOIN oldest o ON t.turn_id = o.turn_id AND t.sample = o.sample
)
SELECT
    p.*,
    p.state = 'settled' AND p.trainable AND u.turn_id IS NULL
        AND p.started_at >= $cut - $fresh_seconds AND p.version_age <= $fresh_versions AS ready
FROM placed p
LEFT JOIN used u ON p.turn_id = u.turn_id AND p.sample = u.sample;
