//! Checks the authentication of callers: API keys, JWTs, Unkey, the scheduler.

use std::time::Duration;

use jsonwebtoken::Algorithm;
use onceward_core::caller::{Caller, CallerError, Subject, SubjectKind};

use super::checker::{Checker, SOME_TIME};
use super::server::{SECRET_LENGTH_MIN, find_repeated};
use crate::config::{ApiKeys, Auth, ClaimSource, JwksSource, Jwt, Scheduler, Unkey, raw, url};

/// The largest tolerated difference to an issuer's clock.
const LEEWAY_MAX: Duration = Duration::from_secs(60);
/// The longest cache of Unkey's answers: under a minute.
const CACHE_MAX: Duration = Duration::from_secs(59);
/// The largest tolerated difference to the scheduler's clock.
const TOLERANCE_MAX: Duration = Duration::from_secs(60 * 60);

pub(super) fn check_auth(raw: &raw::Auth, checker: &mut Checker<'_>) -> Auth {
    let jwt = raw
        .jwt
        .iter()
        .enumerate()
        .filter_map(|(at, raw)| check_jwt(&format!("auth.jwt[{at}]"), raw, checker))
        .collect();
    let issuers = raw.jwt.iter().map(|jwt| jwt.issuer.clone());
    for at in find_repeated(issuers) {
        if raw.jwt[at].issuer.is_some() {
            checker.report(
                &format!("auth.jwt[{at}].issuer"),
                "the issuer has another entry",
                "use one entry per issuer, with its audiences as a list",
            );
        }
    }
    Auth {
        api_keys: raw.api_keys.as_ref().map(|_| ApiKeys {}),
        jwt,
        unkey: raw.unkey.as_ref().and_then(|raw| check_unkey(raw, checker)),
        scheduler: raw
            .scheduler
            .as_ref()
            .map(|raw| check_scheduler(raw, checker)),
    }
}

fn check_jwt(key: &str, raw: &raw::Jwt, checker: &mut Checker<'_>) -> Option<Jwt> {
    let at = |name: &str| format!("{key}.{name}");
    let issuer = checker.check_text(&at("issuer"), raw.issuer.as_ref());
    let audience = raw.audience.as_ref().map(raw::OneOrMany::all);
    let audience = audience.unwrap_or_default().to_vec();
    let nobody = audience.is_empty() || audience.iter().any(|one| one.trim().is_empty());
    if raw.audience.is_some() && nobody {
        let right = "write the value of aud in the issuer's tokens for this service";
        checker.report(&at("audience"), "is empty", right);
    }
    let kind = raw.subject_type.map_or(SubjectKind::User, |word| word.0);
    let keys = check_jwks(key, raw, checker);
    let algorithms = check_algorithms(&at("algorithms"), raw.algorithms.as_deref(), checker);
    let tenant = check_claim(&at("tenant"), raw.tenant.as_ref(), checker, |name| {
        Caller::claimed(name, "project", Subject::new(SubjectKind::User, "id")?)
    });
    let project = check_claim(&at("project"), raw.project.as_ref(), checker, |name| {
        Caller::claimed("tenant", name, Subject::new(SubjectKind::User, "id")?)
    });
    let subject = match &raw.subject {
        None if !checker.locations.says(&at("subject")) => {
            Some(ClaimSource::Pointer("/sub".to_owned()))
        }
        raw => check_claim(&at("subject"), raw.as_ref(), checker, |name| {
            Caller::claimed("tenant", "project", Subject::new(kind, name)?)
        }),
    };
    let scopes = raw
        .scopes
        .as_ref()
        .and_then(|text| checker.check_pointer(&at("scopes"), text));
    let leeway = checker.check_time(
        &at("leeway"),
        raw.leeway.as_ref(),
        Duration::from_secs(30),
        &(Duration::ZERO..=LEEWAY_MAX),
    );
    Some(Jwt {
        issuer: issuer?,
        audience,
        keys: keys?,
        algorithms,
        tenant: tenant?,
        project,
        subject: subject?,
        subject_type: kind,
        scopes,
        leeway,
    })
}

fn check_jwks(key: &str, raw: &raw::Jwt, checker: &mut Checker<'_>) -> Option<JwksSource> {
    let (url_key, file_key) = (format!("{key}.jwks_url"), format!("{key}.jwks_file"));
    let right = "write jwks_url = \"https://…\" or jwks_file = \"…\"";
    match (
        checker.locations.says(&url_key),
        checker.locations.says(&file_key),
    ) {
        (true, true) => {
            checker.report(&file_key, "jwks_url is given too", right);
            None
        }
        (false, false) => {
            checker.report(key, "the issuer's keys are not given", right);
            None
        }
        (true, false) => {
            let url = raw.jwks_url.as_ref()?;
            checker.check_url(&url_key, url::guarded(url))?;
            Some(JwksSource::Url(url.clone()))
        }
        (false, true) => checker
            .check_file(&file_key, raw.jwks_file.as_ref())
            .map(JwksSource::File),
    }
}

/// Checks the algorithms. Symmetric ones are refused: a verifier could forge tokens,
/// and so could anyone who knows a public key that was configured as the secret.
fn check_algorithms(
    key: &str,
    raw: Option<&[String]>,
    checker: &mut Checker<'_>,
) -> Vec<Algorithm> {
    let Some(raw) = raw else {
        return vec![Algorithm::RS256, Algorithm::ES256];
    };
    let right = "write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA";
    if raw.is_empty() {
        checker.report(key, "is empty, so no token would be valid", right);
    }
    let mut algorithms = Vec::new();
    for (at, text) in raw.iter().enumerate() {
        let key = format!("{key}[{at}]");
        let shown = checker.shown(&key, text);
        match text.parse::<Algorithm>() {
            Ok(Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512) => {
                let problem = format!("{shown} is symmetric: a verifier could forge tokens");
                checker.report(&key, problem, right);
            }
            Ok(algorithm) => algorithms.push(algorithm),
            Err(_) => checker.report(&key, format!("{shown} is not an algorithm"), right),
        }
    }
    algorithms
}

fn check_claim(
    key: &str,
    raw: Option<&raw::ClaimSource>,
    checker: &mut Checker<'_>,
    named: impl Fn(&str) -> Result<Caller, CallerError>,
) -> Option<ClaimSource> {
    match raw? {
        raw::ClaimSource::Pointer(text) => match text.starts_with('/') {
            true => checker.check_pointer(key, text).map(ClaimSource::Pointer),
            false => {
                let shown = checker.shown(key, text);
                let problem = format!("{shown} is not a JSON Pointer");
                let right = format!(
                    "write \"/{}\" for a claim, or {{ value = {shown} }} for a fixed name",
                    checker.locations.written(key, text)
                );
                checker.report(key, problem, right);
                None
            }
        },
        raw::ClaimSource::Fixed(fixed) => {
            let name = fixed.value.as_ref()?;
            if let Err(error) = named(name) {
                let right = "write another name; names that begin with _ are reserved";
                checker.report(&format!("{key}.value"), error.to_string(), right);
                return None;
            }
            Some(ClaimSource::Fixed(name.clone()))
        }
    }
}

fn check_unkey(raw: &raw::Unkey, checker: &mut Checker<'_>) -> Option<Unkey> {
    let url = raw.url.clone();
    let url = url.unwrap_or_else(|| "https://api.unkey.com".to_owned());
    let good = checker
        .check_url("auth.unkey.url", url::guarded(&url))
        .is_some();
    let mut secret = |name: &str, raw: Option<&raw::Secret>| {
        checker.check_secret(&format!("auth.unkey.{name}"), raw?, 1)
    };
    let root_key = secret("root_key", raw.root_key.as_ref());
    let webhook_root_key = secret("webhook_root_key", raw.webhook_root_key.as_ref());
    let cache = checker.check_time(
        "auth.unkey.cache",
        raw.cache.as_ref(),
        Duration::from_secs(10),
        &(Duration::ZERO..=CACHE_MAX),
    );
    let deadline = checker.check_time(
        "auth.unkey.deadline",
        raw.deadline.as_ref(),
        Duration::from_secs(2),
        &SOME_TIME,
    );
    Some(Unkey {
        url: good.then(|| url.trim_end_matches('/').to_owned())?,
        root_key: root_key?,
        webhook_root_key,
        cache,
        deadline,
    })
}

fn check_scheduler(raw: &raw::Scheduler, checker: &mut Checker<'_>) -> Scheduler {
    let (one, many) = ("auth.scheduler.secret", "auth.scheduler.secrets");
    let right = "write secret = \"${SCHEDULER_SECRET}\", or secrets while they rotate";
    match (checker.locations.says(one), checker.locations.says(many)) {
        (true, true) => checker.report(many, "secret is given too", right),
        (false, false) => checker.report("auth.scheduler", "has no secret", right),
        (false, true) if !checker.locations.says(&format!("{many}[0]")) => {
            checker.report(many, "is empty", right);
        }
        _ => {}
    }
    let given = raw.secret.iter().map(|secret| (one.to_owned(), secret));
    let listed = raw.secrets.iter().enumerate();
    let listed = listed.map(|(at, secret)| (format!("{many}[{at}]"), secret));
    let secrets = given
        .chain(listed)
        .filter_map(|(key, secret)| checker.check_secret(&key, secret, SECRET_LENGTH_MIN))
        .collect();
    Scheduler {
        secrets,
        tolerance: checker.check_time(
            "auth.scheduler.tolerance",
            raw.tolerance.as_ref(),
            Duration::from_secs(5 * 60),
            &(Duration::from_secs(1)..=TOLERANCE_MAX),
        ),
    }
}
