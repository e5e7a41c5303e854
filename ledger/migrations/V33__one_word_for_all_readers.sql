-- What several readers are told has one function: why a job failed, and which plan is in force.

-- Why a handler gave an attempt up for good, unless a later one failed otherwise. It stands for River's own words, which
-- say of that attempt only that its worker gave it up. Those of before do not say which attempt it was.
CREATE FUNCTION reason_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN CASE WHEN metadata ->> 'weir:reason_attempt' ~ '^[0-9]{1,5}$'
                          THEN (metadata ->> 'weir:reason_attempt')::int
                               >= coalesce((errors[array_upper(errors, 1)] ->> 'attempt')::int, 0)
                          ELSE true END
                THEN metadata ->> 'weir:reason' END
$$;

-- What a job's owner is told as its error. River says of whatever was cancelled while it ran that it was, and so does the
-- state.
CREATE FUNCTION error_of(metadata jsonb, errors jsonb[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(reason_of(metadata, errors),
                    nullif(errors[array_upper(errors, 1)] ->> 'error', 'JobCancelError: job cancelled remotely'))
$$;

-- The plan that counts at a moment: one that was scheduled is in force from its moment on, whether or not that was
-- written down.
CREATE FUNCTION plan_in_force(subscription user_subscriptions, at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN subscription.next_plan_at <= at THEN subscription.next_plan_id ELSE subscription.plan_id END
$$;

-- As the API has it: to the microsecond, as far as there are any.
CREATE OR REPLACE FUNCTION quota_json(used bigint, reserved bigint, most bigint, reset_at timestamptz, from_grants bigint DEFAULT 0,
                           granted bigint DEFAULT 0, ceiling bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'used', used, 'reserved', reserved, 'limit', most,
        'ceiling', CASE WHEN ceiling > most THEN ceiling END,
        'overage', CASE WHEN ceiling > most THEN greatest(used::numeric + reserved - from_grants - most, 0)::bigint ELSE 0 END,
        'remaining', CASE WHEN most IS NOT NULL
                          THEN (greatest(most_of(most, ceiling)::numeric - (used::numeric + reserved - from_grants), 0)
                                + granted)::bigint END,
        'reset_at', regexp_replace(to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '\.?0+$', '') || 'Z')
$$;

-- Jobs of a kind that no service has wait for whoever knows it, and say nothing of how busy the workers are. Of very many
-- of them, a few are looked at.
CREATE OR REPLACE FUNCTION wake_queue(queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM (
            SELECT j.kind FROM river_job j
            WHERE j.state = 'available' AND j.queue = wake_queue.queue AND j.priority = 1
              AND j.scheduled_at < clock_timestamp() - interval '100 milliseconds'
            ORDER BY j.scheduled_at
            LIMIT 100
        ) oldest
        WHERE oldest.kind IN (SELECT s.kind FROM weir_services s)
        OFFSET 20
    ) THEN
        PERFORM pg_notify(river_channel('river_insert'), json_build_object('queue', wake_queue.queue)::text);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION tell_job_ends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    wanted text[];
    told record;
BEGIN
    SELECT array_agg(t.type) INTO wanted
    FROM webhooks w CROSS JOIN unnest(w.events) AS t (type)
    WHERE t.type LIKE 'job.%' AND w.disabled_at IS NULL AND w.removed_at IS NULL;
    IF wanted IS NULL THEN
        RETURN NULL;
    END IF;
    WITH services AS MATERIALIZED (
        SELECT s.kind, min(s.name) AS name FROM weir_services s GROUP BY s.kind
    ), events AS MATERIALIZED (
        SELECT o.job_id, o.holder, j.type, 'evt_' || replace(gen_random_uuid()::text, '-', '') AS id,
               json_strip_nulls(json_build_object(
                   'job_id', o.job_id,
                   'subject', coalesce((SELECT u.subject FROM users u WHERE u.id = o.user_id), o.user_id::text),
                   'holder', o.holder, 'service', s.name, 'kind', j.kind, 'meter', o.event_type,
                   'reserved', o.reserved_amount,
                   'used', CASE WHEN j.type = 'job.completed' AND o.user_id IS NOT NULL AND o.period_start IS NOT NULL
                                THEN least(greatest(coalesce(j.used, o.reserved_amount), 0), o.reserved_amount) ELSE 0 END,
                   'attempts', j.attempt, 'error', j.error, 'reason', j.reason, 'request_id', j.request_id,
                   'submitted_at', utc_text(j.created_at), 'finished_at', utc_text(j.finalized_at)
               )) AS data
        FROM old_rows o
        CROSS JOIN LATERAL (
            SELECT k.kind, k.attempt, k.created_at, k.finalized_at,
                   CASE WHEN k.finalized_at IS NULL THEN NULL
                        WHEN k.state = 'completed' THEN 'job.completed'
                        WHEN k.state = 'cancelled' THEN 'job.cancelled'
                        ELSE 'job.failed' END AS type,
                   CASE WHEN jsonb_typeof(k.metadata -> 'weir:used') = 'number'
                        THEN least(greatest(trunc((k.metadata ->> 'weir:used')::numeric), 0), 9223372036854775807)::bigint
                   END AS used,
                   CASE WHEN k.state = 'discarded'
                        THEN left(k.errors[array_upper(k.errors, 1)] ->> 'error', 1000) END AS error,
                   left(reason_of(k.metadata, k.errors), 1000) AS reason, k.metadata ->> 'weir:request_id' AS request_id
            -- By id alone. With a condition on `finalized_at`, River's index of finished jobs is one way to find it, and
            -- where statistics are of a time when none was finished, the planner goes through all of them for each job.
            FROM river_job k WHERE k.id = o.job_id
            OFFSET 0
        ) j
        LEFT JOIN services s ON s.kind = j.kind
        WHERE j.type = ANY (wanted)
    )
    SELECT array_agg(d.webhook) AS webhooks, array_agg(d.holder) AS holders, array_agg(d.id) AS ids, array_agg(d.body) AS bodies
    INTO told
    FROM (
        SELECT w.id AS webhook, e.holder, e.id,
               format('{"id":"%s","type":"%s","timestamp":"%s","data":%s}',
                      e.id, e.type, utc_text(clock_timestamp()), e.data) AS body
        FROM events e
        JOIN webhooks w ON e.type = ANY (w.events) AND w.disabled_at IS NULL AND w.removed_at IS NULL
        ORDER BY e.job_id
    ) d;
    IF told.webhooks IS NOT NULL THEN
        PERFORM deliver(told.webhooks, told.holders, told.ids, told.bodies);
    END IF;
    RETURN NULL;
END
$$;
