//! L2 switch and what plugs into it.
