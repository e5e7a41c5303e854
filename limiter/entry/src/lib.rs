//! The module of `weir-edge/limit`. `src/limit.mjs` calls what the crate exports to JavaScript.

// A crate that is not named is not linked.
use weir_limiter as _;
