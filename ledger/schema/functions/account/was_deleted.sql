-- Whether a user was deleted in the last 30 days. For that long, only the user's own first submission creates it again.
-- ledger/src/reconciliation/mod.rs deletes older records.
-- No SET search_path: PostgreSQL inlines it only without one.
-- Cost: one look-up by key.
-- Callers: ledger/src/control/sql/create_user.sql and import_prepare.sql.
CREATE OR REPLACE FUNCTION was_deleted(of_user uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM deleted_users d
                   WHERE d.hash = sha256(convert_to(of_user::text, 'UTF8')) AND d.deleted_at > now() - interval '30 days')
$$;
