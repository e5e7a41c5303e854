-- What an operator should know about rights that `weir migrate` cannot or must not change. $1 the schema of Weir's tables.
SELECT format('the role %1$s does not exist, and this role may not create it; run: CREATE ROLE %1$s NOLOGIN, then '
              '`weir migrate` again. Until then only the owner of Weir''s functions can call those of %1$s', r) AS advice
FROM unnest(ARRAY['weir_submitter', 'weir_worker']) AS r
WHERE to_regrole(r) IS NULL
UNION ALL
SELECT format('%s may create objects in schema %I, where Weir''s functions look for theirs, and so act as their owner; '
              'move Weir to a schema of its own (WEIR_SCHEMA=weir), or run: REVOKE CREATE ON SCHEMA %2$I FROM %1$s',
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, n.nspname)
FROM pg_namespace n
CROSS JOIN LATERAL aclexplode(n.nspacl) a
WHERE n.nspname = $1 AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  AND (a.grantee = 0 OR NOT pg_has_role(a.grantee, 'USAGE'))
