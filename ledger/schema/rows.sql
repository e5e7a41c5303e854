-- The rows of a new database: the settings, and the catalogue that Weir ships with. `weir migrate` then writes the
-- catalogue of weir.toml.

INSERT INTO weir_settings DEFAULT VALUES;

INSERT INTO weir_locks (name) VALUES ('admin_log'), ('renewals'), ('usage_archive');

INSERT INTO meters (name, unit) VALUES ('analysis', 'units'), ('specview', 'units');

INSERT INTO subscription_plans (tier, lane, is_default, retention_days)
VALUES ('free', 'default', true, 30), ('pro', 'priority', false, 180), ('pro_plus', 'priority', false, 365),
       ('enterprise', 'priority', false, NULL);

INSERT INTO plan_limits (plan_id, event_type, month, slots)
SELECT p.id, m.name, m.month, l.slots
FROM subscription_plans p
JOIN (VALUES ('free', 50, 5000, 1), ('pro', 1000, 100000, 3), ('pro_plus', 5000, 500000, 3),
             ('enterprise', NULL, NULL, 5)) AS l (plan, analysis, specview, slots) ON l.plan = p.tier
CROSS JOIN LATERAL (VALUES ('analysis', l.analysis), ('specview', l.specview)) AS m (name, month);
