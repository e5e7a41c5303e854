//! The native side of Weir.
