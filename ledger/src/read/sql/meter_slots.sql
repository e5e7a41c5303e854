-- The slots by meter. Reads all reservations once, because there are fewer of them than holders.
SELECT event_type AS meter, count(admitted_at) AS slots_in_use, count(parked_at) AS parked,
       coalesce((1000 * extract(epoch FROM clock_timestamp() - min(parked_at)))::bigint, 0) AS oldest_turn_ms
FROM quota_reservations
GROUP BY 1
