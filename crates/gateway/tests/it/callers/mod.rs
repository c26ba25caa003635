//! Callers: authentication, and isolation between them.

mod isolation;
mod schedules;
mod services;
