//! The webhook providers' own SDKs, for tests: they sign requests, and verify the
//! gateway's signatures.
//!
//! An SDK runs in a program in its language (`sdk/sign.py`, `sdk/sign.mjs`), which
//! reads one line of JSON per request. The program ends with its input, which the
//! system closes however the test ends; so it needs no guard.

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
    /// `None` when the program is to end.
    input: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// A request to be signed or verified.
#[derive(Debug, Clone, Copy)]
pub struct ProviderRequest<'a> {
    /// The provider's name in the path of a webhook; followed by a slash and the
    /// scheme if that is not the default: `adyen/platform`, `shopify/events`,
    /// `twilio/sha256`.
    pub provider: &'a str,
    /// The secret, as the provider shows it to its customer.
    pub secret: &'a str,
    /// The URL of the webhook, as the provider has it.
    pub url: &'a str,
    /// Further headers of the provider. Those of the signature are added; if this
    /// is empty, so are those of every delivery.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
    /// The id of the delivery, if a header has it. Default: a new one.
    pub id: Option<&'a str>,
    /// The time of the signature, in seconds since 1970. Default: now.
    pub timestamp: Option<u64>,
}

/// A request as the provider sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The URL; some providers put the signature there.
    pub url: String,
    /// All headers, those of the signature included.
    pub headers: Vec<(String, String)>,
    /// The body; some providers put the signature there.
    pub body: Vec<u8>,
}

/// An SDK's result for a received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verification {
    /// The signature is valid.
    Accepted,
    /// The signature is not valid; with the SDK's reason.
    Refused(String),
}

impl Signer {
    /// The SDKs for Python: Adyen, Slack, Square, Standard Webhooks, Stripe, Svix,
    /// Twilio.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    pub fn python() -> Self {
        let mut command = Command::new(find("python/bin/python"));
        // Isolated: without the developer's own settings and packages.
        command.args(["-I", "-c", include_str!("../sdk/sign.py")]);
        Self::start("Python", command)
    }

    /// The SDKs for Node.js: GitHub, Shopify, Standard Webhooks, Stripe, Svix,
    /// Twilio.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    pub fn node() -> Self {
        let node = find("node/node");
        let mut command = Command::new(&node);
        // A program that is not a file imports from its working directory.
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
            // A signal from the test's terminal must not end it: a test may handle
            // the signal and continue.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{language} cannot be started: {error}"));
        let answers = program.stdout.take().expect("it was asked for");
        let pipes = Mutex::new(Pipes {
            input: program.stdin.take(),
            answers: BufReader::new(answers),
        });
        Self {
            language,
            program,
            pipes,
        }
    }

    /// Signs a request as the provider would send it.
    ///
    /// # Panics
    ///
    /// If there is no SDK of this provider, or it cannot sign this request.
    pub fn sign(&self, request: &ProviderRequest<'_>) -> Signed {
        let answer = self.call(request, false);
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

    /// Verifies a request with the receiver's SDK and its own clock.
    ///
    /// # Panics
    ///
    /// If there is no SDK of this provider, or it does not verify.
    pub fn verify(&self, request: &ProviderRequest<'_>) -> Verification {
        let answer = self.call(request, true);
        match (answer["ok"].as_bool(), answer["error"].as_str()) {
            (Some(true), None) => Verification::Accepted,
            (Some(false), Some(reason)) => Verification::Refused(reason.to_owned()),
            _ => panic!("{} answered {answer}", self.language),
        }
    }

    fn call(&self, request: &ProviderRequest<'_>, verify: bool) -> Value {
        let headers = request.headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
        let line = json!({
            "provider": request.provider,
            "secret": request.secret,
            "url": request.url,
            "headers": headers.collect::<Map<_, _>>(),
            "body_b64": BASE64.encode(request.body),
            "id": request.id,
            "timestamp": request.timestamp,
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

    /// Sends a line and reads a line. One at a time: answers come in the order of
    /// requests.
    fn exchange(&self, line: &Value) -> String {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let input = pipes.input.as_mut().expect("it has not been dropped");
        let mut answer = String::new();
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .and_then(|()| pipes.answers.read_line(&mut answer))
            .unwrap_or_else(|error| panic!("{} does not answer: {error}", self.language));
        // The program has printed the reason to the test's standard error.
        assert!(!answer.is_empty(), "{} has ended", self.language);
        answer
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        let pipes = self.pipes.get_mut();
        pipes.unwrap_or_else(PoisonError::into_inner).input = None;
        // An error means that the program has ended already.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// The path of a program among the SDKs, which are in the build directory like the
/// test itself.
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
    fn missing_sdks_are_a_failure_that_names_the_remedy() {
        let home = tempfile::tempdir().expect("a directory");
        find_above(&home.path().join("debug/deps/test"), "node/node");
    }

    #[test]
    fn the_program_ends_with_its_input() {
        for mut signer in [Signer::python(), Signer::node()] {
            let pipes = signer.pipes.get_mut().expect("no panic");
            pipes.input = None;
            let ended = signer.program.wait().expect("only this waits");
            assert!(ended.success(), "{}: {ended}", signer.language);
        }
    }
}
