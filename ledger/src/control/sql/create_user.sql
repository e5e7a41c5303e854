-- Creates an unknown user on the default plan, but not one who was deleted in the last 30 days. The first job of a user
-- creates it in reservation/sql/provision.sql, which ignores deletions.
-- Parameters: $1 id, $2 the subject (null: the id is the subject).
SELECT create_users(ARRAY[$1::uuid], ARRAY[$2::text])
WHERE NOT EXISTS (SELECT 1 FROM deleted_users d
                  WHERE d.hash = sha256(convert_to($1::uuid::text, 'UTF8'))
                    AND d.deleted_at > now() - interval '30 days')
