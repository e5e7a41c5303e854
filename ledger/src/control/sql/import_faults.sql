-- The copied rows that cannot be imported, and what to do about each. Ids that are no subjects are checked in Rust.
-- The longest amount is that of amount_of().
WITH actives AS (
    SELECT s.*, p.id IS NOT NULL AS has_plan, p.tier FROM pg_temp.import_subscriptions s
    LEFT JOIN pg_temp.import_plans p ON p.id = s.plan_id
    WHERE s.status = 'active'
), meter_names AS (
    SELECT string_agg(m.name, ', ' ORDER BY m.name) AS names FROM meters m
), plan_names AS (
    SELECT string_agg(p.tier, ', ' ORDER BY p.tier) AS names FROM subscription_plans p
), open_reservations AS (
    -- Weir may have parked or started the job already.
    SELECT r.*, j.state::text AS state, j.kind, j.queue, j.args ->> 'user_id' AS named,
           EXISTS (SELECT 1 FROM quota_reservations k WHERE k.job_id = j.id) AS is_held
    FROM pg_temp.import_reservations r
    JOIN river_job j ON j.id = r.job_id
    WHERE r.is_new
), faults (relation, row, problem, remedy) AS (
    SELECT 'users', 'without an id', 'id is null', 'exclude the row, or give it an id'
    FROM pg_temp.import_users u WHERE u.id IS NULL
    UNION ALL
    SELECT 'users', 'id ' || u.id, format('%s rows have this id', count(*)), 'keep one of them'
    FROM pg_temp.import_users u WHERE u.id IS NOT NULL GROUP BY u.id HAVING count(*) > 1
    UNION ALL
    SELECT 'users', 'id ' || min(u.id), format('it is the same user as id %s', max(u.id)), 'spell the UUID in one way'
    FROM pg_temp.import_users u WHERE u.holder IS NOT NULL GROUP BY u.holder HAVING count(DISTINCT u.id) > 1
    UNION ALL
    SELECT 'subscription_plans', 'id ' || coalesce(p.id, '(null)'), format('%s rows have this id', count(*)), 'keep one of them'
    FROM pg_temp.import_plans p GROUP BY p.id HAVING count(*) > 1
    UNION ALL
    SELECT 'user_subscriptions', 'of user ' || coalesce(s.user_id, '(null)'), f.problem, f.remedy
    FROM actives s
    CROSS JOIN plan_names n
    CROSS JOIN LATERAL (
        SELECT 'there is no such user', 'add the user to users, or exclude the row'
        WHERE NOT EXISTS (SELECT 1 FROM pg_temp.import_users k WHERE k.id = s.user_id)
        UNION ALL
        SELECT format('there is no plan with the id %s', coalesce(s.plan_id, '(null)')), 'add the plan to subscription_plans'
        WHERE NOT s.has_plan
        UNION ALL
        SELECT format('Weir has no plan %s; it has %s', coalesce(s.tier, '(null)'), n.names),
               'add the plan to weir.toml and run `weir migrate`, or name another plan'
        WHERE s.has_plan AND NOT EXISTS (SELECT 1 FROM subscription_plans p WHERE p.tier = s.tier)
        UNION ALL
        SELECT format('current_period_start is %s', coalesce(s.current_period_start::text, 'null')),
               'set a time since 1970, at most a year ahead'
        WHERE (s.current_period_start BETWEEN '1970-01-01 00:00:00+00' AND now() + interval '366 days') IS NOT TRUE
        UNION ALL
        SELECT format('current_period_end is %s', s.current_period_end),
               'set a time after current_period_start and before the year 10000, or null'
        WHERE s.current_period_end <= s.current_period_start OR s.current_period_end >= '10000-01-01 00:00:00+00'
        UNION ALL
        SELECT 'the provider''s id of the subscription has no 1 to 255 bytes', 'set it to null'
        WHERE octet_length(s.subscription) NOT BETWEEN 1 AND 255
    ) f (problem, remedy)
    UNION ALL
    SELECT 'user_subscriptions', 'of user ' || u.id, format('none is active, and an earlier import gave the user plan %s', c.plan),
           format('weir user plan %s %s, or make the subscription active', u.id, d.tier)
    FROM pg_temp.import_users u
    JOIN subscription_plans d ON d.is_default
    CROSS JOIN LATERAL (
        SELECT * FROM plan_changes k WHERE k.user_id = u.holder AND k.applied ORDER BY k.recorded_at DESC LIMIT 1
    ) c
    WHERE c.event_id LIKE 'import:%' AND c.plan <> d.tier
      AND NOT EXISTS (SELECT 1 FROM actives s WHERE s.user_id = u.id)
    UNION ALL
    SELECT 'user_subscriptions', 'of user ' || s.user_id, format('%s of its subscriptions are active', count(*)), 'keep one active'
    FROM actives s WHERE s.user_id IS NOT NULL GROUP BY s.user_id HAVING count(*) > 1
    UNION ALL
    -- Two spellings of a UUID are one id.
    SELECT 'usage_events', 'id ' || min(e.id), format('%s rows have this id', count(*)), 'give each event its own id'
    FROM pg_temp.import_usage e WHERE e.id IS NOT NULL GROUP BY e.event_id HAVING count(*) > 1
    UNION ALL
    SELECT 'usage_events', 'id ' || e.id, 'Weir has another event with this id', 'give each event its own id'
    FROM pg_temp.import_usage e
    JOIN usage_events k ON k.id = e.event_id AND is_imported(k.reason) IS NOT TRUE
    UNION ALL
    SELECT 'usage_events', 'id ' || coalesce(e.id, '(null)'), f.problem, f.remedy
    FROM pg_temp.import_usage e
    CROSS JOIN meter_names n
    CROSS JOIN LATERAL (
        SELECT 'id is null', 'give each event its own id' WHERE e.id IS NULL
        UNION ALL
        SELECT format('there is no user %s', coalesce(e.user_id, '(null)')), 'add the user to users, or exclude the row'
        WHERE NOT EXISTS (SELECT 1 FROM pg_temp.import_users k WHERE k.id = e.user_id)
        UNION ALL
        SELECT format('Weir has no meter %s; it has %s', coalesce(e.event_type, '(null)'), n.names),
               'add the meter to weir.toml and run `weir migrate`, or exclude the row'
        WHERE NOT EXISTS (SELECT 1 FROM meters m WHERE m.name = e.event_type)
        UNION ALL
        SELECT format('quota_amount is %s', coalesce(e.quota_amount::text, 'null')), 'set a whole number from 0 to 10^15'
        WHERE (e.quota_amount BETWEEN 0 AND 1e15 AND e.quota_amount = trunc(e.quota_amount)) IS NOT TRUE
        UNION ALL
        SELECT format('created_at is %s', coalesce(e.created_at::text, 'null')), 'set a time since 1970 that is not in the future'
        WHERE (e.created_at BETWEEN '1970-01-01 00:00:00+00' AND clock_timestamp()) IS NOT TRUE
    ) f (problem, remedy)
    UNION ALL
    SELECT a.relation, 'of meter ' || a.event_type, format('the amounts add up to %s', sum(a.amount)),
           'correct the amounts, which may add up to 9223372036854775807'
    FROM (
        SELECT 'usage_events' AS relation, e.event_type, e.quota_amount AS amount FROM pg_temp.import_usage e
        UNION ALL
        SELECT 'quota_reservations', r.event_type, r.reserved_amount FROM pg_temp.import_reservations r WHERE r.is_open
    ) a
    WHERE a.amount BETWEEN 0 AND 1e15
    GROUP BY a.relation, a.event_type HAVING sum(a.amount) > 9223372036854775807
    UNION ALL
    SELECT 'quota_reservations', 'of job ' || r.job_id, format('%s rows have this job_id', count(*)), 'keep one of them'
    FROM pg_temp.import_reservations r WHERE r.is_open GROUP BY r.job_id HAVING count(*) > 1
    UNION ALL
    SELECT 'quota_reservations', 'of job ' || r.job_id, f.problem, f.remedy
    FROM open_reservations r
    CROSS JOIN meter_names n
    CROSS JOIN LATERAL (
        SELECT format('there is no user %s', coalesce(r.user_id, '(null)')), 'add the user to users, or exclude the row'
        WHERE NOT EXISTS (SELECT 1 FROM pg_temp.import_users k WHERE k.id = r.user_id)
        UNION ALL
        SELECT format('Weir has no meter %s; it has %s', coalesce(r.event_type, '(null)'), n.names),
               'add the meter to weir.toml and run `weir migrate`'
        WHERE NOT EXISTS (SELECT 1 FROM meters m WHERE m.name = r.event_type)
        UNION ALL
        SELECT format('reserved_amount is %s', coalesce(r.reserved_amount::text, 'null')), 'set a whole number from 0 to 10^15'
        WHERE (r.reserved_amount BETWEEN 0 AND 1e15 AND r.reserved_amount = trunc(r.reserved_amount)) IS NOT TRUE
        UNION ALL
        SELECT format('created_at is %s', r.created_at), 'set a time since 1970 that is not in the future'
        WHERE r.created_at NOT BETWEEN '1970-01-01 00:00:00+00' AND clock_timestamp()
        UNION ALL
        SELECT 'the job is running', 'stop your workers, and let the job end or return to its queue'
        WHERE r.state = 'running' AND NOT r.is_held
        UNION ALL
        SELECT 'the job is pending', 'make it available, or cancel it' WHERE r.state = 'pending' AND NOT r.is_held
        UNION ALL
        SELECT format('the arguments of the job name %s', coalesce('user ' || r.named, 'no user')),
               format('set its user_id: UPDATE river_job SET args = jsonb_set(args, ''{user_id}'', %L) WHERE id = %s',
                      to_jsonb(r.user_id), r.job_id)
        WHERE r.user_id IS DISTINCT FROM r.named
        UNION ALL
        SELECT format('no service has jobs of the kind %s and the meter %s', r.kind, r.event_type),
               'add the service to weir.toml and run `weir migrate`, or drain the queue'
        WHERE NOT EXISTS (SELECT 1 FROM weir_services s WHERE s.kind = r.kind AND s.event_type = r.event_type)
          AND EXISTS (SELECT 1 FROM meters m WHERE m.name = r.event_type)
        UNION ALL
        SELECT format('the job is in the queue %s, which is none of the service %s', r.queue, s.name),
               format('UPDATE river_job SET queue = %L WHERE id = %s', s.name || '_default', r.job_id)
        FROM weir_services s
        WHERE s.kind = r.kind AND s.event_type = r.event_type
          AND NOT EXISTS (SELECT 1 FROM weir_services o CROSS JOIN unnest('{priority,default,scheduled}'::text[]) AS l (lane)
                          WHERE o.kind = r.kind AND r.queue = o.name || '_' || l.lane)
    ) f (problem, remedy)
)
SELECT relation, row, problem, remedy FROM faults
ORDER BY array_position('{users,subscription_plans,user_subscriptions,usage_events,quota_reservations}', relation), row, problem
