-- Emits job.completed, job.failed, job.cancelled and job.expired for those of these jobs that River has finalized. The
-- caller has just ended their reservations.
-- Cost: a scan of webhooks, a small table; with a subscriber two look-ups by key and one job for each job that ended.
-- Callers: release_jobs, settle_many.
CREATE OR REPLACE FUNCTION emit_job_ends(jobs bigint[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
DECLARE
    wanted text[];
    subscribed record;
BEGIN
    SELECT array_agg(t.type) INTO wanted
    FROM subscribed_webhooks w CROSS JOIN unnest(w.events) AS t (type)
    WHERE t.type LIKE 'job.%';
    IF wanted IS NULL THEN
        RETURN;
    END IF;
    WITH services AS MATERIALIZED (
        SELECT s.kind, min(s.name) AS name FROM weir_services s GROUP BY s.kind
    ), events AS MATERIALIZED (
        SELECT o.job_id, o.holder, j.type, 'evt_' || replace(gen_random_uuid()::text, '-', '') AS id,
               json_strip_nulls(json_build_object(
                   'job_id', o.job_id,
                   'subject', subject_of(o.user_id),
                   'holder', o.holder, 'service', s.name, 'kind', j.kind, 'meter', o.event_type,
                   'reserved', o.reserved_amount,
                   'used', CASE WHEN j.type = 'job.completed' AND o.user_id IS NOT NULL AND o.period_start IS NOT NULL
                                THEN charge_of(o.reserved_amount, j.used) ELSE 0 END,
                   'attempts', j.attempt, 'error', j.error, 'reason', j.reason, 'request_id', j.request_id,
                   'submitted_at', utc_text(j.created_at), 'finished_at', utc_text(j.finalized_at)
               )) AS data
        FROM weir_jobs o
        CROSS JOIN LATERAL (
            SELECT k.kind, k.attempt, k.created_at, k.finalized_at,
                   CASE WHEN k.finalized_at IS NULL THEN NULL
                        WHEN k.state = 'completed' THEN 'job.completed'
                        WHEN k.state = 'cancelled' AND k.metadata ? 'weir:expired' THEN 'job.expired'
                        WHEN k.state = 'cancelled' THEN 'job.cancelled'
                        ELSE 'job.failed' END AS type,
                   used_of(k.metadata) AS used,
                   CASE WHEN k.state = 'discarded'
                        THEN left(k.errors[array_upper(k.errors, 1)] ->> 'error', 1000) END AS error,
                   left(reason_of(k.metadata, k.errors), 1000) AS reason, k.metadata ->> 'weir:request_id' AS request_id
            -- By id alone. A condition on `finalized_at` allows the planner to use River's index of finished jobs. If
            -- statistics are from a time without finished jobs, it would scan all of them for each job.
            FROM river_job k WHERE k.id = o.job_id
            OFFSET 0
        ) j
        LEFT JOIN services s ON s.kind = j.kind
        WHERE o.job_id = ANY (jobs) AND j.type = ANY (wanted)
    )
    SELECT array_agg(d.webhook) AS webhooks, array_agg(d.holder) AS holders, array_agg(d.id) AS ids, array_agg(d.body) AS bodies
    INTO subscribed
    FROM (
        SELECT w.id AS webhook, e.holder, e.id,
               format('{"id":"%s","type":"%s","timestamp":"%s","data":%s}',
                      e.id, e.type, utc_text(clock_timestamp()), e.data) AS body
        FROM events e
        JOIN subscribed_webhooks w ON e.type = ANY (w.events)
        ORDER BY e.job_id
    ) d;
    IF subscribed.webhooks IS NOT NULL THEN
        PERFORM deliver(subscribed.webhooks, subscribed.holders, subscribed.ids, subscribed.bodies);
    END IF;
END
$$;
