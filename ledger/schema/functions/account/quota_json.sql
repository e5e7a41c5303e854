-- A quota as the API returns it. Timestamps have microseconds only if they are not zero. Rust computes the same in
-- ledger/src/reservation/submission.rs (Quota::of) and policy/src/admission.rs (Allowance).
-- STABLE like to_char() and without SET, so that the planner inlines it.
-- Cost: no table.
-- Callers: weir_extend, quota_of_submission; ledger/src/attempts/sql/reserved.sql.
CREATE OR REPLACE FUNCTION quota_json(used bigint, reserved bigint, most bigint, reset_at timestamptz, from_grants bigint DEFAULT 0,
                           granted bigint DEFAULT 0, ceiling bigint DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'used', used, 'reserved', reserved, 'limit', most,
        'ceiling', CASE WHEN ceiling > most THEN ceiling END,
        'overage', CASE WHEN ceiling > most THEN greatest(used::numeric + reserved - from_grants - most, 0)::bigint ELSE 0 END,
        'remaining', CASE WHEN most IS NOT NULL
                          THEN least(room_in(most, ceiling, used, reserved, from_grants, granted),
                                     9223372036854775807)::bigint END,
        'reset_at', regexp_replace(to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '[.]?0+$', '') || 'Z')
$$;
