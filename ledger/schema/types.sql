-- Types and domains. The names are those of ADR-21 and ADR-10.

CREATE DOMAIN usage_event_type AS text COLLATE "C";
COMMENT ON DOMAIN usage_event_type IS 'The name of a meter.';

CREATE DOMAIN plan_tier AS text COLLATE "C";
COMMENT ON DOMAIN plan_tier IS 'The name of a plan.';

CREATE TYPE subscription_status AS ENUM ('active', 'canceled', 'expired');
COMMENT ON TYPE subscription_status IS 'Whether a subscription is in force.';
