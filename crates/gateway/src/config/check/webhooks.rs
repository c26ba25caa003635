//! Checks the settings of webhooks, and builds the configured providers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onceward_webhooks::{Generic, GenericSettings, GenericTimestamp, Provider};

use super::checker::Checker;
use super::server::count_or;
use crate::config::source::join;
use crate::config::units::{TIME_MAX, Time};
use crate::config::webhooks::path_problem;
use crate::config::{Webhooks, raw};

/// The largest tolerated difference to a provider's clock: older captured events are
/// refused.
const TOLERANCE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn check_webhooks(raw: &raw::Webhooks, checker: &mut Checker<'_>) -> Webhooks {
    let usual = Webhooks::default();
    let named = |key: &str, raw: Option<&String>, checker: &mut Checker<'_>| {
        let named = checker.check_text(&format!("webhooks.{key}"), raw);
        named.map(Arc::<str>::from)
    };
    Webhooks {
        upstream: named("upstream", raw.upstream.as_ref(), checker),
        path: check_path(raw.path.as_ref(), usual.path, checker),
        class: named("class", raw.class.as_ref(), checker).unwrap_or(usual.class),
        tolerance: check_tolerance(raw, checker),
        same_bytes: raw.same_bytes.unwrap_or(usual.same_bytes),
        overlap: checker.check_time(
            "webhooks.overlap",
            raw.overlap.as_ref(),
            usual.overlap,
            &(Duration::ZERO..=TIME_MAX),
        ),
        deliveries: count_or(raw.deliveries, usual.deliveries),
        deliveries_per_upstream: count_or(
            raw.deliveries_per_upstream,
            usual.deliveries_per_upstream,
        ),
        providers: check_providers(&raw.providers, checker),
    }
}

fn check_path(raw: Option<&String>, usual: String, checker: &mut Checker<'_>) -> String {
    let Some(path) = raw else { return usual };
    // A provider's name needs no escape in a path.
    let Some(problem) = path_problem(&path.replace("{provider}", "provider")) else {
        return path.clone();
    };
    let key = "webhooks.path";
    let problem = format!("{} {problem}", checker.shown(key, path));
    let right = "write \"/webhooks/{provider}\", for example";
    checker.report(key, problem, right);
    usual
}

/// Checks the tolerance. Only "off" turns it off; 0s tolerates no difference.
fn check_tolerance(raw: &raw::Webhooks, checker: &mut Checker<'_>) -> onceward_webhooks::Tolerance {
    use onceward_webhooks::Tolerance::{Off, Within};
    match &raw.tolerance {
        None => onceward_webhooks::Tolerance::default(),
        Some(said) if said.0 == "off" => Off,
        Some(said) => Within(checker.check_time(
            "webhooks.tolerance",
            Some(&Time(said.0.clone())),
            Duration::from_secs(300),
            &(Duration::ZERO..=TOLERANCE_MAX),
        )),
    }
}

fn check_providers(
    raw: &BTreeMap<String, raw::WebhookProvider>,
    checker: &mut Checker<'_>,
) -> BTreeMap<Arc<str>, Provider> {
    let mut providers = BTreeMap::new();
    for (name, raw) in raw {
        let key = join("webhooks.providers", name);
        // A missing key has been reported; the provider would report it again.
        let (Some(signature_header), Some(id)) = (&raw.signature_header, &raw.id) else {
            continue;
        };
        if raw
            .timestamp
            .as_ref()
            .is_some_and(|time| time.header.is_none())
        {
            continue;
        }
        match Generic::new(&generic_settings(name, signature_header, id, raw)) {
            Ok(generic) => {
                let provider = Provider::Generic(Arc::new(generic));
                providers.insert(name.as_str().into(), provider);
            }
            Err(mistakes) => {
                for mistake in mistakes {
                    let key = match mistake.field {
                        "name" => key.clone(),
                        field => format!("{key}.{field}"),
                    };
                    checker.report(&key, mistake.problem, correction_for(mistake.field));
                }
            }
        }
    }
    providers
}

fn generic_settings(
    name: &str,
    signature_header: &str,
    id: &str,
    raw: &raw::WebhookProvider,
) -> GenericSettings {
    let usual = GenericSettings::default();
    let or = |raw: &Option<String>, usual: String| raw.clone().unwrap_or(usual);
    GenericSettings {
        name: name.to_owned(),
        signature_header: signature_header.to_owned(),
        prefix: or(&raw.prefix, usual.prefix),
        separator: raw.separator.clone(),
        algorithm: or(&raw.algorithm, usual.algorithm),
        encoding: or(&raw.encoding, usual.encoding),
        secret: or(&raw.secret, usual.secret),
        signed: or(&raw.signed, usual.signed),
        timestamp: raw.timestamp.as_ref().map(|time| GenericTimestamp {
            header: time.header.clone().unwrap_or_default(),
            unit: or(&time.unit, "s".to_owned()),
        }),
        id: id.to_owned(),
    }
}

/// The correction for a setting.
fn correction_for(field: &str) -> &'static str {
    match field {
        "name" => "give it another name, such as [webhooks.providers.acme]",
        "signature_header" | "timestamp.header" => "write a name such as \"X-Acme-Signature\"",
        "prefix" => "write the prefix of a signature, such as \"sha256=\"",
        "separator" => "write the separator of two signatures, such as \",\"",
        "signed" => "write \"{timestamp}.{body}\", for example",
        "timestamp" => "give it exactly where the provider signs a time",
        "id" => "write \"json:/id\", \"header:X-Event-Id\" or \"form:id\", for example",
        _ => "write one of the listed values",
    }
}
