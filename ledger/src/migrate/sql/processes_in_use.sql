-- The processes that use Weir: those with a heartbeat, and Weir's own by their connections.
-- Parameters: $1 seconds without a heartbeat after which a process is dead.
SELECT client_id AS process FROM processes WHERE beat_at > clock_timestamp() - make_interval(secs => $1)
UNION
SELECT format('%s, with %s connections', a.application_name, count(*)) FROM pg_stat_activity a
WHERE a.datname = current_database()
  AND a.application_name IN ('weir up', 'weir serve', 'weir work', 'weir schedule')
GROUP BY a.application_name
ORDER BY 1
