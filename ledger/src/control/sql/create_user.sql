-- Creates an unknown user on the default plan, but not one who was deleted lately. The first job of a user creates it in
-- reservation/sql/provision.sql, which ignores deletions.
-- Parameters: $1 id, $2 the subject (null: the id is the subject).
SELECT create_users(ARRAY[$1::uuid], ARRAY[$2::text]) WHERE NOT was_deleted($1::uuid)
