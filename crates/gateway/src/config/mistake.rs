//! Mistakes and warnings about a configuration.
//!
//! Both name the location, the key, the problem and what would be right or better.
//! Neither ever contains a secret.

use std::fmt;
use std::path::{Path, PathBuf};

/// A mistake prevents the gateway from starting, and a new configuration from
/// taking effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}{}{problem}; {right}", of(.key))]
pub struct Mistake {
    /// Where the value is.
    pub location: Location,
    /// The key: `routes[2].class`. Empty for a mistake about the whole file.
    pub key: String,
    /// The problem.
    pub problem: String,
    /// The correction.
    pub right: String,
}

impl Mistake {
    /// A mistake in a value that came from no file.
    pub fn given(key: &str, problem: String, right: String) -> Self {
        Self {
            location: Location::Given,
            key: key.to_owned(),
            problem,
            right,
        }
    }
}

/// A warning is about a setting that works but is probably not intended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where the value is.
    pub location: Location,
    /// The key.
    pub key: String,
    /// The setting that is probably not intended.
    pub problem: String,
    /// The better setting.
    pub better: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            location,
            key,
            problem,
            better,
        } = self;
        write!(f, "{location}{}{problem}; {better}", of(key))
    }
}

/// The location of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In a file; lines and columns begin with 1, columns count characters.
    Line {
        /// Which file.
        file: PathBuf,
        /// Which line.
        line: usize,
        /// Which character of it.
        column: usize,
    },
    /// In a file as a whole, for example one that does not exist.
    File(PathBuf),
    /// In a variable of the environment.
    Variable(String),
    /// In a request, or nowhere.
    Given,
}

impl Location {
    /// The file, if the value is in one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Line { file, .. } | Self::File(file) => Some(file),
            Self::Variable(_) | Self::Given => None,
        }
    }

    /// Line and column, if they are known.
    pub fn line_and_column(&self) -> Option<(usize, usize)> {
        match self {
            Self::Line { line, column, .. } => Some((*line, *column)),
            Self::File(_) | Self::Variable(_) | Self::Given => None,
        }
    }

    /// The variable, if the value is in one.
    pub fn variable(&self) -> Option<&str> {
        match self {
            Self::Variable(name) => Some(name),
            Self::Line { .. } | Self::File(_) | Self::Given => None,
        }
    }
}

/// The text before the key: empty, or the location and a colon.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line, column } => {
                write!(f, "{}:{line}:{column}: ", file.display())
            }
            Self::File(file) => write!(f, "{}: ", file.display()),
            Self::Variable(name) => write!(f, "{name}: "),
            Self::Given => Ok(()),
        }
    }
}

fn of(key: &str) -> String {
    match key {
        "" => String::new(),
        key => format!("{key}: "),
    }
}
