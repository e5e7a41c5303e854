-- Takes a slot of a user for a running attempt of a River client's own worker, as ADR-10's middleware does. The job needs
-- neither Weir's submission nor quota. All processes and languages share the slots.
--
-- | parameter | |
-- |---|---|
-- | `job_id`, `attempt` | the attempt that runs |
-- | `subject` | the user. A new user is on the default plan. Null or empty: the job has no limit. A job that Weir knows keeps its user |
-- | `meter` | the meter with the slots. Default: that of the service with the job's kind, or the only meter |
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the attempt has a slot. A repeated call, and a job that was submitted through Weir, have one already |
-- | `unlimited` | the job names no user |
-- | `wait` | no slot is free. Snooze the job: it starts when a slot is free, at the latest after the snooze |
-- | `fenced_out` | the attempt is not the job's current one |
--
-- `plan` is the user's plan. Call weir_release() at the end of the attempt. Without it, Weir frees the slot within about
-- a tenth of a second of the job's end.
--
-- Errors: 22023 for an invalid subject, or without a known meter.
--
-- Cost: some ten look-ups and four writes. Waits for the account's lock.
--
-- Callers: other languages, as role weir_worker; ledger/src/middleware.rs.
CREATE OR REPLACE FUNCTION weir_admit(job_id bigint, attempt int, subject text, meter text DEFAULT NULL,
                                      OUT outcome text, OUT plan text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
DECLARE
    account record;
    of_meter text;
    of_holder uuid;
BEGIN
    -- The account of a job that Weir knows does not change.
    SELECT r.holder, r.user_id, r.event_type AS meter, j.kind
    INTO account
    FROM river_job j
    LEFT JOIN weir_jobs r ON r.job_id = j.id
    WHERE j.id = weir_admit.job_id;
    IF account.holder IS NULL AND coalesce(subject, '') = '' THEN
        outcome := 'unlimited';
        RETURN;
    END IF;
    of_meter := coalesce(
        account.meter, weir_admit.meter,
        (SELECT s.event_type FROM weir_services s WHERE s.kind = account.kind LIMIT 1),
        (SELECT min(m.name) FROM meters m HAVING count(*) = 1));
    IF NOT EXISTS (SELECT FROM meters m WHERE m.name = of_meter) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('the meter of job %s is unknown: %s', job_id, coalesce(of_meter, 'no service has its kind')),
            HINT = 'name one of the meters in weir.toml';
    END IF;
    IF account.holder IS NULL THEN
        of_holder := weir_holder(subject);
        account.user_id := of_holder;
    ELSE
        of_holder := account.holder;
        subject := NULL;
    END IF;
    SELECT CASE a.outcome WHEN 'parked' THEN 'wait' ELSE a.outcome END,
           coalesce(a.tier, (SELECT t.tier FROM tier_of(account.user_id, now()) t))
    INTO outcome, plan
    FROM admit_late(job_id, attempt::smallint, of_holder, account.user_id,
                    CASE WHEN uuid_of_subject(subject) IS NULL THEN subject END, of_meter, NULL, '{}') a;
END
$$;

COMMENT ON FUNCTION weir_admit IS
    'takes a slot for a running attempt of a River client''s own worker; outcome: admitted, unlimited, wait, fenced_out';
