-- Deletes the reservation of an ended job and charges `used` of it; null charges all of it. The caller holds the lock
-- of of_holder and passes the slot on. A job is charged once: a second call charges 0. The body of this rule for groups
-- is ledger/src/settlement/changes.rs with charge.sql, update_balances.sql and settle_draws.sql of
-- ledger/src/settlement/sql/. Rust computes the overage and the part of grants in policy/src/admission.rs
-- (charged_overage) and policy/src/grants.rs (charged_to_grants).
-- Errors: 40001 when another transaction has just moved the job to another holder.
-- Cost: one delete, one insert, one look-up and one write a window; two writes more for a job that drew on grants.
-- Callers: end_reservation.
CREATE OR REPLACE FUNCTION charge_reservation(job bigint, of_holder uuid, is_completed boolean, used bigint,
                       OUT charged bigint, OUT meter text, OUT freed int, OUT unparked int)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    r quota_reservations;
    to_grants bigint;
BEGIN
    charged := 0;
    DELETE FROM quota_reservations q WHERE q.job_id = job RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF r.holder IS DISTINCT FROM of_holder THEN
        RAISE serialization_failure USING
            MESSAGE = format('another transaction assigned job %s to another holder', job), HINT = 'retry the transaction';
    END IF;
    meter := r.event_type;
    freed := (r.admitted_at IS NOT NULL)::int;
    unparked := (r.parked_at IS NOT NULL)::int;
    IF is_completed AND r.user_id IS NOT NULL AND r.period_start IS NOT NULL THEN
        charged := charge_of(r.reserved_amount, charge_reservation.used);
    END IF;
    IF charged > 0 THEN
        INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start, windows, reserved_at, overage)
        VALUES (r.user_id, r.event_type, charged, r.job_id, r.period_start, r.windows,
                CASE WHEN r.windows <> 0 THEN r.created_at END,
                -- Overage is charged last.
                least(greatest(charged - (r.reserved_amount - r.overage), 0), r.overage))
        ON CONFLICT (job_id) DO NOTHING;
        IF NOT FOUND THEN
            -- The job is charged already.
            charged := 0;
        END IF;
    END IF;
    IF r.user_id IS NOT NULL AND r.period_start IS NOT NULL AND r.reserved_amount > 0 THEN
        UPDATE quota_balances b
        SET reserved = b.reserved - r.reserved_amount, used = b.used + charged, changes = b.changes + 1
        WHERE b.ctid = ANY (ARRAY(
            SELECT (SELECT k.ctid FROM quota_balances k
                    WHERE k.user_id = r.user_id AND k.event_type = r.event_type AND k.span = w.span
                      AND k.period_start = w.period_start
                    ORDER BY k.generation DESC LIMIT 1)
            FROM windows_of(r.period_start, r.windows, r.created_at) w));
    END IF;
    IF r.from_grants > 0 THEN
        -- The plan's part is charged first. The unused rest returns to the grants.
        to_grants := least(greatest(charged - greatest(r.reserved_amount - r.overage - r.from_grants, 0), 0),
                           r.from_grants);
        UPDATE usage_events u SET from_grants = to_grants WHERE u.job_id = job AND to_grants > 0;
        UPDATE quota_balances b SET from_grants = b.from_grants - (r.from_grants - to_grants)
        WHERE b.ctid = (SELECT k.ctid FROM quota_balances k
                        WHERE k.user_id = r.user_id AND k.event_type = r.event_type AND k.span = 'month'
                          AND k.period_start = r.period_start
                        ORDER BY k.generation DESC LIMIT 1);
        PERFORM settle_draws(ARRAY[job], ARRAY[to_grants]);
    END IF;
END
$$;
