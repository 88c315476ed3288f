//! Plans as pictures.
