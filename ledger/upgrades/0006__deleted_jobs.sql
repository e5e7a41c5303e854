-- The audit tells jobs that were deleted, and released, from lost ones.
ALTER TABLE submissions ADD COLUMN deleted_at timestamptz;
COMMENT ON COLUMN submissions.deleted_at IS
    'When Weir found that the unfinished job was deleted.';
