//! The webhook providers' own SDKs, for tests: what they sign, and whether they
//! accept what we signed.
//!
//! An SDK runs in a program of its language (`sdk/sign.py`, `sdk/sign.mjs`),
//! which is handed a line of JSON for each request. The program ends when its
//! input does, and the system closes that however the test ends; so it needs no
//! guard.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use data_encoding::BASE64;
use serde_json::{Map, Value, json};

/// The SDKs of one language.
#[derive(Debug)]
pub struct Signer {
    language: &'static str,
    program: Child,
    pipes: Mutex<Pipes>,
}

#[derive(Debug)]
struct Pipes {
    /// Gone when the program is to end.
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// A request that a provider is to send.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// As it is named in the path of a webhook; with a scheme that is not its
    /// usual one after a slash: `adyen/platform`, `shopify/events`, `twilio/sha256`.
    pub provider: &'a str,
    /// As the provider shows it to its customer.
    pub secret: &'a str,
    /// Where it is sent to, as the provider knows it.
    pub url: &'a str,
    /// What the provider sends besides; what it signs with comes on top, and
    /// where there is nothing, what each of its deliveries has.
    pub headers: &'a [(&'a str, &'a str)],
    /// What happened.
    pub body: &'a [u8],
    /// The id of the delivery, where a header tells it. A new one, if there is none.
    pub id: Option<&'a str>,
    /// When it was signed, in seconds since 1970. Now, if there is none.
    pub timestamp: Option<u64>,
}

/// A request as the provider sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// Some sign by it.
    pub url: String,
    /// All of them, those of the signature too.
    pub headers: Vec<(String, String)>,
    /// Some sign in it.
    pub body: Vec<u8>,
}

/// What an SDK says to a request that it receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was signed with the secret.
    Accepted,
    /// It is not, with the SDK's reason.
    Refused(String),
}

impl Signer {
    /// Python's: Adyen, Slack, Square, Standard Webhooks, Stripe, Svix, Twilio.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    pub fn python() -> Self {
        let mut command = Command::new(find("python/bin/python"));
        // By itself: no settings and no packages of the developer's own.
        command.args(["-I", "-c", include_str!("../sdk/sign.py")]);
        Self::start("Python", command)
    }

    /// Node.js': GitHub, Shopify, Standard Webhooks, Stripe, Svix, Twilio.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    pub fn node() -> Self {
        let node = find("node/node");
        let mut command = Command::new(&node);
        // A program that is no file imports from where it runs.
        command.current_dir(node.parent().expect("it was found in a directory"));
        command.args(["--input-type=module", "--eval"]);
        command.arg(include_str!("../sdk/sign.mjs"));
        command.env_remove("NODE_OPTIONS");
        Self::start("Node.js", command)
    }

    fn start(language: &'static str, mut command: Command) -> Self {
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A signal from the test's terminal is not for it: a test may handle
            // it and still ask.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{language} cannot be started: {error}"));
        let answers = program.stdout.take().expect("it was asked for");
        let pipes = Mutex::new(Pipes {
            asks: program.stdin.take(),
            answers: BufReader::new(answers),
        });
        Self {
            language,
            program,
            pipes,
        }
    }

    /// The request as the provider would send it.
    ///
    /// # Panics
    ///
    /// If the SDK of this provider is not here, or cannot sign this.
    pub fn sign(&self, ask: &Ask<'_>) -> Signed {
        let answer = self.ask(ask, false);
        let text = |name| answer[name].as_str().expect("an answer is whole");
        let headers = answer["headers"].as_object().expect("an answer is whole");
        let pair = |(name, value): (&String, &Value)| {
            let value = value.as_str().expect("a header is a text");
            (name.clone(), value.to_owned())
        };
        Signed {
            url: text("url").to_owned(),
            headers: headers.iter().map(pair).collect(),
            body: BASE64
                .decode(text("body_b64").as_bytes())
                .expect("an answer is whole"),
        }
    }

    /// What the SDK of a receiver says to a request, by its own clock.
    ///
    /// # Panics
    ///
    /// If the SDK of this provider is not here, or does not verify.
    pub fn verify(&self, ask: &Ask<'_>) -> Verdict {
        let answer = self.ask(ask, true);
        match (answer["ok"].as_bool(), answer["error"].as_str()) {
            (Some(true), None) => Verdict::Accepted,
            (Some(false), Some(reason)) => Verdict::Refused(reason.to_owned()),
            _ => panic!("{} answered {answer}", self.language),
        }
    }

    fn ask(&self, ask: &Ask<'_>, verify: bool) -> Value {
        let headers = ask.headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
        let line = json!({
            "provider": ask.provider,
            "secret": ask.secret,
            "url": ask.url,
            "headers": headers.collect::<Map<_, _>>(),
            "body_b64": BASE64.encode(ask.body),
            "id": ask.id,
            "timestamp": ask.timestamp,
            "verify": verify,
        });
        let answer = self.exchange(&line);
        let answer = serde_json::from_str::<Value>(&answer)
            .unwrap_or_else(|error| panic!("{} answered {answer:?}: {error}", self.language));
        match (verify, answer["error"].as_str()) {
            (false, Some(error)) => panic!("{} cannot: {error}", self.language),
            _ => answer,
        }
    }

    /// A line for a line. One at a time: answers come in the order of the asks.
    fn exchange(&self, line: &Value) -> String {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let asks = pipes.asks.as_mut().expect("it has not been dropped");
        let mut answer = String::new();
        writeln!(asks, "{line}")
            .and_then(|()| asks.flush())
            .and_then(|()| pipes.answers.read_line(&mut answer))
            .unwrap_or_else(|error| panic!("{} does not answer: {error}", self.language));
        // It has told why where the test tells its own.
        assert!(!answer.is_empty(), "{} has ended", self.language);
        answer
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        let pipes = self.pipes.get_mut();
        pipes.unwrap_or_else(PoisonError::into_inner).asks = None;
        // An error means that it has ended already.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// The path of a program in the folder of the SDKs, which is in the build
/// directory; and so is the test.
fn find(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a running program has a path");
    find_above(&test, name)
}

fn find_above(test: &Path, name: &str) -> PathBuf {
    test.ancestors()
        .map(|directory| directory.join("sdks").join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| {
            panic!("the providers' SDKs are not installed: `make tools` installs them")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the providers' SDKs are not installed: `make tools` installs them")]
    fn missing_sdks_are_a_failure_that_says_what_to_do() {
        let home = tempfile::tempdir().expect("a directory");
        find_above(&home.path().join("debug/deps/test"), "node/node");
    }

    #[test]
    fn it_ends_with_its_input() {
        for mut signer in [Signer::python(), Signer::node()] {
            let pipes = signer.pipes.get_mut().expect("no panic");
            pipes.asks = None;
            let ended = signer.program.wait().expect("only this waits");
            assert!(ended.success(), "{}: {ended}", signer.language);
        }
    }
}
