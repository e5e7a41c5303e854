#!/bin/sh
# Runs the compiler for the workspace's own crates. Cargo names their files after this script's path, so clones that share
# a build folder share dependencies only. Without it, a clone could use crates that another clone built from other sources.
exec "$@"
