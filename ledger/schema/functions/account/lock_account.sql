-- Locks an account. Creates an unknown holder as a user on the default plan. known_as: the subject's text, if it is not
-- the id. The body of this rule for groups is ledger/src/reservation/sql/provision.sql.
-- Cost: one look-up by key; three inserts for a new user. Waits for the account's lock.
-- Callers: weir_submit.
CREATE OR REPLACE FUNCTION lock_account(of_holder uuid, meter text, known_as text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM 1 FROM holders k WHERE k.holder = of_holder AND k.event_type = meter
    ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM create_users(ARRAY[of_holder], ARRAY[known_as]);
    INSERT INTO holders (holder, event_type, user_id) VALUES (of_holder, meter, of_holder)
    ON CONFLICT (holder, event_type) DO NOTHING;
    PERFORM 1 FROM holders h WHERE h.holder = of_holder AND h.event_type = meter FOR NO KEY UPDATE;
END
$$;
