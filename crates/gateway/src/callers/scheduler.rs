//! The trusted scheduler: it signs each request, body included, and acts as
//! `service:scheduler` of the tenant and project that it names.
//!
//! The header is a structured-field dictionary:
//!
//! ```text
//! X-Schedule-Signature: tenant="acme", project="shop", time=1700000000000, v1="9f86…"
//! ```
//!
//! The signature covers the body, so it can be verified only when the body has
//! been read: [`read`] returns a [`SignedCall`], and only [`SignedCall::verify`]
//! turns it into a caller. Within the time limit the same request may be sent
//! again; its idempotency key, which is signed too, makes it one operation.

use std::time::Duration;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit, Mac};
use onceward_core::clock::Timestamp;
use onceward_core::key::{KEY_LENGTH_MAX, Key, KeyError};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::refusal::{AuthError, Refusal};
use super::verified_caller::VerifiedCaller;

/// The first line of signed texts, so that another use of the secret cannot
/// produce one.
const LABEL: &str = "onceward.schedule.v1";
/// The prefix of the scheduler's idempotency keys.
const KEY_PREFIX: &str = "sched:";
/// The shortest secret that is used.
pub(super) const SECRET_BYTES_MIN: usize = 16;

/// A request with a scheduler's signature that has not been verified.
pub(crate) struct SignedCall {
    tenant: String,
    project: String,
    time_ms: u64,
    signature: [u8; 32],
    secrets: SchedulerSecrets,
}

/// The secrets with which the scheduler may have signed.
pub(super) struct SchedulerSecrets {
    /// The secrets that could be read.
    pub(super) read: Vec<SecretString>,
    /// How many could not be read. The scheduler may have signed with one of
    /// them.
    pub(super) unread: usize,
}

/// Omits the secrets and the signature.
impl std::fmt::Debug for SignedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedCall")
            .field("tenant", &self.tenant)
            .field("project", &self.project)
            .field("time_ms", &self.time_ms)
            .finish_non_exhaustive()
    }
}

/// Parses the header and checks its time against the tolerance.
pub(super) fn read(
    line: &str,
    secrets: SchedulerSecrets,
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
    // Reserved names are refused before the body is read.
    VerifiedCaller::scheduler(&tenant, &project).map_err(Refusal::Caller)?;
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

/// A string, or a display string where it is not ASCII.
fn name(dictionary: &sfv::Dictionary, member: &str) -> Result<String, Refusal> {
    match item(dictionary, member)? {
        sfv::BareItem::String(text) => Ok(text.as_str().to_owned()),
        sfv::BareItem::DisplayString(text) => Ok(text.clone()),
        _ => Err(MALFORMED),
    }
}

impl SignedCall {
    /// Verifies that the scheduler signed this body for this endpoint and key.
    /// The key is empty if the request has none.
    pub(crate) fn verify(
        self,
        endpoint: &str,
        key: &str,
        body: &[u8],
    ) -> Result<VerifiedCaller, AuthError> {
        self.check(endpoint, key, body)
            .inspect_err(super::log_refusal)
    }

    fn check(&self, endpoint: &str, key: &str, body: &[u8]) -> Result<VerifiedCaller, AuthError> {
        // Their grammars exclude line feeds; without this the signed text would be
        // ambiguous.
        if endpoint.contains('\n') || key.contains('\n') {
            return Err(Refusal::Signature.into());
        }
        let text = self.text(endpoint, key, body);
        // All secrets are tried, so that the time taken does not reveal which one
        // matched.
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
        VerifiedCaller::scheduler(&self.tenant, &self.project)
            .map_err(|error| Refusal::Caller(error).into())
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

/// Parses the scheduler's key for one run: `sched:{schedule_id}:{ms}`, where the
/// id has the characters of any key. Only an authenticated scheduler may use
/// such keys; others may not have a colon in a key.
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
