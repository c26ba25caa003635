//! The bytes that stand for kinds. A byte that was ever written keeps its meaning.

use super::WireError;
use crate::caller::SubjectKind;
use crate::class::TtlBasis;
use crate::fingerprint::Algorithm;
use crate::identity::KeySpace;
use crate::record::State;

pub(super) fn subject_code(kind: SubjectKind) -> u8 {
    match kind {
        SubjectKind::User => 0,
        SubjectKind::Service => 1,
        SubjectKind::TenantMember => 2,
        SubjectKind::Client => 3,
    }
}

pub(super) fn subject_kind(code: u8) -> Result<SubjectKind, WireError> {
    match code {
        0 => Ok(SubjectKind::User),
        1 => Ok(SubjectKind::Service),
        2 => Ok(SubjectKind::TenantMember),
        3 => Ok(SubjectKind::Client),
        _ => Err(WireError::Field("subject type")),
    }
}

pub(super) fn algorithm_code(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Json1 => 0,
        Algorithm::Form1 => 1,
        Algorithm::Multipart1 => 2,
        Algorithm::Raw1 => 3,
        Algorithm::JsonHost1 => 4,
        Algorithm::FormHost1 => 5,
        Algorithm::MultipartHost1 => 6,
        Algorithm::RawHost1 => 7,
    }
}

pub(super) fn algorithm(code: u8) -> Result<Algorithm, WireError> {
    Algorithm::ALL
        .into_iter()
        .find(|algorithm| algorithm_code(*algorithm) == code)
        .ok_or(WireError::Field("algorithm"))
}

pub(super) fn space_code(space: KeySpace) -> u8 {
    match space {
        KeySpace::Endpoint => 0,
        KeySpace::Project => 1,
        KeySpace::Tenant => 2,
    }
}

pub(super) fn space(code: u8) -> Result<KeySpace, WireError> {
    KeySpace::ALL
        .into_iter()
        .find(|space| space_code(*space) == code)
        .ok_or(WireError::Field("key space"))
}

pub(super) fn basis_code(basis: TtlBasis) -> u8 {
    match basis {
        TtlBasis::Completion => 0,
        TtlBasis::Creation => 1,
        TtlBasis::Access => 2,
    }
}

pub(super) fn basis(code: u8) -> Result<TtlBasis, WireError> {
    match code {
        0 => Ok(TtlBasis::Completion),
        1 => Ok(TtlBasis::Creation),
        2 => Ok(TtlBasis::Access),
        _ => Err(WireError::Field("ttl_basis")),
    }
}

pub(super) fn state_code(state: State) -> u8 {
    match state {
        State::Queued => 0,
        State::Running => 1,
        State::Completed => 2,
        State::Failed => 3,
        State::Released => 4,
        State::Unknown => 5,
        State::Paused => 6,
        State::Expired => 7,
    }
}

pub(super) fn state(code: u8) -> Result<State, WireError> {
    State::ALL
        .into_iter()
        .find(|state| state_code(*state) == code)
        .ok_or(WireError::Field("state"))
}
