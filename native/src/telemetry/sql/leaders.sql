-- Whether River has a leader, which renews its row every few seconds; whether that is another client than Weir's; and
-- whether a process does Weir's duties. $1 seconds without a round after which it does not.
SELECT count(leader_id) > 0 AS known,
       count(leader_id) FILTER (WHERE leader_id NOT LIKE 'weir\_%') > 0 AS is_foreign,
       EXISTS (SELECT 1 FROM duties WHERE done_at > clock_timestamp() - make_interval(secs => $1)) AS done
FROM river_leader
WHERE expires_at > now()
