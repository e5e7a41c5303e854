-- The maximum amount that a submission may use: the caller's amount, else the service's, else the amount_member of the
-- arguments.
-- Errors: 22023 when there is no amount, when it is not from 0 to 10^15, or when the member is not from 1 to 10^15. Rust
-- decides the same in native/src/config/service.rs (Amount, MAX_AMOUNT).
-- Cost: no table.
-- Callers: submission_of, weir_quota.
CREATE OR REPLACE FUNCTION amount_of(service weir_services, args jsonb, requested bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    max_amount CONSTANT bigint := 1000000000000000;
    amount bigint := coalesce(requested, service.amount);
BEGIN
    IF amount IS NULL AND service.amount_member IS NOT NULL THEN
        IF jsonb_typeof(args -> service.amount_member) = 'number'
           AND args ->> service.amount_member ~ '^[0-9]{1,16}$' THEN
            amount := (args ->> service.amount_member)::bigint;
        END IF;
        IF amount IS NULL OR amount NOT BETWEEN 1 AND max_amount THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('%I must be a whole number from 1 to %s', service.amount_member, max_amount);
        END IF;
    END IF;
    IF amount IS NULL THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('service %s has no default amount; pass the amount', service.name);
    END IF;
    IF amount NOT BETWEEN 0 AND max_amount THEN
        RAISE invalid_parameter_value USING MESSAGE = format('amount must be from 0 to %s', max_amount);
    END IF;
    RETURN amount;
END
$$;
