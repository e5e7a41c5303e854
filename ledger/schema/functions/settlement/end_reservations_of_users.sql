-- Trigger of users: releases a deleted user's reservations, and keeps its usage, which the account's row would lose.
-- Cost: one index range a user, release_jobs() and close_months().
CREATE OR REPLACE FUNCTION end_reservations_of_users() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM release_jobs(ARRAY(SELECT r.job_id FROM quota_reservations r WHERE r.holder = OLD.id));
    PERFORM close_months(ARRAY[OLD.id]);
    RETURN OLD;
END
$$;
