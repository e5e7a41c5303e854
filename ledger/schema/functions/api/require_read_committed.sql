-- Refuses (25000) every isolation level but READ COMMITTED. A decision is correct only if each statement sees
-- everything that was committed before it. name: the calling function, for the message.
-- Errors: 25000.
-- Cost: no table.
-- Callers: weir_submit, weir_submit_many, weir_retry, weir_charge, weir_complete, weir_settle_many, weir_extend, fail_attempt.
CREATE OR REPLACE FUNCTION require_read_committed(name text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE invalid_transaction_state USING
            MESSAGE = format('%s needs READ COMMITTED, but this transaction is %s',
                             name, upper(current_setting('transaction_isolation'))),
            HINT = 'use BEGIN ISOLATION LEVEL READ COMMITTED: the function must see what was committed while it waited for a lock';
    END IF;
END
$$;
