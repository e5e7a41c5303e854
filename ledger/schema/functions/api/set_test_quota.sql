-- Gives a user a limit for a service, in tests of programs that submit jobs. Only the owner of the schema may call it.
-- Products change limits through `/admin`, which also logs the change.
--
-- - subject: as in weir_submit. An unknown user is created.
-- - service: the limit is that of its meter, for a billing period.
-- - most: the limit; null is unlimited. It includes what the user has used and reserved.
--
-- Errors: 22023 for an unknown service, an invalid subject or a negative limit.
--
-- Cost: as a first submission, and one write.
-- Callers: the test helpers in clients/.
CREATE OR REPLACE FUNCTION set_test_quota(subject text, service text, most bigint) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    id CONSTANT uuid := weir_holder(set_test_quota.subject);
    meter usage_event_type := (SELECT s.event_type FROM weir_services s WHERE s.name = set_test_quota.service);
BEGIN
    IF meter IS NULL THEN
        PERFORM raise_no_service(set_test_quota.service);
    ELSIF most < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a limit must not be negative';
    END IF;
    PERFORM create_users(ARRAY[id], ARRAY[CASE WHEN uuid_of_subject(set_test_quota.subject) IS NULL THEN set_test_quota.subject END]);
    INSERT INTO limit_overrides (user_id, event_type, month) VALUES (id, meter, coalesce(most, -1))
    ON CONFLICT (user_id, event_type) DO UPDATE SET month = excluded.month, expires_at = NULL, changed_at = clock_timestamp();
END
$$;

COMMENT ON FUNCTION set_test_quota IS
    'gives a user a limit for a service, in tests of programs; null is unlimited';
