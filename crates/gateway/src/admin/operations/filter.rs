//! Which operations a listing or a bulk change is about.

use onceward_core::record::State;
use onceward_core::store::{Cursor, Filter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admin::extract::parse_time;
use crate::admin::page::invalid_cursor;
use crate::admin::problem::Problem;

/// Operations that match every given member.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationFilter {
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    /// The project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) project: Option<String>,
    /// The endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<String>,
    /// The state: queued, running, completed, failed, released, unknown, paused or expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    /// The key, as its sender sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// Created at this time or later, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
    /// Created before this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<String>,
}

impl OperationFilter {
    pub(super) fn parse(&self) -> Result<Filter, Problem> {
        let time = |name, text: &Option<String>| {
            text.as_deref()
                .map(|text| parse_time(name, text))
                .transpose()
        };
        let mut filter = Filter::default();
        filter.state = self.state.as_deref().map(parse_state).transpose()?;
        filter.since = time("since", &self.since)?;
        filter.before = time("before", &self.before)?;
        filter.tenant.clone_from(&self.tenant);
        filter.project.clone_from(&self.project);
        filter.endpoint.clone_from(&self.endpoint);
        filter.key.clone_from(&self.key);
        Ok(filter)
    }

    /// Whether any operation could fail to match.
    pub(super) fn is_selective(&self) -> bool {
        let members = [
            &self.tenant,
            &self.project,
            &self.endpoint,
            &self.state,
            &self.key,
            &self.since,
            &self.before,
        ];
        members.iter().any(|member| member.is_some())
    }
}

fn parse_state(word: &str) -> Result<State, Problem> {
    let mut states = State::ALL.into_iter();
    states.find(|state| state.as_str() == word).ok_or_else(|| {
        let words = State::ALL.map(State::as_str);
        Problem::bad_request(format!("`state` must be one of {}.", words.join(", ")))
    })
}

pub(super) fn parse_cursor(text: Option<&str>) -> Result<Option<Cursor>, Problem> {
    let cursor = text.map(|text| text.parse().map(Cursor)).transpose();
    cursor.map_err(|_| invalid_cursor())
}
