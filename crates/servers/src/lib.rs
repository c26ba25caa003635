//! Real servers for tests.
