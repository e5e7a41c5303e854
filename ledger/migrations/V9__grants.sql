-- Grants: amounts beyond the plan, bought or given. A submission that the month has no room for draws on them; settlement
-- returns what was not used.

CREATE TABLE grants (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    reserved bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    used bigint NOT NULL DEFAULT 0 CHECK (used >= 0),
    expires_at timestamptz,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (reserved::numeric + used <= amount)
);
COMMENT ON COLUMN grants.reserved IS 'drawn by reservations that stand';
COMMENT ON COLUMN grants.used IS 'drawn by jobs that were charged';
COMMENT ON COLUMN grants.expires_at IS 'nothing more is drawn then; what is drawn stays until its reservation ends';
CREATE INDEX grants_left ON grants (user_id, event_type) WHERE used < amount;

CREATE TABLE grant_draws (
    job_id bigint NOT NULL,
    position smallint NOT NULL,
    grant_id uuid NOT NULL REFERENCES grants,
    amount bigint NOT NULL CHECK (amount > 0),
    charged bigint CHECK (charged > 0),
    PRIMARY KEY (job_id, position)
);
COMMENT ON COLUMN grant_draws.position IS 'the order in which the job drew, and is charged';
COMMENT ON COLUMN grant_draws.charged IS 'null while the reservation stands';
CREATE INDEX grant_draws_of_grant ON grant_draws (grant_id);

ALTER TABLE holders ADD COLUMN has_grants boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN holders.has_grants IS 'whether it ever had a grant of the meter: others have none to look for';
ALTER TABLE quota_reservations ADD COLUMN from_grants bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN quota_reservations.from_grants IS 'how much of reserved_amount was drawn on grants';
ALTER TABLE usage_events ADD COLUMN from_grants bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN usage_events.from_grants IS 'how much of quota_amount was charged to grants, and not to the plan';
ALTER TABLE quota_balances ADD COLUMN from_grants bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN quota_balances.from_grants IS 'how much of used and reserved grants pay for; of months only';

-- The reservations of these jobs are over: each is charged so much of what it drew, in the order in which it drew, and the
-- rest returns to where it came from. The caller holds the holders' locks.
CREATE FUNCTION settle_draws(jobs bigint[], charges bigint[]) RETURNS void LANGUAGE sql AS $$
    WITH ended AS MATERIALIZED (
        SELECT d.job_id, d.position, d.grant_id, d.amount,
               least(d.amount, greatest(0, e.charged - (
                   sum(d.amount) OVER (PARTITION BY d.job_id ORDER BY d.position) - d.amount)))::bigint AS charged
        FROM unnest(jobs, charges) AS e (job_id, charged)
        JOIN grant_draws d ON d.job_id = e.job_id AND d.charged IS NULL
    ), charged AS (
        UPDATE grant_draws d SET charged = e.charged FROM ended e
        WHERE d.job_id = e.job_id AND d.position = e.position AND e.charged > 0
    ), returned AS (
        DELETE FROM grant_draws d USING ended e
        WHERE d.job_id = e.job_id AND d.position = e.position AND e.charged = 0
    )
    UPDATE grants g SET reserved = g.reserved - s.amount, used = g.used + s.charged
    FROM (SELECT grant_id, sum(amount)::bigint AS amount, sum(charged)::bigint AS charged FROM ended GROUP BY 1) s
    WHERE g.id = s.grant_id
$$;

-- What the balances add up, with what of it grants pay for.
CREATE OR REPLACE VIEW charged_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, quota_amount AS amount, from_grants FROM usage_events
UNION ALL
SELECT u.user_id, u.event_type, w.span, date_trunc(w.span, coalesce(u.reserved_at, u.created_at), 'UTC'), u.quota_amount, 0
FROM usage_events u
JOIN (VALUES (1, 'day'), (2, 'hour'), (4, 'minute')) AS w (bit, span) ON u.windows & w.bit <> 0
WHERE u.windows <> 0;
CREATE OR REPLACE VIEW reserved_amounts AS
SELECT user_id, event_type, 'month' AS span, period_start, reserved_amount AS amount, from_grants
FROM quota_reservations
WHERE user_id IS NOT NULL AND period_start IS NOT NULL
UNION ALL
SELECT r.user_id, r.event_type, w.span, date_trunc(w.span, r.created_at, 'UTC'), r.reserved_amount, 0
FROM quota_reservations r
JOIN (VALUES (1, 'day'), (2, 'hour'), (4, 'minute')) AS w (bit, span) ON r.windows & w.bit <> 0
WHERE r.windows <> 0 AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL;

-- Reservations and events that others delete or change take what grants pay for along.
CREATE FUNCTION book_from_grants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'quota_reservations' THEN
        PERFORM settle_draws(array_agg(o.job_id), array_agg(0::bigint)) FROM old_rows o WHERE o.from_grants > 0;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        UPDATE quota_balances b SET from_grants = b.from_grants - o.amount
        FROM (SELECT user_id, event_type, period_start, sum(from_grants)::bigint AS amount
              FROM old_rows WHERE from_grants <> 0 GROUP BY 1, 2, 3) o
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (o.user_id, o.event_type, 'month', o.period_start);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        UPDATE quota_balances b SET from_grants = b.from_grants + n.amount
        FROM (SELECT user_id, event_type, period_start, sum(from_grants)::bigint AS amount
              FROM new_rows WHERE from_grants <> 0 GROUP BY 1, 2, 3) n
        WHERE (b.user_id, b.event_type, b.span, b.period_start) = (n.user_id, n.event_type, 'month', n.period_start);
    END IF;
    RETURN NULL;
END
$$;
-- By name after the triggers that make the balances and take the locks.
CREATE TRIGGER grants_insert AFTER INSERT ON usage_events REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_from_grants();
CREATE TRIGGER grants_update AFTER UPDATE ON usage_events REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_from_grants();
CREATE TRIGGER grants_delete AFTER DELETE ON usage_events REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_from_grants();
CREATE TRIGGER grants_insert AFTER INSERT ON quota_reservations REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_from_grants();
CREATE TRIGGER grants_update AFTER UPDATE ON quota_reservations REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_from_grants();
CREATE TRIGGER grants_delete AFTER DELETE ON quota_reservations REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('weir.books', true) IS DISTINCT FROM 'kept') EXECUTE FUNCTION book_from_grants();

-- A cap on the jobs of a holder that wait for a slot.
ALTER TABLE subscription_plans ADD COLUMN max_waiting int CHECK (max_waiting > 0);
COMMENT ON COLUMN subscription_plans.max_waiting IS 'the most jobs of a holder and meter that wait for a slot; null is any number';
