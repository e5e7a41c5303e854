-- Deletes everything that identifies a user, and moves the charges to an anonymous id. The user has no unfinished jobs.
-- Charges lose their job id, because it leads to the job's arguments in backups.
-- Parameters: $1 user, $2 anonymous id.
WITH own AS MATERIALIZED (
    SELECT job_id AS id FROM weir_jobs WHERE holder = $1
    UNION
    -- Jobs that other clients inserted may have no row yet. Jobs of other kinds belong to another program.
    SELECT j.id FROM river_job j
    WHERE j.args @> jsonb_build_object('user_id', coalesce((SELECT subject FROM users WHERE id = $1), $1::text))
      AND j.kind IN (SELECT kind FROM weir_services)
), outputs AS (
    DELETE FROM job_outputs o USING own WHERE o.job_id = own.id
), finished AS (
    DELETE FROM finished_jobs WHERE user_id = $1
    RETURNING job_id
), jobs AS (
    DELETE FROM river_job j USING own WHERE j.id = own.id AND j.finalized_at IS NOT NULL
    RETURNING j.id
), submitted AS (
    DELETE FROM weir_jobs WHERE holder = $1
), folded AS (
    DELETE FROM folded_submissions WHERE holder = $1
), billed AS (
    UPDATE usage_events SET user_id = $2, job_id = NULL, reason = coalesce(reason, 'the account was deleted')
    WHERE user_id = $1
    RETURNING id
), balances AS (
    UPDATE window_balances SET user_id = $2 WHERE user_id = $1
), granted AS (
    UPDATE grants SET user_id = $2, reason = 'the account was deleted' WHERE user_id = $1
), limits AS (
    DELETE FROM limit_overrides WHERE user_id = $1
), requests AS (
    DELETE FROM admin_requests WHERE holder = $1
), deliveries AS (
    DELETE FROM river_job WHERE kind = 'weir:webhook' AND args @> jsonb_build_object('holder', $1::uuid)
), thresholds AS (
    DELETE FROM quota_thresholds WHERE user_id = $1
), tombstone AS (
    INSERT INTO deleted_users (hash) VALUES (sha256(convert_to($1::uuid::text, 'UTF8')))
    ON CONFLICT (hash) DO UPDATE SET deleted_at = excluded.deleted_at
), changes AS (
    -- A repeated event must neither create the user again nor identify it.
    UPDATE plan_changes SET user_id = $2 WHERE user_id = $1
)
SELECT (SELECT count(*) FROM (SELECT job_id FROM finished UNION SELECT id FROM jobs) deleted) AS jobs, (SELECT count(*) FROM billed) AS usage_events
