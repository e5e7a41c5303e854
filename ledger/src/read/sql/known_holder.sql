-- Whether $1 is a user, the user's subject, and whether it is a holder of any kind. Look-ups by key.
SELECT EXISTS (SELECT 1 FROM users WHERE id = $1) AS is_user,
       (SELECT subject FROM users WHERE id = $1) AS subject,
       EXISTS (SELECT 1 FROM holders WHERE holder = $1)
       OR EXISTS (SELECT 1 FROM weir_jobs WHERE holder = $1) AS is_holder
