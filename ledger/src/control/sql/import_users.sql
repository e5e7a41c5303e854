-- Creates the new users on the default plan. Without a subscription, their billing periods are calendar months.
-- Returns how many are wanted, and how many were created.
WITH wanted AS MATERIALIZED (
    SELECT u.holder, u.known_as FROM pg_temp.import_users u WHERE u.is_new
)
SELECT (SELECT count(*) FROM wanted) AS wanted,
       create_users(ARRAY(SELECT w.holder FROM wanted w ORDER BY w.holder),
                    ARRAY(SELECT w.known_as FROM wanted w ORDER BY w.holder)) AS created
