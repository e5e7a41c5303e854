-- The rows of a new database: the settings, and the catalogue that Weir ships with. `weir migrate` then writes the
-- catalogue of weir.toml.

INSERT INTO weir_settings DEFAULT VALUES;

INSERT INTO weir_locks (name) VALUES ('admin_log'), ('renewals'), ('usage_archive');

INSERT INTO meters (name, unit) VALUES ('analysis', 'units'), ('specview', 'units');

INSERT INTO subscription_plans
    (tier, lane, is_default, analysis_monthly_limit, specview_monthly_limit, retention_days, monthly_price)
VALUES
    ('free', 'default', true, 50, 5000, 30, 0),
    ('pro', 'priority', false, 1000, 100000, 180, 15),
    ('pro_plus', 'priority', false, 5000, 500000, 365, 59),
    ('enterprise', 'priority', false, NULL, NULL, NULL, NULL);

-- The plans' trigger has inserted these rows, with the month's limits.
UPDATE plan_limits l
SET slots = s.slots
FROM subscription_plans p
JOIN (VALUES ('free', 1), ('pro', 3), ('pro_plus', 3), ('enterprise', 5)) AS s (plan, slots) ON s.plan = p.tier
WHERE p.id = l.plan_id;
