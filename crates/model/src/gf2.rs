//! Linear functions over GF(2): which XOR masks of frame-number bits explain the colors.
