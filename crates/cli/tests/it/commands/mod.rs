//! The commands of the program, run as an operator or a script runs them.

mod closed_output;
mod configuration;
mod demo;
mod keys;
mod migrate;
mod operations;
mod usage;

use std::path::Path;

use crate::fixture::origin::Origin;

/// Part of every secret in these tests, so that a leak is found.
const CANARY: &str = "canary7e41";

/// Writes a configuration with three admin tokens, API keys and one route.
fn configured(origin: &Origin, directory: &Path) -> std::path::PathBuf {
    let file = directory.join("onceward.toml");
    let text = format!(
        r#"
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"
admin_tokens = [
    {{ name = "viewer", role = "read", token = "{CANARY}-viewer-0123456789abcdef" }},
    {{ name = "ops", role = "operate", token = "{CANARY}-ops-0123456789abcdef" }},
    {{ name = "root", role = "admin", token = "{CANARY}-root-0123456789abcdef" }},
]

[store]
url = "embedded:{}"

[auth.api_keys]

[upstreams.payments]
url = "http://{}"

[[routes]]
endpoint = "payments.create"
method = "POST"
path = "/payments"
upstream = "payments"
policy = "REQUIRED_A"
class = "financial"
"#,
        directory.join("data").display(),
        origin.address(),
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// The token with this name in [`configured`].
fn token(name: &str) -> String {
    format!("{CANARY}-{name}-0123456789abcdef")
}
