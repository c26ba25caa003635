//! The kind of store that a URL names, and the settings that belong to it.
//!
//! Messages about a store never contain its URL, because it may contain a password.

use onceward_core::namespace::Namespace;
use onceward_stores::postgres::{Address, AddressError, Table};
use onceward_stores::{Durability, Settings};

use super::check::Checker;
use super::raw;

/// The largest number of replicas to wait for.
const REPLICAS_MAX: u32 = 100;

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In memory, for the life of one process.
    Memory,
    /// In a directory of one process.
    Embedded,
    /// In a PostgreSQL database that several processes share.
    Postgres,
    /// In a Redis or a Redis Cluster that several processes share.
    Redis,
}

impl StoreKind {
    /// The kind that a URL names, or why it names none.
    pub fn of(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let kind = match (scheme, rest) {
            ("memory", "") => return Ok(Self::Memory),
            ("memory", _) => return Err("has something behind memory:"),
            ("embedded", "") => return Err("names no directory"),
            ("embedded", _) => return Ok(Self::Embedded),
            ("postgres" | "postgresql", _) => Self::Postgres,
            ("redis" | "rediss", _) => Self::Redis,
            _ => return Err("names no store"),
        };
        match rest.strip_prefix("//") {
            Some(place) if !place.is_empty() => Ok(kind),
            _ => Err("names no server"),
        }
    }

    /// Whether other processes use the store too, so that they need one secret
    /// and see each other's API keys and classes.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Postgres | Self::Redis)
    }

    fn scheme(self) -> &'static str {
        match self {
            Self::Memory => "memory:",
            Self::Embedded => "embedded:",
            Self::Postgres => "postgres://",
            Self::Redis => "redis://",
        }
    }
}

/// Checks the settings of a store; those of another kind of store are mistakes.
pub(super) fn check_store(raw: &raw::Store, checker: &mut Checker<'_>) -> Settings {
    let mut settings = Settings::at("embedded:./onceward-data");
    if let Some(url) = &raw.url {
        settings.url.clone_from(url);
    }
    let kind = match StoreKind::of(&settings.url) {
        Ok(kind) => kind,
        Err(problem) => {
            let right = "write \"embedded:./onceward-data\", \"postgres://…\", \"redis://…\", or \"memory:\" which loses everything at the end";
            checker.report("store.url", problem, right);
            // Without a kind the other settings cannot be checked.
            return Settings::at("memory:");
        }
    };
    if kind == StoreKind::Postgres {
        check_address("store.url", &settings.url, checker);
    }
    report_foreign_settings(raw, kind, checker);
    if let Some(name) = &raw.namespace {
        match Namespace::new(name) {
            Ok(namespace) => settings.namespace = namespace,
            Err(error) => {
                let right = "write 1 to 64 of a-z, 0-9, - and _";
                checker.report("store.namespace", error.to_string(), right);
            }
        }
    }
    if let Some(table) = &raw.table {
        if Table::parse(table).is_err() {
            let shown = checker.shown("store.table", table);
            let right = "write \"idempotency_record\" or \"schema.idempotency_record\", of lower-case letters, digits and _, 40 at most";
            checker.report("store.table", format!("{shown} is not a table name"), right);
        }
        settings.table.clone_from(table);
    }
    if let Some(url) = &raw.listen_url {
        match StoreKind::of(url) {
            Ok(StoreKind::Postgres) => check_address("store.listen_url", url, checker),
            _ => checker.report(
                "store.listen_url",
                "is not a PostgreSQL server",
                "write the server's own URL, past the pooler: \"postgres://…\"",
            ),
        }
        settings.listen_url = Some(url.clone());
    }
    if let Some(connections) = raw.connections {
        // The schema has checked the range.
        settings.connections = usize::try_from(connections).unwrap_or(usize::MAX);
    }
    if let Some(text) = &raw.durability {
        match parse_durability(text) {
            Some(durability) => settings.durability = durability,
            None => {
                let shown = checker.shown("store.durability", text);
                let right = "write \"none\", or \"wait:1\" for one replica";
                checker.report("store.durability", format!("{shown} is not known"), right);
            }
        }
    }
    settings
}

fn check_address(key: &str, url: &str, checker: &mut Checker<'_>) {
    match Address::parse(url) {
        Ok(_) => {}
        Err(AddressError::Url(error)) => {
            let right = "write postgres://USER:PASSWORD@HOST:5432/DATABASE, for example";
            checker.report(key, format!("cannot be read: {error}"), right);
        }
        Err(error) => checker.report(key, error.to_string(), "correct it, or remove it"),
    }
}

/// Reports settings of another kind of store.
fn report_foreign_settings(raw: &raw::Store, kind: StoreKind, checker: &mut Checker<'_>) {
    use StoreKind::{Postgres, Redis};
    let said: [(&str, bool, &[StoreKind]); 5] = [
        ("namespace", raw.namespace.is_some(), &[Postgres, Redis]),
        ("table", raw.table.is_some(), &[Postgres]),
        ("listen_url", raw.listen_url.is_some(), &[Postgres]),
        ("connections", raw.connections.is_some(), &[Postgres, Redis]),
        ("durability", raw.durability.is_some(), &[Redis]),
    ];
    for (name, said, of) in said {
        if said && !of.contains(&kind) {
            let of: Vec<_> = of.iter().map(|kind| kind.scheme()).collect();
            let problem = format!(
                "is a setting of {}, but the store is {}",
                of.join(" and "),
                kind.scheme()
            );
            checker.report(&format!("store.{name}"), problem, "remove it");
        }
    }
}

fn parse_durability(text: &str) -> Option<Durability> {
    if text == "none" {
        return Some(Durability::Primary);
    }
    let digits = text.strip_prefix("wait:")?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let replicas = digits.parse().ok()?;
    (1..=REPLICAS_MAX)
        .contains(&replicas)
        .then_some(Durability::Replicas(replicas))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("memory:", Ok(StoreKind::Memory))]
    #[case("memory:all", Err("has something behind memory:"))]
    #[case("embedded:./data", Ok(StoreKind::Embedded))]
    #[case("embedded:", Err("names no directory"))]
    #[case("postgres://db/shop", Ok(StoreKind::Postgres))]
    #[case("postgresql:///shop?host=/run/postgresql", Ok(StoreKind::Postgres))]
    #[case("postgres:", Err("names no server"))]
    #[case("postgres://", Err("names no server"))]
    #[case("redis://127.0.0.1:6379", Ok(StoreKind::Redis))]
    #[case("rediss://cache", Ok(StoreKind::Redis))]
    #[case("redis:cache", Err("names no server"))]
    #[case("mysql://db", Err("names no store"))]
    #[case("", Err("names no store"))]
    fn kinds(#[case] url: &str, #[case] want: Result<StoreKind, &str>) {
        assert_eq!(StoreKind::of(url), want);
    }

    #[rstest]
    #[case("none", Some(Durability::Primary))]
    #[case("wait:1", Some(Durability::Replicas(1)))]
    #[case("wait:100", Some(Durability::Replicas(100)))]
    #[case("wait:0", None)]
    #[case("wait:101", None)]
    #[case("wait:+1", None)]
    #[case("wait:", None)]
    #[case("wait", None)]
    #[case("fsync", None)]
    fn durabilities(#[case] text: &str, #[case] want: Option<Durability>) {
        assert_eq!(parse_durability(text), want);
    }
}
