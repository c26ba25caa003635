//! The statements, as they stand in `sql/`. Those that name `{ends}` or
//! `{table}` are filled in once per bucket, never on the way of a request.

pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";
pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";
pub(super) const CHECKPOINT: &str = "PRAGMA wal_checkpoint(PASSIVE)";
pub(super) const CHECKPOINT_ALL: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

pub(super) const SCHEMA: &str = include_str!("sql/schema.sql");
pub(super) const SEQUENCE_READ: &str = include_str!("sql/sequence_read.sql");

pub(super) const LATEST_READ: &str = include_str!("sql/latest_read.sql");
/// From layout 1 to layout 2.
pub(super) const UPGRADE_1: &str = include_str!("sql/upgrade_1.sql");
/// From layout 2 to layout 3.
pub(super) const UPGRADE_2: &str = include_str!("sql/upgrade_2.sql");

pub(super) const LOG_READ: &str = include_str!("sql/log_read.sql");
pub(super) const LOG_BEGIN: &str = include_str!("sql/log_begin.sql");
pub(super) const FILLED_RAISE: &str = include_str!("sql/filled_raise.sql");

pub(super) const OPEN_READ: &str = include_str!("sql/open_read.sql");
pub(super) const OPEN_INSERT: &str = include_str!("sql/open_insert.sql");
pub(super) const OPEN_DELETE: &str = include_str!("sql/open_delete.sql");

pub(super) const REQUEST_READ: &str = include_str!("sql/request_read.sql");
pub(super) const REQUEST_INSERT: &str = include_str!("sql/request_insert.sql");
pub(super) const REQUEST_DELETE: &str = include_str!("sql/request_delete.sql");

pub(super) const DOCUMENT_PUT: &str = include_str!("sql/document_put.sql");
pub(super) const DOCUMENT_READ: &str = include_str!("sql/document_read.sql");
pub(super) const DOCUMENT_REMOVE: &str = include_str!("sql/document_remove.sql");
pub(super) const DOCUMENT_RISING: &str = include_str!("sql/document_rising.sql");
pub(super) const DOCUMENT_FALLING: &str = include_str!("sql/document_falling.sql");

pub(super) const BUCKET_READ: &str = include_str!("sql/bucket_read.sql");
pub(super) const BUCKET_INSERT: &str = include_str!("sql/bucket_insert.sql");
pub(super) const BUCKET_COUNT: &str = include_str!("sql/bucket_count.sql");
pub(super) const BUCKET_DELETE: &str = include_str!("sql/bucket_delete.sql");

pub(super) const FINISHED: &str = include_str!("sql/finished.sql");
pub(super) const FINISHED_INSERT: &str = include_str!("sql/finished_insert.sql");
pub(super) const FINISHED_FIND: &str = include_str!("sql/finished_find.sql");
pub(super) const FINISHED_DELETE: &str = include_str!("sql/finished_delete.sql");
pub(super) const FINISHED_TAIL: &str = include_str!("sql/finished_tail.sql");
pub(super) const FINISHED_REQUEST: &str = include_str!("sql/finished_request.sql");

pub(super) const INDEX_INSERT: &str = include_str!("sql/index_insert.sql");
pub(super) const INDEX_FIND: &str = include_str!("sql/index_find.sql");
pub(super) const INDEX_READ: &str = include_str!("sql/index_read.sql");
pub(super) const INDEX_DELETE: &str = include_str!("sql/index_delete.sql");

pub(super) const REPLY: &str = include_str!("sql/reply.sql");
pub(super) const REPLY_INSERT: &str = include_str!("sql/reply_insert.sql");
pub(super) const REPLY_READ: &str = include_str!("sql/reply_read.sql");
pub(super) const REPLY_DELETE: &str = include_str!("sql/reply_delete.sql");
pub(super) const REPLY_REQUEST: &str = include_str!("sql/reply_request.sql");

pub(super) const LIST: &str = include_str!("sql/list.sql");
pub(super) const SWEEP_ROWS: &str = include_str!("sql/sweep_rows.sql");
pub(super) const DROP: &str = include_str!("sql/drop.sql");
