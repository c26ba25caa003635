//! The trusted scheduler: it signs each call, body included, and acts as
//! `service:scheduler` of the tenant and project that it names.
//!
//! The header is a structured-field dictionary:
//!
//! ```text
//! X-Schedule-Signature: tenant="acme", project="shop", time=1700000000000, v1="9f86…"
//! ```
//!
//! Since the signature covers the body, a call is proven only when the body was
//! read: [`read`] gives a [`SignedCall`], and nothing but [`SignedCall::verify`]
//! makes a caller of it. Inside the time limit the same call may come again;
//! its key, which is signed too, makes that one operation.

use std::time::Duration;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit, Mac};
use onceward_core::clock::Timestamp;
use onceward_core::key::{KEY_LENGTH_MAX, Key, KeyError};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::known::Known;
use super::refusal::{AuthError, Refusal};

/// What signed texts begin with, so that no other use of a secret makes one.
const LABEL: &str = "onceward.schedule.v1";
/// What the scheduler's keys begin with.
const KEY_PREFIX: &str = "sched:";
/// The shortest secret that is one.
pub(super) const SECRET_BYTES_MIN: usize = 16;

/// A call that says it is the scheduler's.
pub(crate) struct SignedCall {
    tenant: String,
    project: String,
    time_ms: u64,
    signature: [u8; 32],
    secrets: Secrets,
}

/// What the scheduler may have signed with.
pub(super) struct Secrets {
    /// Those that could be read.
    pub(super) read: Vec<SecretString>,
    /// How many could not; it may have been one of them.
    pub(super) unread: usize,
}

/// Without the secrets, and without the signature.
impl std::fmt::Debug for SignedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedCall")
            .field("tenant", &self.tenant)
            .field("project", &self.project)
            .field("time_ms", &self.time_ms)
            .finish_non_exhaustive()
    }
}

/// What the header says, if its time is near enough.
pub(super) fn read(
    line: &str,
    secrets: Secrets,
    tolerance: Duration,
    now: Timestamp,
) -> Result<SignedCall, Refusal> {
    let dictionary = sfv::Parser::new(line).parse::<sfv::Dictionary>();
    let dictionary = dictionary.map_err(|_| MALFORMED)?;
    let tenant = name(&dictionary, "tenant")?;
    let project = name(&dictionary, "project")?;
    let time_ms = match item(&dictionary, "time")? {
        sfv::BareItem::Integer(ms) => u64::try_from(i64::from(*ms)).map_err(|_| MALFORMED)?,
        _ => return Err(MALFORMED),
    };
    let signature = HEXLOWER_PERMISSIVE.decode(name(&dictionary, "v1")?.as_bytes());
    let signature = signature.ok().and_then(|bytes| bytes.try_into().ok());
    // Names that nobody outside may use are refused before a body is read.
    Known::scheduler(&tenant, &project).map_err(Refusal::Caller)?;
    let signed_at = Timestamp::from_unix_ms(time_ms);
    if now.since(signed_at).max(signed_at.since(now)) > tolerance {
        return Err(Refusal::Time);
    }
    Ok(SignedCall {
        tenant,
        project,
        time_ms,
        signature: signature.ok_or(MALFORMED)?,
        secrets,
    })
}

const MALFORMED: Refusal = Refusal::Malformed("the schedule's signature");

fn item<'a>(dictionary: &'a sfv::Dictionary, member: &str) -> Result<&'a sfv::BareItem, Refusal> {
    match dictionary.get(member) {
        Some(sfv::ListEntry::Item(item)) => Ok(&item.bare_item),
        _ => Err(MALFORMED),
    }
}

/// Text: a string, or a display string where it is not ASCII.
fn name(dictionary: &sfv::Dictionary, member: &str) -> Result<String, Refusal> {
    match item(dictionary, member)? {
        sfv::BareItem::String(text) => Ok(text.as_str().to_owned()),
        sfv::BareItem::DisplayString(text) => Ok(text.clone()),
        _ => Err(MALFORMED),
    }
}

impl SignedCall {
    /// The scheduler, if it signed this body for this endpoint and key. The key
    /// is the one in the request, empty where there is none.
    pub(crate) fn verify(self, endpoint: &str, key: &str, body: &[u8]) -> Result<Known, AuthError> {
        self.judge(endpoint, key, body).inspect_err(super::note)
    }

    fn judge(&self, endpoint: &str, key: &str, body: &[u8]) -> Result<Known, AuthError> {
        // Neither can hold one, by their grammars; the text is unambiguous only then.
        if endpoint.contains('\n') || key.contains('\n') {
            return Err(Refusal::Signature.into());
        }
        let text = self.text(endpoint, key, body);
        // All secrets are tried, so that time does not tell which one it was.
        let good = self
            .secrets
            .read
            .iter()
            .map(|secret| mac(secret, text.as_bytes()).ct_eq(&self.signature))
            .fold(Choice::from(0), |any, one| any | one);
        if !bool::from(good) {
            return Err(match self.secrets.unread {
                0 => Refusal::Signature.into(),
                _ => AuthError::Unavailable,
            });
        }
        Known::scheduler(&self.tenant, &self.project).map_err(|error| Refusal::Caller(error).into())
    }

    fn text(&self, endpoint: &str, key: &str, body: &[u8]) -> String {
        let Self {
            tenant,
            project,
            time_ms,
            ..
        } = self;
        let body = HEXLOWER.encode(&Sha256::digest(body));
        format!("{LABEL}\n{tenant}\n{project}\n{endpoint}\n{key}\n{time_ms}\n{body}")
    }
}

fn mac(secret: &SecretString, text: &[u8]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.expose_secret().as_bytes())
        .expect("HMAC takes a key of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

/// The scheduler's key for one tick: `sched:{schedule_id}:{ms}`, the id in the
/// grammar of the header. For a proven scheduler only; nobody else may send a
/// colon.
pub(crate) fn schedule_key(raw: &str) -> Result<Key, KeyError> {
    if raw.is_empty() {
        return Err(KeyError::Empty);
    }
    if raw.len() > KEY_LENGTH_MAX {
        return Err(KeyError::TooLong);
    }
    let rest = raw.strip_prefix(KEY_PREFIX).ok_or(KeyError::Format)?;
    let (id, ms) = rest.split_once(':').ok_or(KeyError::Format)?;
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    if id.is_empty() || ms.is_empty() || !ms.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(KeyError::Format);
    }
    if !id.bytes().all(unreserved) {
        return Err(KeyError::Charset);
    }
    Key::parse_wide(raw)
}
