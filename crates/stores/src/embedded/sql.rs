//! The statements, as they stand in `sql/`. Those that name `{ends}` or
//! `{table}` are filled in once per bucket, never on the way of a request.

pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";
pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";
pub(super) const CHECKPOINT: &str = "PRAGMA wal_checkpoint(PASSIVE)";
pub(super) const CHECKPOINT_ALL: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

pub(super) const SCHEMA: &str = include_str!("sql/schema.sql");
pub(super) const SEQUENCE_READ: &str = include_str!("sql/sequence_read.sql");
pub(super) const SEQUENCE_RAISE: &str = include_str!("sql/sequence_raise.sql");

pub(super) const LATEST_READ: &str = include_str!("sql/latest_read.sql");
pub(super) const LATEST_RAISE: &str = include_str!("sql/latest_raise.sql");
/// From the layout before this one.
pub(super) const UPGRADE: &str = include_str!("sql/upgrade.sql");

pub(super) const OPEN_READ: &str = include_str!("sql/open_read.sql");
pub(super) const OPEN_INSERT: &str = include_str!("sql/open_insert.sql");
pub(super) const OPEN_UPDATE: &str = include_str!("sql/open_update.sql");
pub(super) const OPEN_DELETE: &str = include_str!("sql/open_delete.sql");

pub(super) const REQUEST_READ: &str = include_str!("sql/request_read.sql");
pub(super) const REQUEST_INSERT: &str = include_str!("sql/request_insert.sql");
pub(super) const REQUEST_DELETE: &str = include_str!("sql/request_delete.sql");

pub(super) const DOCUMENT_PUT: &str = include_str!("sql/document_put.sql");
pub(super) const DOCUMENT_ADD: &str = include_str!("sql/document_add.sql");
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
pub(super) const FINISHED_RESTORE_REQUEST: &str = include_str!("sql/finished_restore_request.sql");

pub(super) const INDEX_INSERT: &str = include_str!("sql/index_insert.sql");
pub(super) const INDEX_FIND: &str = include_str!("sql/index_find.sql");
pub(super) const INDEX_READ: &str = include_str!("sql/index_read.sql");

pub(super) const REPLY: &str = include_str!("sql/reply.sql");
pub(super) const REPLY_INSERT: &str = include_str!("sql/reply_insert.sql");
pub(super) const REPLY_READ: &str = include_str!("sql/reply_read.sql");
pub(super) const REPLY_DELETE: &str = include_str!("sql/reply_delete.sql");
pub(super) const REPLY_RESTORE_REQUEST: &str = include_str!("sql/reply_restore_request.sql");

pub(super) const LIST: &str = include_str!("sql/list.sql");
pub(super) const SWEEP_ROWS: &str = include_str!("sql/sweep_rows.sql");
pub(super) const DROP: &str = include_str!("sql/drop.sql");
