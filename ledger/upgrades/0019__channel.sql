-- It returns one more column.
DROP FUNCTION IF EXISTS weir_version();
