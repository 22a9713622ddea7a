//! Layer `mem`.
