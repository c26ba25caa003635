//! The options that give a webhook its secrets.
//!
//! An argument is visible in the list of processes and in the shell's history, so secrets can also
//! be read from standard input or from a file.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::output;

/// The maximum size of a file or of input with secrets.
const SECRETS_BYTES_MAX: u64 = 64 << 10;

/// At most one of these. Without any, the secrets are read from OpenBao if it is configured;
/// otherwise the webhook has none yet.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(super) struct SecretArgs {
    /// Secret that the provider shows; repeatable. Arguments are visible to others on this machine: - reads the secrets from standard input, one per line.
    #[arg(long = "secret", value_name = "SECRET")]
    given: Vec<String>,
    /// File with the secrets, one per line.
    #[arg(long = "secret-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Generate a secret and print it to standard error, for a provider that lets you set one. It cannot be shown again.
    #[arg(long)]
    pub(super) generate: bool,
}

impl SecretArgs {
    /// The secrets; `None` where no option gives any.
    pub(super) fn read(&self) -> anyhow::Result<Option<Vec<String>>> {
        if let Some(path) = &self.file {
            return read_file(path).map(Some);
        }
        match self.given.as_slice() {
            [] => Ok(None),
            [one] if one == "-" => {
                if std::io::stdin().is_terminal() {
                    output::note("Type the secrets, one per line, and end with Ctrl-D:\n");
                }
                read_lines(std::io::stdin().lock(), "standard input").map(Some)
            }
            given if given.iter().any(|one| one == "-") => {
                bail!("--secret - reads all secrets from standard input; give no other --secret")
            }
            given => Ok(Some(given.to_vec())),
        }
    }
}

fn read_file(path: &Path) -> anyhow::Result<Vec<String>> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    read_lines(file, &name)
}

/// One secret per line; blank lines are skipped.
fn read_lines(from: impl Read, name: &str) -> anyhow::Result<Vec<String>> {
    let mut text = String::new();
    let read = from.take(SECRETS_BYTES_MAX + 1).read_to_string(&mut text);
    let bytes = read.with_context(|| format!("cannot read {name} as text"))?;
    if bytes as u64 > SECRETS_BYTES_MAX {
        bail!("{name} is larger than 64KiB");
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let secrets: Vec<_> = lines.map(ToOwned::to_owned).collect();
    match secrets.is_empty() {
        true => bail!("no secret in {name}"),
        false => Ok(secrets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_secret() {
        let read =
            |text: &str| read_lines(text.as_bytes(), "here").map_err(|error| error.to_string());
        assert_eq!(read("a\n"), Ok(vec!["a".to_owned()]));
        assert_eq!(
            read("a\r\n\n b\n"),
            Ok(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(read(" \n"), Err("no secret in here".to_owned()));
        let long = "x".repeat(65_537);
        assert_eq!(read(&long), Err("here is larger than 64KiB".to_owned()));
    }
}
