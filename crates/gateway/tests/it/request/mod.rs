//! Requests to protected routes, from the key to the reply.

mod attempts;
mod classes;
mod cors;
mod derived_keys;
mod disconnects;
mod expiry;
mod hosts;
mod keys;
mod large_replies;
mod limits;
mod lost_answers;
mod outcomes;
mod policies;
mod problems;
mod purged_attempts;
mod recovery;
mod refusals;
mod replay;
mod replayed_headers;
mod routes;
mod trailers;
mod unknown;
mod waiting;
