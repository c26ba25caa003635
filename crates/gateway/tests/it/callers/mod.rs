//! Callers: who they are, and that none sees the replies of another.

mod isolation;
mod schedules;
mod services;
