-- The outcome of a submission, by its account and the result of room_for(): over_quota, too_large, admitted,
-- too_many_waiting or parked. The body of this rule for groups is policy/src/admission.rs (Account) with
-- ledger/src/reservation/decide.rs; native/tests/suite/differential.rs compares the two.
--
-- - is_for_later: whether the job has a time, and so asks for a slot then.
-- - slots_now: the holder's slot limit.
-- - plan: the plan's attributes. Jobs beyond its max_waiting may not wait; null: unlimited.
--
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: no table; count_scheduled() when the job has to wait and the plan has max_waiting.
-- Callers: weir_submit, check_submission.
CREATE OR REPLACE FUNCTION submission_outcome(of_holder uuid, meter text, is_for_later boolean, slots_in_use int, slots_now int,
                                              parked int, plan subscription_plans, full_windows jsonb,
                                              is_too_large boolean)
RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN full_windows IS NOT NULL THEN 'over_quota'
        WHEN is_too_large THEN 'too_large'
        WHEN NOT is_for_later AND parked = 0 AND slots_in_use < slots_now THEN 'admitted'
        WHEN plan.max_waiting IS NOT NULL
             AND parked + count_scheduled(of_holder, meter, plan.max_waiting - parked) >= plan.max_waiting
            THEN 'too_many_waiting'
        ELSE 'parked'
    END
$$;
