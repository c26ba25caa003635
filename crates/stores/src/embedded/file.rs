//! The SQLite file: how it is opened, what it must be, and how it is tuned.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::Error;
use super::log::LogError;
use super::sql;
use crate::OpenError;

/// Marks the file as ours: "Once".
const APPLICATION_ID: i32 = 0x4f6e_6365;
/// The layout of the tables that this program writes and reads. Earlier ones are
/// upgraded when they are opened.
const LAYOUT: i32 = 3;

/// Statements that a connection keeps prepared: those of all buckets in use.
const STATEMENTS_MAX: usize = 256;
/// From this length on, SQLite's log is moved into the file; it is then cut to this
/// length.
pub(super) const WAL_BYTES: u64 = 32 << 20;
/// Only an operator with the `sqlite3` tool may lock the file for a moment.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// The connection that writes. Creates the file if it is missing.
///
/// The layout is durable when this returns, before anything is appended to the log of
/// the store: an older program, which does not know the log, refuses the file.
pub(super) fn open_writer(
    path: &Path,
    vfs: Option<&str>,
    pages_max: Option<u32>,
) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> rusqlite::Result<Connection> {
        let db = connect(path, flags, vfs)?;
        db.busy_timeout(BUSY_MAX)?;
        db.pragma_update(None, "page_size", 4096)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "FULL")?;
        // SQLite would ignore a sync that fails in a checkpoint of its own.
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update(None, "journal_size_limit", WAL_BYTES.cast_signed())?;
        db.pragma_update(None, "cache_size", -16 * 1024)?;
        db.pragma_update(None, "temp_store", "MEMORY")?;
        if let Some(pages) = pages_max {
            db.pragma_update(None, "max_page_count", pages)?;
        }
        db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok(db)
    };
    let db = open().map_err(|source| refuse(path, source))?;
    check_layout(&db, path)?;
    Ok(db)
}

/// From now on a commit is not synced: the commit log has everything until a checkpoint
/// has synced it into the file.
pub(super) fn rely_on_log(db: &Connection) -> rusqlite::Result<()> {
    db.pragma_update(None, "synchronous", "NORMAL")
}

/// Moves SQLite's log into the file and syncs it, as far as no reader still needs it.
/// Whether all of it was moved.
pub(super) fn checkpoint(db: &Connection) -> rusqlite::Result<bool> {
    let mut statement = db.prepare_cached(sql::CHECKPOINT)?;
    statement.query_row([], |row| {
        let (is_busy, pages, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(is_busy == 0 && pages == moved)
    })
}

fn connect(path: &Path, flags: OpenFlags, vfs: Option<&str>) -> rusqlite::Result<Connection> {
    match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
        None => Connection::open_with_flags(path, flags),
    }
}

/// A connection that only reads.
pub(super) fn open_reader(path: &Path, vfs: Option<&str>) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> rusqlite::Result<Connection> {
        let db = connect(path, flags, vfs)?;
        db.busy_timeout(BUSY_MAX)?;
        db.pragma_update(None, "cache_size", -4 * 1024)?;
        db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok(db)
    };
    open().map_err(|source| refuse(path, source))
}

/// Writes the layout of a new file, or upgrades an earlier one; refuses a file of
/// another program or of a newer version.
fn check_layout(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let read = |name| db.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let tables = || db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0));
    let refuse = |source| refuse(path, source);
    let application = read("application_id").map_err(refuse)?;
    let layout = read("user_version").map_err(refuse)?;
    let tables: i64 = tables().map_err(refuse)?;
    match (application, layout, tables) {
        (0, 0, 0) => write_layout(db, &[sql::SCHEMA]).map_err(refuse),
        (APPLICATION_ID, LAYOUT, 1..) => Ok(()),
        (APPLICATION_ID, 2, 1..) => write_layout(db, &[sql::UPGRADE_2]).map_err(refuse),
        (APPLICATION_ID, 1, 1..) => {
            write_layout(db, &[sql::UPGRADE_1, sql::UPGRADE_2]).map_err(refuse)
        }
        (APPLICATION_ID, layout, _) if layout > LAYOUT => Err(OpenError::Newer {
            path: path.into(),
            layout,
        }),
        _ => Err(OpenError::Foreign { path: path.into() }),
    }
}

/// How long SQLite's log is, which is a file of its own.
pub(super) fn wal_bytes(db: &Connection) -> u64 {
    let wal = db.path().map(|path| format!("{path}-wal"));
    let wal = wal.and_then(|wal| std::fs::metadata(wal).ok());
    wal.map_or(0, |wal| wal.len())
}

fn write_layout(db: &Connection, tables: &[&str]) -> rusqlite::Result<()> {
    let transaction = db.unchecked_transaction()?;
    for tables in tables {
        transaction.execute_batch(tables)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", LAYOUT)?;
    transaction.commit()
}

/// An error of SQLite at the start, with the path and what to do.
pub(super) fn refuse(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.into();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => OpenError::Damaged {
            path,
            source: source.into(),
        },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            OpenError::NotWritable {
                path,
                source: source.into(),
            }
        }
        _ => OpenError::Database {
            path,
            source: source.into(),
        },
    }
}

/// The same for any error while the store is read at the start.
pub(super) fn refuse_for(path: &Path, error: Error) -> OpenError {
    match error {
        Error::Sqlite(source) | Error::Unreadable(source) => refuse(path, source),
        Error::Log(error) => refuse_log(path, error),
        error => OpenError::Database {
            path: path.into(),
            source: error.into(),
        },
    }
}

/// The same for the commit log.
pub(super) fn refuse_log(path: &Path, error: LogError) -> OpenError {
    let path = path.into();
    match error {
        LogError::Missing
        | LogError::Header { .. }
        | LogError::Lost { .. }
        | LogError::Entry
        | LogError::Record(_) => OpenError::Damaged {
            path,
            source: error.into(),
        },
        LogError::Newer { path, version } => OpenError::Newer {
            path,
            layout: version.cast_signed(),
        },
        LogError::File { path, source } => OpenError::Directory { path, source },
        LogError::Full(_) | LogError::Unsynced(_) => OpenError::Database {
            path,
            source: error.into(),
        },
    }
}
