-- Trigger of users: releases a deleted user's reservations.
-- Cost: one index range a user, and release_jobs().
CREATE OR REPLACE FUNCTION end_reservations_of_users() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM release_jobs(ARRAY(SELECT r.job_id FROM quota_reservations r JOIN old_users u ON r.user_id = u.id));
    RETURN NULL;
END
$$;
