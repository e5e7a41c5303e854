-- The tables of the product that ADR-21 describes, in `public`, with rows of a few users. `{tests}` is a JSON array of
-- files with one test.
CREATE TYPE usage_event_type AS ENUM ('specview', 'analysis');
CREATE TYPE subscription_status AS ENUM ('active', 'canceled', 'expired');
CREATE TYPE plan_tier AS ENUM ('free', 'pro', 'pro_plus', 'enterprise');
CREATE TABLE users (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), login text NOT NULL);
CREATE TABLE subscription_plans (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), tier plan_tier NOT NULL UNIQUE, specview_monthly_limit int,
    analysis_monthly_limit int, retention_days int, monthly_price int, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE user_subscriptions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    plan_id uuid NOT NULL REFERENCES subscription_plans ON DELETE RESTRICT, status subscription_status NOT NULL,
    current_period_start timestamptz NOT NULL, current_period_end timestamptz NOT NULL, canceled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((status = 'canceled') = (canceled_at IS NOT NULL)));
CREATE UNIQUE INDEX ON user_subscriptions (user_id) WHERE status = 'active';
CREATE TABLE usage_events (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    event_type usage_event_type NOT NULL, analysis_id uuid, document_id uuid, quota_amount int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), CHECK ((analysis_id IS NULL) <> (document_id IS NULL)));
CREATE TABLE quota_reservations (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    event_type usage_event_type NOT NULL, reserved_amount int NOT NULL CHECK (reserved_amount > 0),
    job_id bigint NOT NULL UNIQUE, expires_at timestamptz NOT NULL DEFAULT now() + interval '1 hour',
    created_at timestamptz NOT NULL DEFAULT now());

INSERT INTO users (id, login) VALUES
    ('00000000-0000-4000-8000-00000000000a', 'paid'), ('00000000-0000-4000-8000-00000000000b', 'frozen'),
    ('00000000-0000-4000-8000-00000000000c', 'canceled'), ('00000000-0000-4000-8000-00000000000d', 'over');
INSERT INTO subscription_plans (tier, specview_monthly_limit, analysis_monthly_limit, retention_days, monthly_price) VALUES
    ('free', 5000, 50, 30, 0), ('pro', 100000, 1000, 180, 15), ('enterprise', NULL, NULL, NULL, NULL);
-- The paid period ends a moment early. That of `frozen` was never renewed.
INSERT INTO user_subscriptions (user_id, plan_id, status, current_period_start, current_period_end, canceled_at, updated_at)
SELECT u.id, p.id, s.status::subscription_status, s.start, s.start + interval '1 month' - interval '1 microsecond',
       CASE s.status WHEN 'canceled' THEN now() END, s.start
FROM (VALUES ('paid', 'pro', 'active', now() - interval '12 days'), ('frozen', 'free', 'active', now() - interval '100 days'),
             ('canceled', 'pro', 'canceled', now() - interval '12 days'), ('over', 'free', 'active', now() - interval '3 days'))
    AS s (login, tier, status, start)
JOIN users u ON u.login = s.login
JOIN subscription_plans p ON p.tier::text = s.tier;
INSERT INTO usage_events (user_id, event_type, analysis_id, document_id, quota_amount, created_at)
SELECT u.id, e.meter::usage_event_type, CASE e.meter WHEN 'analysis' THEN gen_random_uuid() END,
       CASE e.meter WHEN 'specview' THEN gen_random_uuid() END, e.amount, now() - e.age
FROM (VALUES ('paid', 'analysis', 7, interval '40 days'), ('paid', 'analysis', 20, interval '11 days'),
             ('paid', 'analysis', 10, interval '2 hours'), ('paid', 'specview', 400, interval '5 days'),
             ('frozen', 'analysis', 9, interval '99 days'), ('frozen', 'analysis', 4, interval '1 hour'),
             ('canceled', 'specview', 3, interval '1 minute'), ('over', 'analysis', 53, interval '1 day'))
    AS e (login, meter, amount, age)
JOIN users u ON u.login = e.login;
-- Jobs 1 to 4 wait, and one of them failed before. Job 5 has ended, and job 6 is gone.
INSERT INTO river_job (id, state, args, kind, max_attempts, queue, attempt, scheduled_at, finalized_at, attempted_at, errors)
SELECT 1000 + j.n, j.state::river_job_state, jsonb_build_object('user_id', u.id, 'files', '{tests}'::jsonb), 'analysis:analyze', 3,
       CASE j.login WHEN 'paid' THEN 'analysis_priority' ELSE 'analysis_default' END, (j.state <> 'available')::int,
       CASE j.state WHEN 'retryable' THEN now() + interval '1 second' ELSE now() END,
       CASE j.state WHEN 'completed' THEN now() END, CASE WHEN j.state <> 'available' THEN now() END,
       CASE j.state WHEN 'retryable' THEN ARRAY['{"at": "2026-01-01T00:00:00Z", "attempt": 1, "error": "x", "trace": ""}'::jsonb] END
FROM (VALUES (1, 'paid', 'available'), (2, 'paid', 'available'), (3, 'paid', 'retryable'), (4, 'frozen', 'available'),
             (5, 'paid', 'completed')) AS j (n, login, state)
JOIN users u ON u.login = j.login;
INSERT INTO quota_reservations (user_id, event_type, reserved_amount, job_id, expires_at)
SELECT u.id, 'analysis', 1, 1000 + r.n, now() + r.ttl
FROM (VALUES (1, 'paid', interval '1 hour'), (2, 'paid', interval '-2 hours'), (3, 'paid', interval '1 hour'),
             (4, 'frozen', interval '1 hour'), (5, 'paid', interval '1 hour'), (6, 'over', interval '-1 day'))
    AS r (n, login, ttl)
JOIN users u ON u.login = r.login;
