-- Creates the rows for first jobs: a verified user on the default plan, and a row to lock for a holder. submit_many() does
-- so for submissions. Returns the number of new users with each new holder. Parameters, pairwise:
--
-- - $1: holders.
-- - $2: meters.
-- - $3: user ids (null: an address).
-- - $4: the subjects of derived user ids (null: the id is the subject).
WITH created AS MATERIALIZED (
    SELECT create_users($3::uuid[], $4::text[]) AS users
)
INSERT INTO holders (holder, event_type, user_id)
SELECT DISTINCT w.holder, w.event_type, w.user_id
FROM unnest($1::uuid[], $2::usage_event_type[], $3) AS w (holder, event_type, user_id)
-- Creates the users first, even if their holders exist.
JOIN created ON created.users >= 0
ORDER BY 1, 2
ON CONFLICT (holder, event_type) DO NOTHING
RETURNING (SELECT users FROM created) AS new_users
