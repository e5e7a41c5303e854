-- Checks whether a submission would be accepted now. Reserves and writes nothing, takes no lock and creates no user, so
-- another submission may take the room in between.
--
-- | parameter | |
-- |---|---|
-- | `subject` | the user: see [identities](../how-to/identities.md). An unknown user has the default plan |
-- | `service` | the service's name |
-- | `amount` | the maximum amount that the job may use, 0 to 10^15. Default: the service's. Required if the service has no fixed amount |
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the job would get a slot |
-- | `parked` | the job would be accepted and wait for a slot |
-- | `over_quota`, `too_large`, `too_many_waiting` | as for `weir_submit` |
--
-- `quota` is the current quota, without the amount. For `over_quota`, `quota.windows` lists the full windows.
--
-- Errors: 22023 for invalid arguments.
--
-- Cost: some eight look-ups by key.
-- Callers: other languages, as role weir_submitter. The API calls check_submission().
CREATE OR REPLACE FUNCTION weir_quota(subject text, service text, amount bigint DEFAULT NULL, OUT outcome text, OUT quota jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    this_holder CONSTANT uuid := weir_holder(weir_quota.subject);
    made weir_services;
BEGIN
    SELECT * INTO made FROM weir_services s WHERE s.name = weir_quota.service;
    IF NOT FOUND THEN
        PERFORM raise_no_service(weir_quota.service);
    END IF;
    IF weir_quota.amount IS NULL AND made.amount IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('the service %s has no fixed amount; pass an amount', made.name);
    END IF;
    SELECT c.outcome, c.quota INTO outcome, quota
    FROM check_submission(this_holder, this_holder, made.event_type, amount_of(made, '{}', weir_quota.amount)) c;
END
$$;

COMMENT ON FUNCTION weir_quota IS
    'checks whether a submission would be accepted now; outcome: admitted, parked, over_quota, too_large, too_many_waiting';
