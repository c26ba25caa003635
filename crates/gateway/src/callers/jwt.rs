//! Tokens of issuers: JWTs in their compact form, signed and not encrypted.
//!
//! A token's header selects only the key id. The issuer and its algorithms are
//! configured; the key is one of that issuer's own and is bound to its
//! algorithms. `jku`, `x5u`, `x5c` and `jwk` are ignored, and `crit` is refused,
//! because no extension is supported. Except for `iss`, claims are used only
//! after the signature was verified.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::Algorithm;
use onceward_core::caller::Subject;
use onceward_core::clock::Timestamp;
use quick_cache::sync::Cache;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::WallClock;
use super::jwks::{KID_BYTES_MAX, KeyLookup, KeyRing, KeySet};
use super::refusal::{AuthError, Refusal};
use super::strict;
use super::verified_caller::VerifiedCaller;
use crate::config::{self, ClaimSource, KnownBy};

/// The largest leeway for an issuer's clock, whatever is configured.
const LEEWAY_MAX: Duration = Duration::from_secs(60);
/// The latest time that is accepted: the year 5138, in seconds.
const TIME_MAX: f64 = 1e11;
/// The accepted values of `typ`. Other tokens of the same issuer (logout tokens,
/// security events) have valid signatures too and another meaning.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/jwt", "application/at+jwt"];
/// How many verified tokens are cached.
const VERIFIED_MAX: usize = 10_000;
/// How long a verified token is cached at most.
const VERIFIED_FOR: Duration = Duration::from_secs(60);

/// All issuers whose tokens are accepted.
pub(super) struct Issuers {
    all: Vec<Issuer>,
    clock: WallClock,
    verified: Cache<[u8; 32], VerifiedToken>,
}

/// An issuer and its keys.
pub(super) struct Issuer {
    pub(super) rules: config::Jwt,
    pub(super) keys: Arc<KeyRing>,
}

/// A cached verification. It is valid until the token expires, and only while
/// its issuer's keys are the same.
#[derive(Clone)]
struct VerifiedToken {
    known: VerifiedCaller,
    issuer: usize,
    keys: Arc<KeySet>,
    since: Timestamp,
    until: Timestamp,
}

impl Issuers {
    pub(super) fn new(all: Vec<Issuer>, clock: WallClock) -> Self {
        Self {
            all,
            clock,
            verified: Cache::new(VERIFIED_MAX),
        }
    }

    pub(super) fn all(&self) -> &[Issuer] {
        &self.all
    }

    /// Verifies a token and returns the caller that it names.
    pub(super) async fn verify(&self, token: &str) -> Result<VerifiedCaller, AuthError> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.cached(&digest) {
            return Ok(known);
        }
        let unverified = UnverifiedToken::parse(token)?;
        let (index, issuer) = self.issuer_of(&unverified)?;
        let algorithm = unverified.algorithm(&issuer.rules)?;
        let kid = unverified.kid()?;
        let keys = match issuer.keys.find(kid, algorithm).await {
            KeyLookup::Found(keys) => keys,
            KeyLookup::NoSuchKey => return Err(Refusal::NoKey.into()),
            KeyLookup::Unavailable => return Err(AuthError::Unavailable),
        };
        let key = keys.find(kid, algorithm).ok_or(Refusal::NoKey)?;
        if !key.verifies(algorithm, unverified.message, &unverified.signature) {
            return Err(Refusal::Signature.into());
        }
        let now = self.clock.now();
        let claims = Value::Object(unverified.claims);
        let until = check_times(&claims, issuer.rules.leeway.min(LEEWAY_MAX), now)?;
        check_audience(&claims, &issuer.rules.audience)?;
        let known = read_caller(&claims, &issuer.rules)?;
        let verified = VerifiedToken {
            known: known.clone(),
            issuer: index,
            keys,
            since: now,
            until: until.min(now.plus(VERIFIED_FOR)),
        };
        self.verified.insert(digest, verified);
        Ok(known)
    }

    /// The caller of a cached token, if verifying it again would have the same
    /// result: it has not expired, the clock was not set back, and the issuer's
    /// keys are the same.
    fn cached(&self, digest: &[u8; 32]) -> Option<VerifiedCaller> {
        let verified = self.verified.get(digest)?;
        let now = self.clock.now();
        let in_time = verified.since <= now && now < verified.until;
        let keys = self.all.get(verified.issuer)?.keys.current()?;
        (in_time && Arc::ptr_eq(&keys, &verified.keys)).then_some(verified.known)
    }

    fn issuer_of(&self, token: &UnverifiedToken<'_>) -> Result<(usize, &Issuer), Refusal> {
        let name = token.claims.get("iss").and_then(Value::as_str);
        let name = name.ok_or(Refusal::Claim("iss"))?;
        let mut all = self.all.iter().enumerate();
        all.find(|(_, issuer)| issuer.rules.issuer == name)
            .ok_or(Refusal::Issuer)
    }
}

/// A parsed token whose signature has not been verified.
struct UnverifiedToken<'a> {
    header: Map<String, Value>,
    claims: Map<String, Value>,
    message: &'a [u8],
    signature: Vec<u8>,
}

impl<'a> UnverifiedToken<'a> {
    fn parse(token: &'a str) -> Result<Self, Refusal> {
        let (message, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, claims) = message.split_once('.').ok_or(MALFORMED)?;
        if claims.contains('.') {
            return Err(MALFORMED);
        }
        let parsed = Self {
            header: strict::object(&decode(header)?).map_err(|_| MALFORMED)?,
            claims: strict::object(&decode(claims)?).map_err(|_| MALFORMED)?,
            message: message.as_bytes(),
            signature: decode(signature)?,
        };
        parsed.check_header()?;
        Ok(parsed)
    }

    fn check_header(&self) -> Result<(), Refusal> {
        if self.header.contains_key("crit") {
            return Err(Refusal::Critical);
        }
        match self.header.get("typ") {
            None => Ok(()),
            Some(Value::String(kind)) if TYPES.contains(&kind.to_ascii_lowercase().as_str()) => {
                Ok(())
            }
            Some(_) => Err(Refusal::Malformed("typ")),
        }
    }

    /// The algorithm in the header, spelled exactly, if the issuer allows it.
    fn algorithm(&self, rules: &config::Jwt) -> Result<Algorithm, Refusal> {
        let name = self.header.get("alg").and_then(Value::as_str);
        let algorithm = name.and_then(|name| Algorithm::from_str(name).ok());
        algorithm
            .filter(|algorithm| rules.algorithms.contains(algorithm))
            .ok_or(Refusal::Algorithm)
    }

    fn kid(&self) -> Result<Option<&str>, Refusal> {
        match self.header.get("kid") {
            None => Ok(None),
            Some(Value::String(kid)) if kid.len() <= KID_BYTES_MAX => Ok(Some(kid)),
            Some(_) => Err(Refusal::Malformed("kid")),
        }
    }
}

const MALFORMED: Refusal = Refusal::Malformed("not a signed token");

fn decode(part: &str) -> Result<Vec<u8>, Refusal> {
    BASE64URL_NOPAD
        .decode(part.as_bytes())
        .map_err(|_| MALFORMED)
}

/// Checks `exp`, `nbf` and `iat`, and returns when the token expires.
fn check_times(claims: &Value, leeway: Duration, now: Timestamp) -> Result<Timestamp, Refusal> {
    let until = time(claims, "exp")?
        .ok_or(Refusal::Claim("exp"))?
        .plus(leeway);
    if now >= until {
        return Err(Refusal::Expired);
    }
    for begins in ["nbf", "iat"] {
        if time(claims, begins)?.is_some_and(|begin| begin > now.plus(leeway)) {
            return Err(Refusal::NotYetValid);
        }
    }
    Ok(until)
}

fn time(claims: &Value, name: &'static str) -> Result<Option<Timestamp>, Refusal> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let seconds = value.as_f64().ok_or(Refusal::Claim(name))?;
    if !(0.0..=TIME_MAX).contains(&seconds) {
        return Err(Refusal::Claim(name));
    }
    Ok(Some(
        Timestamp::default().plus(Duration::from_secs_f64(seconds)),
    ))
}

fn check_audience(claims: &Value, ours: &[String]) -> Result<(), Refusal> {
    let is_ours = |name: &Value| {
        let name = name.as_str();
        name.is_some_and(|name| ours.iter().any(|our| our == name))
    };
    let good = match claims.get("aud") {
        Some(Value::Array(names)) => names.iter().any(is_ours),
        Some(name) => is_ours(name),
        None => return Err(Refusal::Claim("aud")),
    };
    good.then_some(()).ok_or(Refusal::Audience)
}

/// The caller that the claims name by the issuer's rules.
fn read_caller(claims: &Value, rules: &config::Jwt) -> Result<VerifiedCaller, Refusal> {
    let tenant = text(claims, &rules.tenant, "tenant")?.ok_or(Refusal::Claim("tenant"))?;
    let project = match &rules.project {
        None => None,
        Some(place) => text(claims, place, "project")?,
    };
    let subject = text(claims, &rules.subject, "subject")?.ok_or(Refusal::Claim("subject"))?;
    let subject = Subject::new(rules.subject_type, subject).map_err(Refusal::Caller)?;
    let scopes = match &rules.scopes {
        None => Vec::new(),
        Some(pointer) => scopes(claims.pointer(pointer))?,
    };
    VerifiedCaller::claimed(tenant, project, subject, scopes, KnownBy::Jwt).map_err(Refusal::Caller)
}

/// A name. It must be a string: with numbers it would be unclear whether `1`,
/// `1.0` and `"1"` are one caller.
fn text<'a>(
    claims: &'a Value,
    source: &'a ClaimSource,
    what: &'static str,
) -> Result<Option<&'a str>, Refusal> {
    match source {
        ClaimSource::Fixed(name) => Ok(Some(name)),
        ClaimSource::Pointer(pointer) => match claims.pointer(pointer) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(_) => Err(Refusal::Claim(what)),
        },
    }
}

/// Scopes as a list, or as a string with blanks between them.
fn scopes(claim: Option<&Value>) -> Result<Vec<String>, Refusal> {
    match claim {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(words)) => {
            Ok(words.split_ascii_whitespace().map(str::to_owned).collect())
        }
        Some(Value::Array(words)) => {
            let words = words.iter().map(|word| word.as_str().map(str::to_owned));
            words.collect::<Option<_>>().ok_or(Refusal::Claim("scopes"))
        }
        Some(_) => Err(Refusal::Claim("scopes")),
    }
}
