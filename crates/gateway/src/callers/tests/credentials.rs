//! One credential in one place, and the access of callers to routes.

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use onceward_core::caller::{Subject, SubjectKind};
use onceward_http::problem::ProblemLinks;
use rstest::rstest;

use super::{callers, send_headers};
use crate::callers::refusal::{Prohibition, Refusal};
use crate::callers::{AuthError, VerifiedCaller};
use crate::config::{self, Access, KnownBy, SubjectPattern};

#[rstest]
#[case::nothing(&[], AuthError::Missing)]
#[case::basic(&[("authorization", "Basic YTpi")], Refusal::Scheme.into())]
#[case::scheme_alone(&[("authorization", "Bearer")], Refusal::Scheme.into())]
#[case::nothing_behind_it(&[("authorization", "Bearer ")], Refusal::Malformed("characters").into())]
#[case::tab(&[("authorization", "Bearer\tabc")], Refusal::Scheme.into())]
#[case::blank_before(&[("authorization", " Bearer abc")], Refusal::Scheme.into())]
#[case::blank_inside(&[("authorization", "Bearer abc def")], Refusal::Malformed("characters").into())]
#[case::blank_behind(&[("authorization", "Bearer abc ")], Refusal::Malformed("characters").into())]
#[case::joined_lines(&[("authorization", "Bearer abc, Bearer def")], Refusal::Malformed("characters").into())]
#[case::two_lines(
    &[("authorization", "Bearer abc"), ("authorization", "Bearer def")],
    Refusal::Repeated.into()
)]
#[case::the_same_line_twice(
    &[("authorization", "Bearer abc"), ("authorization", "Bearer abc")],
    Refusal::Repeated.into()
)]
#[case::two_keys(&[("x-api-key", "a"), ("x-api-key", "b")], Refusal::Repeated.into())]
#[case::bearer_and_key(&[("authorization", "Bearer abc"), ("x-api-key", "abc")], Refusal::Several.into())]
#[case::basic_and_key(&[("authorization", "Basic YTpi"), ("x-api-key", "abc")], Refusal::Several.into())]
#[case::key_and_signature(
    &[("x-api-key", "abc"), ("x-schedule-signature", "tenant=\"a\"")],
    Refusal::Several.into()
)]
#[case::two_signatures(
    &[("x-schedule-signature", "tenant=\"a\""), ("x-schedule-signature", "v1=\"b\"")],
    Refusal::Repeated.into()
)]
#[case::empty_key(&[("x-api-key", "")], Refusal::Malformed("characters").into())]
#[case::token_as_a_key(&[("x-api-key", "a.b.c")], Refusal::NotTaken("a token in X-Api-Key").into())]
#[case::token_without_issuers(&[("authorization", "Bearer a.b.c")], Refusal::Malformed("not a signed token").into())]
#[case::foreign_key_without_unkey(&[("authorization", "bEaReR abc")], Refusal::NotTaken("foreign keys").into())]
#[tokio::test]
async fn missing_and_multiple_credentials_are_refused(
    #[case] lines: &[(&'static str, &str)],
    #[case] want: AuthError,
) {
    let callers = callers(&config::Auth::default()).await;
    assert_eq!(send_headers(&callers, lines).await, Err(want));
}

#[tokio::test]
async fn a_credential_has_at_most_8_kib() {
    let callers = callers(&config::Auth::default()).await;
    let long = format!("Bearer {}", "a".repeat(8 * 1024));
    let error = send_headers(&callers, &[("authorization", &long)]).await;
    assert_eq!(error, Err(Refusal::TooLong.into()));
}

#[rstest]
#[case(AuthError::Missing, 401, "unauthenticated", None)]
#[case(Refusal::Signature.into(), 401, "unauthenticated", None)]
#[case(Prohibition::Scope.into(), 403, "forbidden", None)]
#[case(AuthError::TooMany, 429, "too-many-requests", Some("1"))]
#[case(AuthError::Unavailable, 503, "auth-unavailable", Some("1"))]
fn each_error_has_its_problem(
    #[case] error: AuthError,
    #[case] status: u16,
    #[case] code: &str,
    #[case] retry_after: Option<&str>,
) {
    let problem = error.problem();
    assert_eq!(problem.code().as_str(), code);
    let response = problem.to_response(&ProblemLinks::none(), "/payments");
    assert_eq!(response.status().as_u16(), status);
    let header = |name| {
        response
            .headers()
            .get(name)
            .map(|value| value.to_str().expect("text"))
    };
    assert_eq!(header(RETRY_AFTER), retry_after);
    let challenge = (status == 401).then_some("Bearer");
    assert_eq!(header(WWW_AUTHENTICATE), challenge);
}

#[test]
fn the_clients_text_does_not_reveal_which_check_failed() {
    let detail = |refusal: Refusal| format!("{:?}", AuthError::from(refusal).problem());
    let want = detail(Refusal::UnknownKey);
    for refusal in [
        Refusal::WrongSecret,
        Refusal::Revoked,
        Refusal::Issuer,
        Refusal::Audience,
        Refusal::Algorithm,
        Refusal::NoKey,
        Refusal::Signature,
        Refusal::Claim("tenant"),
        Refusal::NotTaken("API keys"),
    ] {
        assert_eq!(detail(refusal), want);
    }
}

fn known() -> VerifiedCaller {
    let subject = Subject::new(SubjectKind::Service, "billing").expect("a subject");
    let scopes = vec!["pay".to_owned(), "refund".to_owned()];
    VerifiedCaller::claimed("acme", None, subject, scopes, KnownBy::ApiKey).expect("known")
}

fn pattern(kind: SubjectKind, id: Option<&str>) -> SubjectPattern {
    SubjectPattern {
        kind,
        id: id.map(str::to_owned),
    }
}

#[rstest]
#[case::anyone(Access::Anyone, Ok(()))]
#[case::all_callers(Access::callers(), Ok(()))]
#[case::by_key(by(&[KnownBy::Jwt, KnownBy::ApiKey]), Ok(()))]
#[case::by_token_only(by(&[KnownBy::Jwt]), Err(Prohibition::KnownBy))]
#[case::services(subjects(pattern(SubjectKind::Service, None)), Ok(()))]
#[case::this_service(subjects(pattern(SubjectKind::Service, Some("billing"))), Ok(()))]
#[case::another(
    subjects(pattern(SubjectKind::Service, Some("bill"))),
    Err(Prohibition::Subject)
)]
#[case::users(
    subjects(pattern(SubjectKind::User, Some("billing"))),
    Err(Prohibition::Subject)
)]
#[case::a_scope(scopes(&["pay"]), Ok(()))]
#[case::both_scopes(scopes(&["refund", "pay"]), Ok(()))]
#[case::one_too_many(scopes(&["pay", "admin"]), Err(Prohibition::Scope))]
#[case::a_part_of_a_scope(scopes(&["pa"]), Err(Prohibition::Scope))]
fn a_route_admits_the_callers_that_it_allows(
    #[case] access: Access,
    #[case] want: Result<(), Prohibition>,
) {
    assert_eq!(known().may(&access), want.map_err(AuthError::from));
}

fn by(by: &[KnownBy]) -> Access {
    Access::Callers {
        by: by.to_vec(),
        subjects: Vec::new(),
        scopes: Vec::new(),
    }
}

fn subjects(pattern: SubjectPattern) -> Access {
    Access::Callers {
        by: Vec::new(),
        subjects: vec![pattern],
        scopes: Vec::new(),
    }
}

fn scopes(scopes: &[&str]) -> Access {
    Access::Callers {
        by: Vec::new(),
        subjects: Vec::new(),
        scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
    }
}
