//! The edge Worker of Weir.
