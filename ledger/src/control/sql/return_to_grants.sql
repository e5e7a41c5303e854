-- Returns an amount to the grants that paid for it in the current billing period: those that still can be used before
-- expired ones, the last draws first. The caller holds the holder's lock.
-- Parameters: $1 user, $2 meter, $3 amount, at most what grants paid for. Cost: the user's usage events of the period.
WITH draws AS MATERIALIZED (
    SELECT d.job_id, d.position, d.grant_id, d.charged,
           sum(d.charged) OVER (ORDER BY (g.expires_at <= now()) IS TRUE, u.created_at DESC, d.job_id DESC, d.position DESC)
               - d.charged AS before
    FROM usage_events u
    JOIN grant_draws d ON d.job_id = u.job_id AND d.charged IS NOT NULL
    JOIN grants g ON g.id = d.grant_id
    WHERE u.user_id = $1 AND u.event_type = $2 AND u.period_start = period_start_of($1, now())
      AND u.created_at >= period_start_of($1, now()) - interval '32 days' AND u.from_grants > 0
), parts AS MATERIALIZED (
    SELECT job_id, position, grant_id, charged, least(charged, $3::bigint - before)::bigint AS amount FROM draws WHERE before < $3::bigint
), kept AS (
    UPDATE grant_draws d SET charged = d.charged - p.amount FROM parts p
    WHERE d.job_id = p.job_id AND d.position = p.position AND p.amount < p.charged
), deleted AS (
    DELETE FROM grant_draws d USING parts p
    WHERE d.job_id = p.job_id AND d.position = p.position AND p.amount = p.charged
), holder AS (
    INSERT INTO holders AS h (holder, event_type, user_id, has_grants) VALUES ($1, $2, $1, true)
    ON CONFLICT (holder, event_type) DO UPDATE SET has_grants = true
)
UPDATE grants g SET used = g.used - s.amount
FROM (SELECT grant_id, sum(amount)::bigint AS amount FROM parts GROUP BY 1) s
WHERE g.id = s.grant_id
