-- Creates the rows for a first submission: a verified user on the default plan, and a row to lock for a holder. SQL
-- callers use lock_account(), and operators use make_user.sql. A manually inserted row with its own subject and id
-- keeps its subject, and must not lock the user out. Parameters, pairwise:
--
-- - $1: holders.
-- - $2: meters.
-- - $3: user ids (null: an address).
-- - $4: the subjects of derived user ids (null: the id is the subject).
WITH wanted AS (
    SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::uuid[], $4::text[])
        AS w (holder, event_type, user_id, subject)
), new_users AS (
    INSERT INTO users (id, subject)
    SELECT DISTINCT ON (w.user_id) w.user_id, CASE WHEN (SELECT u.id FROM users u WHERE u.subject = w.subject) IS NULL THEN w.subject END
    FROM wanted w
    WHERE w.user_id IS NOT NULL
    ORDER BY w.user_id, w.subject
    -- For both keys, because two concurrent first submissions of a user may conflict on either.
    ON CONFLICT DO NOTHING
    RETURNING id
), new_subscriptions AS (
    INSERT INTO user_subscriptions (user_id, plan_id)
    SELECT u.id, p.id FROM new_users u CROSS JOIN subscription_plans p WHERE p.is_default
    ON CONFLICT (user_id) WHERE status = 'active' DO NOTHING
)
INSERT INTO holders (holder, event_type, user_id)
SELECT DISTINCT holder, event_type, user_id FROM wanted ORDER BY 1, 2
ON CONFLICT (holder, event_type) DO NOTHING
RETURNING (SELECT count(*) FROM new_users) AS new_users
