-- Logs the applied subscriptions. Runs last, because other writers of the log wait for the commit.
-- Parameters: $1 the actor.
INSERT INTO admin_log (actor, action, holder, reason, before, after)
SELECT $1, 'plan.set', l.holder, 'import', l.before, l.after FROM pg_temp.import_log l ORDER BY l.holder
