//! The provider of a webhook and its signature scheme. Both are chosen when the
//! webhook is created, never by a request.

use std::mem::discriminant;
use std::sync::Arc;

use onceward_webhooks::Provider;

use crate::config::{self, Mistake, nearest};

/// The provider of this name, with this scheme or its default one.
pub(super) fn provider(
    webhooks: &config::Webhooks,
    name: &str,
    scheme: Option<&str>,
) -> Result<Provider, Mistake> {
    let known = webhooks
        .provider(name)
        .ok_or_else(|| unknown(webhooks, name))?;
    let Some(scheme) = scheme else {
        return Ok(known);
    };
    known.with_scheme(scheme).map_err(|error| {
        let shown: String = scheme.chars().take(64).collect();
        let right = match error.known {
            [] => "omit it: this provider has one signature scheme".to_owned(),
            known => format!("write one of {}", known.join(", ")),
        };
        Mistake::given(
            "scheme",
            format!("{name} has no signature scheme {shown:?}"),
            right,
        )
    })
}

fn unknown(webhooks: &config::Webhooks, name: &str) -> Mistake {
    let own = webhooks.providers.keys().map(AsRef::as_ref);
    let known: Vec<&str> = Provider::BUILT_IN.into_iter().chain(own).collect();
    let right = match nearest(name, &known) {
        (Some(close), _) => format!("did you mean {close:?}?"),
        (None, known) => format!(
            "write one of {}, or describe it in [webhooks.providers.NAME]",
            known.join(", ")
        ),
    };
    let shown: String = name.chars().take(64).collect();
    Mistake::given("provider", format!("there is no provider {shown:?}"), right)
}

/// Whether both parse the same secrets to the same keys. A configured provider
/// equals only itself until the configuration is read again.
pub(super) fn same(one: &Provider, other: &Provider) -> bool {
    match (one, other) {
        (Provider::Generic(one), Provider::Generic(other)) => Arc::ptr_eq(one, other),
        (Provider::Twilio(one), Provider::Twilio(other)) => one == other,
        _ => discriminant(one) == discriminant(other),
    }
}
