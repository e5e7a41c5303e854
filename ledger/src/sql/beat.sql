-- Records a heartbeat. Returns no row for a process that counts as dead.
-- Parameters: $1 process, $2 seconds without a heartbeat.
UPDATE processes SET beat_at = clock_timestamp()
WHERE client_id = $1 AND beat_at > clock_timestamp() - make_interval(secs => $2)
RETURNING current_timeline()
