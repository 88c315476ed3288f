//! Page colors.
