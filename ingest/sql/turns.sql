-- The policy's turns, without their long columns; and which of them were asked again. The rules are told in
-- `ingest/attribution.py`.

CREATE TEMP TABLE turn AS
WITH known AS (
    SELECT
        *,
        arm = 'evaluation'
            OR coalesce(untrainable_reason, '') = 'opted out'
            OR EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('subject', t.subject))
            OR EXISTS (SELECT 1 FROM lake_erasures e WHERE e.digest = erasure_digest('session', t.session_id))
            AS unread,
        finish IN ('abort', 'error', 'engine_lost') AS cut_short
    FROM lake_turns t
    WHERE policy = $policy AND finished_at >= $since AND finished_at <= $cut
)
SELECT
    turn_id, sample, key_id, subject, session_id, arm, finish, started_at, finished_at, spool_id, sequence,
    weight_versions,
    coalesce(first_version(weight_versions), '') AS version,
    trainable AND output_tokens > 0 AS trainable,
    prompt_digest, answer_hash,
    CASE
        WHEN $segment_rule = 'key' THEN key_id
        WHEN $segment_rule = 'none' THEN ''
        ELSE coalesce(get_json_object(metadata, $segment_path), '')
    END AS segment,
    unread,
    unread OR cut_short AS censored,
    CASE WHEN NOT unread THEN calls END AS calls
FROM known;

-- Turns whose prompt the same subject sent again, in the same session, soon after they had ended: when that began, and
-- when it was answered. Starts and ends in one line of time; the frame begins a microsecond after an end. Few prompts
-- are sent twice, and only those are ordered.
CREATE TEMP TABLE retried AS
WITH repeated AS (
    SELECT prompt_digest FROM turn WHERE arm <> 'evaluation' AND prompt_digest IS NOT NULL
    GROUP BY prompt_digest HAVING count(*) > 1
),
asked AS (
    SELECT t.session_id, t.key_id, t.subject, t.prompt_digest, t.turn_id, t.sample, t.started_at, t.finished_at
    FROM turn t JOIN repeated r ON t.prompt_digest = r.prompt_digest
    WHERE t.arm <> 'evaluation'
),
moment AS (
    SELECT session_id, key_id, subject, prompt_digest, turn_id, sample, started_at AS clock, finished_at, 0 AS is_end
    FROM asked
    UNION ALL
    SELECT session_id, key_id, subject, prompt_digest, turn_id, sample, finished_at AS clock, finished_at, 1 AS is_end
    FROM asked
),
ahead AS (
    SELECT
        turn_id, sample, is_end,
        min(CASE WHEN is_end = 0 THEN clock END) OVER soon AS began_at,
        min(CASE WHEN is_end = 0 THEN finished_at END) OVER soon AS answered_at
    FROM moment
    WINDOW soon AS (
        PARTITION BY session_id, key_id, subject, prompt_digest ORDER BY clock
        RANGE BETWEEN 1e-6 FOLLOWING AND $retry FOLLOWING
    )
)
SELECT turn_id, sample, began_at, answered_at FROM ahead WHERE is_end = 1 AND began_at IS NOT NULL;
