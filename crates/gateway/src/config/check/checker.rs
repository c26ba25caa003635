//! Checks of single values: durations, sizes, secrets, files, names, headers.

use std::fs::File;
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use onceward_core::fingerprint::Pointer;
use secrecy::SecretString;

use crate::config::SecretValue;
use crate::config::mistake::Mistake;
use crate::config::raw;
use crate::config::source::Locations;
use crate::config::units::{Size, TIME_MAX, Time, UnitError};
use crate::config::url::UrlError;

/// Any duration of at least a millisecond.
pub(super) const SOME_TIME: RangeInclusive<Duration> = Duration::from_millis(1)..=TIME_MAX;
/// The largest secret.
const SECRET_BYTES_MAX: u64 = 64 << 10;
/// The largest configurable body or reply.
const SIZE_MAX: usize = 1 << 40;
/// The longest name of a class, an upstream or an operator.
const NAME_LENGTH_MAX: usize = 64;

/// Checks values and collects mistakes.
pub(in crate::config) struct Checker<'a> {
    pub(in crate::config) locations: &'a Locations,
    directory: &'a Path,
    pub(in crate::config) mistakes: Vec<Mistake>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(locations: &'a Locations, directory: &'a Path) -> Self {
        Self {
            locations,
            directory,
            mistakes: Vec::new(),
        }
    }

    /// Reports a mistake.
    pub(in crate::config) fn report(
        &mut self,
        key: &str,
        problem: impl Into<String>,
        right: impl Into<String>,
    ) {
        self.mistakes.push(Mistake {
            location: self.locations.of(key),
            key: key.to_owned(),
            problem: problem.into(),
            right: right.into(),
        });
    }

    /// A string as it may be shown: variables are not expanded.
    pub(in crate::config) fn shown(&self, key: &str, text: &str) -> String {
        format!("{:?}", self.locations.written(key, text))
    }

    /// Checks a duration against a range; returns the default if it is absent or wrong.
    pub(super) fn check_time(
        &mut self,
        key: &str,
        raw: Option<&Time>,
        default: Duration,
        range: &RangeInclusive<Duration>,
    ) -> Duration {
        let Some(raw) = raw else { return default };
        let shown = self.shown(key, &raw.0);
        match raw.parse() {
            Ok(time) if range.contains(&time) => time,
            Ok(_) => {
                let least = Time::of(*range.start()).0;
                let right = match *range.end() == TIME_MAX {
                    true => format!("write {least} or longer"),
                    false => format!("write {least} to {}", Time::of(*range.end()).0),
                };
                self.report(key, format!("{shown} is out of range"), right);
                default
            }
            Err(error) => {
                let right = match error {
                    UnitError::TooLarge => "write ten years or less",
                    _ => "write a duration such as \"30s\", \"1h30m\" or \"7d\"",
                };
                self.report(key, format!("{shown} {error}"), right);
                default
            }
        }
    }

    /// Checks a size; returns the default if it is absent or wrong.
    pub(super) fn check_size(&mut self, key: &str, raw: Option<&Size>, default: usize) -> usize {
        let Some(raw) = raw else { return default };
        let shown = self.shown(key, &raw.0);
        let right = "write a size such as \"64KiB\" or \"1MiB\"";
        match raw.parse() {
            Ok(0) => {
                self.report(key, format!("{shown} is zero"), right);
                default
            }
            Ok(size) if size <= SIZE_MAX => size,
            Ok(_) => {
                let problem = format!("{shown} {}", UnitError::TooLarge);
                self.report(key, problem, "write 1024GiB or less");
                default
            }
            Err(error) => {
                self.report(key, format!("{shown} {error}"), right);
                default
            }
        }
    }

    /// Checks that a string is not empty.
    pub(super) fn check_text(&mut self, key: &str, raw: Option<&String>) -> Option<String> {
        let text = raw?;
        if text.trim().is_empty() {
            self.report(key, "is empty", "write a string, or remove the key");
            return None;
        }
        Some(text.clone())
    }

    /// Checks the name of a class, an upstream or an operator.
    pub(super) fn check_name(&mut self, key: &str, name: &str) {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > NAME_LENGTH_MAX || !name.chars().all(letter) {
            self.report(
                key,
                "is not a valid name",
                "write 1 to 64 of the characters A-Z a-z 0-9 . _ -",
            );
        }
    }

    /// Reads a secret of at least `length_min` characters, or its location in OpenBao.
    pub(super) fn check_secret(
        &mut self,
        key: &str,
        raw: &raw::Secret,
        length_min: usize,
    ) -> Option<SecretValue> {
        let text = match raw {
            raw::Secret::Given(text) => text.clone(),
            raw::Secret::File(file) => {
                let key = format!("{key}.file");
                let path = self.check_text(&key, file.file.as_ref())?;
                self.read_file(&key, &path)?
            }
            raw::Secret::OpenBao(location) => {
                let path = self.check_text(&format!("{key}.openbao"), location.openbao.as_ref());
                let field = self.check_text(&format!("{key}.field"), location.field.as_ref());
                return Some(SecretValue::OpenBao {
                    path: path?,
                    field: field?,
                });
            }
        };
        let length = text.chars().count();
        if text.trim().is_empty() {
            self.report(key, "the secret is empty", "write one, or remove the key");
            return None;
        }
        if length < length_min {
            let problem = format!("the secret has {length} characters");
            self.report(
                key,
                problem,
                format!("use {length_min} or more random characters"),
            );
            return None;
        }
        Some(SecretValue::Given(SecretString::from(text)))
    }

    /// Reads a secret that must not be in OpenBao.
    pub(super) fn check_local_secret(
        &mut self,
        key: &str,
        raw: &raw::Secret,
        length_min: usize,
    ) -> Option<SecretString> {
        match self.check_secret(key, raw, length_min)? {
            SecretValue::Given(secret) => Some(secret),
            SecretValue::OpenBao { .. } => {
                self.report(
                    key,
                    "must not be in OpenBao, because it is needed before OpenBao can be reached",
                    "write \"${NAME}\", or { file = \"…\" }",
                );
                None
            }
        }
    }

    /// Reads a file, without the line break at its end.
    fn read_file(&mut self, key: &str, path: &str) -> Option<String> {
        let file = self.resolve_path(path);
        let mut text = String::new();
        let read = File::open(&file)
            .and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text));
        let problem = match read {
            Ok(bytes) if bytes as u64 <= SECRET_BYTES_MAX => {
                return Some(text.trim_end_matches(['\r', '\n']).to_owned());
            }
            Ok(_) => format!("{} is larger than 64KiB", file.display()),
            Err(error) => format!("{} cannot be read: {error}", file.display()),
        };
        self.report(key, problem, RIGHT_FILE);
        None
    }

    /// Checks that a file is readable.
    pub(super) fn check_file(&mut self, key: &str, raw: Option<&String>) -> Option<PathBuf> {
        let path = self.check_text(key, raw)?;
        let file = self.resolve_path(&path);
        let readable = File::open(&file).and_then(|file| file.metadata());
        match readable {
            Ok(about) if about.is_dir() => {
                let problem = format!("{} is a directory", file.display());
                self.report(key, problem, RIGHT_FILE);
                None
            }
            Ok(_) => Some(file),
            Err(error) => {
                let problem = format!("{} cannot be read: {error}", file.display());
                self.report(key, problem, RIGHT_FILE);
                None
            }
        }
    }

    /// Resolves a path relative to the configuration's directory.
    fn resolve_path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    /// Reports the mistake in a URL.
    pub(super) fn check_url<T>(&mut self, key: &str, judged: Result<T, UrlError>) -> Option<T> {
        judged
            .map_err(|error| self.report(key, error.to_string(), error.right()))
            .ok()
    }

    /// Checks a JSON Pointer.
    pub(super) fn check_pointer(&mut self, key: &str, text: &str) -> Option<String> {
        if Pointer::parse(text).is_err() {
            let problem = format!("{} is not a JSON Pointer", self.shown(key, text));
            let right = "begin with /, such as \"/order/id\"; ~1 stands for / and ~0 for ~";
            self.report(key, problem, right);
            return None;
        }
        Some(text.to_owned())
    }

    /// Checks a header's name.
    pub(super) fn check_header(&mut self, key: &str, text: &str) -> Option<HeaderName> {
        match text.parse() {
            Ok(name) => Some(name),
            Err(_) => {
                let problem = format!("{} is not the name of a header", self.shown(key, text));
                self.report(key, problem, "write a name such as \"X-Request-Id\"");
                None
            }
        }
    }

    /// Checks a header's value.
    pub(super) fn check_value(&mut self, key: &str, text: &str) -> Option<HeaderValue> {
        match HeaderValue::from_str(text) {
            Ok(value) => Some(value),
            Err(_) => {
                let problem = "contains characters that are not allowed in a header value";
                self.report(key, problem, "use visible characters and spaces only");
                None
            }
        }
    }
}

const RIGHT_FILE: &str =
    "name a file that the gateway can read; paths are relative to the configuration's directory";
