-- Records usage that did not come from a job, such as that of another system, inside the caller's transaction. It has
-- happened, so no limit refuses it: it counts in the month and the windows of its time, and later submissions have less
-- room. It draws on no grants.
--
-- | parameter | |
-- |---|---|
-- | `subject` | the user, as for `weir_submit`. A new user is created on the default plan |
-- | `meter` | the meter's name |
-- | `amount` | 0 to 10^15. A positive `adjustment` of the API needs a reason and an operator; this needs neither |
-- | `event_id` | 1 to 255 bytes, unique for the user and meter. The usage feed shows it as the reason |
-- | `occurred_at` | when it was used, within the last 366 days |
--
-- | outcome | |
-- |---|---|
-- | `charged` | |
-- | `repeated` | `event_id` was charged before, with the same amount. Nothing was written |
-- | `key_reused` | `event_id` was charged before, with another amount. Nothing was written |
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: some six look-ups, and one write a window. It locks the user's account for the meter until the transaction ends.
--
-- Callers: other languages, as role weir_submitter.
CREATE OR REPLACE FUNCTION weir_charge(subject text, meter text, amount bigint, event_id text, occurred_at timestamptz DEFAULT now(),
                                       OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    of_user CONSTANT uuid := weir_holder(weir_charge.subject);
    -- Other programs cannot derive it, because they cannot read the namespace. So none of them can use the id first.
    charge_id CONSTANT uuid := left(encode(sha256(convert_to(
        concat_ws('/', (SELECT t.address_namespace FROM weir_settings t), of_user, weir_charge.meter, weir_charge.event_id),
        'UTF8')), 'hex'), 32)::uuid;
    start timestamptz;
    windows smallint;
    -- In the account's row.
    is_counted boolean;
BEGIN
    PERFORM require_read_committed('weir_charge');
    IF amount IS NULL OR amount NOT BETWEEN 0 AND 1000000000000000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'amount must be from 0 to 1000000000000000';
    ELSIF event_id IS NULL OR octet_length(event_id) NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'event_id must be text of 1 to 255 bytes';
    ELSIF occurred_at IS NULL OR occurred_at NOT BETWEEN clock_timestamp() - interval '366 days'
                                                     AND clock_timestamp() + interval '1 minute' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'occurred_at must be within the last 366 days';
    ELSIF NOT EXISTS (SELECT FROM meters m WHERE m.name = weir_charge.meter) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('there is no meter %s', meter),
            HINT = 'weir.toml lists the meters, and weir plans shows them';
    END IF;
    PERFORM create_users(ARRAY[of_user],
                         ARRAY[CASE WHEN uuid_of_subject(weir_charge.subject) IS NULL THEN weir_charge.subject END]);
    INSERT INTO holders (holder, event_type, user_id) VALUES (of_user, weir_charge.meter, of_user)
    ON CONFLICT (holder, event_type) DO NOTHING;
    PERFORM FROM lock_accounts(ARRAY[of_user], ARRAY[weir_charge.meter]::usage_event_type[], false);
    -- Under the lock, because a change of plan moves the periods.
    start := period_start_of(of_user, occurred_at);
    windows := coalesce((SELECT max(l.counted) FROM plan_limits l WHERE l.event_type = weir_charge.meter), 0);
    -- The archive tells these events by their reserved_at from adjustments.
    INSERT INTO usage_events (id, user_id, event_type, quota_amount, period_start, windows, reserved_at, reason)
    VALUES (charge_id, of_user, weir_charge.meter, amount, start, windows, occurred_at, event_id)
    ON CONFLICT (id) DO NOTHING;
    IF FOUND THEN
        outcome := 'charged';
        UPDATE holders h
        SET used = h.used + amount,
            granted_limit = greatest(h.granted_limit, h.used + amount + h.reserved - h.from_grants), changes = h.changes + 1
        WHERE h.holder = of_user AND h.event_type = weir_charge.meter AND h.period_start = start;
        is_counted := FOUND;
        INSERT INTO window_balances AS b (user_id, event_type, span, period_start, used, granted_limit)
        SELECT of_user, weir_charge.meter, w.span, w.period_start, amount, amount
        FROM windows_of(start, windows, occurred_at) w
        WHERE w.span <> 'month' OR NOT is_counted
        ON CONFLICT (user_id, event_type, span, period_start) DO UPDATE
            SET used = b.used + excluded.used,
                granted_limit = greatest(b.granted_limit, b.used + excluded.used + b.reserved - b.from_grants);
    ELSE
        SELECT CASE WHEN u.quota_amount = amount THEN 'repeated' ELSE 'key_reused' END INTO outcome
        FROM usage_events u WHERE u.id = charge_id;
    END IF;
END
$$;

COMMENT ON FUNCTION weir_charge IS
    'records usage from elsewhere in the caller''s transaction, once per event; outcome: charged, repeated, key_reused';
