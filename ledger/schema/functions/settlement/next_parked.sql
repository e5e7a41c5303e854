-- The oldest parked jobs of a holder that fit its free slots, with the lane of its plan and its slots. At most 1000:
-- the next promotion takes the rest. The caller holds the account's lock. Callers: promote_parked, weir_complete.
CREATE OR REPLACE FUNCTION next_parked(of_holder uuid, meter text, of_user uuid, waiting int, in_use int,
                             OUT jobs bigint[], OUT lane text, OUT slots int)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    plan record;
BEGIN
    jobs := '{}';
    IF waiting <= 0 THEN
        RETURN;
    END IF;
    SELECT * INTO plan FROM plan_of(of_user, meter, now());
    -- Whoever is no user has no plan (ADR-16), and is counted as the default one has it.
    lane := CASE WHEN of_user IS NULL THEN 'default' ELSE coalesce(plan.lane, 'default') END;
    slots := slots_in_force(of_user, plan.tier, plan.slots, plan.own_slots);
    -- What is left is promoted by the next one: when limits are lifted, all that waits becomes free at once.
    jobs := ARRAY(
        SELECT r.job_id
        FROM quota_reservations r
        WHERE r.holder = of_holder AND r.event_type = meter AND r.parked_at IS NOT NULL
          AND (SELECT j.state IN ('pending', 'scheduled') FROM river_job j WHERE j.id = r.job_id)
        ORDER BY r.job_id
        LIMIT least(1000, greatest(least(waiting, next_parked.slots::bigint - in_use), 0))
    );
END
$$;
