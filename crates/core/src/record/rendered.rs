//! A place for what a protocol made of a record, so that each replay need not make
//! it again.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// What a protocol made of a record, such as the head of its replays.
///
/// It belongs to one value: a clone begins without, because it may be changed. It
/// is no part of the record, so that all are equal.
#[derive(Default)]
pub struct Rendered(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Rendered {
    /// What was made before, or what is made now. A record is rendered by one
    /// protocol; another one renders for itself each time.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        if let Some(rendered) = self.0.get() {
            return match Arc::clone(rendered).downcast() {
                Ok(rendered) => rendered,
                Err(_) => Arc::new(make()),
            };
        }
        let made = Arc::new(make());
        // If another replay was faster, both are the same.
        let _ = self.0.set(made.clone());
        made
    }
}

impl Clone for Rendered {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Rendered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Rendered {}

impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rendered")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_made_once_and_not_for_clones() {
        let rendered = Rendered::default();
        assert_eq!(*rendered.get_or_make(|| 1), 1);
        assert_eq!(*rendered.get_or_make(|| 2), 1);
        assert_eq!(*rendered.get_or_make(|| "another"), "another");
        assert_eq!(*rendered.clone().get_or_make(|| 3), 3);
    }
}
