-- Trigger of users: deletes a deleted user's reservations, which frees their slots.
-- Cost: one index range a user, and the counting triggers.
CREATE OR REPLACE FUNCTION end_reservations_of_users() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    DELETE FROM quota_reservations r USING old_users u WHERE r.user_id = u.id;
    RETURN NULL;
END
$$;
