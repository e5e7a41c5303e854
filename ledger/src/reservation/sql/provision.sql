-- First contact: a verified user becomes known, on the default plan; a holder gets its row to lock. SQL callers have
-- lock_account(), an operator make_user.sql.
-- $1 holders, $2 meters, $3 user ids (null: an address), $4 the subjects that the user ids are made from (null: the id
-- is the subject), pairwise. A row that somebody inserted with a subject and an id of its own keeps the subject, and must
-- not lock the user out.
WITH wanted AS (
    SELECT * FROM unnest($1::uuid[], $2::usage_event_type[], $3::uuid[], $4::text[])
        AS w (holder, event_type, user_id, subject)
), new_users AS (
    INSERT INTO users (id, subject)
    SELECT DISTINCT ON (w.user_id) w.user_id, CASE WHEN (SELECT u.id FROM users u WHERE u.subject = w.subject) IS NULL THEN w.subject END
    FROM wanted w
    WHERE w.user_id IS NOT NULL
    ORDER BY w.user_id, w.subject
    -- Of both keys: two who meet the same user first may meet at either.
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
