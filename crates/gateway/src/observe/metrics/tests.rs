//! The rendered metrics, and the bounds of their number.

use onceward_core::caller::{Subject, SubjectKind};
use onceward_core::record::State;
use onceward_http::run::Outcome;

use super::*;
use crate::config::Policy;

fn metrics() -> Metrics {
    Metrics::new()
}

fn caller(tenant: &str, project: &str) -> Caller {
    let subject = Subject::new(SubjectKind::User, "u").expect("a good subject");
    Caller::trusted(tenant, project, subject).expect("a good caller")
}

fn page(metrics: &Metrics) -> String {
    metrics.counted()
}

fn series(metrics: &Metrics) -> usize {
    let page = page(metrics);
    page.lines().filter(|line| !line.starts_with('#')).count()
}

#[track_caller]
fn assert_line(metrics: &Metrics, line: &str) {
    let page = page(metrics);
    assert!(
        page.lines().any(|is| is == line),
        "{line} is not in\n{page}"
    );
}

#[test]
fn counters_have_the_names_and_labels_of_the_contract() {
    let metrics = metrics();
    let route = metrics.of(&caller("acme", "shop"), "payments.create", "financial");
    route.key_present(Policy::Accepted);
    route.key_missing();
    route.key_invalid("charset");
    route.translation_failed("stripe");
    route.handler_internal_hit();
    route.collision();
    route.ended(Outcome::Replayed(State::Completed));
    route.ended(Outcome::Refused(Code::KeyReused));
    let labels = r#"tenant="acme",project="shop",endpoint="payments.create""#;
    for line in [
        format!(r#"idempotency_key_present_total{{{labels},case="A"}} 1"#),
        format!(r#"idempotency_key_missing_total{{{labels},class="financial"}} 1"#),
        format!(r#"idempotency_key_invalid_total{{{labels},reason="charset"}} 1"#),
        format!(r#"transport_translation_failed_total{{{labels},provider="stripe"}} 1"#),
        format!(r#"idempotency_cache_hit_total{{{labels},restate_status="completed"}} 1"#),
        format!(r#"idempotency_cache_hit_total{{{labels},restate_status="failed"}} 0"#),
        format!(r#"handler_internal_dedup_hit_total{{{labels}}} 1"#),
        format!(r#"idempotency_key_collision_total{{{labels}}} 2"#),
        format!(r#"onceward_protected_total{{{labels},outcome="key-reused"}} 1"#),
    ] {
        assert_line(&metrics, &line);
    }
}

#[test]
fn a_replay_that_the_handler_reports_is_a_hit() {
    let metrics = metrics();
    let route = metrics.of(&Caller::local(), "e", "interactive");
    let says = |value| {
        let value = http::HeaderValue::from_static(value);
        route.handler_answered(&http::HeaderMap::from_iter([(
            onceward_http::fields::IDEMPOTENT_REPLAYED,
            value,
        )]));
    };
    says("true");
    says("false");
    route.handler_answered(&http::HeaderMap::new());
    assert_line(
        &metrics,
        r#"handler_internal_dedup_hit_total{tenant="_local",project="_local",endpoint="e"} 1"#,
    );
}

#[test]
fn ten_thousand_callers_make_no_more_series_than_the_limit() {
    let metrics = metrics();
    metrics.set_label_values(3);
    let ask = |number: usize| {
        let caller = caller(&format!("t{number}"), "p");
        metrics.of(&caller, "e", "c").key_present(Policy::Accepted);
        metrics.limited(&caller, Limit::Requests);
    };
    (0..4).for_each(ask);
    let few = series(&metrics);
    (0..10_000).for_each(ask);
    assert_eq!(series(&metrics), few);
    let labels = r#"tenant="other",project="other",endpoint="e""#;
    let line = format!(r#"idempotency_key_present_total{{{labels},case="A"}} 9998"#);
    assert_line(&metrics, &line);
    assert_line(
        &metrics,
        r#"idempotency_key_present_total{tenant="t0",project="p",endpoint="e",case="A"} 2"#,
    );
    assert_line(
        &metrics,
        r#"onceward_limited_total{tenant="other",limit="requests"} 9998"#,
    );
}

#[test]
fn a_higher_limit_admits_more_series_and_a_lower_one_removes_none() {
    let metrics = metrics();
    metrics.set_label_values(0);
    let asks = |tenant| {
        metrics
            .of(&caller(tenant, "p"), "e", "c")
            .key_present(Policy::Accepted);
    };
    asks("a");
    metrics.set_label_values(1);
    asks("a");
    metrics.set_label_values(0);
    asks("a");
    asks("b");
    let line = |tenant, project, count| {
        format!(
            r#"idempotency_key_present_total{{tenant="{tenant}",project="{project}",endpoint="e",case="A"}} {count}"#
        )
    };
    assert_line(&metrics, &line("other", "other", 2));
    assert_line(&metrics, &line("a", "p", 2));
}

#[test]
fn the_same_caller_on_the_same_route_has_the_same_counters() {
    let metrics = metrics();
    let of = |class| metrics.of(&caller("a", "p"), "e", class);
    assert!(Arc::ptr_eq(&of("c"), &of("c")));
    assert!(!Arc::ptr_eq(&of("c"), &of("d")));
}

#[test]
fn many_threads_count_together() {
    let metrics = metrics();
    metrics.set_label_values(50);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..1_000 {
                    let caller = caller(&format!("t{}", number % 100), "p");
                    metrics.of(&caller, "e", "c").key_present(Policy::Accepted);
                }
            });
        }
    });
    let page = page(&metrics);
    let counts: Vec<u64> = page
        .lines()
        .filter(|line| line.starts_with("idempotency_key_present_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    assert_eq!(counts.len(), 51);
    assert_eq!(counts.iter().sum::<u64>(), 4_000);
}

#[test]
fn endless_new_endpoints_are_bounded() {
    let metrics = metrics();
    for number in 0..5_000 {
        let endpoint = format!("e{number}");
        metrics.request_took(Some(&endpoint), StatusCode::OK, Duration::ZERO);
        metrics.of(&caller("a", "p"), &endpoint, "c").key_missing();
    }
    let page = page(&metrics);
    let count = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(count("idempotency_key_missing_total{"), 2049);
    assert_eq!(count("onceward_request_duration_seconds_count{"), 1025);
}

#[test]
fn a_dropped_timer_is_recorded_as_lost() {
    let metrics = metrics();
    let upstream = metrics.upstream("payments");
    upstream.begin().end(SendOutcome::Answered);
    upstream.begin().end(SendOutcome::NotSent);
    drop(upstream.begin());
    for outcome in ["answered", "not-sent", "lost"] {
        assert_line(
            &metrics,
            &format!(
                r#"onceward_upstream_duration_seconds_count{{upstream="payments",outcome="{outcome}"}} 1"#
            ),
        );
    }
}

#[test]
fn operators_counters_have_their_names_and_labels() {
    let metrics = metrics();
    metrics.refused(Code::NoRoute);
    metrics.auth_refused(Some(KnownBy::Jwt), "expired");
    metrics.auth_refused(None, "missing");
    metrics.jwks_failed("https://issuer.example", 1);
    metrics.reload_failed();
    assert_line(&metrics, "onceward_reload_successful 0");
    metrics.reload_done();
    for line in [
        r#"onceward_refused_total{code="no-route"} 1"#,
        r#"onceward_auth_refused_total{method="jwt",reason="expired"} 1"#,
        r#"onceward_auth_refused_total{method="none",reason="missing"} 1"#,
        r#"onceward_jwks_refresh_failed_total{issuer="https://issuer.example"} 1"#,
        r#"onceward_reloads_total{outcome="failed"} 1"#,
        r#"onceward_reloads_total{outcome="done"} 1"#,
        "onceward_reload_successful 1",
        r#"onceward_build_info{version="0.1.0"} 1"#,
    ] {
        assert_line(&metrics, line);
    }
}

#[test]
fn every_name_is_documented() {
    let registry = include_str!("../../../../../docs/observing.md");
    for name in names::all() {
        assert!(
            registry.contains(&format!("`{name}")),
            "{name} is not in docs/observing.md"
        );
    }
}
