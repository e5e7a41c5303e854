-- Creates an unknown user on the default plan, but not one who was deleted in the last 30 days. The first job of a user
-- does this in reservation/sql/provision.sql.
-- Parameters: $1 id, $2 the subject (null: the id is the subject).
WITH known AS (
    INSERT INTO users (id, subject)
    SELECT $1, (SELECT $2::text WHERE NOT EXISTS (SELECT 1 FROM users WHERE subject = $2))
    WHERE NOT EXISTS (SELECT 1 FROM deleted_users d
                      WHERE d.hash = sha256(convert_to($1::uuid::text, 'UTF8'))
                        AND d.deleted_at > now() - interval '30 days')
    ON CONFLICT DO NOTHING
    RETURNING id
)
INSERT INTO user_subscriptions (user_id, plan_id)
SELECT k.id, p.id FROM known k CROSS JOIN subscription_plans p WHERE p.is_default
ON CONFLICT (user_id) WHERE status = 'active' DO NOTHING
