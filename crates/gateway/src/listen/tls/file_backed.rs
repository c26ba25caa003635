//! A value made from files, which is made again when the files change.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use super::{TlsError, TlsReload};

/// The value made from the last usable version of the files.
pub(super) struct FileBacked<T> {
    paths: Vec<PathBuf>,
    current: RwLock<Arc<T>>,
    /// The state of the files from which `current` was made.
    stamps: Mutex<Vec<TlsFileStamp>>,
    /// The error that [`FileBacked::check`] logged last, while it persists.
    logged_error: Mutex<Option<String>>,
}

/// A file's modification time and length, which change when it is replaced.
/// `None` if the file cannot be read.
type TlsFileStamp = Option<(SystemTime, u64)>;

impl<T> FileBacked<T> {
    pub(super) fn new(
        paths: [Option<PathBuf>; 3],
        read: impl FnOnce() -> Result<T, TlsError>,
    ) -> Result<Self, TlsError> {
        let paths: Vec<_> = paths.into_iter().flatten().collect();
        // Taken before the files are read, so that a change in between is
        // noticed at the next check.
        let stamps = stamps(&paths);
        Ok(Self {
            paths,
            current: RwLock::new(Arc::new(read()?)),
            stamps: Mutex::new(stamps),
            logged_error: Mutex::default(),
        })
    }

    pub(super) fn has_files(&self) -> bool {
        !self.paths.is_empty()
    }

    pub(super) fn current(&self) -> Arc<T> {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if they have changed since the last successful
    /// read. An error leaves the current value in place.
    pub(super) fn reload(
        &self,
        read: impl FnOnce() -> Result<T, TlsError>,
    ) -> Result<TlsReload, TlsError> {
        let mut seen = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.paths);
        if *seen == now {
            return Ok(TlsReload::Unchanged);
        }
        let read = Arc::new(read()?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        *seen = now;
        Ok(TlsReload::Changed)
    }

    /// Reloads and logs the result. For periodic calls: the same error is logged
    /// only once.
    pub(super) fn check(&self, read: impl FnOnce() -> Result<T, TlsError>) {
        let reloaded = self.reload(read);
        let error_text = reloaded.as_ref().err().map(ToString::to_string);
        let logged = self.logged_error.lock();
        let mut logged = logged.unwrap_or_else(PoisonError::into_inner);
        match reloaded {
            Ok(TlsReload::Unchanged) => {}
            Ok(TlsReload::Changed) => tracing::info!(files = ?self.paths, "certificate reloaded"),
            Err(_) if *logged == error_text => {}
            Err(error) => {
                tracing::error!(%error, "new certificate is unusable; the old one stays in use");
            }
        }
        *logged = error_text;
    }

    /// The error that was logged last, while it persists.
    #[cfg(test)]
    pub(super) fn logged_error(&self) -> Option<String> {
        self.logged_error.lock().expect("not poisoned").clone()
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<TlsFileStamp> {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    paths.iter().map(stamp).collect()
}
