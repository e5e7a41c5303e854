-- Creates the unknown ones of these users, with an active subscription to this plan. Does not change known users.
-- Every user is created here.
--
-- - ids: null elements, the addresses, are skipped.
-- - subjects: the subjects of derived ids; null: the id is the subject. Another user's subject is not taken: a row that
--   was inserted by hand keeps its subject, and must not lock the new user out.
-- - plan: the name. Null: the default plan.
-- - new_users: the number of users created.
--
-- When two transactions create a user at once, one waits for the other.
-- Cost: two inserts a user.
-- Callers: submit_many, admit_late, weir_charge; ledger/src/reconciliation/sql/provision.sql,
-- ledger/src/control/sql/create_user.sql and import_users.sql, ledger/src/plans.rs.
CREATE OR REPLACE FUNCTION create_users(ids uuid[], subjects text[], plan text DEFAULT NULL, OUT new_users bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH created AS (
        INSERT INTO users (id, subject)
        SELECT DISTINCT ON (w.id) w.id, CASE WHEN NOT EXISTS (SELECT 1 FROM users u WHERE u.subject = w.subject) THEN w.subject END
        FROM unnest(ids, subjects) AS w (id, subject)
        WHERE w.id IS NOT NULL
        ORDER BY w.id, w.subject
        -- For both keys, because two concurrent first submissions of a user may conflict on either.
        ON CONFLICT DO NOTHING
        RETURNING id
    ), subscribed AS (
        INSERT INTO user_subscriptions (user_id, plan_id)
        SELECT c.id, p.id
        FROM created c
        JOIN subscription_plans p ON CASE WHEN plan IS NULL THEN p.is_default ELSE p.tier = plan END
        ON CONFLICT (user_id) WHERE status = 'active' DO NOTHING
    )
    SELECT count(*) INTO new_users FROM created;
END
$$;
