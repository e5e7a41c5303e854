-- Whether River has a leader, which renews its row every few seconds; whether that is another client than Weir's; and
-- whether a process holds the lease on Weir's duties.
SELECT count(leader_id) > 0 AS known,
       count(leader_id) FILTER (WHERE leader_id NOT LIKE 'weir\_%') > 0 AS is_foreign,
       EXISTS (SELECT 1 FROM duties WHERE expires_at > clock_timestamp()) AS done
FROM river_leader
WHERE expires_at > now()
